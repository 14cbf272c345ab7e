"""Through a whole sidecar each caller gets what it would have got alone: every built-in rule, on either way through it.

What is asked comes from many callers at one moment, in pieces of any size, compressed or not. See tests/protocols for
the same of the codecs by themselves, with more examples.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import looptime
import pytest
from aiohttp import web
from hypothesis import event, given
from hypothesis import strategies as st

from carpool_sidecar.protocols import interface
from tests import examples
from tests.fakes import v2_calls, v2_http
from tests.http1 import exchange, freeze, tables
from tests.protocols import oracle, scenes
from tests.protocols import test_tensors_against_oracle as tensors
from tests.protocols.v2_http import v2_server

pytestmark = pytest.mark.timeout(300)  # thousands of requests

# Everything that comes at one moment leaves together.
_TOGETHER = {"max_latency": 500.0, "max_batch_size": 256, "max_queue_instances": 10_000, "max_body_bytes": 8_000_000}
_PATHS = {
    "openai-embeddings": "/v1/embeddings", "tei-embed": "/embed", "hf-toolkit": "/predict", "mlflow": "/ml/invocations",
    "tfserving-columns": "/v1/models/m:predict", "tfserving-classify": "/v1/models/m:classify",
    "ollama-embed": "/api/embed",
}  # fmt: skip
_RULES = {path: scenes.BUILT_IN[name] for name, path in _PATHS.items()}
_V1 = "/v1/models/v1:predict"
_V2 = "/v2/models/m/infer"


class Answer(NamedTuple):
    """What came over HTTP; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Asked(NamedTuple):
    """A request as it is written on its connection, which is cut there into several writes."""

    raw: bytes
    cuts: Sequence[int]


class Predictor(exchange.Predictor):
    """A function of path, headers and body, or an application."""

    def __init__(self, application: web.Application | None = None) -> None:
        super().__init__()
        self.behave: Callable[[str, Mapping[str, str], bytes], web.Response] = lambda *_: web.Response(status=404)
        self.calls = 0
        self._application = application

    async def listen(self, port: int) -> None:
        """Begin."""
        self._runner: web.BaseRunner
        if self._application is None:
            self._runner = web.ServerRunner(web.Server(self._handle, access_log=None), shutdown_timeout=0.1)
        else:
            self._runner = web.AppRunner(self._application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port, backlog=1024).start()

    async def close(self) -> None:
        """End."""
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":  # it tells of its models no more than MLServer does
            is_known = request.path == "/v2/models/m"
            return web.json_response(
                {"name": "m", "platform": "", "inputs": [], "outputs": []}, status=200 if is_known else 404
            )
        self.calls += 1
        return self.behave(request.path_qs, request.headers, await request.content.read())


class Stub:
    """A sidecar before such a predictor, with a short way for plain requests or without."""

    def __init__(self, short_way: bool, predictor: Predictor, **chosen: Any) -> None:
        self.predictor = predictor
        self.site = freeze.Site(short_way, predictor, **_TOGETHER, **chosen)

    async def ask(self, asked: Sequence[Asked]) -> list[Answer]:
        """All at once, each on a connection of its own."""
        self.predictor.calls = 0
        return await asyncio.gather(*map(self._ask, asked))

    async def _ask(self, asked: Asked) -> Answer:
        loop = asyncio.get_running_loop()
        edges = sorted({0, len(asked.raw), *asked.cuts})
        _, client = await loop.create_connection(exchange.Client, "127.0.0.1", self.site.port)
        await client.converse([asked.raw[start:stop] for start, stop in itertools.pairwise(edges)])
        head, _, body = bytes(client.data).partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return Answer(int(first.split(" ")[1]), headers, unchunked(body) if "transfer-encoding" in headers else body)


def unchunked(body: bytes) -> bytes:
    found = b""
    while (size := int(body[: body.index(b"\r\n")], 16)) > 0:
        start = body.index(b"\r\n") + 2
        found, body = found + body[start : start + size], body[start + size + 2 :]
    return found


@pytest.fixture(scope="module")
def virtual_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop whose clock jumps to the next timer when nothing else is left to do."""
    loop = looptime.new_event_loop(start=0, noop_cycles=4)
    yield loop
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.fixture(scope="module")
def stubs(virtual_loop: asyncio.AbstractEventLoop) -> Iterator[list[Stub]]:
    yield from started(virtual_loop, lists=",".join(_PATHS))


@pytest.fixture(scope="module")
def before_v2(virtual_loop: asyncio.AbstractEventLoop) -> Iterator[list[Stub]]:
    yield from started(virtual_loop, is_v2=True, upstream="triton-http", lists="openai-embeddings")


def started(loop: asyncio.AbstractEventLoop, is_v2: bool = False, **chosen: Any) -> Iterator[list[Stub]]:
    """One of either kind."""
    found = []
    for short_way in (True, False):
        application = v2_http.application(v2_calls.Calls()) if is_v2 else None
        found.append(Stub(short_way, Predictor(application), **chosen))
        loop.run_until_complete(found[-1].site.start())
    yield found
    for each in found:
        loop.run_until_complete(each.site.stop())


@st.composite
def written(draw: st.DrawFn, path: str, body: bytes, *lines: bytes) -> Asked:
    """A request with this body: compressed or not, in chunks or not, cut anywhere."""
    coding, encode = draw(
        st.sampled_from(
            [(b"", bytes)] * 3 + [(b"gzip", lambda data: gzip.compress(data, mtime=0)), (b"deflate", zlib.compress)]
        )
    )
    sent = encode(body)
    told = [b"Content-Encoding: " + coding] * bool(coding) + [*lines, b"Connection: close"]
    size = draw(st.sampled_from([0, 0, 0, 1, 7, 1000]))
    if size:
        chunked = tables.chunked(sent, *[size] * min(len(sent) // size, 50))
        raw = tables.request(chunked, path.encode(), *told, b"Transfer-Encoding: chunked", length=False)
    else:
        raw = tables.request(sent, path.encode(), *told)
    return Asked(raw, draw(st.lists(st.integers(1, len(raw) - 1), max_size=4)))


_JSON = b"Content-Type: application/json"
_BATCH = re.compile(rb'"batchId":"[0-9a-f-]{36}"')


@examples.examples(60)
@given(st.sampled_from([_V1, *_RULES]), st.data())
def test_each_caller_of_a_list_gets_what_it_would_get_alone(
    stubs: list[Stub], virtual_loop: asyncio.AbstractEventLoop, path: str, data: st.DataObject
) -> None:
    is_predict = path.endswith(":predict")  # at which a garbled body may be of another kind
    scene = data.draw(scenes.scenes(least=2, rule=_RULES.get(path, scenes.V1), has_garbage=not is_predict))
    asked = [data.draw(written(path, body, _JSON)) for body in scene.bodies]
    check(stubs, virtual_loop, path, scene, asked)


@examples.examples(8)
@given(st.sampled_from([_V1, _V1, *_RULES]), st.integers(0, 3), st.data())
def test_bodies_and_answers_that_are_read_in_steps_are_no_others(
    stubs: list[Stub], virtual_loop: asyncio.AbstractEventLoop, path: str, which: int, data: st.DataObject
) -> None:
    scene = data.draw(scenes.scenes(least=2, rule=_RULES.get(path, scenes.V1), has_garbage=False))
    bodies = list(scene.bodies)
    if which:  # white space before the first row is nobody's
        request = scenes.understand(scene.rule, bodies[0])
        at = next(iter(request.lists.values()))[0].start
        text = bodies[0].decode()
        bodies[0] = f"{text[:at]}{' ' * 1_200_000}{text[at:]}".encode()
    if which != 1:
        scene = scene._replace(server=scene.server._replace(gap=" " * 300_000))
    check(stubs, virtual_loop, path, scene, [data.draw(written(path, body, _JSON)) for body in bodies])


def check(
    stubs: list[Stub], loop: asyncio.AbstractEventLoop, path: str, scene: scenes.Scene, asked: Sequence[Asked]
) -> None:
    """Both answer all callers as the scene's server would answer each alone."""

    def behave(target: str, headers: Mapping[str, str], body: bytes) -> web.Response:
        assert target == path
        try:
            answer = scene.server.answer(body)
        except oracle.Passed:
            answer = b"passed: " + body
        return web.Response(body=answer, content_type="application/json")

    for stub in stubs:
        stub.predictor.behave = behave
        found = loop.run_until_complete(stub.ask(asked))
        event(f"{len(asked)} requests in {stub.predictor.calls} calls")
        for body, got in zip(scene.bodies, found, strict=True):
            alone = behave(path, {}, body).body
            assert isinstance(alone, bytes)
            assert got.status == 200
            assert got.headers["content-type"].startswith("application/json")
            if scene.rule is scenes.V1:
                alone = oracle.v1_answer(*oracle.understand_v1_answer(alone))
            assert _BATCH.sub(b'"batchId":"b"', got.body) == alone


@examples.examples(25)
@given(st.data(), st.booleans())
def test_each_caller_of_v2_gets_what_it_would_get_alone(
    stubs: list[Stub], virtual_loop: asyncio.AbstractEventLoop, data: st.DataObject, is_odd: bool
) -> None:
    talk = tensors.Http(is_odd)

    def behave(target: str, headers: Mapping[str, str], body: bytes) -> web.Response:
        assert target == _V2
        told = {name: headers[name] for name in ("Content-Type", v2_server.HEADER) if name in headers}
        answer = talk.predict(body, tuple(told.items()))
        return web.Response(
            body=answer.body, headers={name.decode(): value.decode() for name, value in answer.headers.items()}
        )

    callers = data.draw(tensors.crowds(tensors.Http))
    asked = []
    for each in callers:
        size = [] if each.json_size is None else [b"Inference-Header-Content-Length: %d" % each.json_size]
        kind = b"application/json" if each.json_size is None else b"application/octet-stream"
        asked.append(data.draw(written(_V2, each.body, b"Content-Type: " + kind, *size)))
    for stub in stubs:
        stub.predictor.behave = behave
        found = virtual_loop.run_until_complete(stub.ask(asked))
        event(f"{len(asked)} requests in {stub.predictor.calls} calls")
        for caller, got in zip(callers, found, strict=True):
            assert got.status == 200, got
            names = ("content-type", v2_server.HEADER.lower())
            headers = tuple((name.title(), got.headers[name]) for name in names if name in got.headers)
            assert talk.told(interface.RenderedResponse(headers, (got.body,))) == talk.told(talk.alone(caller))


_NUMBERS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=3)
_QUESTIONS = st.one_of(
    st.tuples(st.just("identity"), st.lists(_NUMBERS, min_size=1, max_size=3)),
    st.tuples(
        st.just("add_sub"), st.lists(st.fixed_dictionaries({"a": _NUMBERS, "b": _NUMBERS}), min_size=1, max_size=2)
    ),
    st.tuples(st.just("strings"), st.lists(st.text(max_size=4).map(lambda text: [text]), min_size=1, max_size=3)),
    st.tuples(
        st.just("embedder"), st.text(min_size=1, max_size=5) | st.lists(st.text(max_size=5), min_size=1, max_size=3)
    ),
    st.tuples(st.just("token_embedder"), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
)


@examples.examples(25)
@given(st.lists(_QUESTIONS, min_size=2, max_size=6), st.data())
def test_each_caller_of_v1_and_of_embeddings_before_v2_gets_what_it_would_get_alone(
    before_v2: list[Stub],
    virtual_loop: asyncio.AbstractEventLoop,
    questions: list[tuple[str, Any]],
    data: st.DataObject,
) -> None:
    asked = []
    for model, what in questions:
        if "embedder" in model:
            form = data.draw(st.sampled_from([{}, {"encoding_format": "base64"}, {"user": "me"}]))
            body, path = {"model": model, "input": what, **form}, "/v1/embeddings"
        else:
            body, path = {"instances": what}, f"/v1/models/{model}:predict"
        asked.append(data.draw(written(path, json.dumps(body).encode(), _JSON)))
    for stub in before_v2:
        alone = [virtual_loop.run_until_complete(stub.ask([each]))[0] for each in asked]
        found = virtual_loop.run_until_complete(stub.ask(asked))
        for one, other in zip(found, alone, strict=True):
            assert one.status == other.status
            assert _BATCH.sub(b"", one.body) == _BATCH.sub(b"", other.body)
