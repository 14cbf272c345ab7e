"""Request targets that few servers were tried with: each gets one clear status, and the next request its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.app.conftest import Bench

Start = Callable[..., Awaitable[Bench]]

JSON = "Content-Type: application/json\r\n"
BODY = b'{"instances":[1]}'

# Read as a model's name, whatever stands in it: the predictor gets the target as it came and says what it thinks of it.
BATCHED = (
    "/v1/models/my%20model:predict",
    "/v1/models/%00:predict",
    "/v1/models/%zz:predict",
    "/v1/models/%:predict",
    "/v1/models/%ff%fe:predict",
    "/v1/models/%ud800:predict",
    "/v1/models/m%0d%0aX:1:predict",
    "/v1/models/%2e%2e/%2e%2e:predict",
    "/v1/models/../m:predict",
    "/v1/models//m:predict",
    "//v1/models/m:predict",
    "/v1/models/:predict",
    "/v1/models/m:predict:predict",
    "/v1/models/m%3Apredict",
    "/v1/models/\\:predict",
    "/v1/models/m:predict?",
    "/v1/models/m:predict?a=%20&%",
    "/v1/models/" + "x" * 7000 + ":predict",
    "http://other.example/v1/models/m:predict",
)
PASSED = (
    "/", "//", "///", "/.", "/..", "/%", "/;a", "/a/../b", "/v1/models/m:predict\\", "/v1/models/{m}:predict|^`",
    "/v1/models/m:predict#f", "http://other.example",
)  # fmt: skip
REFUSED = (
    "", " ", "*", "#", "?a", ".", "..", "\\", "/a b", "/v1/models/my model:predict", "/v1/models/m:predict\x01",
    "/v1/models/\x7f:predict", "/v1/models/\t:predict", "/v1/models/m\0:predict", "/v1/models/mödel:predict",
    "/v1/models/\udcff:predict", "v1/models/m:predict", "host:80", "[::1]/x", "https://[::1/x",
    "http:///v1/models/m:predict", "http://a b/v1/models/m:predict",
    "/v1/models/" + "x" * 20_000 + ":predict", "/v1/models/" + "x" * 200_000 + ":predict", "/" + "a/" * 5000,
)  # fmt: skip
# Not understood, or too long (RFC 9110, section 15.5; RFC 6585, section 5).
REFUSALS = ("400", "414", "431")


def shown(target: str) -> str:
    return ascii(target[:40])


@pytest.fixture
async def bench(sidecar_of: Start) -> Bench:
    return await sidecar_of(max_batch_size=1)


async def status_of(bench: Bench, method: str, target: str) -> str:
    """That of the only answer; whoever asks properly next is answered as ever."""
    answer = await bench.raw(method, target, JSON, BODY, may_reset=True)
    version, status, _ = answer.partition(b"\r\n")[0].decode().split(" ", 2)
    assert version in ("HTTP/1.1", "HTTP/1.0")
    assert answer.count(b"\r\nContent-Length: ") == 1
    following, body, _ = await bench.post(BODY)
    assert following == 200
    assert body.endswith(b'"predictions":[1]}')
    return status


@pytest.mark.looptime
@pytest.mark.parametrize("target", BATCHED, ids=shown)
async def test_an_odd_name_of_a_model_is_batched_and_reaches_the_predictor_as_it_came(
    bench: Bench, target: str
) -> None:
    assert await status_of(bench, "POST", target) == "200"
    assert await bench.metric('carpool_batches_total{reason="full"}') == 2
    assert bench.predictor.seen[0].target == target.removeprefix("http://other.example")


@pytest.mark.looptime
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("target", PASSED, ids=shown)
async def test_an_odd_path_that_is_no_predict_path_is_passed_through_as_it_came(
    bench: Bench, method: str, target: str
) -> None:
    assert await status_of(bench, method, target) == "200"
    assert bench.predictor.seen[0].target == (target.removeprefix("http://other.example") or "/")


@pytest.mark.looptime
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("target", REFUSED, ids=shown)
async def test_what_is_no_request_target_is_refused_and_never_forwarded(bench: Bench, method: str, target: str) -> None:
    assert await status_of(bench, method, target) in REFUSALS
    assert len(bench.predictor.seen) == 1
