"""What an API's own description (OpenAPI 3) says of its requests: paths, lists in bodies and answers, headers.

Only what decides about batching is read, and only as deep as servers write it; what is not understood is passed over.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from carpool_sidecar.protocols.lists import rules

_JSON = "application/json"
_BRANCHES = ("anyOf", "oneOf", "allOf")
# Far more than servers write: with them the largest description is read in seconds.
_MOST_REFERENCES = 8
_MOST_OPERATIONS = 200
_MOST_SCHEMAS = 32
_MOST_MEMBERS = 200
_LIST = "array"


class Operation(NamedTuple):
    """A POST with a JSON body.

    Of the body: members that may be lists, and all members; `headers` that it names; of the answer: places of lists, of
    which `$` is the answer itself. All are printable.
    """

    path: str
    lists: tuple[str, ...]
    members: tuple[str, ...]
    headers: tuple[str, ...]
    answers: tuple[str, ...]


def operations(body: bytes) -> tuple[Operation, ...]:
    """The operations of a description, in its order; none if it cannot be read."""
    try:
        described = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return ()
    paths = described.get("paths") if isinstance(described, dict) else None
    if not isinstance(paths, dict):
        return ()
    found = []
    for path, item in list(paths.items())[:_MOST_OPERATIONS]:
        post = _of(item, "post")
        if isinstance(post, dict) and path.isprintable():
            asked = _schema(described, _of(post, "requestBody", "content", _JSON))
            answer = _of(post, "responses", "200", "content", _JSON)
            members = _members(described, asked)
            found.append(
                Operation(
                    path,
                    tuple(name for name, schema in members.items() if _LIST in _types(described, schema)),
                    tuple(members),
                    tuple(_headers(described, post)),
                    tuple(_answer_lists(described, answer)),
                )
            )
    return tuple(found)


def fits(operation: Operation, rule: rules.Rule) -> bool:
    """Whether a rule is for requests to this path whose bodies have its list, as far as the description tells."""
    names = {place.names[0] for place in rule.rows if place.names}
    return rule.matches(operation.path) and not names.isdisjoint(operation.members)


def proposal(operation: Operation) -> str | None:
    """A rule of one's own for a request that has just one list, and so has its answer.

    None for any other, and where names would have to be written in another way to be loaded as they are.
    """
    if len(operation.lists) != 1 or len(operation.answers) != 1 or "{" in operation.path:
        return None
    name = operation.path.strip("/").replace("/", "-").lower() or "root"
    text = f"{name}:\n  path: {operation.path}\n  list: {operation.lists[0]}\n  answers: {operation.answers[0]}"
    try:
        [rule] = rules.load([text])
    except ValueError:
        return None
    places = rule.rows[0].names, rule.answers[0].names or ("$",)
    return text if (rule.paths, *places) == ((operation.path,), operation.lists, operation.answers) else None


def _of(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _schema(described: Mapping[str, Any], content: Any) -> Any:
    return _resolved(described, _of(content, "schema"))


def _resolved(described: Mapping[str, Any], schema: Any) -> Any:
    """A schema, or the one that it refers to."""
    for _ in range(_MOST_REFERENCES):
        reference = _of(schema, "$ref")
        if not isinstance(reference, str):
            return schema
        schema = _of(described, *reference.removeprefix("#/").split("/"))
    return None


def _branches(described: Mapping[str, Any], schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all those of which it is made up, each once and in their order."""
    seen: set[int] = set()
    ahead = [schema]
    while ahead and len(seen) < _MOST_SCHEMAS:
        schema = _resolved(described, ahead.pop())
        if isinstance(schema, dict) and id(schema) not in seen:
            seen.add(id(schema))
            yield schema
            branches = [each for word in _BRANCHES if isinstance(each := schema.get(word), list)]
            ahead += reversed(list(itertools.islice(itertools.chain(*branches), _MOST_SCHEMAS)))


def _members(described: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    properties = [each.get("properties") for each in _branches(described, schema)]
    members = itertools.chain(*(each.items() for each in properties if isinstance(each, dict)))
    return {name: member for name, member in itertools.islice(members, _MOST_MEMBERS) if name.isprintable()}


def _types(described: Mapping[str, Any], schema: Any) -> set[str]:
    """What a value may be; version 3.1 of the format has lists of types, too."""
    found = [each.get("type") for each in _branches(described, schema)]
    types = itertools.chain(*(each if isinstance(each, list) else [each] for each in found))
    return {each for each in types if isinstance(each, str)}


def _answer_lists(described: Mapping[str, Any], content: Any) -> Iterator[str]:
    schema = _schema(described, content)
    if _LIST in _types(described, schema):
        yield "$"
    for name, member in _members(described, schema).items():
        if _LIST in _types(described, member):
            yield name


def _headers(described: Mapping[str, Any], post: Mapping[str, Any]) -> Iterator[str]:
    parameters = post.get("parameters")
    for each in parameters if isinstance(parameters, list) else ():
        each = _resolved(described, each)
        name = _of(each, "name")
        if _of(each, "in") == "header" and isinstance(name, str) and name.isprintable():
            yield name.lower()
