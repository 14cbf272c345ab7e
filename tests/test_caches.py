"""What callers can fill is bounded in bytes and counted, wherever it is, and becomes no regular expression."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hpack import huffman, huffman_constants
from hypothesis import given
from hypothesis import strategies as st

from carpool_sidecar import caches, metrics
from carpool_sidecar.batching import model_registry
from carpool_sidecar.protocols import interface, models, steps
from carpool_sidecar.protocols.lists import answers
from carpool_sidecar.protocols.v2_grpc import codec as grpc_codec
from carpool_sidecar.protocols.v2_grpc import messages as grpc_messages
from carpool_sidecar.protocols.v2_grpc import outlines
from carpool_sidecar.protocols.v2_http import codec as v2_codec
from carpool_sidecar.server import headers as headers_
from carpool_sidecar.server import responses
from carpool_sidecar.server.grpc import heads as grpc_heads
from carpool_sidecar.server.http1 import handler
from carpool_sidecar.server.http1 import heads as heads_
from carpool_sidecar.server.http2 import headers as http2
from carpool_sidecar.upstream import connection, predictor
from tests.growth import kept
from tests.server.test_heads import RULES

ROOT = Path(__file__).parent.parent
ROOMS = {"carpool": ROOT, "carpool_sidecar": ROOT / "sidecar"}

# What functions remember is never asked for by anything that callers choose.
FUNCTIONS = {
    "carpool.functions.array_structures._library_of_type": "types",
    "carpool_sidecar.live.page.load": "nothing",
    "carpool_sidecar.planning.planner.Question.capacity": "nothing",
    "carpool_sidecar.planning.recorded.Arrivals.mean_rows": "nothing",
    "carpool_sidecar.protocols.json_rows.bounded_rows": "a setting",
    "carpool_sidecar.protocols.lists.rules._path_pattern": "rules, which are the operator's",
    "carpool_sidecar.protocols.lists.rules.built_in": "nothing",
    "carpool_sidecar.protocols.tensors_from_v1.values._decoder": "how deep a model's inputs are",
    "carpool_sidecar.server.responses.date": "the present second",
}

# Dicts of objects, and what is in them: what is there now, or what has one size and a number.
DICTS = {
    "carpool.functions.arrays.arrays._converted": "dtypes, and names in a decorator",
    "carpool.functions.batcher.Batcher._gathering": "calls of one turn of the event loop",
    "carpool.functions.batcher.Batcher._telling": "threads that hand out results",
    "carpool.functions.cache.LRU._expiring": "as many as its user asked for",
    "carpool.functions.cache.LRU._values": "as many as its user asked for",
    "carpool.functions.function.Function._sites": "instances that live",
    "carpool.functions.function.Site._batchers": "event loops that run",
    "carpool.functions.collected.MapFuture.known": "results of one call",
    "carpool.functions.hosts.Threads._running": "threads that run",
    "carpool.functions.loader.Loader._loaded": "what one request asks for",
    "carpool.functions.parameters.Parameters._known": "1,024 combinations of small values",
    "carpool.functions.collected.UnderWay._calls": "calls under way",
    "carpool.functions.stats.Recorder.failures": "types of errors",
    "carpool.functions.stats.Recorder.refusals": "types of errors",
    "carpool.functions.stats.Registry._entries": "functions that live",
    "carpool.functions.stats.Registry._retained": "names of functions",
    "carpool.functions.work.Work._known": "results of one batch",
    "carpool.program.logs.RateLimitedLog._kinds": "kinds of lines in the code",
    "carpool.program.settings._GroupedParser._titles": "groups of settings",
    "carpool.runtime.driver.Driver._executions": "batches that are out",
    "carpool.runtime.spans.Spans._open": "batches that are out",
    "carpool.scheduling.backlog.Backlog._full": "queues with requests",
    "carpool.scheduling.backlog.Backlog._partly_sent": "requests that wait",
    "carpool.scheduling.backlog.Backlog._queues": "queues with requests",
    "carpool.scheduling.backlog.Backlog._tiers": "priorities that wait",
    "carpool.scheduling.backlog.Backlog.levels": "priorities that wait",
    "carpool.scheduling.learned_limits.LearnedLimits._keys": "1,000 hashes",
    "carpool.scheduling.predictor_model.PredictorModel._fewer": "numbers of batches in flight",
    "carpool.scheduling.predictor_model.PredictorModel._gaps": "numbers of batches in flight",
    "carpool.scheduling.predictor_model.PredictorModel._in_flight": "batches that are out",
    "carpool.scheduling.predictor_model.PredictorModel._overdue": "batches that are out",
    "carpool.scheduling.queues.Queue.fifos": "priorities that wait",
    "carpool.scheduling.scheduler.Scheduler.in_flight": "batches that are out",
    "carpool.scheduling.suspicion.Suspicion._awaited": "requests that are here",
    "carpool.scheduling.suspicion.Suspicion._records": "4,096 hashes",
    "carpool.scheduling.suspicion.Suspicion._trusted": "4,096 hashes",
    "carpool_sidecar.batching.model_registry.ModelRegistry._asking": "questions that are out",
    "carpool_sidecar.batching.model_registry.ModelRegistry._known": "1,000 models of the predictor's",
    "carpool_sidecar.batching.routes.Lists._routes": "combinations of rules",
    "carpool_sidecar.caches.Cache._costs": "the cache itself",
    "carpool_sidecar.live.recorder.Recorder._out": "batches that are out",
    "carpool_sidecar.metrics.Counter._known": "values of labels",
    "carpool_sidecar.planning.planner._Search._known": "forecasts of one plan",
    "carpool_sidecar.protocols.lists.answers._PATTERNS": "names in rules",
    "carpool_sidecar.protocols.lists.codec.Codec._avoided": "1,000 hashes",
    "carpool_sidecar.protocols.lists.codec.Codec._outlines": "names of rules",
    "carpool_sidecar.protocols.pairs.codec.Codec._outlines": "names of rules",
    "carpool_sidecar.protocols.tensors_from_pairs.front.Codec._of": "combinations of rules",
    "carpool_sidecar.protocols.lists.codec.Template._keys": "64 keys of one of 8 templates of 64 KiB",
    "carpool_sidecar.protocols.lists.counts.Counts._refused": "one answer",
    "carpool_sidecar.protocols.lists.counts.Counts.spans": "one answer",
    "carpool_sidecar.protocols.lists.counts.Counts.totals": "one answer",
    "carpool_sidecar.protocols.lists.places.Text._known": "one body",
    "carpool_sidecar.protocols.v2_http.codec.Payload._columns": "one for each input",
    "carpool_sidecar.protocols.v2_http.cuts.Column._converted": "one answer",
    "carpool_sidecar.protocols.v2_http.answers.Result._texts": "one answer",
    "carpool_sidecar.protocols.v2_http.answers.Result._wants": "one answer",
    "carpool_sidecar.server.admin_clients.Clients._clients": "connections",
    "carpool_sidecar.server.admin_clients.DrainWaits._waits": "questions that are out",
    "carpool_sidecar.server.grpc.arrivals.MessageTimeouts._arriving": "messages that arrive",
    "carpool_sidecar.server.grpc.read_slots.ConnectionSlots._slots": "connections",
    "carpool_sidecar.server.grpc.read_slots.ReadSlots._holders": "calls that are out",
    "carpool_sidecar.server.grpc.read_slots.ReadSlots._waiting": "calls that are out",
    "carpool_sidecar.server.http1.heads.Reader._starts": "2,000 names of 64 bytes",
    "carpool_sidecar.server.http2.connection.Connection._broken": "numbers of the latest streams",
    "carpool_sidecar.server.http2.connection.Connection._ended": "numbers of the latest streams",
    "carpool_sidecar.server.http2.connection.Connection.streams": "streams that are open",
    "carpool_sidecar.server.http2.headers._Steps": "steps of the Huffman code, which has 65,536",
    "carpool_sidecar.server.http2.send_queue.Sender._held_back": "streams that are open",
    "carpool_sidecar.server.http2.send_queue.Sender._hungry": "streams that are open",
    "carpool_sidecar.upstream.grpc_predictor.GrpcPredictor._methods": "ModelInfer",
}

# Functions that make regular expressions, and of what.
PATTERNS = {
    "carpool.program.shared_names.read_members": "one of its own",
    "carpool_sidecar.protocols.lists.answers._patterns": "names in rules",
    "carpool_sidecar.protocols.lists.rules._path_pattern": "paths in rules",
}


# --- all there are ----------------------------------------------------------------------------------------------


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package, folder in ROOMS.items():
        for path in sorted((folder / package).rglob("*.py")):
            name = ".".join(path.relative_to(folder).with_suffix("").parts)
            yield name.removesuffix(".__init__"), ast.parse(path.read_text())


def named(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    """All nodes, each with the name of the function or class that it is in."""
    for child in ast.iter_child_nodes(node):
        is_room = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        inside = f"{name}.{child.name}" if is_room else name  # type: ignore[attr-defined]
        yield inside, child
        yield from named(child, inside)


def is_empty_dict(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Dict):
        return not node.keys
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
        "dict", "OrderedDict", "defaultdict", "WeakKeyDictionary", "WeakValueDictionary",
    )  # fmt: skip


def dicts(module: str, tree: ast.Module) -> Iterator[str]:
    """Those of modules and objects that begin empty, and classes that are dicts."""
    for name, node in named(tree, module):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("dict[") for base in node.bases):
            yield name
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_empty_dict(node.value):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                yield f"{name.rpartition('.')[0]}.{target.attr}"
            elif name == module and "Mapping" not in ast.unparse(getattr(node, "annotation", target)):
                yield f"{name}.{ast.unparse(target)}"


def test_what_functions_remember_is_asked_for_by_nothing_that_callers_choose() -> None:
    found = set()
    for module, tree in modules():
        for name, node in named(tree, module):
            if isinstance(node, ast.FunctionDef) and any("cache" in ast.unparse(each) for each in node.decorator_list):
                found.add(name)
            is_made = isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("lru_cache", "cache")
            decorates = isinstance(node, ast.Call) and name in found | set(FUNCTIONS)
            assert not is_made or decorates, f"{module}:{getattr(node, 'lineno', 0)} remembers what a function returns"
    assert found == set(FUNCTIONS)


def test_all_dicts_that_stay_are_caches_or_bounded_by_what_is_in_them() -> None:
    found = {name for module, tree in modules() for name in dicts(module, tree)}
    constants = {"carpool.runtime.spans._NO_ATTRIBUTES", "carpool.scheduling.suspicion.NO_TRAITS"}
    assert found - constants == set(DICTS) | {"carpool_sidecar.caches.Cache", "carpool_sidecar.caches._all"}


def test_no_text_of_callers_becomes_a_regular_expression() -> None:
    found = set()
    for module, tree in modules():
        for name, node in named(tree, module):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
                is_constant = isinstance(node.args[0], ast.Constant) or name == module
                if node.func.attr != "escape" and not is_constant:  # type: ignore[attr-defined]
                    found.add(name)
    assert found == set(PATTERNS)


# --- what each is filled with -----------------------------------------------------------------------------------


def grpc_request(text: bytes) -> bytes:
    request = grpc_messages.REQUEST.message(model_name="m")
    request.inputs.add(name="x", datatype="INT8", shape=[1, 1])
    request.parameters["p"].string_param = text.decode()
    request.raw_input_contents.append(b"1")
    found: bytes = request.SerializeToString()
    return found


def v2_request(text: bytes) -> bytes:
    tensor = b'{"name":"x","datatype":"FP32","shape":[1,1],"data":[1]}'
    return b'{"parameters":{"p":"%b"},"inputs":[%b]}' % (text, tensor)


def v2_answer(text: bytes) -> interface.UpstreamResponse:
    tensor = b'{"name":"y","datatype":"FP32","shape":[1,1],"data":[1]}'
    return interface.UpstreamResponse(b'{"parameters":{"p":"%b"},"outputs":[%b]}' % (text, tensor), {})


def unknown_model(registry: model_registry.ModelRegistry, text: bytes) -> None:
    registry._keep(registry._make(models.ModelName(text.decode())))


def fillers() -> dict[str, tuple[object, Callable[[bytes], object]]]:
    """By name: what has the cache, and what puts a text that is new into it."""
    v2 = v2_codec.Memory()
    form: Any = v2_codec.Codec(models.ModelInfo(), lambda: None).parse(v2_request(b""), 1).response_format
    reader = v2_codec.answers.Reader(lambda: None, v2.answers)
    grpc = grpc_codec.Codec(models.ModelInfo(max_batch_size=8), lambda: None)
    signature = grpc.parse(grpc_request(b"p"), 8).message.template.signature
    known: outlines.Outlines[int] = outlines.Outlines()

    def outline(text: bytes) -> None:
        body = grpc_request(text)
        found = outlines.outline(body, grpc.parse(body, 8).message)
        if found is not None:
            known.put(body, found, 0)

    heads = grpc_heads.HeadReader(())
    decoder = http2.Decoder(1 << 30)

    def call_head(text: bytes) -> None:
        fields = ((b"x", text),)
        heads.read(fields)
        heads.taken(http2.Head("POST", "/m", b"", fields), heads.read(fields))

    def http2_head(text: bytes) -> None:
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/m"), (b"x", text)]
        decoder.request(b"".join(http2._field(*each) for each in fields))

    encoder = huffman.HuffmanEncoder(huffman_constants.REQUEST_CODES, huffman_constants.REQUEST_CODES_LENGTH)
    plans = heads_.Reader(RULES)
    answering = handler.Handler(RULES, None, None, None)  # type: ignore[arg-type] # it only reads

    def plan(text: bytes) -> None:
        head = b"POST /v1/models/m:predict?%b HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n" % text
        plans.read(head + b"Content-Length: 9\r\n\r\n")

    passing = connection.LenientReader()

    def pass_on(text: bytes) -> None:
        passing.feed(memoryview(b"HTTP/1.1 200 OK\r\nX: %b\r\nContent-Length: 0\r\n\r\n" % text))

    registry = model_registry.ModelRegistry(None, lambda model: None, True, lambda: 0.0)  # type: ignore[arg-type,return-value]
    return {
        "answer_heads": (responses.heads, lambda text: responses.heads[200, (("X", text.decode()),), False, 1]),
        "forwarding": (headers_._nodes, lambda text: headers_._nodes[text.decode()]),
        "grpc_answer_heads": (grpc_heads._blocks, grpc_heads.answer_block),
        "grpc_heads": (heads, call_head),
        "header_plans": (plans._plans, plan),
        "http2_blocks": (http2._blocks, lambda text: http2.block(((b"x", text),))),
        "http2_heads": (decoder, http2_head),
        "http2_names": (http2._is_short_allowed, lambda text: http2._is_allowed(b"x" + text[:100])),
        "http2_texts": (http2._short_decoded, lambda text: http2._short_decoded[encoder.encode(text[:100])]),
        "numbered_rows": (answers._heads, lambda text: answers._heads[text[:200], 2000]),
        "passed_heads": (connection._heads, pass_on),
        "read_heads": (
            answering._heads, lambda text: answering.read_head(b"GET /%b HTTP/1.1\r\nHost: h\r\n\r\n" % text)
        ),
        "request_heads": (predictor._heads, lambda text: predictor._heads["h", "/" + text.decode(), ()]),
        "unknown_models": (registry._unknown, lambda text: unknown_model(registry, text)),
        "v2_answers": (v2.answers, lambda text: steps.at_once(reader.read([(form, 0, 1)], v2_answer(text)))),
        "v2_grpc_heads": (signature, lambda text: signature.plain_head(int(text[:6]) + 1)),
        "v2_grpc_messages": (grpc, lambda text: grpc.parse(grpc_request(text), 8)),
        "v2_grpc_outlines": (known, outline),
        "v2_requests": (v2.requests, lambda text: v2.requests.parse(v2_request(text), 8)),
    }  # fmt: skip


# Bytes of objects that may be kept for each byte that counts; templates are taken apart, and names of Python's own add.
TIMES = 6


@pytest.mark.parametrize("name", sorted(get_args(caches.Name)))
def test_a_cache_ends_at_its_bytes_whatever_a_caller_sends(name: str) -> None:
    root, put = fillers()[name]
    sizes = [0, 300, 3000, 20_000, 60_000]
    most_held = 0
    for size in sizes:
        for number in range(max(30, min(3000, 6_000_000 // (size + 256)))):
            put(b"%06d" % number + b"x" * size)
        most_held = max(most_held, caches.held()[name])
    assert 0 < most_held <= 10 * 1024 * 1024
    _, size = kept(root)
    assert size < TIMES * 4 * 1024 * 1024 + 1_000_000


def test_all_that_is_remembered_is_counted_by_the_name_of_its_cache() -> None:
    cache: caches.Cache[str, int] = caches.Cache("http2_heads", 10_000)
    before = caches.held()["http2_heads"]
    cache.put("a", 1, 100)
    line = f'carpool_cached_bytes{{cache="http2_heads"}} {before + 100 + caches.ENTRY:.1f}'
    assert line in metrics.Metrics().render().decode()
    cache.drop("a")
    assert caches.held()["http2_heads"] == before
    assert caches.held().keys() == set(get_args(caches.Name))


# --- a cache ----------------------------------------------------------------------------------------------------

SIZES = st.integers(0, 2000)


@given(st.lists(st.tuples(st.integers(0, 9), SIZES, st.booleans()), max_size=60))
def test_a_cache_never_holds_more_than_its_bytes_and_knows_what_it_holds(moves: list[tuple[int, int, bool]]) -> None:
    cache: caches.Cache[int, int] = caches.Cache("http2_heads", 4000, 1000)
    alive: dict[int, int] = {}
    for key, size, goes in moves:
        if goes:
            cache.drop(key)
            alive.pop(key, None)
        else:
            cache.put(key, size, size)
            if size <= 1000:
                alive = {each: alive[each] for each in cache if each in alive} | {key: size}
        assert all(cache[each] == alive[each] for each in cache)
        assert cache.held == sum(cache[each] + caches.ENTRY for each in cache) <= 4000


def test_a_cache_that_is_full_forgets_everything() -> None:
    cache: caches.Cache[int, str] = caches.Cache("http2_heads", 3 * (10 + caches.ENTRY), 10)
    for number in range(4):
        cache.put(number, "template", 10)
    assert dict(cache) == {3: "template"}


def test_a_value_is_made_once_and_what_is_raised_is_not_remembered() -> None:
    made = []

    def make(key: str) -> str:
        made.append(key)
        if key == "bad":
            raise ValueError(key)
        return key * 2

    cache = caches.Cache("http2_heads", 1000, make=make)
    assert [cache["a"], cache["a"]] == ["aa", "aa"]
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            cache["bad"]
    assert made == ["a", "bad", "bad"]
