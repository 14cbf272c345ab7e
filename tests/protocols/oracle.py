"""What is promised of messages with rows, done slowly: which requests may share a call, and what each caller gets.

Written from the documentation (docs/protocols.md, docs/lists.md) and without a look at the codecs, so that the two can
be held against each other. A rule is a mapping as in YAML. All of a text is parsed, numbers are never made into
Python's, and what has to stay as it was written is compared as text.
"""

from __future__ import annotations

import fractions
import itertools
import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Rule = Mapping[str, Any]
Place = tuple[str, ...]


class Passed(Exception):
    """The request is not batched but passed on as it came."""


class Refused(Exception):
    """The request is answered 400."""


class Malformed(ValueError):
    """Not JSON, or JSON that parsers read differently: a member that matters is there twice."""


# --- JSON as it is written --------------------------------------------------------------------------------------


class Node(NamedTuple):
    """A value as written and where it begins: `members` of an object are (name as written, name, value)."""

    text: str
    start: int
    members: tuple[tuple[str, str, Node], ...] | None = None
    elements: tuple[Node, ...] | None = None

    @property
    def stop(self) -> int:
        return self.start + len(self.text)

    @property
    def kind(self) -> str:
        if self.elements is not None or self.members is not None:
            return "object" if self.elements is None else "list"
        return {'"': "string", "t": "boolean", "f": "boolean", "n": "null"}.get(self.text[0], "number")

    @property
    def is_integer(self) -> bool:
        return self.kind == "number" and self.text.lstrip("-").isdigit()

    def member(self, name: str) -> Node | None:
        """Raises `Malformed` if there are two."""
        found = [value for _, each, value in self.members or () if each == name]
        if len(found) > 1:
            raise Malformed(f"{name!r} is there twice")
        return found[0] if found else None

    @property
    def has_twins(self) -> bool:
        """Whether two members have one name."""
        names = [name for _, name, _ in self.members or ()]
        return len({*names}) < len(names)


def read(body: bytes, has_words: bool = False) -> Node:
    """The value that a body is; with `has_words` it may have NaN and infinities. Raises `Malformed`."""

    def word(name: str) -> str:
        if not has_words:
            raise Malformed(f"{name} is not JSON")
        return name

    try:
        text = body.decode()
        json.loads(text, parse_int=str, parse_float=str, parse_constant=word)
        return _node(text, _after_space(text, 0))
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from None


_VALUE = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str).raw_decode
_SPACE = re.compile(r"[ \t\r\n]*")
_STRING_OR_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+', re.DOTALL)


def _after_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr] # it matches anything


def _node(text: str, start: int) -> Node:
    """The value that begins there, in text that is JSON."""
    is_object = text[start] == "{"
    if not is_object and text[start] != "[":
        return Node(text[start : _VALUE(text, start)[1]], start)
    found: list[tuple[str, str, Node]] = []
    at = _after_space(text, start + 1)
    while text[at] not in "]}":
        name, end = _VALUE(text, at) if is_object else ("", at)
        value = _node(text, _after_space(text, _after_space(text, end) + 1) if is_object else at)
        found.append((text[at:end], name, value))
        at = _after_space(text, value.stop)
        at = _after_space(text, at + 1) if text[at] == "," else at
    whole = text[start : at + 1]
    return Node(whole, start, tuple(found)) if is_object else Node(whole, start, None, tuple(each[2] for each in found))


def squeezed(text: str) -> str:
    """Without white space, but for that in strings."""
    return _STRING_OR_SPACE.sub(r"\1", text)


# --- forms ------------------------------------------------------------------------------------------------------


def forms_of(rows: Sequence[Node]) -> tuple[Hashable, ...]:
    """What the rows of requests have to agree in to share a call, each form as often as it comes first: names in order,
    nesting and kinds, but no values and no lengths.

    Whole numbers and decimals are one kind, unless a whole number among the rows may be one that no float can tell from
    its neighbours, which beside a decimal it would become.
    """
    is_precise = has_large(rows)
    numbers = _number([row for row in rows if row.kind == "number"], is_precise)
    return tuple(dict.fromkeys(numbers if row.kind == "number" else _form(row, is_precise) for row in rows))


def has_large(values: Iterable[Node]) -> bool:
    """Whether a whole number of 16 digits or more is among these, or anywhere in them."""
    return any(
        (each.is_integer and len(each.text.lstrip("-")) > 15)
        or has_large(each.elements or [value for _, _, value in each.members or ()])
        for each in values
    )


def _form(value: Node, is_precise: bool) -> Hashable:
    if value.members is not None:
        return ("object", *((written, _form(inner, is_precise)) for written, _, inner in value.members))
    if value.elements is None:
        return _number([value], is_precise) if value.kind == "number" else value.kind
    runs = [(kind, list(run)) for kind, run in itertools.groupby(value.elements, lambda each: each.kind)]
    told = [
        each
        for kind, run in runs
        for each in ([_number(run, is_precise)] if kind == "number" else [_form(each, is_precise) for each in run])
    ]
    return ("list", *[each for each, _ in itertools.groupby(told)])


def _number(numbers: Sequence[Node], is_precise: bool) -> Hashable:
    """What numbers side by side are."""
    return ("number", frozenset(each.is_integer for each in numbers) if is_precise else None)


# --- places -----------------------------------------------------------------------------------------------------


def places(told: str | Sequence[str] | None) -> list[Place]:
    """Of one or several as they stand in a rule."""
    listed = [told] if isinstance(told, str) else told or []
    return [() if each == "$" else tuple(each.split(".")) for each in listed]


def find(node: Node, place: Place) -> Node | None:
    """What is at a place; for columns (`a.*`) the object they are members of, if it is one."""
    for name in place:
        if name == "*":
            return node if node.members is not None else None
        found = node.member(name)
        if found is None:
            return None
        node = found
    return node


def lists_at(node: Node, place: Place) -> dict[Place, Node]:
    """What is at a place by its full place: one value, or every list of the columns."""
    found = find(node, place)
    if found is None or place[-1:] != ("*",):
        return {} if found is None else {place: found}
    if found.has_twins:
        raise Malformed("two columns of one name")
    return {(*place[:-1], name): each for _, name, each in found.members or () if each.elements is not None}


def rewritten(node: Node, gaps: Mapping[Place, str | None], place: Place = ()) -> str | None:
    """A value with other text at some places, and without the members at those that have None.

    There may be no white space around members on the way. Raises `Malformed` if one of those is there twice.
    """
    if place in gaps:
        return gaps[place]
    if node.members is None or not any(each[: len(place)] == place for each in gaps):
        return node.text
    told = []
    for written, name, value in node.members:
        inner = (*place, name)
        if any(each[: len(inner)] == inner for each in gaps):
            node.member(name)
        text = rewritten(value, gaps, inner)
        told += [] if text is None else [f"{written}:{text}"]
    return f"{{{','.join(told)}}}"


# --- requests ---------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """One that is batched. Requests of equal `key`s may share a call. `lists` are all that are cut, by their places.

    `one` is what the rule says of a single value, if that is what the request has, else `list`.
    """

    key: Hashable
    lists: Mapping[Place, Sequence[Node]]
    rows: int
    one: str = "list"


def understand_v1(body: bytes) -> Request:
    """A v1 predict request. Raises `Refused` and `Passed`."""
    try:
        node = read(body)
    except Malformed as error:
        raise Refused(str(error)) from None
    named = {name: value for _, name, value in node.members or () if name in ("instances", "inputs")}
    if node.has_twins or len(named) != 1:
        raise Refused("no instances")
    ((name, listed),) = named.items()
    if name == "inputs" and listed.members is not None:
        raise Passed
    if not listed.elements:
        raise Refused("no list with anything in it")
    others = [(written, value.text) for written, each, value in node.members or () if each != name]
    return Request((name, *others, forms_of(listed.elements)), {(name,): listed.elements}, len(listed.elements))


def understand(rule: Rule, body: bytes) -> Request:
    """What a rule of `--lists` says of a body. Raises `Passed`."""
    try:
        return _understood(rule, read(body))
    except Malformed:
        raise Passed from None


def _understood(rule: Rule, node: Node) -> Request:
    stream = node.member("stream")
    if node.has_twins or (stream is not None and stream.text not in ("false", "null", "0")):
        raise Passed
    if any(each.text not in ("false", "null") for place in places(rule.get("alone_if")) if (each := find(node, place))):
        raise Passed
    found = next((found for place in places(rule["list"]) if (found := _lists_of_rows(rule, node, place))), None)
    if found is None:
        raise Passed
    one = "list"
    if any(rows == [find(node, place)] for place, rows in found.items()):
        one = rule["scalar"]
        if any(find(node, place) for place in places(rule.get("alone_with"))):
            raise Passed
    besides = {place: find(node, place) for place in places(rule.get("along"))}
    along = {place: list(each.elements) for place, each in besides.items() if each and each.elements is not None}
    counts = {len(rows) for rows in (*found.values(), *along.values())}
    kinds = [_kinds(rule, rows) for rows in found.values()]
    if len(counts) != 1 or None in kinds:
        raise Passed
    lists = found | along
    return Request((_around(rule, node, lists), tuple(lists), *kinds), lists, counts.pop(), one)


def _lists_of_rows(rule: Rule, node: Node, place: Place) -> dict[Place, list[Node]] | None:
    """The rows of every list at a place; None if there is none, or one without rows."""
    found = {}
    for each, value in lists_at(node, place).items():
        if value.elements is not None and not (value.elements and are_tokens(rule, [value])):
            found[each] = list(value.elements)
        elif _is_a_row(rule, value):
            found[each] = [value]
        else:
            return None
    allowed = rule.get("kinds")
    is_taken = all(
        len({row.kind for row in rows}) == 1 and rows[0].kind in allowed for rows in found.values() if allowed
    )
    return found if found and all(found.values()) and is_taken else None


def _is_a_row(rule: Rule, value: Node) -> bool:
    """Whether a value that is no list of rows is a row. What an empty text is answered differs between servers."""
    refused = ("boolean", "null", *(["object"] if rule.get("scalar") == "by_row" else []))
    return rule.get("scalar", "alone") != "alone" and value.text != '""' and value.kind not in refused


def _around(rule: Rule, node: Node, lists: Mapping[Place, Sequence[Node]]) -> Hashable:
    """All text of a request but its rows and what the rule ignores."""
    gaps: dict[Place, str | None] = dict.fromkeys(places(rule.get("ignore")))
    return squeezed(rewritten(node, gaps | dict.fromkeys(lists, "[]")) or "")


def _kinds(rule: Rule, rows: Sequence[Node]) -> Hashable:
    """What the rows of one list have to have in common with those of others; None if they have too little of it."""
    if rule.get("same_members") and len({_table(row) for row in rows}) > 1:
        return None
    return are_tokens(rule, rows), forms_of(rows)


def _table(row: Node) -> Hashable:
    """What all rows of one table have."""
    names = tuple(name for _, name, _ in row.members or ())
    return names if row.members is not None else len(row.elements) if row.elements is not None else None


def are_tokens(rule: Rule, rows: Sequence[Node]) -> bool:
    """Whether these are lists of token ids."""
    listed = all(row.elements is not None and all(each.is_integer for each in row.elements) for row in rows)
    return bool(rule.get("token_ids")) and listed


def weight(rule: Rule, request: Request, start: int = 0, stop: int | None = None) -> tuple[int, bool]:
    """By what counts are shared out among rows of several requests: their tokens, which the other value tells, or bytes
    of all that is cut with them."""
    along = places(rule.get("along"))
    rows = [row for place, each in request.lists.items() if place not in along for row in each[start:stop]]
    if are_tokens(rule, rows):
        return sum(len(row.elements or ()) for row in rows), True
    return sum(len(row.text.encode()) for each in request.lists.values() for row in each[start:stop]), False


# --- answers ----------------------------------------------------------------------------------------------------


class Broken(Exception):
    """No share of an answer can be told: it is none, or has other rows than the batch."""


class Answer(NamedTuple):
    """An answer: `lists` are its rows in the batch's order, `numbers` what it counts for all of them.

    `lost` are the places of counts that cannot be shared out.
    """

    node: Node
    lists: Mapping[Place, Sequence[Node]]
    numbers: Mapping[Place, int]
    lost: Sequence[Place]

    @property
    def form(self) -> Hashable:
        """What answers to parts of one request have to agree in to be joined."""
        return frozenset(self.lists), frozenset(self.numbers)


def understand_answer(rule: Rule, body: bytes, rows: int) -> Answer:
    """All of an answer to a batch of so many rows; raises `Broken`."""
    try:
        node = read(body, has_words=True)
        found: dict[Place, Sequence[Node]] = {}
        for place in places(rule["answers"]):
            if found := {at: each.elements for at, each in lists_at(node, place).items() if each.elements is not None}:
                break
        if not found or any(len(each) != rows for each in found.values()):
            raise Broken("other rows than the batch")
        if "index" in rule:
            found = {place: _in_order(rule["index"], each) for place, each in found.items()}
        numbers: dict[Place, int] = {}
        lost: list[Place] = []
        for place in places(rule.get("shared")):
            value = find(node, place) if not any(place[: len(each)] == each for each in found) else None
            if value is not None:
                _count(value, place, found, numbers, lost)
        rewritten(node, dict.fromkeys([*found, *numbers, *lost], ""))
    except Malformed as error:
        raise Broken(str(error)) from None
    return Answer(node, found, numbers, lost)


def understand_v1_answer(body: bytes) -> tuple[str, Sequence[Node]]:
    """The name of an answer's list, and its rows; of several the last counts. Raises `Broken`."""
    try:
        members = read(body, has_words=True).members or ()
    except Malformed as error:
        raise Broken(str(error)) from None
    for name in ("predictions", "outputs"):
        found = [value for _, each, value in members if each == name]
        if found and found[-1].elements is not None:
            return name, found[-1].elements
        if found:
            break
    raise Broken("no list of predictions")


def v1_answer(name: str, rows: Sequence[Node]) -> bytes:
    """What a caller gets whose rows these are, of batch `b`."""
    return f'{{"message":"","batchId":"b","{name}":[{",".join(row.text for row in rows)}]}}'.encode()


def _in_order(name: str, rows: Sequence[Node]) -> Sequence[Node]:
    """By the member that counts them; as they are if none is counted."""
    counts = [row.member(name) for row in rows]
    if not any(counts):
        return rows
    by_index = {each.text: row for row, each in zip(rows, counts, strict=True) if each is not None}
    if by_index.keys() != {str(number) for number in range(len(rows))}:
        raise Broken("the indexes do not count the rows")
    return [by_index[str(number)] for number in range(len(rows))]


def _count(node: Node, place: Place, rows: Mapping[Place, Any], numbers: dict[Place, int], lost: list[Place]) -> None:
    """What a value, and all that is in it if it is an object, adds to the counts that are shared out or left out."""
    if place in rows:
        return
    if node.members is not None and not node.has_twins:
        for _, name, value in node.members:
            _count(value, (*place, name), rows, numbers, lost)
    elif re.search("[0-9]", node.text) or node.members is not None:
        total = _total(node)
        if total is None:
            lost.append(place)
        else:
            numbers[place] = total


def _total(node: Node) -> int | None:
    """A whole number that servers keep in 64 bits, or, however it is written, in a float; and not negative."""
    if node.kind != "number" or len(node.text) > 40:
        return None
    if node.text.isdigit() and len(node.text) <= 18:
        return int(node.text)
    number = fractions.Fraction(node.text) if abs(float(node.text)) < 2**53 else None
    return None if number is None or number < 0 or number.denominator > 1 else int(number)


def numbered(rule: Rule, rows: Sequence[Node]) -> list[str]:
    """A caller's rows as it gets them: with the member that counts them counting from 0."""
    found = []
    for number, row in enumerate(rows):
        index = row.member(rule["index"]) if "index" in rule else None
        text, at = row.text, index.start - row.start if index else 0
        found.append(text if index is None else f"{text[:at]}{number}{text[at + len(index.text) :]}")
    return found


def written(answer: Answer, one: str, rows: Mapping[Place, Sequence[str]], numbers: Mapping[Place, int]) -> str:
    """What a caller gets of an answer whose rows and shares of numbers are these, but for white space."""
    gaps: dict[Place, str | None] = {place: str(number) for place, number in numbers.items()}
    for place, texts in rows.items():
        is_bare = one == "unwrapped" or (one == "by_row" and texts[0].startswith("["))
        gaps[place] = texts[0] if is_bare else f"[{','.join(texts)}]"
    return squeezed(rewritten(answer.node, gaps | dict.fromkeys(answer.lost)) or "")
