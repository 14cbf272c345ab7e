"""What a request claims costs nothing, and what was remembered of it is let go without the garbage collector."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import pytest

from carpool_sidecar import errors
from carpool_sidecar.protocols.v2_http import codec, templates

BODY = b'{"inputs":[{"name":"x","shape":[1,%d],"datatype":"FP32","data":[1]}]}'


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def layouts_alive() -> int:
    return sum(type(each) is templates.RequestTemplate for each in gc.get_objects())


@pytest.mark.parametrize("elements", [10**8, 2**62])
def test_a_shape_that_claims_much_takes_no_memory_however_often_it_comes(elements: int) -> None:
    reader = codec.Reader()
    tracemalloc.start()
    try:
        for _ in range(3):
            with pytest.raises(errors.Unbatchable, match="shape"):
                reader.parse(BODY % elements, 100)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("ident", [b"", b'"id":"first",', b'"parameters":{"p":1},"id":"middle",'])
def test_what_is_known_of_a_request_goes_with_the_last_who_needs_it(ident: bytes) -> None:
    reader = codec.Reader()
    payload = reader.parse(b'{%b"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1]}]}' % ident, 100)
    assert layouts_alive() == 1
    del payload, reader
    assert layouts_alive() == 0
