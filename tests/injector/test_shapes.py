"""Whatever stands in a manifest, it is worked on or said what is wrong with it: nothing makes a command fail."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carpool_injector.core import model, refusals
from carpool_injector.objects import explanation, manifests, shapes

CONTAINER = {"name": "server", "image": "a", "args": ["--http_port=8080"], "env": [{"name": "A", "value": "b"}]}
TEMPLATE = {"metadata": {"labels": {"app": "web"}, "annotations": {"a": "b"}}, "spec": {"containers": [CONTAINER]}}
DEPLOYMENT: model.Object = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": TEMPLATE},
}
CRON_JOB: model.Object = {
    "apiVersion": "batch/v1",
    "kind": "CronJob",
    "metadata": {"name": "web"},
    "spec": {"jobTemplate": {"spec": {"template": {"spec": {"containers": [CONTAINER]}}}}},
}
PREDICTOR = {
    "containers": [{**CONTAINER, "name": "kserve-container", "ports": [{"containerPort": 9000, "name": "x"}]}],
    "batcher": {"maxBatchSize": 3},
    "logger": {"mode": "all"},
    "volumes": [{"name": "v", "emptyDir": {}}],
}
ISVC: model.Object = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "iris", "labels": {"carpool.dev/inject": "true"}, "annotations": {"carpool.dev/port": "80"}},
    "spec": {"predictor": PREDICTOR, "transformer": {"containers": [{"image": "x"}]}},
}
KNATIVE: model.Object = {
    "apiVersion": "serving.knative.dev/v1",
    "kind": "Service",
    "spec": {"template": {"metadata": {}, "spec": {"containerConcurrency": 2, "containers": [{"image": "a"}]}}},
}
PLAIN = [DEPLOYMENT, CRON_JOB, ISVC, KNATIVE, {"apiVersion": "v1", "kind": "List", "items": [DEPLOYMENT]}]
JUNK = [None, [], {}, "x", 1, True, [None], [1], ["x"], {"a": 1}, {"a": None}, [{}], -1, 1.5, "true", "8080"]

DEFAULT = manifests.Injector()
SETTINGS = manifests.Injector(annotations={"carpool.dev/timeout": "5"})
ONLY = manifests.Injector(opted_in_only=True)
DECLARED = manifests.Injector(without_webhook=True)


def explained(thing: model.Object) -> tuple[model.Object, None]:
    explanation.explain(thing, DEFAULT)
    return thing, None


CHANGES: list[manifests.Change] = [
    lambda thing: manifests.inject(thing, SETTINGS),
    lambda thing: manifests.inject(thing, ONLY),
    lambda thing: manifests.inject(thing, DECLARED),
    manifests.uninject,
    explained,
]
INJECTED = [manifests.apply(thing, lambda each: manifests.inject(each, DEFAULT))[0] for thing in PLAIN]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in inner:
        yield from places(held, (*path, key))


def put(value: Any, path: tuple[Any, ...], junk: Any) -> Any:
    if not path:
        return junk
    result = copy.copy(value)
    result[path[0]] = put(value[path[0]], path[1:], junk)
    return result


@given(seed=st.integers(0, 2**32))
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_stands_somewhere_is_worked_on_or_told_and_never_changed(change: manifests.Change, seed: int) -> None:
    chance = random.Random(seed)
    thing = chance.choice([*PLAIN, *INJECTED])
    for _ in range(chance.randint(1, 2)):
        thing = put(thing, chance.choice(list(places(thing))), chance.choice(JUNK))
    before = copy.deepcopy(thing)
    after, reports = manifests.apply(thing, change)
    assert thing == before
    assert after == before or reports


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("metadata", "labels"), ["x"], r"metadata\.labels is \['x'\] and must be a mapping of strings$"),
        (("metadata", "labels", "carpool.dev/inject"), True, r"labels\.carpool.dev/inject is True .* in quotes"),
        (("spec", "containers"), {}, r"^Deployment/web: spec\.template\.spec\.containers is \{\} and must be a list$"),
        (("spec", "containers", 0), "x", r"containers\[0\] is 'x' and must be a mapping$"),
        (("spec", "containers", 0, "args", 0), 8080, r"args\[0\] is 8080 and must be a string: put it in quotes$"),
        (("spec", "containers", 0, "env"), {"PASSWORD": "s3cr3t"}, r"\.env is of type dict and must be a list$"),
        (("spec", "containers", 0, "env"), "PASSWORD=s3cr3t", r"\.env is of type str and must be a list$"),
        (("spec", "containers", 0, "env", 0), "PASSWORD=s3cr3t", r"\.env\[0\] is of type str and must be a mapping$"),
        (("spec", "containers", 0, "name"), 1, r"containers\[0\]\.name is 1 and must be a string$"),
        (("spec", "containers", 0, "image"), ["a" * 99], r"image is \['a{58}… and must be a string$"),
    ],
)
def test_what_is_malformed_is_told_with_its_place_and_what_belongs_there(
    path: tuple[Any, ...], value: Any, problem: str
) -> None:
    thing = copy.deepcopy(DEPLOYMENT)
    holder = thing["spec"]["template"]
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    with pytest.raises(refusals.Malformed, match=problem):
        shapes.check(thing)


@pytest.mark.parametrize("thing", [*PLAIN, *INJECTED])
def test_good_manifests_pass(thing: model.Object) -> None:
    assert shapes.check(thing) is None  # type: ignore[func-returns-value]


@example({"apiVersion": "v1", "kind": "ConfigMap", "metadata": [], "spec": 1})
@given(st.dictionaries(st.sampled_from(["metadata", "spec", "kind"]), st.sampled_from(JUNK)))
def test_other_kinds_are_nobodys_business(thing: model.Object) -> None:
    check: Callable[[model.Object], None] = shapes.check
    check(thing)
    assert manifests.apply(thing, CHANGES[0]) == (thing, [])
