"""A user's own model server: KServe's v1 protocol with the standard library alone.

It runs in a pod of the tests, out of a ConfigMap, on the port in PORT or in its first argument. Each instance comes
back as it was; calls are served one at a time, 10 ms each, as on a GPU. What its probes see can be changed while it
runs: while there is a file `broken` in the folder STATE, GET /health answers 503 and the gRPC health service (on
GRPC_PORT) does not serve; while there is a file `closed`, nobody listens on PORT. A start takes the files away. For
START_SECONDS (0) after a start it is broken and closed.
"""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import signal
import socket
import sys
import threading
import time
from typing import Any

STATE = pathlib.Path(os.environ.get("STATE", "/state"))
PORT = int(os.environ.get("PORT") or sys.argv[1])
CALL_SECONDS = 0.01
TURN_SECONDS = 0.1

_started = time.monotonic() + float(os.environ.get("START_SECONDS", "0"))
_device = threading.Lock()


def is_well() -> bool:
    return time.monotonic() >= _started and not (STATE / "broken").exists()


def is_open() -> bool:
    return time.monotonic() >= _started and not (STATE / "closed").exists()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200 if is_well() else 503, {"well": is_well()})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with _device:
            time.sleep(CALL_SECONDS)
        self._answer(200, {"predictions": body["instances"]})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6  # with "::", and of IPv4 as well
    daemon_threads = True
    request_queue_size = 128


def serve_while_open() -> None:
    """Listens until the file `closed` appears."""
    with Server(("::", PORT), Handler) as server:
        server.timeout = TURN_SECONDS
        while is_open():
            server.handle_request()


def serve_health(port: int) -> Any:
    """grpc.health.v1.Health/Check, in a server that lives as long as the result is kept.

    The answer is a message with one field: 1 is SERVING, 2 NOT_SERVING.
    """
    from concurrent import futures

    import grpc

    def check(request: bytes, context: object) -> bytes:
        return b"\x08\x01" if is_well() else b"\x08\x02"

    methods = {"Check": grpc.unary_unary_rpc_method_handler(check)}
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods),))
    server.add_insecure_port(f"[::]:{port}")
    server.start()
    return server


def main() -> None:
    # The first process of a container ends by no signal that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for name in ("broken", "closed"):
        (STATE / name).unlink(missing_ok=True)
    _health = serve_health(int(os.environ["GRPC_PORT"])) if "GRPC_PORT" in os.environ else None
    while True:
        if is_open():
            serve_while_open()
        time.sleep(TURN_SECONDS)


if __name__ == "__main__":
    main()
