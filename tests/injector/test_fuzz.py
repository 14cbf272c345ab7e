"""Anything at all instead of a pod, and hostile text where text is allowed: refused in words, and never a crash."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_injector.core import config, edits, injection, model, pod_annotations, refusals
from tests.injector import pods, strategies

Object = dict[str, Any]

HOSTILE = [
    "1Gi\n- name: evil\n  image: evil",
    "1\x00",
    "\x1b[31m8",
    "8\r\n",
    " 8",
    "8 ",
    "",
    "١٢",
    "８",
    "²",
    "9" * 4400,
    "-1",
    "+8",
    "0x10",
    "1_000",
    "NaN",
    "nan",
    "inf",
    "-Infinity",
    "1e400",
    "1e3",
    '"}],"x":[{"',
    "{{ .Values.image }}",
    "$(cat /etc/passwd)",
    "--port=1",
    "../../etc",
    "\u202e8",
    "😀" * 1000,
    "\ud800",
]
# Settings whose values are words: some of the above are words, if strange ones.
_WORDS = {
    "key-headers", "forward-headers", "answer-members", "priority-header", "container", "port", "app-port-arg",
    "app-port-env", "grpc-port", "app-grpc-port-arg", "app-grpc-port-env", "embeddings-output", "image-channel",
    "predictor-health-path",
}  # fmt: skip
_LISTS = {
    "key-headers",
    "forward-headers",
    "answer-members",
    "retry-statuses",
    "allowed-batch-sizes",
    "lists",
    "embeddings-output",
    "priority-header",
}
_CLAIMS: dict[str, list[Any]] = {
    "takeover": ["port-swap", "queue-proxy", "kserve-agent", "named-port", "none", "evil", None],
    "container": ["kserve-container", "queue-proxy", "agent", "carpool", "../x", 7],
    "appPort": [8080, 9083, 0, -1, "8080"],
    "listenPort": [8080, 9081, 70000],
    "adminPort": [9082, None],
    "native": [True, False, "yes"],
    "toldBy": ["--http_port", "--model_name", "-c", "PATH", "--x\n"],
    "added": [True, False],
    "grpcAppPort": [9084, 8080, 9083, 0, "9000", None],
    "grpcListenPort": [9000, 8080, 70000, None],
    "grpcToldBy": ["--grpc-port", "--http_port", "PATH", "--x\n", None],
    "grpcAdded": [True, False, "yes", None],
    "batcher": ["true", "x" * 65, "\n- evil"],
}
_SETTINGS = sorted(key.removeprefix(model.PREFIX) for key in pod_annotations.KNOWN)

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.sampled_from(HOSTILE[:-1])
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


def inject(pod: Any, configured: config.Config | None = None) -> model.Outcome:
    return injection.inject(pod, configured or config.Config(), model.Namespace("models"), model.Capabilities())


def survives(call: Callable[[Any], model.Outcome], pod: Any) -> model.Outcome | None:
    """The outcome, or None where the pod is told to be malformed; any other exception is a failure."""
    before = copy.deepcopy(pod)
    try:
        outcome = call(pod)
    except refusals.Malformed as error:
        if not str(error):
            raise
        return None
    finally:
        assert pod == before
    assert jsonpatch.apply_patch(before, outcome.patch) == outcome.pod
    return outcome


@given(anything)
def test_anything_instead_of_a_pod_is_malformed_or_left_alone(thing: Any) -> None:
    for call in (inject, injection.uninject):
        outcome = survives(call, thing)
        assert outcome is None or outcome.patch == []


@given(strategies.predictor_pods(), st.data())
def test_a_pod_with_anything_in_one_place_is_malformed_or_handled(pod: Object, data: st.DataObject) -> None:
    damaged = copy.deepcopy(pod)
    for _ in range(data.draw(st.integers(1, 2))):
        _replace_somewhere(damaged, data)
    outcome = survives(inject, damaged)
    if outcome is not None:
        survives(inject, outcome.pod)
        survives(injection.uninject, outcome.pod)
    assert (survives(injection.uninject, damaged) is None) == (outcome is None)


@pytest.mark.parametrize("key", ["containers", "initContainers", "volumes", "tolerations", "ephemeralContainers"])
@pytest.mark.parametrize(
    "value", [None, 7, "text", {}, {"name": "x"}, [], [None], ["text"], [{}], [{"name": None}]], ids=str
)
def test_a_list_of_the_spec_that_is_none_is_malformed_or_left_alone(key: str, value: Any) -> None:
    pod = pods.kserve(pods.sklearn())
    pod["spec"][key] = value
    for call in (inject, injection.uninject):
        outcome = survives(call, pod)
        if outcome is not None:
            survives(call, outcome.pod)
            assert key in ("containers", "initContainers", "volumes") or outcome.pod["spec"][key] == value


@given(strategies.predictor_pods(), st.data())
def test_a_damaged_injected_pod_can_be_uninjected_or_is_malformed(pod: Object, data: st.DataObject) -> None:
    damaged = copy.deepcopy(inject(pod).pod)
    _replace_somewhere(damaged, data)
    outcomes = [survives(call, damaged) for call in (injection.uninject, inject)]
    assert all(outcome is None or outcome.pod["spec"]["containers"] for outcome in outcomes)


@given(st.lists(anything, max_size=5), st.data())
def test_the_patch_between_things_that_share_parts_is_right(parts: list[Any], data: st.DataObject) -> None:
    """As a pod and its edited copy do: the same objects in other places, gone, doubled, inside new ones."""
    parts = [*parts, {"name": "http", "port": 1}, {"name": "http", "port": 2}, "http", None]
    some = st.lists(st.sampled_from(range(len(parts))), max_size=5).map(lambda picked: [parts[at] for at in picked])
    held = st.fixed_dictionaries({"a": some, "b": st.fixed_dictionaries({"name": st.just("x"), "c": some})})
    before, after = data.draw(held), data.draw(held)
    was = copy.deepcopy(before)
    operations = edits.json_patch(before, after)
    assert before == was
    # As it travels: no two places share an object any more.
    assert jsonpatch.apply_patch(json.loads(json.dumps(before)), json.loads(json.dumps(operations))) == after


@given(strategies.predictor_pods(), st.data())
def test_a_forged_status_is_no_way_in(pod: Object, data: st.DataObject) -> None:
    """Whatever it claims, what comes out is a pod again, and containers of others keep image and command."""
    injected = copy.deepcopy(inject(pod).pod)
    annotations = injected["metadata"].setdefault("annotations", {})
    claims = json.loads(annotations.get(pod_annotations.STATUS, "{}"))
    for key in data.draw(st.sets(st.sampled_from([*_CLAIMS]), min_size=1)):
        claims[key] = data.draw(st.sampled_from(_CLAIMS[key]))
    annotations[pod_annotations.STATUS] = json.dumps(claims)
    for call in (inject, injection.uninject):
        outcome = survives(call, injected)
        assert outcome is not None
        for container in outcome.pod["spec"]["containers"]:
            if container["name"] != model.CONTAINER:
                before = pods.container(injected, container["name"])
                assert (container["image"], container.get("command")) == (before["image"], before.get("command"))


@pytest.mark.parametrize("key", _SETTINGS)
@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: ascii(value)[:20])
def test_hostile_values_of_annotations_are_refused_in_clean_words(key: str, value: str) -> None:
    pod = pods.kserve(pods.sklearn(), annotations={f"carpool.dev/{key}": value})
    outcome = survives(inject, pod)
    assert outcome is not None
    if outcome.refusal is None:
        assert key in (_WORDS if value else _LISTS)
        assert re.fullmatch(r"[-+\w]*", value, re.ASCII)
        return
    assert key in _WORDS or outcome.refusal.code == "bad-annotation"
    assert f"carpool.dev/{key}" in str(outcome.refusal) or outcome.refusal.code == "no-such-container"
    assert str(outcome.refusal).isprintable()
    assert len(str(outcome.refusal)) < 1000
    assert outcome.pod["spec"] == pod["spec"]


@pytest.mark.parametrize("key", ["batcher-max-batchsize", "batcher-max-latency"])
@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: ascii(value)[:20])
def test_hostile_values_of_kserves_own_annotations_never_reach_the_sidecar(key: str, value: str) -> None:
    annotations = pods.batched() | {f"internal.serving.kserve.io/{key}": value}
    outcome = survives(inject, pods.kserve(pods.sklearn(), annotations=annotations))
    assert outcome is not None
    if outcome.result == "injected":
        assert value not in pods.container(outcome.pod, model.CONTAINER)["args"] or value == ""
    else:
        assert outcome.refusal is not None
        assert outcome.refusal.message.isprintable()


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: ascii(value)[:20])
def test_hostile_words_for_the_opt_in_are_refused(value: str) -> None:
    pod = pods.kserve(pods.sklearn(), **{"carpool.dev/inject": value})
    outcome = survives(inject, pod)
    assert outcome is not None
    assert outcome.result == "refused"
    assert outcome.refusal is not None
    assert outcome.refusal.message.isprintable()


@given(st.text(max_size=80), st.text(max_size=80))
def test_unknown_settings_with_any_name_give_clean_warnings(name: str, value: str) -> None:
    outcome = survives(inject, pods.kserve(pods.sklearn(), annotations={f"carpool.dev/x{name}": value}))
    assert outcome is not None
    assert outcome.result == "injected"
    assert all(warning.isprintable() and len(warning) <= 256 for warning in outcome.warnings)


@given(st.text(max_size=200))
def test_any_text_as_queue_proxys_probe_is_handled(text: str) -> None:
    pod = pods.knative(pods.sklearn())
    for variable in pods.container(pod, "queue-proxy")["env"]:
        if variable["name"] == "SERVING_READINESS_PROBE":
            variable["value"] = text
    outcome = survives(inject, pod)
    assert outcome is not None
    assert outcome.result in ("injected", "refused")


def test_deeply_nested_json_is_malformed_or_handled() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"x": deep}
    pod = pods.kserve(pods.sklearn())
    pod["spec"]["futurePodField"] = deep
    try:
        outcome = inject(pod)
    except refusals.Malformed:
        return
    assert outcome.pod["spec"]["futurePodField"] is deep


def _replace_somewhere(thing: Any, data: st.DataObject) -> None:
    """Put anything at some place within, at any depth; or take away what is there."""
    while True:
        keys = list(thing) if isinstance(thing, dict) else list(range(len(thing)))
        key = data.draw(st.sampled_from(keys))
        inner = thing[key]
        if isinstance(inner, dict | list) and inner and data.draw(st.integers(0, 4)):
            thing = inner
            continue
        if isinstance(thing, dict) and data.draw(st.booleans()):
            del thing[key]
        else:
            thing[key] = data.draw(anything)
        return
