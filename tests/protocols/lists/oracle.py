"""What a rule of `--lists` promises, done slowly: all of a text is parsed, and every row is a string.

Written from the rules' documentation and without a look at the codec, so that the two can be held against each other.
A rule is a mapping as in YAML. Numbers are never made into Python's, and what has to stay as it was written is compared
as text.
"""

from __future__ import annotations

import fractions
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Rule = Mapping[str, Any]
Place = tuple[str, ...]


class Malformed(ValueError):
    """Not JSON, or JSON that parsers read differently: a member that matters is there twice."""


# --- reading JSON -----------------------------------------------------------------------------------------------


class Node(NamedTuple):
    """A value and where it is: `members` of an object are (name as written, name, value), `elements` a list's."""

    text: str
    start: int
    members: tuple[tuple[str, str, Node], ...] | None = None
    elements: tuple[Node, ...] | None = None

    @property
    def kind(self) -> str:
        if self.elements is not None:
            return "list"
        if self.members is not None:
            return "object"
        return "string" if self.text[0] == '"' else "other" if self.text in ("true", "false", "null") else "number"

    @property
    def is_integer(self) -> bool:
        return self.kind == "number" and self.text.lstrip("-").isdigit()

    @property
    def is_whole(self) -> bool:
        """Whether it counts something: a whole number that servers keep in 64 bits, and not negative."""
        return self.is_integer and self.text.isdigit() and len(self.text) <= 18

    @property
    def total(self) -> int | None:
        """The same of a number however it is written, if it is small enough for a float."""
        if self.is_whole:
            return int(self.text)
        if self.kind != "number" or len(self.text) > 40:
            return None
        number = fractions.Fraction(self.text) if abs(float(self.text)) < 2**53 else None
        return None if number is None or number < 0 or number.denominator > 1 else int(number)

    def member(self, name: str) -> Node | None:
        """Raises `Malformed` if there are two."""
        found = [value for _, each, value in self.members or () if each == name]
        if len(found) > 1:
            raise Malformed(f"{name!r} is there twice")
        return found[0] if found else None


def _refuse(word: str) -> None:
    raise Malformed(f"{word} is not JSON")


_DECODER = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_refuse)
_LENIENT = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)
_SPACE = " \t\r\n"


def read(body: bytes, decoder: json.JSONDecoder = _DECODER) -> Node:
    """The value that a body is; raises `Malformed`."""
    try:
        text = body.decode()
        node, at = _value(text, _skip(text, 0), decoder)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise Malformed(str(error)) from None
    if _skip(text, at) != len(text):
        raise Malformed(f"more follows at {at}")
    return node


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _expect(text: str, at: int, allowed: str) -> str:
    if text[at : at + 1] not in tuple(allowed):
        raise Malformed(f"{allowed!r} is missing at {at}")
    return text[at]


def _value(text: str, start: int, decoder: json.JSONDecoder) -> tuple[Node, int]:
    if text[start : start + 1] == "[":
        elements = []
        at = _skip(text, start + 1)
        while text[at : at + 1] != "]" or elements:
            node, at = _value(text, at, decoder)
            elements.append(node)
            at = _skip(text, at)
            if _expect(text, at, ",]") == "]":
                break
            at = _skip(text, at + 1)
        return Node(text[start : at + 1], start, elements=tuple(elements)), at + 1
    if text[start : start + 1] == "{":
        members: list[tuple[str, str, Node]] = []
        at = _skip(text, start + 1)
        while text[at : at + 1] != "}" or members:
            _expect(text, at, '"')
            name, end = decoder.raw_decode(text, at)
            written = text[at:end]
            at = _skip(text, end)
            _expect(text, at, ":")
            node, at = _value(text, _skip(text, at + 1), decoder)
            members.append((written, name, node))
            at = _skip(text, at)
            if _expect(text, at, ",}") == "}":
                break
            at = _skip(text, at + 1)
        return Node(text[start : at + 1], start, members=tuple(members)), at + 1
    _, end = decoder.raw_decode(text, start)
    return Node(text[start:end], start), end


def read_answer(body: bytes) -> Node:
    """The same for a server's answer, which may have NaN and infinities, as Python writes them."""
    return read(body, _LENIENT)


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


def _lists_at(node: Node, place: Place) -> dict[Place, Node] | None:
    """What is at a place by its full place: one value, or every list of the columns; None if nothing is there."""
    found = find(node, place)
    if found is None:
        return None
    if place[-1:] != ("*",):
        return {place: found}
    names = [name for _, name, _ in found.members or ()]
    if len(set(names)) != len(names):
        raise Malformed("two columns of one name")
    return {(*place[:-1], name): each for _, name, each in found.members or () if each.elements is not None}


LEFT_OUT = object()
_NOBODY = "no member is called so"


def outline(node: Node, marks: Mapping[Place, Any], without: Iterable[str] = (), place: Place = ()) -> Any:
    """A value with what is at some places replaced, the top-level members `without` left out, and the rest as text.

    Space between the members of objects on the way is not told, nor their order; raises `Malformed` if one that leads
    to a place is there twice.
    """
    if place in marks:
        return marks[place]
    if node.members is None or not any(each[: len(place)] == place for each in marks):
        return node.text
    told: dict[Any, Any] = {}
    for written, name, value in node.members:
        if not place and name in without:
            continue
        inner = (*place, name)
        if marks.get(inner) is LEFT_OUT:
            continue
        on_the_way = any(each[: len(inner)] == inner for each in marks)
        if on_the_way and name in told:
            raise Malformed(f"{name!r} is there twice")
        told.setdefault(name if on_the_way else ("member", written), []).append(outline(value, marks, without, inner))
    return told


# --- requests ---------------------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """A request that can be batched. `lists` are all that are cut, `others` what has to agree with other requests.

    `form` is `list`, or what the rule says of a single value. `kinds` are what rows there are in each list.
    """

    others: Any
    lists: dict[Place, list[Node]]
    along: dict[Place, list[Node]]
    form: str
    rows: int
    kinds: dict[Place, Any]


def understand(rule: Rule, body: bytes) -> Reading | None:
    """What a rule says of a body; None if the request is passed on as it came."""
    try:
        return _understand(rule, read(body))
    except Malformed:
        return None


def _understand(rule: Rule, node: Node) -> Reading | None:
    if _has_twins(node):
        return None
    stream = node.member("stream")
    if stream is not None and stream.text not in ("false", "null", "0"):
        return None
    for place in places(rule.get("alone_if")):
        found = find(node, place)
        if found is not None and found.text not in ("false", "null"):
            return None
    lists = next((rows for place in places(rule["list"]) if (rows := _rows_at(rule, node, place))), None)
    if lists is None:
        return None
    form = "list"
    if any(row is find(node, place) for place, rows in lists.items() for row in rows):
        form = rule["scalar"]
        if any(find(node, place) for place in places(rule.get("alone_with"))):
            return None
    along: dict[Place, list[Node]] = {}
    for each in places(rule.get("along")):
        beside = find(node, each)
        if beside is not None and beside.elements is not None:
            along[each] = list(beside.elements)
    counts = {len(rows) for rows in (*lists.values(), *along.values())}
    kinds: dict[Place, Any] = {each: {row.kind for row in rows} for each, rows in lists.items()}
    if rule.get("same_members"):
        kinds = {each: (kinds[each], _columns(rows)) for each, rows in lists.items()}
    if len(counts) != 1 or any(each[-1] is None for each in kinds.values() if isinstance(each, tuple)):
        return None
    marks = dict.fromkeys([*lists, *along], "rows")
    return Reading(outline(node, marks, rule.get("ignore", ())), lists, along, form, counts.pop(), kinds)


def has_twins(text: str) -> bool:
    """Whether this is an object with two members of one name."""
    return _has_twins(read(text.encode()))


def _has_twins(node: Node) -> bool:
    names = [name for _, name, _ in node.members or ()]
    return len({*names}) < len(names)


def _rows_at(rule: Rule, node: Node, place: Place) -> dict[Place, list[Node]] | None:
    """The rows of every list at a place; None if there is none, or one without rows."""
    found = {}
    for each, value in (_lists_at(node, place) or {}).items():
        is_tokens = bool(rule.get("token_ids") and value.elements and all(row.is_integer for row in value.elements))
        if value.elements is not None and not is_tokens:
            found[each] = list(value.elements)
        elif _may_be_alone(rule, value):
            found[each] = [value]
        else:
            return None
    kinds = rule.get("kinds", ())
    is_taken = all(len({row.kind for row in rows}) == 1 and rows[0].kind in kinds for rows in found.values())
    return found if found and all(found.values()) and (is_taken or not rule.get("kinds")) else None


def _may_be_alone(rule: Rule, value: Node) -> bool:
    """Whether a value that is no list of rows is a row. What an empty text is answered differs between servers."""
    refused = ("other", "object") if rule.get("scalar") == "by_row" else ("other",)
    return rule.get("scalar", "alone") != "alone" and value.text != '""' and value.kind not in refused


def _columns(rows: list[Node]) -> Any:
    """What a table of these rows has: names or how many columns, and which kinds of values are in each, and in their
    lists. None if they are no table."""
    marks = {_mark(row) for row in rows}
    if not marks & {"list", "object"}:
        return marks
    if len(marks) > 1:
        return None
    if marks == {"list"}:
        tables = [dict(enumerate(row.elements or ())) for row in rows]
    else:
        tables = [{name: value for _, name, value in row.members or ()} for row in rows]
    if len({tuple(table) for table in tables}) > 1:
        return None
    columns = [{_mark(table[name]) for table in tables} for name in tables[0]]
    inner = {mark for table in tables for value in table.values() for mark in _marks_inside(value)}
    return list(tables[0]), columns, inner


def _mark(node: Node) -> str:
    if node.kind == "other":
        return "null" if node.text == "null" else "truth"
    if node.kind != "number":
        return node.kind
    if not node.is_integer:
        return "fraction"
    return "whole" if len(node.text) <= 18 else "large"


def _marks_inside(node: Node) -> set[str]:
    return {mark for each in node.elements or () for mark in {_mark(each)} | _marks_inside(each)}


def may_share(one: Reading, other: Reading) -> bool:
    """Whether two requests may be in one batch."""
    return (one.others, one.kinds, [*one.along]) == (other.others, other.kinds, [*other.along])


Part = tuple[Reading, int, int]


class Merged(NamedTuple):
    """A request of several: `others` as in a reading, and the rows at each place as they are written."""

    others: Any
    lists: dict[Place, list[str]]


def merge(parts: Sequence[Part]) -> Merged:
    """The request that a batch is."""
    first = parts[0][0]
    cut = {place: [] for place in (*first.lists, *first.along)}  # type: dict[Place, list[str]]
    for reading, start, stop in parts:
        for place, rows in (*reading.lists.items(), *reading.along.items()):
            cut[place] += [row.text for row in rows[start:stop]]
    return Merged(first.others, cut)


def view(merged: Merged, body: bytes) -> Merged:
    """A body, told in the same way as `merged`; raises `Malformed` for JSON that is not of that form."""
    node = read(body)
    found = {}
    for place in merged.lists:
        value = find(node, place)
        if value is None or value.elements is None:
            raise Malformed(f"no list at {place}")
        found[place] = [row.text for row in value.elements]
    return Merged(outline(node, dict.fromkeys(merged.lists, "rows")), found)


# --- answers ----------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """An answer, or a caller's share of it: `others` is the outline, `lists` rows as text, `numbers` the shared ones.

    A bare answer has one row at each place and no list around it.
    """

    others: Any
    lists: dict[Place, list[str]]
    numbers: dict[Place, int]


class Broken(Exception):
    """No share of an answer can be told: it is none, or has other rows than the batch."""


def understand_answer(rule: Rule, body: bytes, rows: int) -> Answer:
    """All of an answer to a batch of so many rows, with these in the batch's order; raises `Broken`."""
    try:
        node = read_answer(body)
        found = next((found for place in places(rule["answers"]) if (found := _only_lists(node, place))), None)
    except Malformed as error:
        raise Broken(str(error)) from None
    if found is None or any(len(listed) != rows for listed in found.values()):
        raise Broken("other rows than the batch")
    lists = found
    if "index" in rule:
        lists = {place: _in_order(rule["index"], each) for place, each in lists.items()}
    try:
        return _answer(rule, node, {place: [row.text for row in each] for place, each in lists.items()})
    except Malformed as error:
        raise Broken(str(error)) from None


def _only_lists(node: Node, place: Place) -> dict[Place, list[Node]]:
    found = _lists_at(node, place) or {}
    return {each: list(value.elements) for each, value in found.items() if value.elements is not None}


def _in_order(name: str, rows: list[Node]) -> list[Node]:
    """As they are if none is counted."""
    by_index = {}
    try:
        counts = [row.member(name) for row in rows]
    except Malformed as error:
        raise Broken(str(error)) from None
    if not any(counts):
        return rows
    for row, count in zip(rows, counts, strict=True):
        if count is None or not count.is_whole:
            raise Broken("no index")
        by_index[int(count.text)] = row
    if sorted(by_index) != list(range(len(rows))):
        raise Broken("the indexes do not count the rows")
    return [by_index[number] for number in range(len(rows))]


def _answer(rule: Rule, node: Node, lists: dict[Place, list[str]]) -> Answer:
    numbers: dict[Place, int] = {}
    marks: dict[Place, Any] = {}
    for place in places(rule.get("shared")):
        value = find(node, place) if not any(place[: len(each)] == each for each in lists) else None
        if value is None:
            marks[place] = LEFT_OUT  # so that an answer without it is told as one that had it
        else:
            _count(value, place, lists, numbers, marks)
    return Answer(outline(node, dict.fromkeys(lists, "rows") | marks), lists, numbers)


def _count(
    node: Node, place: Place, lists: Mapping[Place, Any], numbers: dict[Place, int], marks: dict[Place, Any]
) -> None:
    """What a value, and all that is in it if it is an object, adds to the counts that are shared out or left out."""
    if place in lists:
        return
    if node.members is not None and not _has_twins(node):
        marks[*place, _NOBODY] = LEFT_OUT
        for _, name, value in node.members:
            _count(value, (*place, name), lists, numbers, marks)
    elif node.members is not None or any(each in "0123456789" for each in node.text):
        total = node.total
        marks[place] = LEFT_OUT if total is None else "number"
        if total is not None:
            numbers[place] = total


def numbered(rule: Rule, rows: Sequence[str]) -> list[str]:
    """A caller's rows with the member that counts them counting from 0."""
    if "index" not in rule:
        return list(rows)
    found = []
    for number, text in enumerate(rows):
        row = read_answer(text.encode())
        index = row.member(rule["index"])
        if index is None:
            return list(rows)
        found.append(text[: index.start - row.start] + str(number) + text[index.start - row.start + len(index.text) :])
    return found


def share(rule: Rule, pieces: Sequence[tuple[Answer, int, int]]) -> Iterator[Answer]:
    """What a caller may be answered whose rows are these of some answers, but for its numbers.

    What is beside the rows may come from any of them.
    """
    lists = {
        place: numbered(rule, [row for answer, start, stop in pieces for row in answer.lists[place][start:stop]])
        for place in pieces[0][0].lists
    }
    for answer, _, _ in pieces:
        yield Answer(answer.others, lists, answer.numbers)


def view_answer(rule: Rule, like: Answer, form: str, body: bytes) -> Answer:
    """A caller's answer, told in the same way as the share that is expected.

    Raises `Malformed` for JSON that is not of that form.
    """
    node = read_answer(body)
    found = {}
    for place, rows in like.lists.items():
        value = find(node, place)
        is_bare = form == "unwrapped" or (form == "by_row" and rows[0].startswith("["))
        if value is None or (value.elements is None and not is_bare):
            raise Malformed(f"no list at {place}")
        found[place] = [value.text] if is_bare else [row.text for row in value.elements or ()]
    return _answer(rule, node, found)
