"""Who may say no to an injection, and why: every reason for which a pod gets no sidecar stands here, one row each.

`Skip`: nobody asks, somebody switched it off, or the request was meant for another pod. `Reason`: it was asked for and
cannot be done; the pod's owner is told what to change. `HttpError`: a review that gets no answer, so that the webhook's
failurePolicy decides. Who decides stands in `decision.ROWS`; besides, the selectors of the chart's webhooks keep the
reviews of some pods from ever being sent.

Codes are what metrics, logs and the status annotation have. The tables of docs/refusals.md are made from these rows,
and a test holds each row to the place that raises it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any


class Skip(enum.StrEnum):
    """A pod goes without, and nobody has to change anything. Each member: its code, and the reason in words."""

    words: str

    def __new__(cls, code: str, words: str = "") -> Skip:
        """A member that is its code, with `words` beside it."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.words = words
        return member

    # The review is about something else.
    NOT_A_NEW_POD = "not-a-new-pod", "the review is not about the creation of a pod"
    NOT_APPLIED = "not-applied", "the review is about neither a creation nor an update"
    OTHER_KIND = "other-kind", "objects of this kind make no pods"
    # The decision (`decision.ROWS`).
    NOT_ASKED = "not-asked", "neither the pod nor its namespace nor the admin asks for the sidecar"
    SWITCHED_OFF = "switched-off", "the first of those who decide says no"
    BAD_WORD = "bad-word", "the setting that decides has an invalid value; the refusal `bad-annotation` tells which"
    NOT_A_PREDICTOR = (
        "not-a-predictor",
        "its namespace asks, but KServe did not make it and it runs no model server that is recognised",
    )
    BATCHES_ITSELF = (
        "batches-itself",
        "its namespace asks, but its server (vLLM and the like) batches by itself and would gain nothing; a pod that "
        "asks for itself gets the sidecar",
    )
    # The request reached this pod and was meant for another.
    MIRROR_POD = "mirror-pod", "it is a static pod, which the kubelet runs from a file on its node"
    MULTI_NODE_WORKER = (
        "multi-node-worker",
        "it is a worker of a multi-node predictor, and clients call the head only",
    )
    OTHER_COMPONENT = "other-component", "carpool.dev/components does not name its component of the InferenceService"


class Refusal(Exception):
    """This pod cannot get the sidecar. `code` is a slug for metrics, `fix` the next step for the pod's owner."""

    def __init__(self, code: str, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}" if self.fix else self.message


_TELL = (
    "give the app its port by a flag or variable (outside of any shell) and name that in carpool.dev/app-port-arg or "
    "carpool.dev/app-port-env"
)
_BATCHER = "set spec.predictor.batcher in the InferenceService (batcher: {{}} is enough)"
_RENDER = "render it first: kubectl kustomize DIRECTORY | carpool-injector inject"
_BY_NAME = "give the port a name and let the Service's targetPort be that name"
_OPEN = "if callers may reach it, tell it to listen on 0.0.0.0 ({opens})"
_LEAVE_GRPC = 'leave its gRPC alone with carpool.dev/grpc-port: "off"'
TELL_HTTP_PORT = f"{_TELL}; or let the Service use a named port and set carpool.dev/takeover: named-port"
TELL_GRPC_PORT = (
    "give the app its port for gRPC by a flag or variable (outside of any shell) and name that in "
    f"carpool.dev/app-grpc-port-arg or carpool.dev/app-grpc-port-env; or {_LEAVE_GRPC}"
)


class Reason(enum.Enum):
    """Why a pod that asks cannot have the sidecar. Call a member with the facts its texts name: `raise Reason.TLS(…)`.

    Each member: its code, what is wrong, what to change about it.
    """

    def __init__(self, code: str, words: str, fix: str = "") -> None:
        self.code = code
        self.words = words
        self.fix = fix

    def __call__(self, **facts: Any) -> Refusal:
        """The refusal with these facts in its texts."""
        return Refusal(self.code, self.words.format(**facts), self.fix.format(**facts))

    # --- The settings: raised as `BadSettings`, with all problems at once.
    BAD_ANNOTATION = "bad-annotation", "{problems}"

    # --- The pod cannot run the sidecar, whoever asks.
    WINDOWS = "windows", "the pod is for Windows nodes; the sidecar is a Linux image", "leave it without"
    HOST_NETWORK = (
        "host-network",
        "the pod uses the host's network, where the sidecar's ports would be the node's",
        "remove hostNetwork, or run carpool-sidecar yourself on ports you choose",
    )
    VOLUME_NAME_TAKEN = "name-taken", "there is a volume named {name!r} already", "rename it"
    PORT_NAME_TAKEN = "name-taken", "a port of container {container!r} is named {name!r}", "rename it"
    CONTAINER_NAME_TAKEN = (
        "name-taken",
        "there is a container named {name!r} already, with the image {image!r}",
        "rename it; or give it the sidecar's image, and its variables and mounts are kept",
    )

    UNKNOWN_SIDECAR = (
        "unknown-sidecar",
        "Carpool's sidecar was put into the pod before, and {why}",
        "give the container its name back, or the annotation; or make the pod from a manifest without both of them",
    )
    MESH_IN_BETWEEN = (
        "mesh-in-between",
        "{mesh} takes over all ports of the pod and keeps the kubelet from asking the sidecar on {port}",
        'set the annotation {annotation}: "{port}" on the pod',
    )

    LOW_PORT = (
        "low-port",
        "the sidecar would listen on port {port} without a capability, and the pod's sysctl {sysctl} is {value!r}",
        "set it to {port} or less, or remove it",
    )

    LISTS_NOT_MOUNTED = (
        "no-such-file",
        "carpool.dev/lists names {file}, and nothing is mounted there in the sidecar's container",
        "write the rules into the annotation as YAML text; or declare a container {name} with the sidecar's image that "
        "mounts a volume there",
    )

    # --- The site: which container is the app, where it listens, what it speaks there.
    NO_SUCH_CONTAINER = "no-such-container", "there is no app container {name!r}", "name one of: {names}"
    AMBIGUOUS_CONTAINER = (
        "ambiguous-container",
        "it cannot be told which container is the app: {names}",
        "name it in the annotation carpool.dev/container",
    )
    NO_PORT = (
        "no-port",
        "container {container!r} declares no port and its server is not recognised",
        "declare its containerPort, or set carpool.dev/port",
    )
    NO_GRPC_PORT = (
        "no-port",
        "nothing in container {container!r} says on which port the app answers gRPC",
        "set carpool.dev/grpc-port; or give the app the flag or variable that carpool.dev/app-grpc-port-arg or "
        "carpool.dev/app-grpc-port-env names",
    )
    NO_SUCH_PORT = (
        "no-such-port",
        "container {container!r} declares no port named {name!r}",
        "set carpool.dev/{setting} to a number or to a name: {names}",
    )
    AMBIGUOUS_PORT = (
        "ambiguous-port",
        "container {container!r} declares several ports ({ports}) and none is named http",
        "set carpool.dev/port to the one for predictions",
    )
    PORT_DECLARED_TWICE = (
        "ambiguous-port",
        "container {container!r} declares port {port} more than once",
        "keep one of the declarations",
    )
    NOT_HTTP = (
        "not-http",
        "port {port} of container {container!r} speaks gRPC or HTTP/2: {sign}",
        "set carpool.dev/port to the port for HTTP/1.1; or carpool.dev/grpc-port, if the app answers the v2 protocol's "
        "gRPC calls there",
    )
    NO_HTTP = (
        "not-http",
        "{title} in container {container!r} speaks gRPC of its own only, as it is not given {flag}",
        "give it {flag} with another port than the one for gRPC, and let callers use that one",
    )
    ONLY_GRPC_LEFT = (
        "not-http",
        "port {port} of container {container!r} is for gRPC, which is left to the app",
        "set carpool.dev/port to the port for HTTP/1.1, or remove carpool.dev/grpc-port: off",
    )
    OWN_GRPC = (
        "not-http",
        "port {port} of container {container!r} is for the gRPC calls of {server}, which are not batched",
        "{how} and let callers send HTTP there",
    )
    TLS = (
        "tls",
        "port {port} of container {container!r} speaks TLS: {sign}",
        "let the app speak HTTP and end TLS in front of the pod (ingress or service mesh)",
    )
    GRPC_TLS = (
        "tls",
        "port {port} of container {container!r} speaks gRPC over TLS: {sign}",
        "let the app speak gRPC without TLS and end TLS in front of the pod (ingress or service mesh), or "
        f"{_LEAVE_GRPC}",
    )
    LOOPBACK = (
        "loopback-only",
        "port {port} of container {container!r} listens within the pod only: {sign}",
        f"{_OPEN}; or name the container that callers reach in carpool.dev/container",
    )
    PERHAPS_LOOPBACK = (
        "loopback-only",
        "port {port} of container {container!r} may listen within the pod only: {sign}",
        f"{_OPEN}, or give it a readinessProbe (httpGet or tcpSocket); or name the container that callers reach in "
        "carpool.dev/container",
    )
    BEHIND_A_PROXY = (
        "loopback-only",
        "container {proxy!r} stands in front of port {port} of container {container!r}, and nothing shows that others "
        "may call it",
        "if callers may, give it a readinessProbe (httpGet or tcpSocket) there; or name the container that callers "
        "reach in carpool.dev/container",
    )
    ONE_ADDRESS = (
        "one-address",
        "port {port} of container {container!r} listens on one address, and the sidecar reaches it on 127.0.0.1: "
        "{sign}",
        "let it listen on 0.0.0.0",
    )
    GRPC_SWITCHED_OFF = (
        "no-grpc",
        "carpool.dev/grpc-port is {port}, but {switch} turns gRPC off",
        "remove one of the two",
    )
    NO_GRPC = (
        "no-grpc",
        "carpool.dev/upstream is triton-grpc, and nothing says where container {container!r} answers gRPC",
        "set carpool.dev/grpc-port, or carpool.dev/upstream: triton-http",
    )

    # --- The plan: how the sidecar gets in front of the app.
    NO_NATIVE_SIDECARS = (
        "no-native-sidecars",
        "a native sidecar cannot work here: {obstacle}",
        "remove carpool.dev/sidecar-mode: native",
    )
    JOB_NEEDS_NATIVE = (
        "job-needs-native",
        "the pod has restartPolicy {policy} and would never end beside a classic sidecar",
        "use Kubernetes 1.29 or newer, and no carpool.dev/sidecar-mode: classic",
    )
    NO_FREE_PORT = "no-free-port", "the pod's containers use all ports from {first} up", "free some"
    NO_TAKEOVER = (
        "no-takeover",
        "port {port} of container {container!r} cannot be taken over: {why}",
        f"name the port http and let the Service target it by that name; or {_TELL}",
    )
    NO_TAKEOVER_IN_KSERVE = (
        "no-takeover",
        "port {port} of container {container!r} cannot be taken over: {why}",
        f"{_BATCHER}; Carpool then takes its place; or {_TELL}",
    )
    NUMBER_NOT_NAME = (
        "no-takeover",
        "KServe's Service sends to the number {port}, so moving a port's name changes nothing",
        f"{_BATCHER}; Carpool then takes its place",
    )
    PORT_WITHOUT_NAME = (
        "no-takeover",
        "port {port} of container {container!r} has no name, and its server is not recognised",
        f"{_BY_NAME}; or {_TELL}",
    )
    GRPC_PORT_WITHOUT_NAME = (
        "no-takeover",
        "port {port} of container {container!r}, for gRPC, has no name that could move",
        f"{_BY_NAME}; or {_LEAVE_GRPC}",
    )
    NO_KSERVE_AGENT = (
        "no-takeover",
        "this pod has no batcher or logger of KServe, so KServe's Service does not point at its agent",
        _BATCHER,
    )
    NO_QUEUE_PROXY = (
        "no-takeover",
        "the pod has no queue-proxy: it is not Knative's",
        "set carpool.dev/takeover: auto",
    )
    AGENT_SPEAKS_HTTP = (
        "not-http",
        "port {port} of container {container!r} speaks gRPC, and KServe's agent in front of it HTTP/1.1 only",
        "remove spec.predictor.batcher and logger from the InferenceService; Carpool batches without them",
    )
    AGENT_PORT_TAKEN = (
        "port-taken",
        "KServe's Service sends to {port}, where another container of the pod listens",
        "move that container to another port than {port}",
    )
    PORT_NAME_SHARED = (
        "port-name-shared",
        "containers {container!r} and {other!r} both have a port named {name!r}: with the sidecar in the pod, Services "
        "that target the name go to {other!r}",
        "give the port of container {other!r} another name",
    )
    PORT_IN_COMMAND = (
        "port-in-command",
        "a probe or hook of container {container!r} runs a command with {found!r} in it, which may mean port {port}, "
        "where the sidecar will listen",
        "write the address as localhost:{port}, which follows the app to its other port; or use httpGet, tcpSocket or "
        "grpc in place of exec; or set carpool.dev/takeover: named-port",
    )
    UNKNOWN_SERVER = (
        "unknown-server",
        "it is not known how the server in container {container!r} is told its port",
        TELL_HTTP_PORT,
    )
    PORT_NOT_MOVABLE = "port-not-movable", "{what} cannot be told its port by a flag or variable", "{how_to_tell}"
    PORT_TOLD_OTHERWISE = (
        "port-mismatch",
        "{what} is entered on port {port}, but {setting} says {told}",
        "make the two agree, or set {annotation}",
    )
    PORT_UNTOLD = (
        "port-mismatch",
        "{what} is entered on {port}, but listens on {told} if not told",
        "give it {setting} {port}, or set {annotation}",
    )

    # --- `inject --without-webhook`: the sidecar is declared in an InferenceService.
    NOT_AN_INFERENCE_SERVICE = (
        "not-an-inference-service",
        "only KServe can be told in a manifest to send to another container",
        "leave --without-webhook out, and let the webhook inject the pods",
    )
    MODELMESH = "modelmesh", "pods of ModelMesh get no Carpool sidecar", "use Standard or Knative"
    TRANSFORMER_NAME_TAKEN = (
        "name-taken",
        "spec.predictor.containers has a {name} already, which KServe sends to",
        "use the webhook (leave --without-webhook out): it puts the sidecar in front of that one",
    )
    BATCHES_ALREADY = (
        "batches-already",
        "spec.predictor.batcher makes KServe's agent batch in front of the sidecar",
        "remove spec.predictor.batcher",
    )
    UNNAMED_SERVER = (
        "unnamed-server",
        "beside another container KServe finds a custom predictor by its name only",
        "name the container {name}",
    )
    DECLARES_A_PORT = (
        "declares-a-port",
        "the model server declares a port, and Knative allows one in a pod: the sidecar's",
        'remove its ports ({port} is assumed without), or set the annotation {mode}: "RawDeployment"',
    )
    HAS_PROBES = (
        "has-probes",
        "the model server has a {probe}, which Knative allows only in the container that declares the port",
        'remove it (the sidecar\'s readiness asks the server), or set the annotation {mode}: "RawDeployment"',
    )
    DECLARED_NOT_HTTP = (
        "not-http",
        "the model server's port {port} is named {name!r}: gRPC or HTTP/2",
        "a sidecar that is declared takes HTTP/1.1 only: set carpool.dev/port to the port for it, or let the webhook "
        "inject the pods",
    )
    DECLARED_NO_GRPC = (
        "no-grpc",
        "carpool.dev/upstream is triton-grpc, and nothing says where the model server answers gRPC",
        "set carpool.dev/grpc-port, or carpool.dev/upstream: triton-http",
    )

    # --- Kinds of objects whose pods are made in a way of their own.
    RAY = (
        "other-pods",
        "Ray Serve listens in its head and in workers, and only serveConfigV2 tells it its port",
        "batch in Ray with @serve.batch, or run carpool-sidecar as a Deployment of its own in front of Ray's Service",
    )
    LLM_SERVICE = (
        "other-pods",
        "an LLMInferenceService runs vLLM, which batches by itself",
        "leave it without",
    )
    SELDON = (
        "other-pods",
        "Seldon's operator puts a container of its own in front of the models in the pods that it makes",
        "leave it without, or serve the models by a Deployment or an InferenceService",
    )
    KNATIVE_PART = (
        "other-pods",
        "a {kind} is made of a Knative Service, which has the pods' template",
        "inject the Knative Service",
    )
    RUNTIME = (
        "other-pods",
        "a {kind} makes no pods; the InferenceServices that use it do",
        'ask in the InferenceService: label it carpool.dev/inject: "true"',
    )
    PATCH = "patch", "{sign}, so it is a patch, which kustomize or an overlay lays over another object", _RENDER
    PATCHED = (
        "patch",
        "a patch of it in these files sets {field} of container {container!r}, which the sidecar would change as well",
        _RENDER,
    )
    OLD_VERSION = (
        "other-pods",
        "KServe has InferenceServices of serving.kserve.io/v1beta1 only, and this one is of {version}",
        "write it in that version",
    )
    TEMPLATE = (
        "other-pods",
        "its objects are there only once its parameters are filled in",
        "process it first: oc process -f FILE -o yaml | carpool-injector inject",
    )
    INNER_TEMPLATES = (
        "other-pods",
        "a {kind} is of a kind not known here, and has templates of pods in {places}",
        'ask the webhook in each of them: metadata.labels with carpool.dev/inject: "true"',
    )
    WORKLOAD_REF = (
        "other-pods",
        "its pods are those of {what}, to which spec.workloadRef refers",
        "inject {what}",
    )


class BadSettings(Refusal):
    """Annotations that cannot be used. Each problem names key, value and what is allowed."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(Reason.BAD_ANNOTATION.code, Reason.BAD_ANNOTATION.words.format(problems="; ".join(problems)))
        self.problems = tuple(problems)


class Unanswered(Exception):
    """A review that gets the HTTP error `reason`; the text is what its sender is told."""

    def __init__(self, reason: HttpError, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class HttpError(enum.Enum):
    """Why a review gets an HTTP error instead of an answer. Each member: its code, HTTP status, words.

    The webhook's failurePolicy decides then: with Ignore the pod is created without the sidecar, with Fail not at all.
    `told` takes the facts that its words name.
    """

    def __init__(self, code: str, status: int, words: str) -> None:
        self.code = code
        self.status = status
        self.words = words

    def told(self, **facts: Any) -> Unanswered:
        """The exception with these facts in its text."""
        return Unanswered(self, self.words.format(**facts))

    CLIENT = "client", 403, "{why}"
    MEDIA_TYPE = "media-type", 415, "Content-Type is {found!r}, but must be application/json"
    ENCODING = "media-type", 415, "Content-Encoding is {found!r}, but must be left out"
    TOO_LARGE = "too-large", 413, "the body is larger than {limit} bytes"
    BODY_TIMEOUT = "body-timeout", 408, "the body did not arrive within {seconds:g} s"
    BODY_BROKEN = "body-broken", 400, "the body broke off: {error}"
    MALFORMED = "malformed", 400, "{error}"
    OVERLOADED = "overloaded", 503, "{error}"
    UNANSWERABLE = "unanswerable", 500, "{error}"
    INTERNAL = "internal", 500, "the injector failed; its log has the traceback"


CODES = frozenset({"", *(row.code for row in Reason), *(row.value for row in Skip)})
"""All reasons that an answered review may have in metrics; empty: the pod got the sidecar."""


class Malformed(ValueError):
    """What should be a Kubernetes object is none. The text says where and what is expected there."""


class BadConfig(ValueError):
    """The admin's configuration cannot be used. The text names each field, its value and what is allowed."""
