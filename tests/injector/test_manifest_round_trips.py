"""What `inject` changed in a manifest comes back with `uninject`, to the byte, however the manifest is written."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from carpool_injector.documents import editing, reading
from carpool_injector.objects import manifests
from tests.injector import manifest_writer, strategies

WISH = manifests.Injector()
Step = Callable[[str], str]


def step(text: str, change: manifests.Change) -> str:
    documents = reading.parse(text, "x.yaml")
    wanted = [manifests.apply(document.data, change)[0] for document in documents]
    return editing.edited(text, documents, wanted, "x.yaml")


def injected(text: str) -> str:
    return step(text, lambda thing: manifests.inject(thing, WISH))


def taken_out(text: str) -> str:
    return step(text, manifests.uninject)


@given(pod=strategies.predictor_pods(("plain",)), seed=st.integers(0, 2**32))
def test_what_was_injected_comes_back_to_the_byte_however_it_is_written(pod: dict[str, Any], seed: int) -> None:
    pod["spec"] = {key: held for key, held in pod["spec"].items() if held is not None}
    writer = manifest_writer.Writer(random.Random(seed))
    text = writer.mapping({"apiVersion": "v1", "kind": "Pod", **pod}, 0)
    after = injected(text)
    assume(after != text)
    assert taken_out(after) == text


POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n"
AS_PEOPLE_WRITE = {
    "one line": """\
  - {name: app, image: x, args: [carpool-predictor, --port=8000], ports: [{containerPort: 8000, name: http}]}
""",
    "single quotes": """\
  - {name: app, image: x, args: [carpool-predictor, '--port=8000'], ports: [{name: 'p', containerPort: 8000}]}
""",
    "double quotes": """\
  - {"name": "app", "image": "x", "args": ["carpool-predictor", "--port", "8000"]}
""",
    "lines": """\
  - name: app
    image: x
    args:
    - carpool-predictor
    - --port=8000
    ports:
    - name: http
      containerPort: 8000
    readinessProbe:
      httpGet: {path: /, port: http}
""",
    "quoted names": """\
  - name: app
    image: x
    args: [carpool-predictor]
    ports: [{containerPort: 8000, name: "http"}]
    readinessProbe: {httpGet: {port: 'http'}}
    livenessProbe: {httpGet: {port: 8000}}
""",
    "comments": """\
  - name: app
    image: x
    args: # words
      - carpool-predictor # the server
      # the port
      - --port # here
      - '8000' # so
    # ports
    ports: # open
      - name: http # web
        containerPort: 8000 # p
""",
    "a named port": """\
  - name: app
    image: mine
    ports: [{containerPort: 8000, name: http}]
""",
}


@pytest.mark.parametrize("container", AS_PEOPLE_WRITE.values(), ids=AS_PEOPLE_WRITE)
def test_plain_stays_plain_and_quotes_stay_what_they_were(container: str) -> None:
    after = injected(POD + container)
    assert after != POD + container
    assert taken_out(after) == POD + container


MERGED = """\
x: &image {image: x}
y: &server
  args: [carpool-predictor, --port=8000]
  ports: [{containerPort: 8000}]
apiVersion: v1
kind: Pod
metadata: {name: m}
spec:
  containers:
  - <<: [*image, *server]
    name: app
"""


def test_what_a_merge_brings_in_is_left_to_the_merge_again() -> None:
    after = injected(MERGED)
    assert "    args:\n" in after
    assert "    ports:\n" in after
    assert taken_out(after) == MERGED


UNUSUAL = {
    "a number not in decimal": ("ports: [{containerPort: 0x1F40}]", "ports: [{containerPort: 8000}]"),
    "escapes": ('args: [carpool-predictor, "\\x2d-port=8000"]', 'args: [carpool-predictor, "--port=8000"]'),
    "several lines": (
        "args:\n    - carpool-predictor\n    - >-\n      --port=8000",
        "args:\n    - carpool-predictor\n    - --port=8000",
    ),
    "empty": ("env: []\n    args: [carpool-predictor]", "args: [carpool-predictor]"),
    "null": ("args: [carpool-predictor]\n  volumes:", "args: [carpool-predictor]"),
    "an alias": (
        "args: [carpool-predictor]\n    ports: *ports",
        "args: [carpool-predictor]\n    ports:\n    - containerPort: 8000",
    ),
    "a repetition": (
        "args: [carpool-predictor]\n    <<: *own\n    ports: *ports",
        "args: [carpool-predictor]\n    <<: *own",
    ),
}


@pytest.mark.parametrize(("before", "back"), UNUSUAL.values(), ids=UNUSUAL)
def test_what_comes_back_otherwise_means_the_same(before: str, back: str) -> None:
    """The exceptions that `uninject --help` names."""
    start = "x: &ports\n- containerPort: 8000\ny: &own\n  ports: *ports\n" + POD + "  - name: app\n    image: x\n    "
    if "args" not in before:
        before, back = f"args: [carpool-predictor]\n    {before}", f"args: [carpool-predictor]\n    {back}"
    assert taken_out(injected(f"{start}{before}\n")) == f"{start}{back}\n"
