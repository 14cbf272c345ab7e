"""Edits of a pod's parts: exactly what was meant is changed, and never the pod that was given."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from carpool_injector.core import command_lines, edits, pods, refusals


def test_every_variable_of_the_name_gets_the_value_and_loses_where_it_came_from():
    container = {"env": [{"name": "A", "value": "1"}, {"name": "A", "valueFrom": {"fieldRef": {}}}, {"name": "B"}]}
    edits.set_variable(container, "A", "2")
    assert container["env"] == [{"name": "A", "value": "2"}, {"name": "A", "value": "2"}, {"name": "B"}]


def test_of_several_variables_of_a_name_the_last_one_counts_as_in_the_kubelet() -> None:
    assert edits.variable({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}, "A") == "2"


@pytest.mark.parametrize("container", [{}, {"env": None}, {"env": []}])
def test_a_variable_is_added_where_there_is_none_and_the_last_one_takes_the_list_with_it(container):
    edits.set_variable(container, "A", "1")
    assert container == {"env": [{"name": "A", "value": "1"}]}
    edits.remove_variable(container, "A")
    assert container == {}


@pytest.mark.parametrize(
    ("value", "port", "moved"),
    [
        ("8080", 8080, "1"),
        ("0.0.0.0:8080", 8080, "0.0.0.0:1"),
        ("[::]:8080", 8080, "[::]:1"),
        (":8080", 8080, ":1"),
        ("unix:/run/x.sock", None, "1"),
        ("x8080", None, "1"),
        ("123456", None, "1"),
        ("٨٠٨٠", None, "1"),
        ("", None, "1"),
        ("host\n:80", 80, "host\n:1"),
        ("80\n", None, "1"),
    ],
)
def test_a_port_is_what_a_value_ends_in_and_what_is_before_it_stays(value, port, moved):
    assert command_lines.port_in(value) == port
    assert command_lines.with_port(value, 1) == moved


def test_a_flag_is_the_whole_word_and_not_the_beginning_of_a_longer_one():
    words = ["--port=1", "--port", "2", "--portal=3", "--portal", "4", "--port"]
    found = [(each[0], each[-1]) for each in command_lines.flag_values(words, "--port")]
    assert found == [(0, "1"), (2, "2")]


@pytest.mark.parametrize(
    ("words", "ports"),
    [
        (["--grpc-port=9000"], [9000]),
        (["--grpc-port", "9000"], [9000]),
        (["-port=1", "--PORT=2"], [1]),
        (["port=1"], []),
        (["--timeout=1", "--x", "2"], []),
        (["--port=", "9000"], []),
        (["--port"], []),
        (["--port=655360"], []),
    ],
)
def test_ports_that_flags_speak_of_are_found(words, ports):
    assert list(command_lines.ports_in_flags(words)) == ports


def test_a_flags_port_is_changed_in_command_and_arguments_and_only_where_it_is_that_port():
    container = {"command": ["x", "--bind=a:80"], "args": ["--bind", "80", "--bind=81", "--other=80", "80"]}
    edits.change_flag_port(container, "--bind", 80, 90)
    assert container == {"command": ["x", "--bind=a:90"], "args": ["--bind", "90", "--bind=81", "--other=80", "80"]}


def test_only_the_first_of_equal_words_is_dropped():
    container = {"args": ["--a=1", "--a=1", "b"]}
    edits.drop_words(container, "args", ["--a=1", "--gone"])
    assert container == {"args": ["--a=1", "b"]}
    edits.drop_words(container, "args", ["--a=1", "b"])
    assert container == {}


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--on", "x"], ["x"]),
        (["--on=true", "x"], ["x"]),
        (["--size", "5", "x"], ["x"]),
        (["--size=5", "x"], ["x"]),
        (["--size", "--on", "x"], ["x"]),
        (["--size"], []),
        (["--sizes", "5"], ["--sizes", "5"]),
    ],
)
def test_flags_go_with_their_values(words, kept):
    assert edits.without_flags(words, {"--on": False, "--size": True}) == kept


# --- Drafts


def pod():
    return {
        "metadata": {"annotations": {"a": "1"}},
        "spec": {
            "containers": [{"name": "app", "env": [{"name": "A"}]}, {"name": "other"}],
            "initContainers": [{"name": "carpool", "image": "native"}, {"name": "setup"}],
        },
    }


def test_a_container_may_be_changed_to_any_depth_and_the_original_stays():
    given = pod()
    draft = edits.Draft(given)
    draft.container("app")["env"][0]["value"] = "x"
    draft.annotate("b", "2")
    draft.put("containers", {"name": "more"})
    assert given == pod()
    assert draft.container("app") is draft.pod["spec"]["containers"][0]
    assert draft.pod["spec"]["containers"][1] is given["spec"]["containers"][1]


def test_an_annotation_goes_and_the_last_one_takes_the_map_with_it():
    given = pod()
    draft = edits.Draft(given)
    draft.unannotate("none")
    assert draft.pod == given
    draft.annotate("b", "2")
    draft.unannotate("a")
    assert draft.pod["metadata"] == {"annotations": {"b": "2"}}
    draft.unannotate("b")
    assert draft.pod["metadata"] == {}
    assert given == pod()


@pytest.mark.parametrize("metadata", [{}, {"metadata": None}, {"metadata": {"annotations": None}}])
def test_a_pod_without_annotations_can_be_annotated(metadata):
    draft = edits.Draft({**metadata, "spec": {}})
    draft.unannotate("a")
    draft.annotate("a", "1")
    assert draft.pod["metadata"] == {"annotations": {"a": "1"}}


def test_taking_out_what_is_not_there_changes_nothing_and_the_last_item_takes_the_list_with_it():
    given = pod()
    draft = edits.Draft(given)
    draft.remove("initContainers", "none")
    draft.remove("volumes", "none")
    assert edits.json_patch(given, draft.pod) == []
    draft.remove("initContainers", "carpool")
    draft.remove("initContainers", "setup")
    assert "initContainers" not in draft.pod["spec"]
    assert given == pod()


def test_an_item_is_put_in_place_of_the_one_of_its_name_else_at_the_end():
    draft = edits.Draft(pod())
    draft.put("containers", {"name": "app", "image": "new"})
    draft.put("containers", {"name": "last"})
    draft.put("volumes", {"name": "v"})
    assert [item["name"] for item in draft.pod["spec"]["containers"]] == ["app", "other", "last"]
    assert draft.pod["spec"]["containers"][0]["image"] == "new"
    assert draft.pod["spec"]["volumes"] == [{"name": "v"}]


def test_of_a_native_and_a_classic_sidecar_the_native_one_is_meant():
    given = pod()
    given["spec"]["containers"].append({"name": "carpool", "image": "classic"})
    found = edits.Draft(given).sidecar()
    assert found == {"name": "carpool", "image": "native"}


def test_an_init_container_is_no_container_to_be_changed():
    draft = edits.Draft(pod())
    assert (draft.has("app"), draft.has("setup")) == (True, False)
    with pytest.raises(KeyError):
        draft.container("setup")


# --- The view


def test_of_variables_of_one_name_the_last_counts_as_in_the_kubelet():
    env = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    assert pods.Container(name="a", env=env).variable("A") == "2"


@pytest.mark.parametrize(
    ("image", "names"),
    [
        ("r.example:5000/team/serving:1@sha256:" + "0" * 64, {"serving", "team/serving"}),
        ("serving@sha256:" + "0" * 64, {"serving"}),
        ("serving:1", {"serving"}),
        (None, {""}),
    ],
)
def test_an_image_is_named_without_registry_tag_and_digest(image, names):
    assert pods.Container(name="a", image=image).image_names == names


@pytest.mark.parametrize(("protocol", "tcp"), [(None, True), ("", True), ("TCP", True), ("UDP", False)])
def test_a_port_that_names_no_protocol_is_tcp(protocol, tcp):
    assert pods.Port.model_validate({"containerPort": 1, "protocol": protocol}).is_tcp is tcp


@pytest.mark.parametrize(
    "name",
    ["queue-proxy", "agent", "modelcar", "storage-initializer", "linkerd-proxy", "daprd", "istio-proxy",
     "istio-validation", "carpool"],
)  # fmt: skip
def test_the_platforms_containers_are_never_the_app_of_a_kserve_pod(name):
    labels = {"serving.kserve.io/inferenceservice": "iris"}
    given = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": name}, {"name": "app"}]}}
    assert [app.name for app in pods.read(given).apps] == ["app"]


# --- Patches


def test_a_patch_escapes_a_tilde_before_a_slash():
    before, after = {"~1": 1, "/": 1}, {"~1": 2, "/": 2}
    kept = copy.deepcopy(before)
    paths = {operation["path"] for operation in edits.json_patch(before, after)}
    assert paths == {"/~01", "/~1"}
    assert before == kept


def test_a_port_in_digits_that_is_a_text_is_a_name_that_no_port_has():
    container = pods.Container.model_validate({"name": "a", "ports": [{"containerPort": 8080, "name": "http"}]})
    assert (container.number("http"), container.number("8080"), container.number(9)) == (8080, None, 9)


@pytest.mark.parametrize("port", ["8080", 8080.0, True, -1, 65536])
def test_a_declared_port_is_a_number_and_nothing_like_one(port):
    given = {"spec": {"containers": [{"name": "a", "ports": [{"containerPort": port}]}]}}
    with pytest.raises(refusals.Malformed, match=r"spec\.containers\.0\.ports\.0\.containerPort"):
        pods.read(given)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ([{"name": "A", "value": "s"}, {"name": "WORKERS", "value": 4711}],
         "spec.containers.0.env (container 'app'): the value of 'WORKERS' must be a text, not int: put it in quotes"),
        ([{"name": "A", "value": True}, {"value": "s"}, "A=4711"],
         "spec.containers.0.env (container 'app'): the value of 'A' must be a text, not bool: put it in quotes; "
         "item 1 must be a mapping with a name; item 2 must be a mapping with a name"),
        ({"A": "4711"}, "spec.containers.0.env (container 'app'): must be a list of variables, not dict"),
    ],
)  # fmt: skip
def test_bad_variables_are_told_by_container_and_name_once_and_without_their_values(env: Any, told: str) -> None:
    pod = {"kind": "Pod", "spec": {"containers": [{"name": "app", "env": env}]}}
    with pytest.raises(refusals.Malformed) as raised:
        pods.read(pod)
    assert str(raised.value) == told


def test_a_pod_without_containers_is_told_to_need_one() -> None:
    with pytest.raises(refusals.Malformed, match=r"^spec\.containers: must name a container$"):
        pods.read({"kind": "Pod", "spec": {"containers": []}})
