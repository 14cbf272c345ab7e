"""Which requests are batched, and how their calls travel: v1 predict, v2 infer and lists, by target and media type.

A v2 model has to be known first: only the predictor can tell whether it has a batch dimension.

KServe looks at no media type, and few clients set theirs with care: curl -d says that JSON is a form, hey says
text/html. So a type that may be a mistake rules nothing out, and the body decides. A type that nobody gives to JSON by
accident is believed, and such a body is never collected: it may be large, or a stream.
"""

from __future__ import annotations

import enum
import functools
import re
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from aiohttp import hdrs
from multidict import MultiMapping, istr

from carpool_sidecar import errors
from carpool_sidecar.batching import calls, model_registry
from carpool_sidecar.protocols import interface, models, refusal_texts, steps
from carpool_sidecar.protocols.lists import codec, rules
from carpool_sidecar.protocols.pairs import codec as pairs
from carpool_sidecar.protocols.pairs import destinations, dialects

# As istr a name is looked up without being lowered first.
_EVENT_ID = istr("ce-id")
JSON_SIZE = istr("Inference-Header-Content-Length")
"""How many bytes of a v2 body are JSON; binary tensors follow (Triton's binary tensor data extension)."""

DOUBTFUL = frozenset({500})
"""Triton answers 500 to many a malformed request, and KServe's Python server whenever a model raises."""
_V1_ENDS = (":predict", "%3Apredict", "%3apredict")
_V1_MODEL = re.compile(r"/v1/models/([^/:]+)(?:/versions/([^/:]+))?(?::|%3[Aa])predict")
_V2_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")

# What people send JSON as: curl -d says it is a form, simple clients say nothing or text.
_JSON = frozenset({"", "application/json", "application/x-www-form-urlencoded", "text/plain", "text/json"})
# How predictors answer a question about a model that they do not have: old releases of Triton the first.
_NO_SUCH_MODEL = frozenset({400, 404})

_STREAM = "text/event-stream"
_CLOUD_EVENTS = "application/cloudevents"
_FOREIGN_KINDS = ("audio/", "font/", "image/", "message/", "model/", "multipart/", "video/")
_FOREIGN = frozenset(
    {
        # binary
        "application/avro", "application/cbor", "application/dicom", "application/gzip", "application/msgpack",
        "application/ogg", "application/parquet", "application/pdf", "application/protobuf", "application/wasm",
        "application/vnd.apache.arrow.file", "application/vnd.apache.arrow.stream", "application/vnd.apache.parquet",
        "application/vnd.google.protobuf", "application/vnd.msgpack", "application/x-7z-compressed",
        "application/x-arrow", "application/x-avro", "application/x-bzip", "application/x-bzip2", "application/x-gzip",
        "application/x-hdf5", "application/x-msgpack", "application/x-npy", "application/x-npz",
        "application/x-parquet", "application/x-protobuf", "application/x-recordio-protobuf", "application/x-tar",
        "application/zip", "application/zstd",
        # streams of documents
        "application/json-seq", "application/jsonl", "application/jsonlines", "application/ndjson",
        "application/stream+json", "application/x-jsonlines", "application/x-ndjson", "text/event-stream",
    }
)  # fmt: skip
_FOREIGN_FORMATS = ("+avro", "+cbor", "+cbor-seq", "+gzip", "+json-seq", "+msgpack", "+protobuf", "+zip", "+zstd")


class Models(NamedTuple):
    """The models of a predictor that speaks v2. Names have `%` escapes if it `is_http`, else they are plain."""

    registry: model_registry.ModelRegistry
    predictor: calls.Predictor
    is_http: bool = True

    def route(self, model: model_registry.Model) -> calls.Route:
        """The way of a model's requests; raises `errors.Unbatchable` if they must not be batched now."""
        objection = model.objection
        if objection is not None:
            raise errors.Unbatchable(objection)
        route = model.route
        if route is None or route.predictor is not self.predictor:
            look = functools.partial(self.registry.objection, model)
            route = model.route = calls.Route(model.codec, self.predictor, look, DOUBTFUL, model.reconsider, model)
        return route


class Tensors(NamedTuple):
    """Such models for v1 requests: no request can be passed through, as the predictor would not understand it."""

    registry: model_registry.ModelRegistry
    predictor: calls.Predictor
    is_http: bool = True

    def route(self, model: model_registry.Model) -> calls.Route:
        """The way of a model's requests; raises `errors.CarpoolError` if the predictor has not told of it."""
        if not model.is_known:
            raise model.failure or errors.CarpoolError()
        look = functools.partial(self._objection, model)
        return calls.Route(model.codec, self.predictor, look, DOUBTFUL, model.reconsider, model)

    def _objection(self, model: model_registry.Model) -> None:
        self.registry.get(model.name)  # it is in use, and may have to be asked about again


class Lists:
    """The paths of `--lists`, all to one predictor; `clock` is the sidecar's. `answer_members` are of v1's requests.

    If it `mixes`, rows of any form share a call. `on_part` is told the rule of each part of a request that is sent.
    Rerank requests go as pairs to the destination `pairs_to`, if there is one.
    """

    # State: the routes of the rules that were asked for together, which are few.
    def __init__(
        self,
        chosen: Sequence[rules.Rule],
        predictor: calls.Predictor,
        clock: Callable[[], float],
        answer_members: Sequence[str] = (),
        mixes: bool = False,
        on_part: Callable[[str], None] | None = None,
        pairs_to: destinations.Destination | None = None,
    ) -> None:
        self._answer_members = answer_members
        self._pairs_to = pairs_to
        self._on_part = on_part
        self._mixes = mixes
        self.rules = tuple(chosen)
        self._predictor = predictor
        self._clock = clock
        self._routes: dict[tuple[str, ...], tuple[calls.Route, calls.Route]] = {}

    def route(self, path: str, headers: MultiMapping[str], also_v1: bool = False) -> calls.Route | None:
        """The way of requests to a path, or None if no rule is for it; `also_v1`: of v1 requests as well.

        Raises `errors.Unbatchable` for paths at which one query goes with many texts, and for streams.
        """
        found = codec.rules_for(path, self.rules)
        if not found:
            return None
        queries = dialects.with_query(found)
        to = self._pairs_to if queries else None
        if to is not None:
            found = queries
        elif _STREAM in headers.get(hdrs.ACCEPT, ""):
            raise errors.Unbatchable(errors.NotBatched.STREAMING)
        names = tuple([rule.name for rule in found])
        if names not in self._routes:
            as_lists = codec.Codec(found, self._clock, self._mixes, self._on_part)
            made: interface.Codec = as_lists
            words = _words_of(found[0])
            if to is not None:
                made, words = pairs.Codec(found, to, self._on_part), _words_of_pairs(found)
            route = calls.Route(
                made, self._predictor, doubtful=DOUBTFUL, error_words=words, key_headers=_key_headers(found),
                is_rewritten=to is not None,
            )  # fmt: skip
            v1_first = codec.V1First(as_lists, self._answer_members, self._mixes)
            self._routes[names] = (route, route._replace(codec=v1_first))
        return self._routes[names][also_v1]


def _key_headers(chosen: Sequence[rules.Rule]) -> tuple[tuple[str, str], ...]:
    names = dict.fromkeys(name for rule in chosen for name in rule.key_headers)
    return tuple([(istr(name), name.title()) for name in names])


def _words_of(rule: rules.Rule) -> calls.ErrorWords:
    return calls.ErrorWords(lambda error, status: rule.render_error(refusal_texts.text_of(error), status, error.reason))


def _words_of_pairs(chosen: Sequence[rules.Rule]) -> calls.ErrorWords:
    """Those of the rule whose list a body has; of the first, where it has none."""
    of_body = functools.partial(_words_of_body, chosen) if len(chosen) > 1 else None
    return _words_of(chosen[0])._replace(rewords=True, of_body=of_body)


def _words_of_body(chosen: Sequence[rules.Rule], body: bytes) -> steps.Steps[calls.ErrorWords]:
    found = yield from dialects.rule_of(chosen, body)
    return _words_of_pairs([found])


class ByBody(NamedTuple):
    """Such models for requests by `chosen` rules, which name theirs in the body. None can be passed through here.

    `read_model` finds the name in a body, as the caller wrote it, or raises `errors.CarpoolError`. Errors are told in
    `words`; without any, in those of the rule that a body is by. `narrow` makes a model's codec one for the rules of a
    path, where it may have others.
    """

    chosen: Sequence[rules.Rule]
    registry: model_registry.ModelRegistry
    predictor: calls.Predictor
    read_model: Callable[[bytes], str]
    words: calls.ErrorWords | None = None
    is_http: bool = True
    narrow: Callable[[model_registry.InformedCodec, Sequence[rules.Rule]], interface.Codec] | None = None

    def at(self, path: str) -> ByBody | None:
        """The same for the rules of a path, None if none is for it."""
        found = [rule for rule in self.chosen if rule.matches(path)]
        return self._replace(chosen=found, words=self.words or _words_of_pairs(found)) if found else None

    def name(self, body: bytes) -> models.ModelName:
        """The model that a body names, as the registry knows it; raises `errors.CarpoolError` if it names none."""
        name = self.read_model(body)
        return models.ModelName(urllib.parse.quote(name, safe="") if self.is_http else name)

    def route(self, model: model_registry.Model) -> calls.Route:
        """The way of a model's requests; raises `errors.CarpoolError` if the predictor has not told of it."""
        if not model.is_known:
            failure = model.failure or errors.CarpoolError()
            if isinstance(failure, errors.UpstreamStatus) and failure.status in _NO_SUCH_MODEL:
                name = urllib.parse.unquote(model.name.name) if self.is_http else model.name.name
                raise errors.ModelNotFound(f"the model {name!r} does not exist")
            raise failure
        look = functools.partial(self._look, model)
        codec = model.codec if self.narrow is None else self.narrow(model.codec, self.chosen)
        return calls.Route(
            codec, self.predictor, look, DOUBTFUL, model.reconsider, model, self.words, _key_headers(self.chosen),
            is_rewritten=True,
        )  # fmt: skip

    def _look(self, model: model_registry.Model) -> None:
        self.registry.get(model.name)  # it is in use, and may have to be asked about again


class Match(NamedTuple):
    """A request that could be batched. `model` is None if nothing has to be known of it, and `route` is known then for
    lists, unless it depends on the body: then `by_body` finds it.

    `says_so` is False where its media type speaks against that, and only the body can tell.
    """

    model: models.ModelName | None
    protocol: Literal["v1", "v2", "lists"]
    says_so: bool = True
    route: calls.Route | None = None
    by_body: ByBody | None = None

    @property
    def is_rewritten(self) -> bool:
        """Whether it is for a predictor that knows no such requests."""
        return self.by_body is not None or (self.route is not None and self.route.is_rewritten)

    @property
    def error_words(self) -> calls.ErrorWords | None:
        """How its client is told errors, if the protocol has words of its own."""
        if self.by_body is not None:
            return self.by_body.words
        return None if self.route is None else self.route.error_words


class Routes:
    """Finds the way of each request.

    `v1` is that of v1 requests, or, if they are to become tensors, the models that tell how. `infer` is for v2. Paths
    of `by_body` are none of `lists`.
    """

    def __init__(
        self, v1: calls.Route | Tensors, infer: Models, lists: Lists | None = None, by_body: Sequence[ByBody] = ()
    ) -> None:
        self._v1 = v1
        self._infer = infer
        self._lists = lists
        self._by_body = tuple(by_body)

    @property
    def looked_at(self) -> frozenset[str]:
        """The headers, in lower case, that may decide about the way of a request, or belong to its key there."""
        chosen = [rule for each in self._by_body for rule in each.chosen]
        if self._lists is not None:
            chosen += self._lists.rules
        names = [hdrs.CONTENT_TYPE, _EVENT_ID, JSON_SIZE, *(name for name, _ in _key_headers(chosen))]
        if chosen:
            names.append(hdrs.ACCEPT)
        return frozenset([str(name).lower() for name in names])

    def match(self, method: str, target: str, headers: MultiMapping[str]) -> Match | None:
        """The request of one of the protocols that this may be, or None if it is none; `target` as received.

        KServe's rule for v1, the decoded path ends in `:predict`, for POST only. Raises `errors.Unbatchable` for media
        types that are not JSON (forms with files), for CloudEvents, whose envelope a batch would lose, unless the
        request is rewritten, and as `Lists.route` does.
        """
        if method != "POST":
            return None
        path = origin_form(target).partition("?")[0]
        found = self._match_v1(path) if path.endswith(_V1_ENDS) else _match_v2(path)
        if self._lists is not None or self._by_body:
            found = self._match_lists(path, headers, found)
        if found is None or found.is_rewritten:
            return found  # the predictor could do nothing with it as it is, so the body decides, whatever its type
        if _EVENT_ID in headers:
            raise errors.Unbatchable(errors.NotBatched.CLOUD_EVENT)
        if found.protocol == "v2" and JSON_SIZE in headers:
            return found
        content = media_type(headers)
        if content is Content.FOREIGN or (found.protocol != "v2" and content is Content.BYTES):
            raise errors.Unbatchable(errors.NotBatched.MEDIA_TYPE)
        if content is Content.UNTOLD:
            return found._replace(says_so=False)
        return found

    def route(self, match: Match) -> calls.Route | None:
        """The way of a matching request; None if the predictor has to be asked about its model first, as `learn` does.

        Raises `errors.Unbatchable` if its model must not be batched, and `errors.CarpoolError` if the predictor does
        not tell what has to be known of it. Not for a match whose route depends on the body.
        """
        source = match.route or (self._v1 if match.protocol == "v1" else self._infer)
        if isinstance(source, calls.Route):
            return source
        name = _known(match.model)
        model = source.registry.get(name)
        return None if model is None else source.route(model)

    async def learn(self, match: Match, body: bytes | None = None) -> calls.Route:
        """As `route`, but asks the predictor where that is needed, and looks into the body if the match needs it."""
        if match.by_body is not None:
            if body is None:
                raise ValueError("the route of this match depends on the body")
            return match.by_body.route(await match.by_body.registry.ask(match.by_body.name(body)))
        source = match.route or (self._v1 if match.protocol == "v1" else self._infer)
        if isinstance(source, calls.Route):
            return source
        return source.route(await source.registry.ask(_known(match.model)))

    def _match_v1(self, path: str) -> Match | None:
        if isinstance(self._v1, calls.Route):
            return Match(None, "v1")
        found = _V1_MODEL.fullmatch(path)
        if found is None:
            return None
        names = [name if self._v1.is_http else urllib.parse.unquote(name) for name in (found[1], found[2] or "")]
        return Match(models.ModelName(*names), "v1")

    def _match_lists(self, path: str, headers: MultiMapping[str], found: Match | None) -> Match | None:
        """The same, if it is a match of a protocol that needs no rules, else by the rules for its path."""
        if found is not None and (found.protocol == "v2" or found.model is not None):
            return found
        for each in self._by_body:
            if (by_body := each.at(path)) is not None:
                return Match(None, "lists", by_body=by_body)
        if self._lists is None:
            return found
        route = self._lists.route(path, headers, also_v1=found is not None)
        return found if route is None else Match(None, "lists" if found is None else "v1", route=route)


def _known(name: models.ModelName | None) -> models.ModelName:
    if name is None:
        raise ValueError("a match for models has a name")
    return name


def _match_v2(path: str) -> Match | None:
    found = _V2_MODEL.fullmatch(path)
    return None if found is None else Match(models.ModelName(found[1], found[2] or ""), "v2")


def origin_form(target: str) -> str:
    """The path and query of a request target in absolute form, which a server has to accept; any other as it is.

    Byte for byte: nothing is decoded, encoded or left out, an empty query's question mark and a `#` included.
    """
    if target.startswith("/") or "://" not in target:
        return target  # origin form, or the asterisk of OPTIONS, or the authority of CONNECT
    rest = target.partition("://")[2]
    path = rest[len(rest.partition("/")[0].partition("?")[0]) :]
    return path if path.startswith("/") else f"/{path}"


class Content(enum.Enum):
    """What a body is, by its type."""

    JSON = "json"
    BYTES = "bytes"  # application/octet-stream: tensors in v2, anything at all elsewhere
    UNTOLD = "untold"  # perhaps JSON all the same; the body tells
    FOREIGN = "foreign"  # no JSON document: binary, multipart, CloudEvents, gRPC, a stream of documents


def media_type(headers: MultiMapping[str]) -> Content:
    """What the headers of a request say of its body."""
    named = headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()
    if named in _JSON:
        return Content.JSON
    if named == "application/octet-stream":
        return Content.BYTES
    if _is_foreign(named):
        return Content.FOREIGN
    return Content.JSON if named.endswith("+json") else Content.UNTOLD


def _is_foreign(media_type: str) -> bool:
    return (
        media_type in _FOREIGN
        or media_type.startswith((*_FOREIGN_KINDS, "application/grpc", _CLOUD_EVENTS))
        or media_type.endswith(_FOREIGN_FORMATS)
    )
