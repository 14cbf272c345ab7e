"""The table of rules: which paths have lists, where in a request and its answer they are, and what goes with them.

Rules are data. Those built in are in `builtin.yaml`, in the form in which people write their own.
"""

from __future__ import annotations

import functools
import importlib.resources
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import msgspec
import pydantic

from carpool_sidecar.protocols.lists import places

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_SEGMENT = re.compile(r"\*\*|\*|[^*]+")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_ENDINGS = (".yaml", ".yml", ".json")
_MOST_YAML = 1024 * 1024
_FILLED_IN = re.compile(r"\$(?:message|status|reason)")
_DEFAULT_ERROR = {"error": "$message"}

ALWAYS = "*"
"""In `return_if`: documents are returned whatever a request says."""


def _one_or_several(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a text or a list of texts; given: {value!r}")
    return tuple(value)


def _at_least_one(value: Any) -> Any:
    if not value:
        raise ValueError("must have at least one")
    return value


def _place(value: Any) -> places.Place:
    if not isinstance(value, str):
        raise ValueError("a place is a text: $, a name like a or a.b, or a.* for every list in a")
    return places.Place.parse(value)


def _single_place(value: Any) -> places.Place:
    found = _place(value)
    if found.is_columns or not found.names:
        raise ValueError(f"{found.text!r} is not the place of one value: allowed are names like a or a.b")
    return found


def _check_path(text: str) -> str:
    _path_pattern(text)
    return text


def _check_header(text: str) -> str:
    if not _HEADER.fullmatch(text):
        raise ValueError(f"{text!r} is no name of a header")
    return text.lower()


def _check_member(text: str) -> str:
    if not text or "." in text:
        raise ValueError(f"{text!r} is not the name of one member")
    return text


Alternatives = Annotated[
    tuple[Annotated[places.Place, pydantic.PlainValidator(_place)], ...],
    pydantic.AfterValidator(_at_least_one),
    pydantic.BeforeValidator(_one_or_several),
]
Values = Annotated[
    tuple[Annotated[places.Place, pydantic.PlainValidator(_single_place)], ...],
    pydantic.BeforeValidator(_one_or_several),
]
Paths = Annotated[
    tuple[Annotated[str, pydantic.AfterValidator(_check_path)], ...], pydantic.BeforeValidator(_one_or_several)
]
Member = Annotated[str, pydantic.AfterValidator(_check_member)]
Bound = Annotated[int, pydantic.Field(ge=1, le=2**31)]


class Rule(pydantic.BaseModel):
    """One kind of request with a list in it; docs/lists.md says what each field means.

    A path pattern has `*` for characters within a segment and `**` for any number of whole segments.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)

    name: str
    about: str = ""
    paths: Annotated[Paths, pydantic.Field(alias="path"), pydantic.AfterValidator(_at_least_one)]
    rows: Annotated[Alternatives, pydantic.Field(alias="list")]
    along: Values = ()
    scalar: Literal["wrapped", "unwrapped", "by_row", "alone"] = "alone"
    alone_with: Values = ()
    alone_if: Values = ()
    token_ids: bool = False
    same_members: bool = False
    kinds: Annotated[
        tuple[Literal["string", "list", "object", "number"], ...], pydantic.BeforeValidator(_one_or_several)
    ] = ()
    answers: Alternatives
    answers_along: Values = ()
    index: Member | None = None
    rank_by: Annotated[tuple[Member, ...], pydantic.BeforeValidator(_one_or_several)] = ()
    top: Annotated[tuple[Member, ...], pydantic.BeforeValidator(_one_or_several)] = ()
    query: Values = ()
    return_if: Annotated[tuple[Member, ...], pydantic.BeforeValidator(_one_or_several)] = ()
    return_as: Values = ()
    shared: Values = ()
    ignore: Annotated[tuple[Member, ...], pydantic.BeforeValidator(_one_or_several)] = ()
    max_batch_size: Annotated[int, pydantic.Field(ge=1, le=100_000)] | None = None
    max_bytes: Bound | None = None
    max_characters: Bound | None = None
    max_tokens: Bound | None = None
    characters_a_token: Annotated[float, pydantic.Field(ge=0.1, le=100)] | None = None
    one_query: Paths = ()
    key_headers: Annotated[
        tuple[Annotated[str, pydantic.AfterValidator(_check_header)], ...], pydantic.BeforeValidator(_one_or_several)
    ] = ()
    error: Any = _DEFAULT_ERROR

    @pydantic.model_validator(mode="after")
    def _check_together(self) -> Rule:
        cut = {place.names[0] for place in (*self.rows, *self.along) if place.names}
        if both := sorted(cut.intersection(self.ignore)):
            raise ValueError(f"'ignore' names {both[0]!r}, which holds the rows or what goes along them")
        for along in self.along:
            if any(_overlap(along.names, place.names) for place in self.rows):
                raise ValueError(f"'along' names {along.text!r}, which is in a place of 'list', or holds one")
        try:
            self.render_error("words", 500, "reason")
        except (RecursionError, TypeError, ValueError, msgspec.MsgspecError):
            raise ValueError("'error' cannot be written as JSON, or holds itself") from None
        for name in ("along", "answers_along", "shared"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ValueError(f"{name!r} names a place twice")
        if self.token_ids and any(place.is_columns for place in self.rows):
            raise ValueError("'token_ids' does not go with a 'list' of columns, whose rows are not lists")
        if self.scalar != "alone" and any(place.is_columns for place in self.rows):
            raise ValueError("'scalar' must be alone with a 'list' of columns")
        if self.index is not None and any(place.is_columns for place in self.answers):
            raise ValueError("'index' does not go with 'answers' in columns, whose rows have no members")
        return self

    @pydantic.model_validator(mode="after")
    def _check_answers(self) -> Rule:
        for echoed in self.answers_along:
            if any(_overlap(echoed.names, place.names) for place in self.answers):
                raise ValueError(
                    f"'answers_along' names {echoed.text!r}, which is in a place of 'answers', or holds one"
                )
        if (self.max_tokens is None) != (self.characters_a_token is None):
            raise ValueError("'max_tokens' and 'characters_a_token', by which texts are counted, go together")
        if self.rank_by and (self.index is None or self.scalar != "alone"):
            raise ValueError("'rank_by' needs 'index', by which a row names its text, and 'scalar' alone")
        heads = [place.names[0] for place in self.rows if place.names]
        if self.top and (not self.rank_by or not set(self.top).isdisjoint(heads)):
            raise ValueError("'top' needs 'rank_by', and is not where the rows are")
        if self.query and (not self.rank_by or any(place.is_columns or not place.names for place in self.rows)):
            raise ValueError("'query' needs 'rank_by', and a 'list' that is one member")
        if self.query and self.kinds and {"string", "object"}.isdisjoint(self.kinds):
            raise ValueError("'query' needs rows of the 'kinds' string or object, of which pairs are made")
        if bool(self.return_if) != bool(self.return_as) or (self.return_if and not self.query):
            raise ValueError("'return_if' and 'return_as' go together, and need 'query'")
        return self

    @property
    def has_room(self) -> bool:
        """Whether it says how much a call may have beside the number of its rows."""
        return any(bound is not None for bound in (self.max_bytes, self.max_characters, self.max_tokens))

    @property
    def most_bytes(self) -> float:
        """Bytes of rows that a call may have by all of its limits, if a character is one byte; else infinity."""
        tokens = math.inf if self.max_tokens is None else self.max_tokens * (self.characters_a_token or 1)
        return min(self.max_bytes or math.inf, self.max_characters or math.inf, tokens)

    def matches(self, path: str) -> bool:
        """Whether this rule is for requests to a path."""
        return any(_path_pattern(each).fullmatch(path) for each in self.paths)

    def has_one_query(self, path: str) -> bool:
        """Whether requests to a path have one query for many texts."""
        return any(_path_pattern(each).fullmatch(path) for each in self.one_query)

    def render_error(self, message: str, status: int, reason: str) -> bytes:
        """The body of an error of our own, in the shape that clients of this server know."""
        return msgspec.json.encode(_filled(self.error, {"$message": message, "$status": status, "$reason": reason}))


def load(chosen: Sequence[str]) -> tuple[Rule, ...]:
    """The rules of `--lists`: names of built-in ones, YAML files, and YAML itself, in this order.

    Raises `ValueError` that names the file, the rule and the field, and says what is allowed.
    """
    found: dict[str, Rule] = {}
    for each in chosen:
        for rule in _load_one(each):
            if rule.name in found:
                raise ValueError(f"two rules of --lists have the name {rule.name!r}")
            found[rule.name] = rule
    return tuple(found.values())


def named(words: Sequence[str]) -> tuple[Rule, ...]:
    """The rules that words of a command line name, each of them as in `--lists`; raises as `load` does."""
    return load([name for each in words for name in ([each] if is_text(each) else each.split(",")) if name])


@functools.cache
def built_in() -> Mapping[str, Rule]:
    """The rules that come with Carpool, by their names."""
    text = importlib.resources.files(__package__).joinpath("builtin.yaml").read_text()
    return {rule.name: rule for rule in _read("builtin.yaml", text, {})}


def is_text(value: str) -> bool:
    """Whether a value of `--lists` is YAML itself, rather than names."""
    return "\n" in value.strip() or value.lstrip().startswith("{")


def _load_one(chosen: str) -> Iterator[Rule]:
    if is_text(chosen):
        return _read("the YAML of --lists", chosen, built_in())
    if "/" in chosen or chosen.endswith(_ENDINGS):
        return _read(chosen, _text_of(chosen), built_in())
    rule = built_in().get(chosen)
    if rule is None:
        names = ", ".join(built_in())
        raise ValueError(f"{chosen!r} is no built-in rule; those are {names}. A file has a / or ends in .yaml")
    return iter([rule])


def _text_of(name: str) -> str:
    try:
        with Path(name).open(encoding="utf-8") as file:
            text = file.read(_MOST_YAML + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"{name} cannot be read: {reason}") from None
    if len(text) > _MOST_YAML:
        raise ValueError(f"{name} is larger than {_MOST_YAML} characters")
    return text


def _read(source: str, text: str, known: Mapping[str, Rule]) -> Iterator[Rule]:
    given = _parse(source, text)
    if not isinstance(given, dict) or not given:
        raise ValueError(f"{source}: must be a mapping of names to rules")
    for name, fields in given.items():
        yield _make(source, name, fields, known)


def _parse(source: str, text: str) -> Any:
    from ruamel import yaml  # only where there is YAML to be read: importing it takes 40 ms

    try:
        return yaml.YAML(typ="safe", pure=True).load(text)
    except yaml.error.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        problem = (error.problem or "no YAML").splitlines()[0]
        raise ValueError(f"{source}{line}: {problem}") from None
    except (yaml.error.YAMLError, ValueError, RecursionError) as error:
        words = str(error).splitlines()[:1] or ["no YAML"]
        raise ValueError(f"{source}: {words[0]}") from None


def _make(source: str, name: Any, fields: Any, known: Mapping[str, Rule]) -> Rule:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{source}: {name!r} is no name of a rule: allowed are a-z, 0-9, '-', '_' and '.', at most 63")
    where = f"{source}: rule {name!r}"
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: must be a mapping of fields, such as path, list and answers")
    if "name" in fields:
        raise ValueError(f"{where}: the field 'name' is not allowed: the name stands before the rule")
    base = fields.get("extends")
    inherited: dict[str, Any] = {}
    if base is not None:
        if not isinstance(base, str) or base not in known:
            names = ", ".join(known)
            raise ValueError(f"{where}: field 'extends': {base!r} is no built-in rule; those are {names}")
        inherited = {each: getattr(known[base], each) for each in known[base].model_fields_set - {"name"}}
    own = {each: value for each, value in fields.items() if each != "extends"}
    try:
        return Rule.model_validate({**_aliased(inherited), **own, "name": name})
    except pydantic.ValidationError as error:
        _complain(where, error)


def _aliased(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A rule's fields as they would be written."""
    return {Rule.model_fields[each].alias or each: _written(value) for each, value in fields.items()}


def _written(value: Any) -> Any:
    if isinstance(value, tuple):
        return [each.text if isinstance(each, places.Place) else each for each in value]
    return value


def _complain(where: str, error: pydantic.ValidationError) -> NoReturn:
    told = []
    for detail in error.errors(include_url=False):
        words = detail["msg"].removeprefix("Value error, ")
        field = str(detail["loc"][0]) if detail["loc"] else ""
        if detail["type"] == "extra_forbidden":
            allowed = ", ".join(info.alias or each for each, info in Rule.model_fields.items() if each != "name")
            words = f"there is no such field; allowed are {allowed}, extends"
        elif detail["type"] == "missing":
            words = "is required"
        elif detail["type"] != "value_error":
            words = f"{words}; given: {detail['input']!r}"
        told.append(f"{where}: field {field!r}: {words}" if field else f"{where}: {words}")
    raise ValueError("; ".join(told)) from None


@functools.lru_cache(maxsize=1024)
def _path_pattern(text: str) -> re.Pattern[str]:
    """A path pattern as a regular expression; raises `ValueError` for what is none."""
    if not text.startswith(("/", "**/")) or not text.isascii() or not text.isprintable() or set(text) & set(" ?#"):
        raise ValueError(f"{text!r} is no path: it begins with / or **/, and has no ?, # or space")
    written = ""
    parts = text.lstrip("/").split("/") if text.startswith("/") else text.split("/")
    for number, part in enumerate(parts):
        if part == "**":
            written += "(?:/[^/]+)*" if number < len(parts) - 1 else "(?:/[^/]+)*/?"
        elif "**" in part:
            raise ValueError(f"{text!r} is no path: ** stands for whole segments, as in **/embeddings")
        else:
            written += "/" + "".join("[^/]+" if each == "*" else re.escape(each) for each in _SEGMENT.findall(part))
    return re.compile(written)


def _overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one place is the other, or within it."""
    return all(left == right for left, right in zip(one, other, strict=False))


def _filled(template: Any, values: Mapping[str, str | int]) -> Any:
    if isinstance(template, dict):
        return {name: _filled(value, values) for name, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, values) for value in template]
    if not isinstance(template, str):
        return template
    if template in values:
        return values[template]
    return _FILLED_IN.sub(lambda found: str(values[found[0]]), template)  # at once: a message may have such words
