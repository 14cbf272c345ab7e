"""Over gRPC, too, each caller gets what it would have got alone: the port, the core, and a predictor's port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from carpool_sidecar.protocols import interface
from tests.examples import examples
from tests.fakes import fake_v2
from tests.protocols import test_tensors_against_oracle as tensors
from tests.server.grpc.site import Site


class Predictor(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers as `behave` does, and tells of its models no more than their names."""

    def __init__(self) -> None:
        self.behave = tensors.Grpc(False)
        self.calls = 0

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method.rpartition("/")[2]
        answers = {"ModelInfer": self._answer, "ModelMetadata": self._tell}
        return grpc.unary_unary_rpc_method_handler(answers[method]) if method in answers else None

    async def _tell(self, message: bytes, context: Any) -> bytes:
        return bytes(pb.ModelMetadataResponse(name="m").SerializeToString())

    async def _answer(self, message: bytes, context: Any) -> bytes:
        self.calls += 1
        return self.behave.predict(message).body


@pytest.fixture
async def predictor() -> AsyncIterator[tuple[Predictor, str]]:
    made = Predictor()
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((made,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield made, f"127.0.0.1:{port}"
    await server.stop(None)


async def test_each_caller_gets_what_it_would_get_alone(predictor: tuple[Predictor, str]) -> None:
    stub, address = predictor
    site = Site(fake_v2.FakeV2())
    await site.start(address)
    loop = asyncio.get_running_loop()
    shared: list[int] = []

    @examples(30)
    @given(st.data())
    def try_it(data: st.DataObject) -> None:
        stub.calls = 0
        callers = data.draw(tensors.crowds(tensors.Grpc))
        found = asyncio.run_coroutine_threadsafe(ask([each.body for each in callers]), loop).result()
        shared.append(len(callers) - stub.calls)
        for caller, got in zip(callers, found, strict=True):
            shown = interface.RenderedResponse((), (got,))
            assert stub.behave.told(shown) == stub.behave.told(stub.behave.alone(caller))

    async def ask(bodies: list[bytes]) -> list[bytes]:
        return await asyncio.gather(*map(site.infer, bodies))

    try:
        await asyncio.to_thread(try_it)
        assert max(shared) > 0
    finally:
        await site.stop()
