"""Opens channels of grpc.aio, whose thread must never wait for the event loop.

That thread takes what has happened from gRPC's core and wakes the loop with a byte on a pair of sockets, of which the
loop reads one in each of its turns. Where more happens than there are turns, as when small messages are passed on, the
pair is full after some 280 bytes. The thread waits in `write` then, and Linux lets it go on when three quarters of them
are read: all answers of the predictor come 200 turns late (https://github.com/grpc/grpc/pull/40989 tells of the same
wait). A byte that does not fit is not needed: there are others to wake the loop, which takes all that has happened.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import grpc.aio


def open_channel(address: str, options: Sequence[tuple[str, Any]]) -> Any:
    """An insecure channel; to be called within a running event loop.

    grpc.aio makes its pair with the first of a process's channels, and closes it with the last.
    """
    made: list[tuple[socket.socket, socket.socket]] = []

    def noted(*arguments: Any) -> tuple[socket.socket, socket.socket]:
        pair = plain(*arguments)
        made.append(pair)
        return pair

    plain = socket.socketpair
    socket.socketpair = noted  # type: ignore[assignment]
    try:
        return grpc.aio.insecure_channel(address, options=options)
    finally:
        socket.socketpair = plain
        for _, waking in made:
            waking.setblocking(False)
