"""Which server it is, by its answers to questions that every server may be asked: nothing is changed by them.

Servers tell their names where their clients look for them: in v2's metadata, in OpenAI's list of models, in a header,
or in the description of their API. The table of signs says where, and where the version stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from carpool.program import model_servers

_MOST_MODELS = 20


class Answer(NamedTuple):
    """An answer of status 200 to a GET: the header `server`, and the body."""

    server: str
    body: bytes


class Sign(NamedTuple):
    """By what a server is recognised: `pattern`, somewhere in what is at `place` in the answer to a GET of `path`.

    A place is that of a member, such as `info.title` or `data.0.owned_by`; empty, it is the text as a whole; `server`
    in brackets is the header. The pattern's first group is the version, if it has one; else that is at `version`, which
    has a path and a place.
    """

    title: str
    path: str
    place: str
    pattern: re.Pattern[str]
    version: tuple[str, str] = ("", "")


V2 = "/v2"
DESCRIPTIONS = ("/openapi.json", "/docs.json")
"""Where a description of an API may be."""

_MODELS, _API = "/v1/models", DESCRIPTIONS[0]
_OF_V2 = (V2, "version")
_HEADER = "(server)"
_LIKE = re.compile

SIGNS = (
    Sign("KServe's model server", V2, "name", _LIKE(r"kserve\Z"), _OF_V2),
    Sign("Triton", V2, "name", _LIKE(r"triton\Z"), _OF_V2),
    Sign("MLServer", V2, "name", _LIKE(r"mlserver\Z"), _OF_V2),
    Sign("OpenVINO Model Server", V2, "name", _LIKE(r"OpenVINO Model Server\Z"), _OF_V2),
    Sign("vLLM", _MODELS, "data.0.owned_by", _LIKE(r"vllm\Z"), ("/version", "version")),
    Sign("SGLang", _MODELS, "data.0.owned_by", _LIKE(r"sglang\Z")),
    Sign("Infinity", _MODELS, "data.0.owned_by", _LIKE(r"infinity\Z"), (_API, "info.version")),
    Sign("llama.cpp's server", _MODELS, "data.0.owned_by", _LIKE(r"llamacpp\Z")),
    Sign("text-generation-inference", "/info", "router", _LIKE(r"text-generation-router"), ("/info", "version")),
    Sign("text-embeddings-inference", "/info", "max_client_batch_size", _LIKE(r"\d"), ("/info", "version")),
    Sign("Ollama", "/", "", _LIKE(r"\AOllama is running"), ("/api/version", "version")),
    Sign("LitServe", "/", "", _LIKE(r"\Alitserve running\Z")),
    Sign("mosec", "/", _HEADER, _LIKE(r"\Amosec/(\S+)")),
    Sign("BentoML", "/docs.json", "info.description", _LIKE(r"BentoML-([\w.+]+)-")),
    Sign("TorchServe", "/api-description", "info.title", _LIKE(r"\ATorchServe"), ("/api-description", "info.version")),
    Sign("MLflow", _API, "paths./invocations.post", _LIKE(r""), ("/version", "")),
    Sign("Ray Serve", "/-/healthz", "", _LIKE(r"\Asuccess\Z")),
    # Whoever else describes its API; FastAPI does so by itself.
    Sign("an app with a description of its API", _API, "openapi", _LIKE(r"\A3\."), (_API, "info.version")),
)  # fmt: skip
"""The first that is there names the server."""

QUESTIONS = tuple(dict.fromkeys(path for sign in SIGNS for path in (sign.path, sign.version[0]) if path))
"""Paths to be asked with GET, each once."""


class Identity(NamedTuple):
    """What a predictor says that it is: `title` and `version` (empty: unknown), and the path by which it said so.

    Models have the names under which they are listed, as far as those are printable: those of OpenAI's list are named
    in bodies, those of v1's in paths. `most_rows` is how many inputs it takes in a call, if it says so. It `speaks_v2`
    if it answers as v2's metadata of a server do, and `is_reranker` if it says that this is what its model does.
    """

    title: str = ""
    version: str = ""
    said_at: str = ""
    openai_models: tuple[str, ...] = ()
    v1_models: tuple[str, ...] = ()
    most_rows: int | None = None
    speaks_v2: bool = False
    is_reranker: bool = False

    @property
    def known(self) -> model_servers.ModelServer:
        """What is known of such servers."""
        return model_servers.of(self.title)

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules for lists that fit what such a server does, or rather this one, if it says that."""
        return (self.known.reranks,) if self.is_reranker and self.known.reranks else self.known.rules


def recognise(answers: Mapping[str, Answer]) -> Identity:
    """Who gave these answers to `QUESTIONS`."""
    read = {path: _value(answer.body) for path, answer in answers.items()}
    listed = read.get(_MODELS)
    openai = tuple(_names(listed, "data", "id"))
    v1 = tuple(_names(listed, "models", ""))
    most = at(read.get("/info"), "max_client_batch_size")
    found = Identity(
        openai_models=openai,
        v1_models=v1,
        most_rows=most if type(most) is int and most > 0 else None,
        speaks_v2=isinstance(at(read.get(V2), "name"), str),
        is_reranker=at(read.get("/info"), "model_type.reranker") is not None,
    )
    for sign in SIGNS:
        answer = answers.get(sign.path)
        if answer is None:
            continue
        value = answer.server if sign.place == _HEADER else at(read[sign.path], sign.place)
        match = None if value is None else sign.pattern.search(value if isinstance(value, str) else str(value))
        if match is None:
            continue
        path, place = sign.version
        version = match[1] if sign.pattern.groups else at(read.get(path), place)
        return found._replace(title=sign.title, version=_plain(version), said_at=sign.path)
    return found


def at(value: Any, place: str) -> Any:
    """What is at a place in a JSON value, None if nothing is."""
    for name in place.split(".") if place else ():
        if isinstance(value, list) and name.isdecimal():
            value = value[int(name)] if int(name) < len(value) else None
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value


def _names(listed: Any, member: str, name: str) -> Iterator[str]:
    entries = at(listed, member)
    for each in entries[:_MOST_MODELS] if isinstance(entries, list) else ():
        found = at(each, name)
        if isinstance(found, str) and found and found.isprintable():
            yield found


def _value(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return body.decode(errors="replace").strip()


def _plain(version: Any) -> str:
    """A version of a few printable characters, else none."""
    return version if isinstance(version, str) and re.fullmatch(r"[\w.+-]{1,40}", version) else ""
