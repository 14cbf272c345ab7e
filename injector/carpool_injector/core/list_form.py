"""The form of rules for lists, as the sidecar will read them (its `protocols/lists/rules.py`): what it would refuse.

The injector runs without the sidecar's package, so fields, ranges and the rules between them stand here once more. A
test holds the two together: what is accepted here keeps no sidecar from starting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic

BUILT_IN: Mapping[str, Mapping[str, Any]] = {
    "openai-embeddings": {
        "list": "input",
        "answers": "data",
        "scalar": "wrapped",
        "token_ids": True,
        "index": "index",
        "kinds": ["string", "list"],
    },
    "tei-embed": {"list": "inputs", "answers": "$", "scalar": "wrapped", "token_ids": True},
    "hf-toolkit": {
        "list": "inputs",
        "answers": ["embeddings", "scores", "$"],
        "scalar": "by_row",
        "kinds": ["string", "list"],
    },
    "mlflow": {
        "list": ["dataframe_split.data", "dataframe_records", "instances", "inputs"],
        "answers": "predictions",
        "along": "dataframe_split.index",
    },
    "tfserving-columns": {"list": "inputs.*", "answers": ["outputs.*", "outputs"]},
    "tfserving-classify": {"list": "examples", "answers": ["results", "result"]},
    "ollama-embed": {"list": "input", "answers": "embeddings", "scalar": "wrapped"},
    "tei-predict": {"list": "inputs", "answers": "$", "kinds": "list"},
    "vllm-pooling": {
        "list": "input",
        "answers": "data",
        "scalar": "wrapped",
        "token_ids": True,
        "index": "index",
        "kinds": ["string", "list"],
    },
    "vllm-score": {
        "kinds": ["string", "object"],
        "list": ["documents", "items", "data_2", "text_2"],
        "along": ["queries", "data_1", "text_1"],
        "answers": "data",
        "index": "index",
    },
    "cohere-embed": {
        "kinds": ["string", "object"],
        "list": ["texts", "inputs"],
        "answers": ["embeddings.*", "embeddings"],
        "answers_along": ["texts", "images"],
    },
    "rerank": {
        "kinds": ["string", "object"],
        "list": "documents",
        "answers": ["results", "data"],
        "index": "index",
        "rank_by": "relevance_score",
        "top": ["top_n", "top_k"],
        "query": "query",
        "return_if": "return_documents",
        "return_as": "document.text",
    },
    "tei-rerank": {
        "kinds": "string",
        "list": "texts",
        "answers": "$",
        "index": "index",
        "rank_by": "score",
        "query": "query",
        "return_if": "return_text",
        "return_as": "text",
    },
    "nim-ranking": {
        "kinds": "object",
        "list": "passages",
        "answers": "rankings",
        "index": "index",
        "rank_by": "logit",
        "query": "query.text",
    },
}
"""The rules that come with the sidecar, with those of their fields that others have to go with."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_MEMBER = r"[^.*$\s\"\\\x00-\x1f]+"
_PLACE = re.compile(rf"\$|\*|{_MEMBER}(?:\.{_MEMBER})*(?:\.\*)?")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TOLD = 3  # problems; what is wrong in one rule is wrong in the next


def problems(found: Any) -> Iterator[str]:
    """What keeps the sidecar from reading rules, in words: each names the rule and the field, and what is allowed."""
    if not isinstance(found, dict) or not found:
        yield "must be a mapping of names to rules, such as {my-rule: {path: /embed, list: texts, answers: vectors}}"
        return
    for name, fields in found.items():
        if not _NAME.fullmatch(name):
            yield f"rule {_shown(name)}: its name must be a-z, 0-9, '-', '_' and '.', at most 63 of them"
        elif not isinstance(fields, dict):
            yield f"rule {name!r}: must be a mapping of fields, such as path, list and answers"
        else:
            told = "; ".join(_of_rule(fields))
            if told:
                yield f"rule {name!r}: {told}"


def _of_rule(fields: dict[str, Any]) -> list[str]:
    own = {key: value for key, value in fields.items() if key != "extends"}
    base = fields.get("extends")
    inherited: Mapping[str, Any] = {}
    if base is not None:
        if not isinstance(base, str) or base not in BUILT_IN:
            return [f"field 'extends' must be one of {', '.join(BUILT_IN)}"]
        inherited = {"path": "/", **BUILT_IN[base]}
    try:
        _Rule.model_validate({**inherited, **own})
    except pydantic.ValidationError as error:
        return [_words(detail) for detail in error.errors(include_url=False)[:_TOLD]]
    return []


def _words(detail: Any) -> str:
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    field = _shown(detail["loc"][0]) if detail["loc"] else ""
    if detail["type"] == "extra_forbidden":
        return f"there is no field {field}; allowed are {', '.join(_Rule.model_fields)}, extends"
    if detail["type"] == "missing":
        return f"field {field} is required"
    if detail["type"] in ("tuple_type", "too_short"):
        message = "must be a text, or a list of one text or more"
    return f"field {field}: {message}" if field else message


def _shown(value: Any) -> str:
    return ascii(value)[:40]


def _one_or_several(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _check_place(value: Any) -> str:
    if not isinstance(value, str) or not _PLACE.fullmatch(value):
        raise ValueError(
            f"{_shown(value)} is no place: allowed are $, names like a or a.b, and a.* for every list in a"
        )
    return value


def _check_single_place(value: Any) -> str:
    found = _check_place(value)
    if found == "$" or _is_columns(found):
        raise ValueError(f"{_shown(found)} is not the place of one value: allowed are names like a or a.b")
    return found


def _check_path(text: str) -> str:
    is_whole = text.startswith(("/", "**/")) and text.isascii() and text.isprintable()
    if not is_whole or set(text) & set(" ?#"):
        raise ValueError(f"{_shown(text)} is no path: it begins with / or **/, and has no ?, # or space")
    if any("**" in part and part != "**" for part in text.split("/")):
        raise ValueError(f"{_shown(text)} is no path: ** stands for whole segments, as in **/embeddings")
    return text


def _check_header(text: str) -> str:
    if not _HEADER.fullmatch(text):
        raise ValueError(f"{_shown(text)} is no name of a header")
    return text


def _check_member(text: str) -> str:
    if not text or "." in text:
        raise ValueError(f"{_shown(text)} is not the name of one member")
    return text


def _is_columns(place: str) -> bool:
    return place.split(".")[-1] == "*"


def _overlap(one: str, other: str) -> bool:
    """Whether one place is the other, or within it."""
    return all(left == right for left, right in zip(_names(one), _names(other), strict=False))


def _names(place: str) -> Sequence[str]:
    return [name for name in place.split(".") if name not in ("$", "*")]


_SEVERAL = pydantic.BeforeValidator(_one_or_several)
_Places = Annotated[
    tuple[Annotated[str, pydantic.PlainValidator(_check_place)], ...], _SEVERAL, pydantic.Field(min_length=1)
]
_Values = Annotated[tuple[Annotated[str, pydantic.PlainValidator(_check_single_place)], ...], _SEVERAL]
_Paths = Annotated[tuple[Annotated[str, pydantic.AfterValidator(_check_path)], ...], _SEVERAL]
_Member = Annotated[str, pydantic.AfterValidator(_check_member)]
_Bound = Annotated[int, pydantic.Field(ge=1, le=2**31)]


class _Rule(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    path: Annotated[_Paths, pydantic.Field(min_length=1)]
    list: _Places
    answers: _Places
    about: str = ""
    along: _Values = ()
    scalar: Literal["wrapped", "unwrapped", "by_row", "alone"] = "alone"
    alone_with: _Values = ()
    alone_if: _Values = ()
    token_ids: bool = False
    same_members: bool = False
    kinds: Annotated[tuple[Literal["string", "list", "object", "number"], ...], _SEVERAL] = ()
    answers_along: _Values = ()
    index: _Member | None = None
    rank_by: Annotated[tuple[_Member, ...], _SEVERAL] = ()
    top: Annotated[tuple[_Member, ...], _SEVERAL] = ()
    query: _Values = ()
    return_if: Annotated[tuple[_Member, ...], _SEVERAL] = ()
    return_as: _Values = ()
    shared: _Values = ()
    ignore: Annotated[tuple[_Member, ...], _SEVERAL] = ()
    max_batch_size: Annotated[int, pydantic.Field(ge=1, le=100_000)] | None = None
    max_bytes: _Bound | None = None
    max_characters: _Bound | None = None
    max_tokens: _Bound | None = None
    characters_a_token: Annotated[float, pydantic.Field(ge=0.1, le=100)] | None = None
    one_query: _Paths = ()
    key_headers: Annotated[tuple[Annotated[str, pydantic.AfterValidator(_check_header)], ...], _SEVERAL] = ()
    error: Any = None

    @pydantic.model_validator(mode="after")
    def _check_together(self) -> _Rule:
        has_columns = any(map(_is_columns, self.list))
        cut = {place.split(".")[0] for place in (*self.list, *self.along) if place not in ("$", "*")}
        if both := sorted(cut.intersection(self.ignore)):
            raise ValueError(f"'ignore' names {_shown(both[0])}, which holds the rows or what goes along them")
        for along in self.along:
            if any(_overlap(along, place) for place in self.list):
                raise ValueError(f"'along' names {_shown(along)}, which is in a place of 'list', or holds one")
        for name, values in (
            ("along", self.along), ("answers_along", self.answers_along), ("shared", self.shared),
        ):  # fmt: skip
            if len(set(values)) < len(values):
                raise ValueError(f"{name!r} names a place twice")
        if self.token_ids and has_columns:
            raise ValueError("'token_ids' does not go with a 'list' of columns, whose rows are not lists")
        if self.scalar != "alone" and has_columns:
            raise ValueError("'scalar' must be alone with a 'list' of columns")
        if self.index is not None and any(map(_is_columns, self.answers)):
            raise ValueError("'index' does not go with 'answers' in columns, whose rows have no members")
        if (self.max_tokens is None) != (self.characters_a_token is None):
            raise ValueError("'max_tokens' and 'characters_a_token', by which texts are counted, go together")
        return self

    @pydantic.model_validator(mode="after")
    def _check_answers(self) -> _Rule:
        for echoed in self.answers_along:
            if any(_overlap(echoed, place) for place in self.answers):
                raise ValueError(
                    f"'answers_along' names {_shown(echoed)}, which is in a place of 'answers', or holds one"
                )
        if self.rank_by and (self.index is None or self.scalar != "alone"):
            raise ValueError("'rank_by' needs 'index', by which a row names its text, and 'scalar' alone")
        heads = [place.split(".")[0] for place in self.list]
        if self.top and (not self.rank_by or not set(self.top).isdisjoint(heads)):
            raise ValueError("'top' needs 'rank_by', and is not where the rows are")
        if self.query and (not self.rank_by or any(place == "$" or _is_columns(place) for place in self.list)):
            raise ValueError("'query' needs 'rank_by', and a 'list' that is one member")
        if self.query and self.kinds and {"string", "object"}.isdisjoint(self.kinds):
            raise ValueError("'query' needs rows of the 'kinds' string or object, of which pairs are made")
        if bool(self.return_if) != bool(self.return_as) or (self.return_if and not self.query):
            raise ValueError("'return_if' and 'return_as' go together, and need 'query'")
        return self
