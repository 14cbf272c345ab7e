"""Other people's mutating webhooks, as small servers, which change the same pods as an injector."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator

from e2e.cluster import client, control_plane, processes
from e2e.injector import manifests, steps

Mutate = Callable[[client.Object], client.Object]


def answer_to(review: client.Object, mutate: Mutate) -> client.Object:
    """The AdmissionReview that answers one, with the difference that `mutate` makes as its patch."""
    pod = review["request"]["object"]
    after = mutate(pod)
    # Member by member: jsonpatch's differences of lists in another order do not always apply.
    patch = [{"op": "add", "path": f"/{key}", "value": after[key]} for key in after if after[key] != pod.get(key)]
    encoded = base64.b64encode(json.dumps(patch).encode()).decode()
    response = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch", "patch": encoded}
    return {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}


class OtherWebhook:
    """A mutating webhook for pods in one installation's namespaces, registered and served inside the `with` block.

    `name` decides whether it comes before or after others: the API server calls configurations in their order by name.
    """

    def __init__(self, name: str, mutate: Mutate, *, reinvoked: bool = True) -> None:
        """`reinvoked`: it wants to be asked again when a later webhook has changed the pod."""
        self.name = name
        self.calls = 0
        self._mutate = mutate
        self._policy = "IfNeeded" if reinvoked else "Never"
        self._trial = f"trial-{secrets.token_hex(4)}"  # a namespace whose pods it lets be
        self._is_known = False

    @contextlib.contextmanager
    def serve(self, plane: control_plane.ControlPlane, admin: client.Client, reach: dict[str, str]) -> Iterator[None]:
        issued = plane.server_certificate(f"webhook-{self.name}", control_plane.HOST)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(issued.certificate, issued.key)
        server = http.server.ThreadingHTTPServer((control_plane.HOST, 0), self._handler())
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        bundle = base64.b64encode(plane.certificate_authority.read_bytes()).decode()
        admin.create(self._registration(server.server_port, bundle, reach))
        try:
            self._wait_until_known(admin, reach)
            yield
        finally:
            admin.delete("MutatingWebhookConfiguration", self.name)
            server.shutdown()
            thread.join()
            server.server_close()

    def _wait_until_known(self, admin: client.Client, reach: dict[str, str]) -> None:
        """The API server reads registrations a while after they are made, and admits pods without them meanwhile."""
        steps.create_namespace(admin, self._trial, reach)

        def is_known() -> bool:
            admin.create(manifests.pod(self._trial), dry_run=True)
            return self._is_known

        processes.eventually(is_known, steps.SETTLED_SECONDS, f"the API server asks {self.name}")
        admin.delete("Namespace", self._trial)

    def _answer(self, review: client.Object) -> client.Object:
        if review["request"]["namespace"] == self._trial:
            self._is_known = True
            return answer_to(review, lambda pod: pod)
        self.calls += 1
        return answer_to(review, self._mutate)

    def _registration(self, port: int, bundle: str, reach: dict[str, str]) -> client.Object:
        entry = {
            "name": "pods.other.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "reinvocationPolicy": self._policy,
            "clientConfig": {"url": f"https://{control_plane.HOST}:{port}/mutate", "caBundle": bundle},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": reach},
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": self.name},
            "webhooks": [entry],
        }

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        webhook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                body = json.dumps(webhook._answer(review)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Says nothing: a test tells what went wrong."""

        return Handler
