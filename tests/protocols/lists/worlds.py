"""Rules of every form, requests that they batch, batches of those, and what a server answers to them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import assume
from hypothesis import strategies as st

from tests.protocols.lists import oracle, texts

_LISTS = [
    "input",
    "a.rows",
    "a.b.rows",
    "$",
    "cols.*",
    "a.cols.*",
    ["input", "a.rows"],
    ["frame.rows", "rows", "cols.*"],
]
_ANSWERS = ["data", "r.rows", "$", "outputs.*", ["data", "rows"], ["outputs.*", "outputs", "rows"]]
_COLUMNS = ["c1", "c2", "ü c"]
_COUNTER = "index"


class World(NamedTuple):
    """Requests (`bodies`) that a rule puts into one batch, and batches of (member, start, stop)."""

    rule: dict[str, Any]
    bodies: list[bytes]
    batches: list[list[tuple[int, int, int]]]
    answer_lists: list[oracle.Place]


@st.composite
def rules(draw: st.DrawFn, *given: str) -> dict[str, Any]:
    """Rules that have the fields `given`, and perhaps others."""
    unfit = {"shared": ["$"], "index": ["outputs.*", ["outputs.*", "outputs", "rows"]]}
    answers_at = [place for place in _ANSWERS if not any(place in unfit.get(field, ()) for field in given)]
    rule = {"path": "/x", "list": draw(st.sampled_from(_LISTS)), "answers": draw(st.sampled_from(answers_at))}
    has_members = rule["list"] != "$"
    has_columns = any(place[-1:] == ("*",) for place in oracle.places(rule["list"]))
    along = st.sampled_from([["ids"], ["frame.ids"], ["ids", "a.ids"]]) if has_members else None
    shared = st.sampled_from([["usage.prompt"], ["usage.prompt", "usage.total"], ["n"], ["usage"]])
    maybe = {
        "along": along,
        "scalar": st.just("alone") if has_columns else st.sampled_from(["wrapped", "unwrapped", "by_row", "alone"]),
        "token_ids": None if has_columns else st.booleans(),
        "index": None if rule["answers"] in unfit["index"] else st.just(_COUNTER),
        "shared": None if rule["answers"] in unfit["shared"] else shared,
        "ignore": st.sampled_from([["user"], ["user", "trace"]]) if has_members else None,
        "same_members": st.booleans(),
        "kinds": st.lists(st.sampled_from(["string", "list", "object", "number"]), min_size=2, unique=True),
        "alone_with": st.just(["b"]),
        "alone_if": st.just(["late"]),
    }
    for name, strategy in maybe.items():
        if strategy is not None and (name in given or draw(st.booleans())):
            rule[name] = draw(strategy)
    return rule


def _tree(places: list[oracle.Place]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for place in places:
        inner = tree
        for name in place[:-1]:
            inner = inner.setdefault(name, {})
        inner[place[-1]] = place
    return tree


@st.composite
def _templates(draw: st.DrawFn, tree: dict[str, Any], avoid: frozenset[str], columns: bool) -> texts.Template:
    members: dict[str, texts.Template] = {}
    for name, inner in tree.items():
        if isinstance(inner, tuple):
            members[name] = [(inner,)]
        else:
            members[name] = draw(_templates(inner, avoid, columns))
    # Beside columns no other list may be, as that would be one, too.
    is_plain = columns and any(name in _COLUMNS for name in tree)
    others = texts.leaves | texts.objects(texts.values) if is_plain else texts.values
    return draw(texts.object_templates(members, avoid, others))


@st.composite
def documents(draw: st.DrawFn, gaps: list[oracle.Place], told: Any, ignore: list[str] | None = None) -> texts.Template:
    """A body with gaps at some places, and without any of the other places where `told` lets a list be."""
    if gaps == [()]:
        return [draw(texts.blanks), ((),), draw(texts.blanks)]
    avoid = frozenset([place[0] for place in oracle.places(told) if place] + (ignore or []))
    is_columns = any(place[-1:] == ("*",) for place in oracle.places(told))
    template = draw(_templates(_tree(gaps), avoid, is_columns))
    if ignore:
        template = [template[0], *((name,) for name in ignore), *template[1:]]
    return [draw(texts.blanks), *template, draw(texts.blanks)]


@st.composite
def _places(draw: st.DrawFn, told: Any) -> list[oracle.Place]:
    """Where the lists are in this world: at one of the alternatives, or in columns."""
    place = draw(st.sampled_from(oracle.places(told)))
    if place[-1:] != ("*",):
        return [place]
    return [(*place[:-1], name) for name in draw(st.lists(st.sampled_from(_COLUMNS), min_size=1, unique=True))]


@st.composite
def requests(draw: st.DrawFn, rule: dict[str, Any], least: int = 1, most: int = 4) -> list[bytes]:
    """Bodies that differ only in their rows, in what does not matter, and in whether a lone row is in a list."""
    lists = draw(_places(rule["list"]))
    all_along = [place for place in oracle.places(rule.get("along")) if draw(st.booleans())]
    template = draw(documents([*lists, *all_along], rule["list"], rule.get("ignore")))
    has_tokens = rule.get("token_ids", False)
    kinds = {*texts.rows_of_kind}
    if rule.get("kinds"):
        kinds &= {*rule["kinds"], *(["tokens"] if "list" in rule["kinds"] else [])}
    kinds = sorted(kinds - ({"number"} if has_tokens else set()))
    kind_of = {place: draw(st.sampled_from(kinds)) for place in lists}
    strategies = dict(texts.rows_of_kind)
    if has_tokens:  # a list of integers would be one of tokens, which is another kind
        strategies["list"] = st.tuples(texts.strings, texts.values).map(lambda row: f"[{row[0]} ,{row[1]}]")
    if rule.get("same_members"):
        strategies |= draw(texts.tables)
    # A row that is a list would be several without the list around it, and a column that is no list is none.
    takes_lists = kind_of[lists[0]] in ("list", "other") or (kind_of[lists[0]] == "tokens" and not has_tokens)
    takes_lists = takes_lists or (kind_of[lists[0]] == "object" and rule.get("scalar") == "by_row")
    is_column = lists[0] not in oracle.places(rule["list"])
    may_be_bare = rule.get("scalar", "alone") != "alone" and not (all_along or takes_lists or is_column)
    bodies = []
    for _ in range(draw(st.integers(least, most))):
        count = draw(st.integers(1, 4))
        gaps: dict[Any, str] = {}
        bare: dict[Any, str] = {}
        for each in lists:
            rows = [draw(strategies[kind_of[each]]) for _ in range(count)]
            # What is looked into for another place must not have a name twice.
            may_be = may_be_bare and count == 1 and rows[0] != '""' and not oracle.has_twins(rows[0])
            is_bare = may_be and draw(st.booleans())
            gaps[each] = draw(texts.joined("[", rows, "]"))
            bare[each] = rows[0] if is_bare else gaps[each]
        for each in all_along:
            gaps[each] = draw(texts.joined("[", [draw(strategies["string"]) for _ in range(count)], "]"))
        for name in rule.get("ignore", ()):
            gaps[name] = f'"{name}":{draw(texts.values)},' if draw(st.booleans()) else ""
        body = texts.fill(template, gaps | bare).encode()
        # With a member that the rule names under `alone_with` only a list is batched.
        bodies.append(body if oracle.understand(rule, body) else texts.fill(template, gaps).encode())
    return bodies


@st.composite
def worlds(draw: st.DrawFn, *given: str, least: int = 1) -> World:
    """Of rules that have the fields `given`, with `least` requests or more."""
    rule = draw(rules(*given))
    bodies = draw(requests(rule, least))
    batches: list[list[tuple[int, int, int]]] = [[], [], []]
    for who, body in enumerate(bodies):
        reading = oracle.understand(rule, body)
        if rule["list"] == "$":  # then a body is a row, which may be anything
            assume(reading is not None)
        assert reading is not None, (rule, body)
        cuts = sorted({0, reading.rows, *draw(st.lists(st.integers(0, reading.rows), max_size=2))})
        order = draw(st.just([0, 1, 2]) | st.permutations(range(3)))
        for at, (start, stop) in zip(order, itertools.pairwise(cuts), strict=False):
            batches[at].append((who, start, stop))
    return World(rule, bodies, [each for each in batches if each], draw(answer_places(rule)))


def answer_places(rule: dict[str, Any]) -> st.SearchStrategy[list[oracle.Place]]:
    """Where the lists of an answer may be."""
    return _places(rule["answers"])


@st.composite
def _answer_row(draw: st.DrawFn, mark: str, index: int | None) -> str:
    """Unlike every other row: `mark` is in it."""
    if index is not None:
        row = draw(texts.object_templates({"mark": [f'"{mark}"']} | {_COUNTER: [str(index)]}))
        return texts.fill(row, {})
    inner = draw(texts.values)
    return draw(
        st.sampled_from([f'["{mark}",{inner}]', f'"{mark}"', f'{{"{mark}":{inner}}}', f'["{mark}", 0.10,1e-5]'])
    )


_INNER_COUNTS = st.sampled_from(["7", "30.0", "1e2", "-3", "0.5", '"8"', '"none"', "null", "[9]", "[]", "{}"])
_COUNTS_BY_NAME = st.dictionaries(st.sampled_from(["a", "b", "c", ""]), _INNER_COUNTS, max_size=4).map(
    lambda found: "{{{}}}".format(", ".join(f'"{name}":{count}' for name, count in found.items()))
)
_ODD_COUNTS = _INNER_COUNTS | _COUNTS_BY_NAME | st.just('{"a":1,"a":2}') | _COUNTS_BY_NAME.map('{{"inner": {}}}'.format)
"""Counts as servers may write them that are no plain whole numbers."""


@st.composite
def answers(
    draw: st.DrawFn, world: World, batch: int, rows: int, tokens: int | None = None, order: Sequence[int] | None = None
) -> bytes:
    """What a server says to a batch of so many rows; it may say that it had so many tokens.

    Where rows are counted they come in any order, or as `order` says.
    """
    rule = world.rule
    numbers = [place for place in oracle.places(rule.get("shared")) if draw(st.integers(0, 4))]
    template = draw(documents([*world.answer_lists, *numbers], rule["answers"]))
    counts = (st.integers(0, 30) | st.integers(0, 10**6) | st.sampled_from([10**17, 10**30])).map(str)
    told = draw(counts if tokens is None else counts | st.just(str(tokens)))
    gaps: dict[Any, str] = {place: told if draw(st.booleans()) else draw(counts | _ODD_COUNTS) for place in numbers}
    if order is None:
        order = draw(st.permutations(range(rows))) if _COUNTER in rule else range(rows)
    for column, place in enumerate(world.answer_lists):
        listed = [
            draw(_answer_row(f"batch {batch} column {column} row {row}", row if _COUNTER in rule else None))
            for row in order
        ]
        gaps[place] = draw(texts.joined("[", listed, "]"))
    return texts.fill(template, gaps).encode()
