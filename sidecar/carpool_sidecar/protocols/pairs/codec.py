"""Rerank requests as calls of a predictor that takes pairs in JSON: each document beside its query is a row.

Rows of several callers share such a call, whatever they ask for, and a long list is split as any other. The call is
another one than the caller's, so none goes through as it came: what no pairs can be made of is refused.
"""

from __future__ import annotations

import functools
import json
import sys
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import msgspec

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, steps, v1
from carpool_sidecar.protocols.lists import answers, codec, rules
from carpool_sidecar.protocols.pairs import destinations, dialects

_NAMES = ("score", "relevance_score")  # of a score in a row that is an object
_JSON = (("Content-Type", "application/json"),)  # whatever type the callers gave their bodies
_ROWS_A_STEP = 300


class Server(NamedTuple):
    """A kind of predictor: where its calls go, the members that have the pairs, and how it answers.

    Of one member each row is a list of both texts, of two members the first has the queries. `takes_model` says that
    the body names the model; a `path` with `{model}` in it does.
    """

    path: str
    members: tuple[bytes, ...]
    rule: rules.Rule
    takes_model: bool = False


def _servers() -> Mapping[str, Server]:
    built_in = rules.built_in()
    predictions = {"name": "v1", "path": "/v1/models/*:predict", "list": "instances", "answers": "predictions"}
    return {
        "tei-predict": Server("/predict", (b"inputs",), built_in["tei-predict"]),
        "vllm-score": Server("/score", (b"text_1", b"text_2"), built_in["vllm-score"], takes_model=True),
        "v1": Server("/v1/models/{model}:predict", (b"instances",), rules.Rule.model_validate(predictions)),
    }


class Payload(interface.Payload):
    """A request as pairs, which are only put together when they are sent: the query would stand in each of them.

    `path` is where the call goes, `texts` are what stands before, between and after its lists, and `rule` is the
    caller's, with the predictor's answers.
    """

    __slots__ = ("_documents", "_query", "_room", "path", "rule", "texts")
    are_tokens = False

    def __init__(
        self,
        server: Server,
        rule: rules.Rule,
        path: str,
        asked: dialects.Asked,
        taken: Sequence[int],
        body: bytes,
    ) -> None:
        """`taken` is how much of a call each pair takes up."""
        self.body = body
        self.rule = rule
        self.path = path
        self.texts = _frame(server, asked)
        self._query = asked.query
        self._documents = asked.texts
        self._room = taken
        self.row_count = len(asked.texts)
        self.key = (path, self.texts)
        self.response_format = asked.form

    @property
    def added(self) -> int:
        """See `interface.Payload`: the query stands in each row."""
        return len(self._query) * (self.row_count - 1)

    def row_sizes(self, start: int, stop: int) -> list[int]:
        """Implements `interface.Payload`: of both texts."""
        return [len(self._query) + len(text) for text in self._documents[start:stop]]

    def size(self, start: int, stop: int) -> int:
        """Bytes of so many rows."""
        return sum(self.row_sizes(start, stop))

    def row_lengths(self, start: int, stop: int) -> list[int]:
        """Implements `interface.Payload`: a pair is a list of two."""
        return [2] * (stop - start)

    def row_room(self, start: int, stop: int) -> Sequence[int]:
        """See `interface.Payload`."""
        return self._room[start:stop]

    def cut(self, number: int, start: int, stop: int) -> bytes:
        """Rows of a list, with commas between."""
        some, query = self._documents[start:stop], self._query
        if len(self.texts) == 2:
            return b",".join([b"[%b,%b]" % (query, text) for text in some])
        return b",".join(some) if number else b",".join([query] * len(some))


class Codec:
    """Rerank requests by their rules, for one kind of predictor; see `interface.Codec`.

    `on_part` is told the rule of each part of a request that goes in a call without the rest.
    """

    # State: by the names of rules the outlines of their last answers.
    large = v1.LARGE

    def __init__(
        self,
        chosen: Sequence[rules.Rule],
        to: destinations.Destination,
        on_part: Callable[[str], None] | None = None,
    ) -> None:
        self._server = _servers()[to.kind]
        self._to = to
        self._on_part = on_part
        self._chosen = tuple(chosen)
        self._rules = {rule.name: called_by(rule, to) for rule in chosen}
        self.max_batch_size = min([rule.max_batch_size or sys.maxsize for rule in self._rules.values()])
        self._outlines: dict[str, answers.Outline] = {}

    def parse(self, body: bytes, max_rows: int, json_size: int | None = None) -> Payload:
        """See `interface.Codec`; raises as `dialects.read` does, and never `errors.Unbatchable`."""
        return steps.at_once(self.parse_in_steps(body, max_rows))

    def parse_in_steps(self, body: bytes, max_rows: int, json_size: int | None = None) -> steps.Steps[Payload]:
        """The same, in steps."""
        asked = yield from dialects.read(self._chosen, body, max_rows)
        model = self._to.model or asked.model
        path = self._server.path
        if "{model}" in path:
            if not model:
                raise asked.refuse("is missing: it names the model, unless --rerank-to does, as in v1:MODEL", "model")
            path = path.replace("{model}", urllib.parse.quote(model, safe=""))
        taken = yield from asked.room()
        return Payload(self._server, self._rules[asked.rule.name], path, asked, taken, body)

    def merge(self, batch_id: str, target: str, parts: Sequence[messages.Part]) -> interface.UpstreamRequest:
        """See `interface.Codec`; `target` is the callers', not the call's."""
        first: Payload = parts[0].request.payload
        if self._on_part is not None:
            interface.count_parts(first.rule.name, parts, self._on_part)
        shares = answers.Shares.of(parts) if first.rule.shared else answers.Shares.counted(parts)
        read = functools.partial(self._read, first.rule, shares)
        return interface.UpstreamRequest(first.path, _JSON, codec.spliced(first.texts, parts), read)

    def _read(
        self, rule: rules.Rule, shares: answers.Shares, response: interface.UpstreamResponse
    ) -> steps.Steps[interface.BatchPredictions]:
        try:
            found = yield from answers.read(rule, shares, response, self._outlines)
        except errors.Uneven as error:  # a call for one caller would be answered no better
            raise errors.UpstreamBroken(str(error)) from None
        result = cast(answers.Result, found.rows)
        values: list[float | None] = []
        written: list[bytes] = []
        for rows in result.rows.values():
            for row in answers.texts(rows):
                score = _score(rule, row)
                written.append(score)
                values.append(None if score == b"null" else float(score))
                if not len(values) % _ROWS_A_STEP:
                    yield
        scores = dialects.Scores(values, written, result.numbers, answers.PRORATED in result.headers)
        return found._replace(rows=scores)


def codec_by(
    found: Sequence[rules.Rule], to: destinations.Destination | None, clock: Callable[[], float]
) -> interface.Codec:
    """The codec of requests by the rules of one path: those that have a query become pairs, if these go anywhere."""
    queries = dialects.with_query(found)
    return codec.Codec(found, clock) if to is None or not queries else Codec(queries, to)


def called_by(caller: rules.Rule, to: destinations.Destination) -> rules.Rule:
    """What calls of a rule's requests as pairs go by: its name, the predictor's answers, and the most rows of either.

    Models that speak v2 answer as they describe it themselves: of their calls it says only how many rows one has.
    """
    most = dialects.most_rows(caller)
    if to.kind == destinations.V2:
        return caller.model_copy(update={"max_batch_size": most})
    server = _servers()[to.kind].rule
    return server.model_copy(update={"name": caller.name, "max_batch_size": most or server.max_batch_size})


def _frame(server: Server, asked: dialects.Asked) -> tuple[bytes, ...]:
    """What stands around the lists of a call, with all that the caller said beside query and documents."""
    own = [name.decode() for name in server.members]
    others = {name: value for name, value in asked.others.items() if name not in own}
    if server.takes_model and asked.model:
        others["model"] = msgspec.json.encode(asked.model)
    rest = [b",%b:%b" % (msgspec.json.encode(name), value) for name, value in others.items()]
    first, *more = server.members
    return (b'{"%b":' % first, *[b',"%b":' % name for name in more], b"".join((*rest, b"}")))


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


def _score(rule: rules.Rule, row: bytes) -> bytes:
    """The one score in a row, as it is written: bare, in a list or in an object. `null` is none.

    Raises `errors.UpstreamBroken` for rows of classifiers, which have one for each class, and all others.
    """
    try:
        found = json.loads(row, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except (ValueError, RecursionError):
        found = ""
    while isinstance(found, list) and len(found) == 1:
        found = found[0]
    if isinstance(found, dict):
        found = next((found[name] for name in _NAMES if name in found), "")
    if found is None:
        return b"null"
    if isinstance(found, _Number):
        return found.encode()
    several = f"has {len(found)} scores, as those of classifiers have" if isinstance(found, list) else "has no score"
    raise errors.UpstreamBroken(f"the predictor's answer is not as rule {rule.name!r} needs it: a row {several}")
