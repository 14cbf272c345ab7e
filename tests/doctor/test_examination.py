"""What is concluded from a predictor's answers: kinds of requests, dangers, settings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from carpool_sidecar.doctor import descriptions, examination, identity, samples
from carpool_sidecar.planning import probing
from carpool_sidecar.protocols import models
from carpool_sidecar.protocols.lists import rules

TEXTS = {"type": "object", "properties": {"texts": {"type": "array"}, "normalize": {"type": "boolean"}}}
VECTORS = {"type": "object", "properties": {"vectors": {"type": "array"}, "model": {"type": "string"}}}
INPUT = {"properties": {"input": {"anyOf": [{"type": "string"}, {"type": "array"}]}, "model": {"type": "string"}}}
SPEC = models.TensorSpec("x", "FP32", (-1, 4))


def described(path: str, asked: Any, answer: Any = None, *headers: str) -> tuple[descriptions.Operation, ...]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Asked"}}}
    post = {
        "requestBody": {"content": content},
        "responses": {"200": {"content": {"application/json": {"schema": answer or {}}}}},
        "parameters": [{"in": "header", "name": name} for name in headers],
    }
    api = {"openapi": "3.1.0", "paths": {path: {"post": post}}, "components": {"schemas": {"Asked": asked}}}
    return descriptions.operations(json.dumps(api).encode())


def measured(fixed: float, per_row: float, difference: float = 0.0) -> probing.Probed:
    sizes = [2**power for power in range(7)]
    return probing.Probed([probing.Measured(rows, (fixed + per_row * rows,) * 5, difference) for rows in sizes])


def test_a_rule_fits_by_path_and_list() -> None:
    found = examination.examine(identity.Identity(), described("/v1/embeddings", INPUT), {})
    assert [(kind.path, kind.by) for kind in found.kinds] == [("/v1/embeddings", "openai-embeddings")]
    assert found.settings == {"lists": "openai-embeddings"}
    assert examination.examine(identity.Identity(), described("/embed", TEXTS), {}).kinds == ()


def test_a_rule_is_proposed_where_request_and_answer_have_one_list_each() -> None:
    [kind] = examination.examine(identity.Identity(), described("/embed/texts", TEXTS, VECTORS), {}).kinds
    assert kind.by == ""
    assert kind.about.endswith("embed-texts:\n  path: /embed/texts\n  list: texts\n  answers: vectors")


@pytest.mark.parametrize(
    "answer",
    [{}, {"type": "array"}, {"anyOf": [{"type": "null"}, {"type": "array"}]}, {"type": ["null", 5, "array"]}],
)
def test_an_answer_may_be_the_list_itself(answer: Any) -> None:
    [operation] = described("/predict", TEXTS, answer)
    assert operation.answers == (("$",) if answer else ())


def test_headers_that_an_api_reads_have_to_agree() -> None:
    found = examination.examine(identity.Identity(), described("/v1/embeddings", INPUT, None, "X-Tenant"), {})
    assert found.settings["key-headers"] == "authorization,content-type,x-tenant"
    assert any("reads the header x-tenant" in text for text in found.warnings)


def test_headers_by_which_a_server_chooses_its_model_have_to_agree() -> None:
    found = examination.examine(identity.Identity("Ray Serve"), (), {})
    assert found.settings["key-headers"].endswith("serve_multiplexed_model_id")


def test_v2_models_are_batched_unless_their_metadata_object() -> None:
    tensors = {
        "good": models.ModelInfo((SPEC,), (SPEC,)),
        "fixed": models.ModelInfo((SPEC._replace(shape=(4,)),)),
        "stream": models.ModelInfo((SPEC,), max_batch_size=8, is_decoupled=True),
    }
    kinds = examination.examine(identity.Identity("Triton"), (), tensors).kinds
    assert [(kind.path, kind.by) for kind in kinds] == [
        ("/v2/models/good/infer", "v2"), ("/v2/models/fixed/infer", ""), ("/v2/models/stream/infer", ""),
    ]  # fmt: skip
    assert kinds[0].about == "x FP32 [-1, 4]"
    assert json.loads(kinds[0].bodies[0])["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0.25] * 4}
    ]


@pytest.mark.parametrize(
    "spec", [SPEC._replace(datatype="FP16"), SPEC._replace(shape=(-1, 10**9)), SPEC._replace(shape=(-1, 0))]
)
def test_tensors_that_json_cannot_carry_or_that_are_large_are_not_made_up(spec: models.TensorSpec) -> None:
    assert samples.tensors(models.ModelInfo((SPEC, spec))) == []


def test_a_server_that_takes_more_than_its_rule_gives_is_told_of() -> None:
    found = examination.examine(identity.Identity("text-embeddings-inference", most_rows=256), (), {})
    assert any("'max_batch_size: 256'" in text for text in found.warnings)
    assert [kind.by for kind in found.kinds if kind.bodies] == ["tei-embed"]


def test_what_was_measured_becomes_settings() -> None:
    found = examination.examine(identity.Identity(v1_models=("m",)), (), {})
    found = examination.judge(found, "/v1/models/m:predict", "v1", measured(0.010, 0.0001), False)
    assert found.settings == {"max-batch-size": "64"}
    text = examination.report(found, "http://127.0.0.1:8080", 8080)
    assert 'carpool.dev/inject: "true"' in text
    assert 'carpool.dev/max-batch-size: "64"' in text
    assert "carpool-sidecar --component-port 8080 --max-batch-size 64" in text


def test_a_port_that_was_reached_through_loopback_is_said_to_be_perhaps_another_in_the_pod() -> None:
    found = examination.examine(identity.Identity(v1_models=("m",)), (), {})
    for url in ("http://127.0.0.1:9999", "http://localhost:9999", "http://[::1]:9999"):
        assert "--component-port is the one on which it listens in its pod" in examination.report(found, url, 9999)
    assert "in its pod" not in examination.report(found, "http://10.0.0.7:9999", 9999)


def test_a_server_of_which_only_the_rules_are_known_is_told_with_them() -> None:
    found = examination.examine(identity.Identity("vLLM"), (), {})
    text = examination.report(found, "http://h", 80)
    assert "nothing yet: by what its models do, one of these rules:" in text
    assert "openai-embeddings" in text.rpartition("what to set")[2]
    assert "rule of your own" not in text.rpartition("what to set")[2]


def test_a_path_that_only_was_measured_is_batched_by_what_measured_it() -> None:
    found = examination.judge(
        examination.examine(identity.Identity(), (), {}), "/v1/models/m:predict", "v1", measured(0.010, 0.0001), False
    )
    assert found.settings == {"max-batch-size": "64"}
    assert "POST /v1/models/m:predict: v1, without a rule" in examination.report(found, "http://h", 80)
    [request] = examination.values(found)["requests"]
    assert (request["path"], request["by"]) == ("/v1/models/m:predict", "v1")


def test_a_request_that_needed_a_rule_of_ones_own_is_batched_by_the_one_that_measured_it() -> None:
    found = examination.examine(identity.Identity(), described("/embed/texts", TEXTS, VECTORS), {})
    found = examination.judge(found, "/embed/texts", "mine", measured(0.010, 0.0001), False)
    assert found.kinds == (examination.Kind("/embed/texts", "mine"),)


def test_where_requests_are_not_answered_nothing_is_to_be_set() -> None:
    found = examination.examine(identity.Identity("vLLM", openai_models=("m",)), (), {})
    failed = probing.Probed((), probing.Limit(0, "status 500"))
    found = examination.judge(found, "/v1/embeddings", "openai-embeddings", failed, False)
    assert found.settings == {}
    text = examination.report(found, "http://h", 80)
    assert text.endswith("what to set\n  nothing yet: requests to /v1/embeddings are not answered")
    assert "status 500" in text


def test_where_batching_buys_nothing_nothing_is_to_be_set() -> None:
    found = examination.examine(identity.Identity(v1_models=("m",)), (), {})
    found = examination.judge(found, "/v1/models/m:predict", "v1", measured(0.0, 0.001), False)
    assert found.buys is False
    text = examination.report(found, "http://127.0.0.1:8080", 8080)
    assert "carpool.dev/inject" not in text
    assert "it is as well off without the sidecar" in text


@pytest.mark.parametrize(("difference", "has_other_lengths", "is_told"), [
    (0.01, True, True), (0.01, False, False), (1e-6, True, False),
])  # fmt: skip
def test_padding_is_told_of_where_texts_of_other_lengths_change_an_answer(
    difference: float, has_other_lengths: bool, is_told: bool
) -> None:
    found = examination.examine(identity.Identity(openai_models=("m",)), (), {})
    probed = measured(0.01, 0.0001, difference)
    judged = examination.judge(found, "/v1/embeddings", "openai-embeddings", probed, has_other_lengths)
    assert any("padding" in text for text in judged.warnings) is is_told


def test_rules_that_were_named_are_those_to_set_also_as_yaml() -> None:
    found = examination.Examination(identity.Identity(), (), lists="a:\n  path: /a\n  list: x\n  answers: y")
    text = examination.report(found, "http://h", 80)
    assert "  carpool.dev/lists: |\n    a:\n      path: /a\n" in text
    assert "--lists 'a:\n" in text


def test_what_was_measured_replaces_what_was_thought_of_its_path_and_nothing_else() -> None:
    kinds = (examination.Kind("/a", "mine", (b"1",), "x"), examination.Kind("/b", "v2"), examination.Kind("/c", ""))
    found = examination.Examination(identity.Identity(), kinds, ("a warning",), ("x-tenant",))
    same = examination.judge(found, "/a", "mine", measured(0.01, 0.0001), False)
    assert (same.kinds, same.warnings, same.measured) == (kinds, ("a warning",), "/a")
    other = examination.judge(found, "/c", "mine", measured(0.01, 0.0001), False)
    assert other.kinds == (*kinds[:2], examination.Kind("/c", "mine"))
    assert other.settings == {
        "lists": "mine", "key-headers": "authorization,content-type,x-tenant", "max-batch-size": "64",
    }  # fmt: skip


def test_padding_is_not_told_of_where_one_request_alone_is_answered_otherwise_each_time() -> None:
    found = examination.Examination(identity.Identity(), ())
    probed = measured(0.01, 0.0001, 0.5)
    assert not examination.judge(found, "/a", "mine", probed._replace(is_steady=False), True).warnings
    assert len(examination.judge(found, "/a", "mine", probed, True).warnings) == 1
    at_the_border = measured(0.01, 0.0001, 1e-3)
    assert not examination.judge(found, "/a", "mine", at_the_border, True).warnings


def test_the_largest_difference_of_all_sizes_is_the_one_that_is_told() -> None:
    sizes = [probing.Measured(1, (0.01,) * 5, 0.25), probing.Measured(2, (0.01,) * 5, 0.0)]
    [told] = examination.judge(
        examination.Examination(identity.Identity(), ()), "/a", "mine", probing.Probed(sizes), True
    ).warnings
    assert "up to 0.25" in told


@pytest.mark.parametrize(
    ("path", "asked", "answer", "is_proposed"),
    [
        ("/a/b", TEXTS, VECTORS, True),
        ("/", TEXTS, VECTORS, True),
        ("/A", TEXTS, VECTORS, True),
        ("/a/{b}", TEXTS, VECTORS, False),
        ("/a", {"properties": {"x": {"type": "array"}, "y": {"type": "array"}}}, VECTORS, False),
        ("/a", {"properties": {"x": {"type": "string"}}}, VECTORS, False),
        ("/a", TEXTS, {"properties": {"x": {"type": "array"}, "y": {"type": "array"}}}, False),
        ("/a", TEXTS, {"properties": {"x": {"type": "string"}}}, False),
        ("/a", TEXTS, {"type": "array"}, True),
    ],
)
def test_a_proposed_rule_is_for_the_path_and_the_lists_that_were_described(
    path: str, asked: Any, answer: Any, is_proposed: bool
) -> None:
    [operation] = described(path, asked, answer)
    text = descriptions.proposal(operation)
    assert (text is not None) is is_proposed
    if text is not None:
        [rule] = rules.load([text])
        assert rule.name == {"/": "root"}.get(path, path.strip("/").replace("/", "-").lower())
        assert rule.paths == (path,)
        assert ([place.text for place in rule.rows], [place.text for place in rule.answers]) == (
            ["texts"], list(operation.answers),
        )  # fmt: skip


RERANKED = {"properties": {"query": {"type": "string"}, "documents": {"type": "array"}}}
SCORED = {"properties": {"text_1": {}, "text_2": {}}}


@pytest.mark.parametrize(
    ("title", "others", "to"),
    [
        ("vLLM", described("/score", SCORED), {"rerank-to": "vllm-score"}),
        ("vLLM", (), {}),
        ("an app with a description of its API", described("/score", SCORED), {}),
    ],
)
def test_pairs_are_advised_where_a_server_that_takes_them_has_the_route(
    title: str, others: tuple[descriptions.Operation, ...], to: dict[str, str]
) -> None:
    found = examination.examine(identity.Identity(title), (*described("/v1/rerank", RERANKED), *others), {})
    asked = found._replace(measured="/v1/rerank")
    assert asked.settings == {"lists": "rerank", **to}
    assert asked._replace(lists="mine").settings == {"lists": "mine"}
    assert [each.get("rerank_to") for each in examination.values(asked)["requests"]][:1] == [to.get("rerank-to")]


def test_what_a_reranker_says_of_itself_goes_before_what_its_kind_of_server_may_do() -> None:
    found = examination.examine(identity.Identity("text-embeddings-inference", is_reranker=True), (), {})
    assert [(kind.path, kind.by, kind.to) for kind in found.kinds] == [("/rerank", "tei-rerank", "tei-predict")]
    assert not identity.Identity("text-embeddings-inference").is_reranker


def test_values_have_what_the_report_says() -> None:
    found = examination.examine(identity.Identity("Triton", "2.59.0", "/v2"), (), {"m": models.ModelInfo((SPEC,))})
    told = examination.values(found)
    assert told["server"] == "Triton"
    assert told["requests"] == [{"path": "/v2/models/m/infer", "by": "v2", "about": "x FP32 [-1, 4]", "made_up": True}]
    assert told["probe"] is None
    json.dumps(told)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"paths": []}', b'{"paths": {"/a": {"post": {"requestBody": 3}}}}',
                                  b'{"paths": {"/a": {"post": {"parameters": {"x": 1}}}}}'])  # fmt: skip
def test_descriptions_of_any_form_are_passed_over(body: bytes) -> None:
    assert all(not each.members for each in descriptions.operations(body))


def test_a_description_that_refers_to_itself_ends() -> None:
    loop = {"$ref": "#/components/schemas/Asked"}
    assert described("/a", loop)[0].members == ()
    branches = {"anyOf": [loop, {"properties": {"x": {"type": "array"}}}]}
    assert described("/a", branches)[0].lists == ("x",)


def test_a_description_whose_branches_all_refer_to_itself_is_read_once() -> None:
    [operation] = described("/a", {"anyOf": [{"$ref": "#/components/schemas/Asked"}] * 10, "properties": {"x": {}}})
    assert operation.members == ("x",)


def test_of_a_description_of_any_size_only_so_much_is_read() -> None:
    wide = {"properties": {f"x{n}": {"$ref": "#/components/schemas/Asked"} for n in range(5000)}, "anyOf": [{}] * 5000}
    [operation] = described("/a", wide)
    assert 0 < len(operation.members) < 5000


@pytest.mark.parametrize("branches", [5, "x", {"type": "array"}, [5, None, {"properties": {"x": {"type": "array"}}}]])
def test_branches_of_any_form_are_passed_over(branches: Any) -> None:
    [operation] = described("/a", {"anyOf": branches})
    assert operation.lists == (("x",) if isinstance(branches, list) else ())


ODD = "x\x1b[31m\ny"


def test_what_a_terminal_would_obey_is_passed_over() -> None:
    assert described(f"/{ODD}", TEXTS, VECTORS) == ()
    [operation] = described("/a", {"properties": {ODD: {"type": "array"}}}, None, ODD, "x-b")
    assert (operation.members, operation.headers) == ((), ("x-b",))
    tensors = {ODD: models.ModelInfo((SPEC,)), "m": models.ModelInfo((SPEC._replace(name=ODD),))}
    assert examination.examine(identity.Identity(), (), tensors).kinds == ()


@pytest.mark.parametrize(
    ("path", "name"), [("/a: b", "x"), ("/a #b", "x"), ("/1", "x"), ("/a", "x: y"), ("/a", "x.y"), ("/a", "true")]
)
def test_only_a_rule_that_can_be_loaded_is_proposed(path: str, name: str) -> None:
    asked = {"properties": {name: {"type": "array"}}}
    assert examination.examine(identity.Identity(), described(path, asked, VECTORS), {}).kinds == ()


def test_the_next_command_can_be_copied_into_a_shell() -> None:
    found = examination.examine(identity.Identity(v1_models=("a b; c",)), (), {})
    text = examination.report(found, "http://h/$(x)", 80)
    assert "doctor --url 'http://h/$(x)' --path '/v1/models/a b; c:predict' --body" in text


def test_a_server_that_refuses_long_lists_is_told_the_rules_that_cut_them() -> None:
    found = examination.examine(identity.Identity("text-embeddings-inference"), (), {})
    assert any(text.endswith("carpool.dev/lists: tei-embed,tei-rerank cuts them") for text in found.warnings)
