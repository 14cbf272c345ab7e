"""A gRPC server of any methods with messages as bytes, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

Method = Callable[[AsyncIterator[bytes], Any], Awaitable[None]]


class Peer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """`methods` are called with the caller's messages and the context, to which they write."""

    def __init__(self) -> None:
        self.methods: dict[str, Method] = {}
        self.calls: list[tuple[str, dict[str, Any], float | None]] = []
        self.port = 0
        self._server: Any = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port(self.address)
        await self._server.start()

    async def stop(self, grace: float | None = None) -> None:
        await self._server.stop(grace)
        # grpc's own tasks of calls end a moment later, once its poller's thread has told that what they wrote is out.
        while any(each.get_name().startswith("HandleExceptions[") for each in asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    def service(self, details: Any) -> Any:
        method = self.methods.get(details.method)
        if method is None:
            return None
        metadata = dict(details.invocation_metadata)

        async def run(messages: AsyncIterator[bytes], context: Any) -> None:
            self.calls.append((details.method, metadata, context.time_remaining()))
            await method(messages, context)

        return grpc.stream_stream_rpc_method_handler(run)
