"""Which server it is, by answers as real servers gave them (or, where none runs here, as their sources write them)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from carpool.program import model_servers
from carpool_sidecar.doctor import identity


def answers(**given: Any) -> dict[str, identity.Answer]:
    """Answers by paths, of which `_` stands for `/`; `server` is the header of all."""
    server = given.pop("server", "uvicorn")
    return {
        f"/{name.replace('_', '/')}": identity.Answer(
            server, value.encode() if isinstance(value, str) else json.dumps(value).encode()
        )
        for name, value in given.items()
    }


def listed(owner: str) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": owner}]}


V2 = {"name": "kserve", "version": "0.21.0", "extensions": ["model_repository_extension"]}
MOSEC = "mosec/0.9.8"
BENTO = {"openapi": "3.0.2", "info": {"title": "Echo", "description": "[badge/BentoML-1.4.39-informational]"}}
TEI = {
    "model_id": "m",
    "max_client_batch_size": 64,
    "version": "1.9.3",
    "model_type": {"embedding": {"pooling": "cls"}},
}
MLFLOW = {"openapi": "3.1.0", "info": {"title": "FastAPI", "version": "0.1.0"}, "paths": {"/invocations": {"post": {}}}}
APP = {"openapi": "3.1.0", "info": {"title": "FastAPI", "version": "0.1.0"}, "paths": {}}


@pytest.mark.parametrize(
    ("given", "title", "version"),
    [
        pytest.param(answers(v2=V2, v1_models={"models": ["a"]}), "KServe's model server", "0.21.0", id="kserve"),
        pytest.param(answers(v2=V2 | {"name": "triton", "version": "2.59.0"}), "Triton", "2.59.0", id="triton"),
        pytest.param(answers(v2=V2 | {"name": "mlserver", "version": "1.7.1"}), "MLServer", "1.7.1", id="mlserver"),
        pytest.param(answers(v1_models=listed("vllm"), version={"version": "0.24.0"}), "vLLM", "0.24.0", id="vllm"),
        pytest.param(answers(v1_models=listed("sglang")), "SGLang", "", id="sglang"),
        pytest.param(answers(info=TEI), "text-embeddings-inference", "1.9.3", id="tei"),
        pytest.param(answers(**{"": "Ollama is running", "api_version": {"version": "0.12.6"}}), "Ollama", "0.12.6",
                     id="ollama"),
        pytest.param(answers(**{"": "litserve running", "openapi.json": APP}), "LitServe", "", id="litserve"),
        pytest.param(answers(**{"": "MOSEC service", "server": MOSEC}), "mosec", "0.9.8", id="mosec"),
        pytest.param(answers(**{"docs.json": BENTO}), "BentoML", "1.4.39", id="bentoml"),
        pytest.param(answers(**{"openapi.json": MLFLOW, "version": "3.17.2"}), "MLflow", "3.17.2", id="mlflow"),
        pytest.param(answers(**{"openapi.json": APP}), "an app with a description of its API", "0.1.0", id="fastapi"),
        pytest.param(answers(), "", "", id="nothing"),
    ],
)  # fmt: skip
def test_a_server_is_recognised_by_its_answers(given: dict[str, identity.Answer], title: str, version: str) -> None:
    found = identity.recognise(given)
    assert (found.title, found.version) == (title, version)


def test_all_that_is_asked_for_is_asked() -> None:
    assert {sign.path for sign in identity.SIGNS} <= set(identity.QUESTIONS)
    assert set(identity.DESCRIPTIONS) <= set(identity.QUESTIONS)


def test_what_is_recognised_has_words_except_an_app_of_any_kind() -> None:
    unknown = {sign.title for sign in identity.SIGNS if not list(model_servers.words(model_servers.of(sign.title)))}
    assert unknown == {"an app with a description of its API"}


def test_models_and_the_most_inputs_are_told() -> None:
    assert identity.recognise(answers(v1_models=listed("vllm"))).openai_models == ("m",)
    assert identity.recognise(answers(v1_models={"models": ["a", "b", 3]})).v1_models == ("a", "b")
    assert identity.recognise(answers(info=TEI)).most_rows == 64


def test_a_server_may_say_that_its_model_reranks() -> None:
    assert identity.recognise(answers(info=TEI | {"model_type": {"reranker": {}}})).rules == ("tei-rerank",)
    assert identity.recognise(answers(info=TEI)).rules == ("tei-embed", "openai-embeddings")


def test_names_that_no_request_or_terminal_can_have_are_passed_over() -> None:
    odd = ["", "\x1b[31mred", "a\nb", "m"]
    assert identity.recognise(answers(v1_models={"models": odd})).v1_models == ("m",)
    assert identity.recognise(answers(v1_models={"data": [{"id": name} for name in odd]})).openai_models == ("m",)


def test_the_most_inputs_are_a_number() -> None:
    assert identity.recognise(answers(info=TEI | {"max_client_batch_size": True})).most_rows is None


@pytest.mark.parametrize("body", ["", "null", "[", "[1]", '{"name": 3}', '"x"', "[" * 100_000])
def test_answers_of_any_form_name_no_server(body: str) -> None:
    given = {path: identity.Answer("", body.encode()) for path in identity.QUESTIONS}
    assert identity.recognise(given).title == ""


def test_a_version_that_is_no_version_is_not_shown() -> None:
    assert identity.recognise(answers(v2=V2 | {"version": "\x1b[31m" + "x" * 100})).version == ""
