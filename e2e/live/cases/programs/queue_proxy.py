"""A stand-in for Knative's queue-proxy: it does what a sidecar behind it can notice, and no more.

It runs in a pod of the tests, out of a ConfigMap. As the real one it listens on QUEUE_SERVING_PORT, sends every request
to USER_PORT of its pod, counts as ready (a GET with the header `K-Network-Probe: queue`) when the probe in
SERVING_READINESS_PROBE succeeds, and lets no more than CONTAINER_CONCURRENCY (0: any number) requests through at once.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request

PORT = int(os.environ["QUEUE_SERVING_PORT"])
USER_PORT = int(os.environ["USER_PORT"])
PROBE = json.loads(os.environ["SERVING_READINESS_PROBE"])
LIMIT = int(os.environ.get("CONTAINER_CONCURRENCY", "0"))
SECONDS = 60.0
NOT_PASSED_ON = {"connection", "keep-alive", "transfer-encoding", "content-length"}

_breaker = threading.BoundedSemaphore(LIMIT) if LIMIT else contextlib.nullcontext()


def is_ready() -> bool:
    """Whether the probe succeeds: one httpGet or tcpSocket, as Knative writes it."""
    action = PROBE.get("httpGet") or PROBE["tcpSocket"]
    host, port = action.get("host") or "127.0.0.1", int(action["port"])
    try:
        if "httpGet" not in PROBE:
            with contextlib.closing(http.client.HTTPConnection(host, port, timeout=1)) as connection:
                connection.connect()
            return True
        with urllib.request.urlopen(f"http://{host}:{port}{action.get('path', '/')}", timeout=1) as answer:
            return 200 <= answer.status < 400
    except (OSError, urllib.error.URLError):
        return False


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.headers.get("K-Network-Probe") == "queue":
            self._answer(200 if is_ready() else 503, {}, b"queue")
        else:
            self._pass_on(None)

    def do_POST(self) -> None:
        self._pass_on(self.rfile.read(int(self.headers["Content-Length"])))

    def _pass_on(self, body: bytes | None) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in NOT_PASSED_ON}
        with _breaker, contextlib.closing(http.client.HTTPConnection("127.0.0.1", USER_PORT, timeout=SECONDS)) as user:
            user.request(self.command, self.path, body, headers)
            answer = user.getresponse()
            content = answer.read()
        self._answer(answer.status, dict(answer.getheaders()), content)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in NOT_PASSED_ON:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6  # with "::", and of IPv4 as well
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    # The first process of a container ends by no signal that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    Server(("::", PORT), Handler).serve_forever()
