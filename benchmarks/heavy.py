"""One client that sends a large body again and again and otherwise keeps out of the way.

It lives in a thread beside one that waits to tell it to end. On Linux, where threads have priorities of their own, it
gives way to whoever shares its core.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from benchmarks import client, load

PATIENCE = 30.0  # seconds that the last answer may take
_NICENESS = 10
_RECEIVE = 1 << 16


@dataclass
class Measurement:
    """Answered requests, from the first byte sent to the last answer, in seconds; `errors` by what went wrong."""

    requests: int = 0
    seconds: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Answered requests per second."""
        return self.requests / self.seconds if self.seconds else 0.0


class Sender:
    """Sends `request` for the length of a `with` block, the next one when the one before is answered.

    An answer that is not 2xx, or not right, counts as an error; a lost connection is one too, and ends the sending.
    """

    # State: what the thread saw, to be read once it has ended.
    def __init__(self, address: load.Address, request: bytes, is_right: Callable[[bytes], bool]) -> None:
        self._address = address
        self._request = request
        self._is_right = is_right
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="large bodies", daemon=True)
        self._socket: socket.socket | None = None
        self._requests, self._seconds = 0, 0.0
        self._errors: Counter[str] = Counter()

    def __enter__(self) -> Sender:
        self._socket = socket.create_connection(self._address)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._socket is not None
        self._stopped.set()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # the thread's call ends
            self._thread.join()
        self._socket.close()

    def measurement(self) -> Measurement:
        """What came of it, after the `with` block."""
        return Measurement(self._requests, self._seconds, dict(self._errors))

    def _run(self) -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        start = time.perf_counter()
        try:
            while not self._stopped.is_set():
                self._exchange()
                self._seconds = time.perf_counter() - start
        except (OSError, ValueError) as error:
            self._errors[f"large: {error}"] += 1

    def _exchange(self) -> None:
        assert self._socket is not None
        self._socket.sendall(self._request)
        status, answer = self._receive(self._socket)
        if not 200 <= status < 300:
            self._errors[f"large: status {status}"] += 1
        else:
            self._count(self._is_right(answer))

    def _count(self, is_right: bool) -> None:
        if is_right:
            self._requests += 1
        else:
            self._errors["large: wrong answer"] += 1

    @staticmethod
    def _receive(connected: socket.socket) -> tuple[int, bytes]:
        received = bytearray()
        while (answer := client.parse_response(received)) is None:
            data = connected.recv(_RECEIVE)
            if not data:
                raise ConnectionError("connection closed")
            received += data
        return answer


class RpcSender(Sender):
    """The same with messages for `ModelInfer`, over gRPC."""

    def __enter__(self) -> RpcSender:
        limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel("{}:{}".format(*self._address), options=limits)
        self._infer = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        super().__enter__()
        return self

    def __exit__(self, *why: object) -> None:
        super().__exit__(*why)
        self._channel.close()

    def _exchange(self) -> None:
        try:
            self._count(self._is_right(self._infer(self._request, timeout=PATIENCE)))
        except grpc.RpcError as error:
            self._errors[f"large: {error.code()}"] += 1
