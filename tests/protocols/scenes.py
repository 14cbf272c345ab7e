"""Rules of every kind, requests that they batch and others beside them, and what a server answers."""

from __future__ import annotations

import hashlib
import json
import pathlib
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml
from hypothesis import strategies as st

from carpool_sidecar.protocols import lists as lists_package
from tests.protocols import oracle, texts

BUILT_IN: Mapping[str, oracle.Rule] = {
    name: {**rule, "kinds": [rule["kinds"]]} if isinstance(rule.get("kinds"), str) else rule
    for name, rule in yaml.safe_load(
        pathlib.Path(lists_package.__path__[0], "builtin.yaml").read_text(encoding="utf-8")
    ).items()
}
# What these fields say of answers has tests of its own: rows are put into another order, or cut from several lists.
_UNKNOWN = {"rank_by", "answers_along"}
V1: oracle.Rule = {"list": ["instances", "inputs"], "answers": ["predictions", "outputs"], "is_v1": True}
"""The v1 protocol, told as if it were a rule."""

_LISTS = ["input", "a.rows", "a.b.rows", "$", "cols.*", "a.cols.*", ["input", "a.rows"], ["f.rows", "rows", "cols.*"]]
_ANSWERS = ["data", "r.rows", "$", "outputs.*", ["data", "rows"], ["outputs.*", "outputs", "rows"]]
_COLUMNS = ["c1", "c2", "ü c"]
_COUNTER = "index"


def understand(rule: oracle.Rule, body: bytes) -> oracle.Request:
    """See the oracle's."""
    return oracle.understand_v1(body) if rule is V1 else oracle.understand(rule, body)


# --- rules ------------------------------------------------------------------------------------------------------


@st.composite
def rules(draw: st.DrawFn, *given: str) -> oracle.Rule:
    """Rules of one's own that have the fields `given`, and perhaps others."""
    unfit = {"shared": ["$"], "index": ["outputs.*", ["outputs.*", "outputs", "rows"]]}
    answers_at = [place for place in _ANSWERS if not any(place in unfit.get(field, ()) for field in given)]
    rule = {"path": "/x", "list": draw(st.sampled_from(_LISTS)), "answers": draw(st.sampled_from(answers_at))}
    has_members = rule["list"] != "$"
    has_columns = any(place[-1:] == ("*",) for place in oracle.places(rule["list"]))
    shared = st.sampled_from([["usage.prompt"], ["usage.prompt", "usage.total"], ["n"], ["usage"]])
    maybe = {
        "along": st.sampled_from([["ids"], ["frame.ids"], ["ids", "a.ids"]]) if has_members else None,
        "scalar": st.just("alone") if has_columns else st.sampled_from(["wrapped", "unwrapped", "by_row", "alone"]),
        "token_ids": None if has_columns else st.booleans(),
        "index": None if rule["answers"] in unfit["index"] else st.just(_COUNTER),
        "shared": None if rule["answers"] in unfit["shared"] else shared,
        "ignore": st.sampled_from([["user"], ["user", "trace"]]) if has_members else None,
        "same_members": st.booleans(),
        "kinds": st.lists(st.sampled_from(["string", "list", "object", "number"]), min_size=2, unique=True),
        "alone_with": st.just(["b"]),
        "alone_if": st.just(["x"]),
    }
    for name, strategy in maybe.items():
        if strategy is not None and (name in given or draw(st.booleans())):
            rule[name] = draw(strategy)
    return rule


_known = [rule for rule in BUILT_IN.values() if not _UNKNOWN & {*rule}]
any_rule = st.just(V1) | st.sampled_from(_known) | rules()


# --- requests ---------------------------------------------------------------------------------------------------


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
def documents(draw: st.DrawFn, gaps: Sequence[oracle.Place], told: Any, avoid: Sequence[str] = ()) -> texts.Template:
    """A body with gaps at some places, and without any of the other places where `told` lets a list be."""
    if list(gaps) == [()]:
        return [draw(texts.blanks), ((),), draw(texts.blanks)]
    not_there = frozenset([*(place[0] for place in oracle.places(told) if place), *avoid])
    is_columns = any(place[-1:] == ("*",) for place in oracle.places(told))
    tree: dict[str, Any] = {}
    for place in gaps:
        inner = tree
        for name in place[:-1]:
            inner = inner.setdefault(name, {})
        inner[place[-1]] = place
    return [draw(texts.blanks), *draw(_templates(tree, not_there, is_columns)), draw(texts.blanks)]


@st.composite
def full_places(draw: st.DrawFn, told: Any) -> list[oracle.Place]:
    """Where the lists are: at one of the places that a rule tells, or in columns."""
    place = draw(st.sampled_from(oracle.places(told)))
    if place[-1:] != ("*",):
        return [place]
    return [(*place[:-1], name) for name in draw(st.lists(st.sampled_from(_COLUMNS), min_size=1, unique=True))]


class Origin(NamedTuple):
    """What requests come of that differ in their rows: text around them, and what rows there may be in each list."""

    rule: oracle.Rule
    template: texts.Template
    shapes: Mapping[oracle.Place, Sequence[texts.Shape]]
    along: Sequence[oracle.Place]
    ignored: Sequence[str]


@st.composite
def origins(draw: st.DrawFn, rule: oracle.Rule) -> Origin:
    lists = draw(full_places(rule["list"]))
    along = [place for place in oracle.places(rule.get("along")) if draw(st.booleans())]
    ignored = [rule["ignore"]] if isinstance(rule.get("ignore"), str) else list(rule.get("ignore", ()))
    template = draw(documents([*lists, *along], rule["list"], ignored))
    if lists != [()]:
        template[2:2] = [(name,) for name in (*ignored, "model")]
    kinds = {"string", "number", "large", "boolean", "null", "list", "object", "tokens"}
    if rule.get("kinds"):
        kinds &= {
            *rule["kinds"],
            *(["tokens"] if "list" in rule["kinds"] else []),
            *(["large"] if "number" in rule["kinds"] else []),
        }
    if rule.get("token_ids"):
        kinds -= {"number", "large"}  # a list of whole numbers is one row
    shapes = {}
    for place in lists:
        most = 1 if rule.get("same_members") or rule.get("kinds") else 2
        kind = [draw(st.sampled_from(sorted(kinds)))] if most == 1 else sorted(kinds)
        one = texts.shapes(kind, bool(rule.get("same_members")))
        shapes[place] = draw(st.lists(one, min_size=1, max_size=most))
    return Origin(rule, template, shapes, along, ignored)


@st.composite
def requests(draw: st.DrawFn, origin: Origin, most_rows: int = 4) -> bytes:
    """A body of this origin. A lone row may be there without a list, where the rule takes that."""
    rule, count = origin.rule, draw(st.integers(1, most_rows))
    gaps: dict[Any, str] = {}
    bare: dict[Any, str] = {}
    for place, shapes in origin.shapes.items():
        some = draw(st.sampled_from([shapes[:1], shapes[-1:], shapes]))
        rows = [draw(st.one_of(*map(texts.rows, some))) for _ in range(count)]
        gaps[place] = draw(texts.joined("[", rows, "]"))
        bare[place] = rows[0]
    for place in origin.along:
        gaps[place] = draw(texts.joined("[", [draw(texts.strings) for _ in range(count)], "]"))
    for name in origin.ignored:
        gaps[name] = f'"{name}":{draw(texts.values)},' if draw(st.booleans()) else ""
    gaps["model"] = draw(st.sampled_from(['"model":"m",', '"model":"m",', '"model":"n",', ""]))
    body = texts.fill(origin.template, gaps).encode()
    if count > 1 or rule.get("scalar", "alone") == "alone" or not draw(st.booleans()):
        return body
    alone = texts.fill(origin.template, gaps | bare).encode()
    try:
        found = oracle.understand(rule, alone)
    except oracle.Passed:
        return body
    # What is looked into for another place may be found there, and a row that is a list may be several.
    return alone if found.one != "list" and [*found.lists] == [*origin.shapes, *origin.along] else body


class Scene(NamedTuple):
    """Requests to one path, and the server there. `origins` are by request, the number of what it came of."""

    rule: oracle.Rule
    bodies: Sequence[bytes]
    origins: Sequence[int]
    server: Server


@st.composite
def scenes(
    draw: st.DrawFn,
    *given: str,
    rule: oracle.Rule | None = None,
    least: int = 1,
    origins_: int = 2,
    has_garbage: bool = True,
) -> Scene:
    """Of one rule, or of any that has the fields `given`, with `least` requests or more."""
    if rule is None:
        rule = draw(rules(*given) if given else any_rule)
    known = draw(st.lists(origins(rule), min_size=1, max_size=origins_))
    which = draw(st.lists(st.sampled_from(range(len(known))), min_size=least, max_size=5))
    bodies = [draw(requests(known[number])) for number in which]
    if has_garbage and draw(st.integers(0, 3)) == 0:
        bodies.append(draw(texts.garbled(draw(st.sampled_from(bodies)))))
        which.append(-1)
    return Scene(rule, bodies, which, draw(servers(rule)))


# --- answers ----------------------------------------------------------------------------------------------------


class Server(NamedTuple):
    """A predictor that treats rows independently. What it answers for a row names that row and the company it was in.

    That is what all of a call have in common, so it is the same for a caller that is alone. The same row is always
    answered with the same text, with all the odd things in it that a server may write. Its counts are bytes of rows, or
    tokens, where all rows are such lists. `lists` are where the rows are in `template`; `gap` is written around them.
    """

    rule: oracle.Rule
    template: texts.Template
    lists: Sequence[oracle.Place]
    gap: str = ""

    def answer(
        self, body: bytes, order: Sequence[int] | None = None, more: int = 0, counts: Mapping[oracle.Place, str] = {}
    ) -> bytes:
        """What it says to a request, with its rows in this order where they are counted.

        It may have so many rows more, or fewer, and other counts at some places.
        """
        asked = understand(self.rule, body)
        company = hashlib.blake2b(repr(asked.key).encode(), digest_size=4).hexdigest()
        rows = [repr([each.text for each in row]) for row in zip(*asked.lists.values(), strict=True)]
        rows = [*rows, *["none"] * more][: max(0, len(rows) + more)]
        gaps: dict[Any, str] = {
            place: str(oracle.weight(self.rule, asked)[0]) for (place,) in filter(_is_gap, self.template)
        }
        for place in self.lists:
            told = [self._row(f"{place} {row}", company, number) for number, row in enumerate(rows)]
            if order is not None and "index" in self.rule:
                told = [told[number] for number in order]
            is_bare = asked.one == "unwrapped" or (asked.one == "by_row" and told[0].startswith("["))
            gaps[place] = told[0] if is_bare else f"[{self.gap}{f'{self.gap},{self.gap}'.join(told)}{self.gap}]"
        return texts.fill(self.template, gaps | dict(counts)).encode()

    def _row(self, row: str, company: str, number: int) -> str:
        dice = random.Random(row)
        odd = dice.choice(_ODD)
        mark = json.dumps(f"{row} among {company}", ensure_ascii=dice.random() < 0.5)
        if "index" in self.rule:
            return f'{{{self.gap}"{self.rule["index"]}":{self.gap}{number},"row":{mark},"x":{odd},"x":0}}'
        return dice.choice([f"[{mark}, {odd}]", mark, f'{{"row": {mark} ,"x":{odd},"x":0}}', f"[[{odd}],{mark}]"])


_ODD = (
    "NaN", "-Infinity", r'"\ud83d"', "1.10", "1e-05", "[ 1 , 2 ]", '{"a":1,"a":2}', '{"error": "no"}', "0.1e-400",
    "null", "9007199254740993", r'"é\u00e9\/"', "true", '"\\"]}"', "[]", '{"index": 7}', "-0.0",
)  # fmt: skip


def _is_gap(each: Any) -> bool:
    return isinstance(each, tuple)


@st.composite
def servers(draw: st.DrawFn, rule: oracle.Rule) -> Server:
    """What may be around the rows, in all answers of one server."""
    lists = draw(full_places(rule["answers"]))
    numbers = [place for place in oracle.places(rule.get("shared")) if draw(st.integers(0, 4))]
    shared = [place[0] for place in oracle.places(rule.get("shared"))]
    template = draw(documents([*lists, *numbers], rule["answers"], shared))
    return Server(rule, template, lists, draw(st.sampled_from(["", "", " ", "\n  "])))


_INNER = st.sampled_from(["7", "30.0", "1e2", "-3", "0.5", '"8"', '"none"', "null", "[9]", "[]", "{}"])
_BY_NAME = st.dictionaries(st.sampled_from(["a", "b", "c", ""]), _INNER, max_size=4).map(
    lambda found: "{{{}}}".format(", ".join(f'"{name}":{count}' for name, count in found.items()))
)
_WHOLE = (st.integers(0, 30) | st.integers(0, 10**6) | st.sampled_from([10**17, 10**30])).map(str)
counts = (
    _WHOLE | _WHOLE.filter(bool) | _INNER | _BY_NAME | st.just('{"a":1,"a":2}') | _BY_NAME.map('{{"inner": {}}}'.format)
)  # fmt: skip
"""Counts as servers may write them."""
