"""A typed, read-only view of a pod's JSON: the fields that decide where the sidecar goes, and nothing else.

Shapes are checked once, here, so that everything behind can rely on them. The JSON itself is edited elsewhere
(`edits`), and what this view does not know passes through untouched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, TypeVar

import pydantic
from pydantic import alias_generators

from carpool_injector.core import model, refusals

MESH_PROXIES = ("istio-proxy", "linkerd-proxy", "kuma-sidecar", "consul-dataplane")
QUEUE_PROXY, USER_PORT = "queue-proxy", "USER_PORT"
"""Knative's proxy in front of the app, and its variable for the port to which it sends."""
AGENT = "agent"
"""KServe's agent in front of the app."""
_INFRASTRUCTURE = {"daprd", "istio-validation", *MESH_PROXIES}
_OF_KSERVE = {"modelcar", "storage-initializer"}
KSERVE_POD = "serving.kserve.io/inferenceservice"
"""The label of pods that KServe made."""
KNATIVE_POD = "serving.knative.dev/revision"
"""The label of pods that Knative made."""
COMPONENT = "component"
"""The label with the component of an InferenceService that a pod belongs to."""
BATCHER = "internal.serving.kserve.io/batcher"
"""The annotation that KServe's controller makes of `spec.predictor.batcher`."""

# Containers that others add to do their own work, by name or by image: no apps, where there is another container.
_HELPER_NAMES = (
    "vault-agent", "otc-container", "gke-gcsfuse-sidecar", "gke-gcsfuse-metadata-prefetch", "cloud-sql-proxy",
    "cloudsql-proxy", "azwi-proxy", "datadog-agent", "kube-rbac-proxy", "xray-daemon",
)  # fmt: skip
# Those for traces, metrics and logs: they ask an app, and pass nobody's requests on to it.
_COLLECTOR_IMAGES = {
    "opentelemetry-collector", "opentelemetry-collector-contrib", "opentelemetry-collector-k8s", "aws-otel-collector",
    "splunk-otel-collector", "otelcol", "fluent-bit", "fluentd", "filebeat", "promtail", "timberio/vector",
    "datadog/agent", "amazon-cloudwatch-agent", "cloudwatch-agent", "aws-xray-daemon", "statsd-exporter",
    "redis_exporter", "postgres-exporter", "prometheus-to-sd",
}  # fmt: skip
_COLLECTOR_NAMES = {"otc-container", "datadog-agent", "xray-daemon"}
_COLLECTOR = re.compile(
    r"([a-z0-9._-]+[-_])?(exporter|collector|otelcol(-contrib)?|prometheus|alloy|grafana-agent|telegraf|vmagent)",
    re.ASCII,
)
_HELPER_IMAGES = {
    *_COLLECTOR_IMAGES,
    # Ways to databases, buckets and secrets.
    "cloud-sql-proxy", "gce-proxy", "alloydb-auth-proxy", "gcs-fuse-csi-driver-sidecar-mounter", "hashicorp/vault",
    "vault-agent", "azwi-proxy", "proxy-azwi",
    # Files that are kept up to date.
    "git-sync", "k8s-sidecar", "configmap-reload", "prometheus-config-reloader",
}  # fmt: skip
# Those that let in only who may come, and those that stand in front of whatever else is in their pod.
_GATES = {
    "oauth2-proxy", "oauth2_proxy", "oauth-proxy", "ose-oauth-proxy", "kube-rbac-proxy", "ose-kube-rbac-proxy",
    "ose-kube-rbac-proxy-rhel9", "origin-oauth-proxy", "vouch-proxy", "authelia", "keycloak-gatekeeper",
    "louketo-proxy", "pomerium", "oathkeeper", "sso-proxy", "traefik-forward-auth", "goauthentik/proxy", "ghostunnel",
    "stunnel", "cloudflared",
}  # fmt: skip
_FRONTS = {
    "nginx", "nginx-unprivileged", "openresty", "envoy", "haproxy", "caddy", "traefik", "httpd", "kong", "apisix",
    "squid", "varnish",
}  # fmt: skip


class _View(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="ignore", frozen=True, alias_generator=alias_generators.to_camel, hide_input_in_errors=True
    )


def _or_empty(empty: Any) -> pydantic.BeforeValidator:
    """What is null, as the API server may send it, is empty."""
    return pydantic.BeforeValidator(lambda value: empty if value is None else value)


_Item = TypeVar("_Item")
_List = Annotated[tuple[_Item, ...], _or_empty(())]
_Amounts = Annotated[dict[str, str | float], _or_empty({})]
_Texts = Annotated[dict[str, str], _or_empty({})]


def _check_variables(value: Any) -> Any:
    # As a loop of our own: pods have hundreds of variables, and a model of each would be half the cost of a review.
    if value is None:
        return ()
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str) or not _is_text(item.get("value")):
            raise ValueError("; ".join(_problems_of_variables(value)))
    return value


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _problems_of_variables(value: Any) -> list[str]:
    """Without any value, which may be a secret."""
    if not isinstance(value, list):
        return [f"must be a list of variables, not {type(value).__name__}"]
    found = []
    for number, item in enumerate(value):
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str):
            found.append(f"item {number} must be a mapping with a name")
        elif not _is_text(item.get("value")):
            kind = type(item["value"]).__name__
            found.append(f"the value of {name[:60]!r} must be a text, not {kind}: put it in quotes")
    return found[:5]


_PortNumber = Annotated[int, pydantic.Field(strict=True, ge=1, le=65535)]
_PortReference = Annotated[int, pydantic.Field(strict=True)] | str


class Port(_View):
    """A container's declared port."""

    container_port: _PortNumber
    name: str | None = None
    protocol: str | None = None
    host_port: int | None = None

    @property
    def is_tcp(self) -> bool:
        return self.protocol in (None, "", "TCP")


class Action(_View):
    """httpGet, tcpSocket or grpc of a probe or a hook. `host` is one that is named; without it the pod is meant."""

    port: _PortReference | None = None
    host: str | None = None
    scheme: str | None = None
    path: str | None = None


class Command(_View):
    """exec of a probe or a hook."""

    command: _List[str] = ()


class Handler(_View):
    """A probe, or a hook of the lifecycle."""

    http_get: Action | None = None
    tcp_socket: Action | None = None
    grpc: Action | None = None
    command: Annotated[Command | None, pydantic.Field(alias="exec")] = None

    @property
    def actions(self) -> Iterator[Action]:
        return (action for action in (self.http_get, self.tcp_socket, self.grpc) if action is not None)

    @property
    def words(self) -> tuple[str, ...]:
        """The command line that is run, if that is what it does."""
        return self.command.command if self.command else ()


PROBES = ("readinessProbe", "livenessProbe", "startupProbe")
HOOKS = ("postStart", "preStop")
"""Members of a container that are probes, and of its lifecycle that are hooks."""


class Lifecycle(_View):
    """Hooks of a container."""

    post_start: Handler | None = None
    pre_stop: Handler | None = None


class Resources(_View):
    """Requests and limits; numbers where YAML wrote some."""

    requests: _Amounts = {}
    limits: _Amounts = {}


class Volume(_View):
    """A volume; only its name matters here."""

    name: str


class Sysctl(_View):
    """A kernel parameter of the pod."""

    name: str
    value: str


class SecurityContext(_View):
    """spec.securityContext, or a container's."""

    run_as_user: int | None = None
    windows_options: dict[str, Any] | None = None
    sysctls: _List[Sysctl] = ()


class Container(_View):
    """A container or init container."""

    name: str
    image: str | None = None
    command: _List[str] = ()
    args: _List[str] = ()
    env: Annotated[Any, pydantic.BeforeValidator(_check_variables)] = ()
    ports: _List[Port] = ()
    readiness_probe: Handler | None = None
    liveness_probe: Handler | None = None
    startup_probe: Handler | None = None
    lifecycle: Lifecycle | None = None
    resources: Resources | None = None
    security_context: SecurityContext | None = None
    restart_policy: str | None = None
    # Read for their shape only: those of a sidecar that is there already are merged as they are.
    volume_mounts: _List[dict[str, Any]] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """Command and arguments."""
        return (*self.command, *self.args)

    @property
    def tcp_ports(self) -> list[Port]:
        """The declared ports over TCP."""
        return [entry for entry in self.ports if entry.is_tcp]

    def declared(self, port: int) -> list[Port]:
        """Those over TCP with this number."""
        return [entry for entry in self.tcp_ports if entry.container_port == port]

    @property
    def handlers(self) -> Iterator[tuple[str, Handler]]:
        """Probes and hooks, by what they are called."""
        hooks = self.lifecycle or Lifecycle()
        probes = (self.readiness_probe, self.liveness_probe, self.startup_probe)
        names = (*PROBES, *(f"{hook} hook" for hook in HOOKS))
        for name, handler in zip(names, (*probes, hooks.post_start, hooks.pre_stop), strict=True):
            if handler is not None:
                yield name, handler

    @cached_property
    def _values(self) -> dict[str, str | None]:
        return {item["name"]: item.get("value") for item in self.env}

    def variable(self, name: str) -> str | None:
        """The literal value of an environment variable; the last one counts, as in the kubelet."""
        return self._values.get(name)

    @property
    def literals(self) -> Iterator[tuple[str, str]]:
        """Its variables with a literal value, and the values."""
        return ((item["name"], item["value"]) for item in self.env if item.get("value"))

    def is_pod_address(self, name: str) -> bool:
        """Whether an environment variable is the pod's own address."""
        held = [item.get("valueFrom") for item in self.env if item["name"] == name]
        field = held[-1].get("fieldRef") if held and isinstance(held[-1], dict) else None
        return isinstance(field, dict) and str(field.get("fieldPath")).startswith("status.podIP")

    def has_variable(self, name: str) -> bool:
        """Whether it is set, here or from elsewhere."""
        return name in self._values

    def has_setting(self, name: str) -> bool:
        """Whether it is given this flag or this variable."""
        if not name.startswith("-"):
            return self.has_variable(name)
        return any(word == name or word.startswith(name + "=") for word in self.words)

    @cached_property
    def image_names(self) -> frozenset[str]:
        """The image's name without registry, tag and digest: its last part, and its last two (`tensorflow/serving`)."""
        parts = (self.image or "").partition("@")[0].split("/")
        parts[-1] = parts[-1].partition(":")[0]
        return frozenset((parts[-1], "/".join(parts[-2:])))

    @property
    def is_helper(self) -> bool:
        """Whether it is known to do work of its own beside an app: a proxy, a collector, a mounter."""
        is_named_so = self.name in _HELPER_NAMES or self.name.startswith("csql-")
        return is_named_so or not self.image_names.isdisjoint(_HELPER_IMAGES | _GATES)

    @property
    def is_collector(self) -> bool:
        """Whether it is known to collect traces, metrics or logs: what it asks an app is for itself."""
        is_named_so = self.name in _COLLECTOR_NAMES or not self.image_names.isdisjoint(_COLLECTOR_IMAGES)
        return is_named_so or any(_COLLECTOR.fullmatch(name) for name in self.image_names)

    def number(self, reference: int | str | None) -> int | None:
        """The port a probe's reference means: a number, or the name of a port of this container."""
        if isinstance(reference, str):
            return next((port.container_port for port in self.ports if port.name == reference), None)
        return reference


class Metadata(_View):
    """The part of a pod's metadata that is read."""

    name: str | None = None
    labels: _Texts = {}
    annotations: _Texts = {}


class OperatingSystem(_View):
    """spec.os."""

    name: str | None = None


class Requirement(_View):
    """A wish about the labels of a node."""

    key: str | None = None
    operator: str | None = None
    values: _List[str] = ()


class NodeTerm(_View):
    """Wishes that a node has to meet all at once."""

    match_expressions: _List[Requirement] = ()


class NodeSelector(_View):
    """Terms of which a node has to meet one."""

    node_selector_terms: _List[NodeTerm] = ()


class NodeAffinity(_View):
    """spec.affinity.nodeAffinity."""

    required: Annotated[NodeSelector | None, pydantic.Field(alias="requiredDuringSchedulingIgnoredDuringExecution")] = (
        None
    )


class Affinity(_View):
    """spec.affinity."""

    node_affinity: NodeAffinity | None = None


class SecretReference(_View):
    """The name of a Secret in the pod's namespace."""

    name: str | None = None


class Spec(_View):
    """The part of a pod's spec that is read."""

    containers: Annotated[tuple[Container, ...], pydantic.Field(min_length=1)]
    init_containers: _List[Container] = ()
    host_network: bool | None = None
    restart_policy: str | None = None
    termination_grace_period_seconds: Annotated[int | None, pydantic.Field(le=2**63 - 1)] = None
    security_context: SecurityContext | None = None
    node_selector: _Texts = {}
    resources: Resources | None = None
    volumes: _List[Volume] = ()
    os: OperatingSystem | None = None
    affinity: Affinity | None = None
    image_pull_secrets: _List[SecretReference] = ()


class Pod(_View):
    """The part of a pod that is read."""

    metadata: Annotated[Metadata, _or_empty({})] = Metadata()
    spec: Spec

    @property
    def all_containers(self) -> tuple[Container, ...]:
        return (*self.spec.containers, *self.spec.init_containers)

    def container(self, name: str) -> Container | None:
        """The regular container of that name."""
        return next((container for container in self.spec.containers if container.name == name), None)

    def any_container(self, name: str) -> Container | None:
        """The container of that name, init containers included."""
        return next((container for container in self.all_containers if container.name == name), None)

    @property
    def mirrored(self) -> frozenset[str]:
        """Names of containers that say nothing about the app: they come and go with webhooks, in any order.

        The names of KServe's agent and Knative's proxy mean them in pods that these made; anybody may use such names.
        """
        labels = self.metadata.labels
        of_kserve = {AGENT, QUEUE_PROXY} if KSERVE_POD in labels else set()
        return frozenset((model.CONTAINER, *of_kserve, *([QUEUE_PROXY] if KNATIVE_POD in labels else [])))

    @property
    def queue_proxy(self) -> Container | None:
        """Knative's proxy in front of the app, where there is one."""
        return self.container(QUEUE_PROXY) if QUEUE_PROXY in self.mirrored else None

    @property
    def apps(self) -> tuple[Container, ...]:
        """Regular containers that may be the app: not those that others are known to add."""
        others = _INFRASTRUCTURE | self.mirrored | (_OF_KSERVE if KSERVE_POD in self.metadata.labels else set())
        found = tuple(container for container in self.spec.containers if container.name not in others)
        return tuple(container for container in found if not container.is_helper) or found

    @property
    def is_for_windows(self) -> bool:
        """Whether it can only run on a node with Windows, by what it says of itself or of its node."""
        spec = self.spec
        if spec.os is not None and spec.os.name is not None:
            return spec.os.name == "windows"
        told = [spec.node_selector[label] for label in _OS_LABELS if label in spec.node_selector]
        if told or _BUILD_LABEL in spec.node_selector:
            return "windows" in told or not told
        required = spec.affinity.node_affinity.required if spec.affinity and spec.affinity.node_affinity else None
        terms = required.node_selector_terms if required else ()
        systems = {each for term in terms for each in _SYSTEMS.intersection(*map(_systems, term.match_expressions))}
        if len(systems) == 1:
            return systems == {"windows"}
        contexts = (spec.security_context, *(each.security_context for each in self.all_containers))
        return any(each is not None and each.windows_options for each in contexts)

    @property
    def running(self) -> tuple[Container, ...]:
        """Containers that run beside each other, in the order in which a Service finds a port by its name."""
        always = (each for each in self.spec.init_containers if each.restart_policy == "Always")
        return (*self.spec.containers, *always)

    @property
    def fronts(self) -> tuple[Container, ...]:
        """Containers that are known to stand in front of others, many of them to let in only who may come."""
        return tuple(each for each in self.running if not each.image_names.isdisjoint(_GATES | _FRONTS))


_OS_LABELS = ("kubernetes.io/os", "beta.kubernetes.io/os")
_BUILD_LABEL = "node.kubernetes.io/windows-build"  # which other nodes have not


_SYSTEMS = frozenset(("linux", "windows"))


def _systems(wish: Requirement) -> frozenset[str]:
    """The systems of nodes that meet a wish."""
    if wish.key == _BUILD_LABEL and wish.operator in ("In", "Exists"):
        return frozenset(("windows",))
    if wish.key in _OS_LABELS and wish.operator in ("In", "NotIn"):
        return _SYSTEMS & set(wish.values) if wish.operator == "In" else _SYSTEMS - set(wish.values)
    return _SYSTEMS


def read(pod: model.Object) -> Pod:
    """The view of a pod's JSON.

    Raises `refusals.Malformed`, which names the field and what is expected there.
    """
    # Raised outside: an error that remembers pydantic's is never freed again.
    try:
        return Pod.model_validate(pod)
    except pydantic.ValidationError as error:
        details = error.errors(include_url=False)
    places = [detail["loc"] for detail in details if detail["type"] != "too_short"]
    # A list with a bad item counts as too short as well, which would be one problem told twice.
    told = [detail for detail in details if not any(place[: len(detail["loc"])] == detail["loc"] for place in places)]
    told += [detail for detail in details if detail["type"] != "too_short"]
    raise refusals.Malformed("; ".join(_problem(detail, pod) for detail in told[:5]))


def _problem(detail: Any, pod: model.Object) -> str:
    """Type and place only: values may be secrets."""
    where = ".".join(map(str, detail["loc"]))[:200] or "the pod"
    if named := _container_at(pod, detail["loc"]):
        where += f" (container {named[:60]!r})"
    if detail["type"] == "value_error":
        return f"{where}: {detail['msg'].removeprefix('Value error, ')}"
    if detail["type"] == "too_short":
        return f"{where}: must name a container"
    return f"{where}: {detail['msg'].replace('Input should be', 'must be')}, not {type(detail['input']).__name__}"


def _container_at(pod: model.Object, place: tuple[int | str, ...]) -> str:
    if place[:2] not in (("spec", "containers"), ("spec", "initContainers")) or len(place) < 4:
        return ""
    name = pod["spec"][place[1]][place[2]].get("name")
    return name if isinstance(name, str) else ""
