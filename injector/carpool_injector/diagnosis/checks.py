"""What `carpool-injector check` looks at: functions from the state of a cluster to findings, each with its next step.

`CHECKS` has them in the order in which they are told: what comes first explains what fails later.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from carpool_injector.certificates import pki, rotation
from carpool_injector.core import model, pod_annotations
from carpool_injector.diagnosis import callers, cluster_state, namespaces, places
from carpool_injector.diagnosis.findings import Finding, failed, named, ok, unknown, warning
from carpool_injector.objects import restarts

_LISTS = ("serviceAnnotationDisallowedList", "serviceLabelDisallowedList")


def versions(known: cluster_state.ClusterState) -> Iterator[Finding]:
    """API server and kubelets are new enough for native sidecars."""
    if isinstance(known.server, cluster_state.Failed):
        yield failed("the API server does not tell its version", known.server.why)
        return
    yield ok(f"the API server answers: Kubernetes {_text(known.server)}")
    if isinstance(known.kubelets, cluster_state.Failed):
        yield from unknown("the versions of the nodes", known.kubelets)
        return
    oldest = min(known.kubelets, default=None)
    able = model.Capabilities.of(known.server, oldest)
    shown = f"oldest node {_text(oldest)}" if oldest else "no node tells its version"
    if not able.native_sidecars:
        yield warning(
            f"sidecars are ordinary containers here ({shown}): Jobs are refused, and they start beside the app",
            "use Kubernetes 1.29 or newer, on the nodes as well",
        )
    elif not able.native_named_ports:
        yield warning(
            f"native sidecars, but Services do not find their named ports ({shown})",
            "use Kubernetes 1.33 or newer; until then pods with a named targetPort get an ordinary container",
        )
    else:
        yield ok(f"native sidecars work everywhere ({shown})")


def kserve(known: cluster_state.ClusterState) -> Iterator[Finding]:
    """KServe passes our labels and annotations on to its pods."""
    found = known.kserve_config
    name = f"ConfigMap {known.place.kserve_namespace}/{cluster_state.KSERVE_CONFIG}"
    if isinstance(found, cluster_state.Failed):
        yield from unknown(f"KServe's {name}", found)
        return
    if found is None:
        yield ok(f"no KServe here ({name} does not exist; see --kserve-namespace)")
        return
    data = found.get("data") or {}
    yield from _disallowed(_json_value(data, "inferenceService"), name)
    mode = _json_value(data, "deploy").get("defaultDeploymentMode")
    agent = _json_value(data, "agent").get("image") or "not set"
    yield ok(f"KServe's default mode is {mode or 'not set'}; its agent is {agent}")


def _disallowed(service: dict[str, Any], name: str) -> Iterator[Finding]:
    bad = {key: [each for each in service.get(key) or () if str(each).startswith(model.PREFIX)] for key in _LISTS}
    for key, entries in bad.items():
        if entries:
            yield failed(
                f"KServe keeps {', '.join(entries)} from its pods",
                f"remove what begins with {model.PREFIX} from inferenceService.{key} in {name}, and restart KServe's "
                "controller",
            )
    if not any(bad.values()):
        yield ok("KServe passes labels and annotations of Carpool on to its pods")


def _json_value(data: dict[str, Any], key: str) -> dict[str, Any]:
    """A value of the ConfigMap, which holds JSON in strings; {} for what is none."""
    try:
        found = json.loads(data.get(key) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(version: model.Version) -> str:
    return ".".join(map(str, version))


_DAYS = 7  # a self-managed leaf is renewed with ten days left


def registration(known: cluster_state.ClusterState) -> Iterator[Finding]:
    """The API server knows the webhooks, and calls ours such that KServe's may come before or after."""
    if known.place.policy:
        yield ok(f"mode policy: MutatingAdmissionPolicy {known.place.policy} exists; there is no webhook")
        return
    yield from _registered(known.mutating, places.MUTATING, known.place.mutating, required=True)
    yield from _registered(known.validating, places.VALIDATING, known.place.validating, required=False)
    yield from _order(known)
    yield from _alone(known)


def _alone(known: cluster_state.ClusterState) -> Iterator[Finding]:
    """Of two injectors that see the same pod, the one that is called last decides: nobody wants that by accident."""
    if isinstance(known.others, cluster_state.Failed):
        yield from unknown("whether there is another injector", known.others)
    elif isinstance(known.mutating, dict):
        yield from _others(known.others, known.mutating)


def _others(others: Sequence[model.Object], own: model.Object) -> Iterator[Finding]:
    for each in others:
        namespace, service = places.service_of(each)
        what = f"another injector, {service} in namespace {namespace}"
        if places.is_narrowed(each) and places.is_narrowed(own):
            yield ok(f"{what}, acts on namespaces of its own choice")
        else:
            yield warning(
                f"{what}, acts on the same namespaces: the one that is called last decides",
                "uninstall one of the releases, or give each webhook.namespaceSelector",
            )


def _registered(
    found: model.Object | cluster_state.Failed | None, kind: str, name: str, required: bool
) -> Iterator[Finding]:
    if isinstance(found, cluster_state.Failed):
        yield from unknown(f"{kind} {name}", found)
    elif found is None and required:
        yield failed(
            f"there is no {kind} {name}: no pod is injected", "install the chart, or name it with --mutating-webhook"
        )
    elif found is None:
        yield warning(
            f"there is no {kind} {name}: nobody hears of bad annotations",
            "install the chart, or name it with --validating-webhook",
        )
    elif not found.get("webhooks"):
        yield failed(f"{kind} {name} has no webhooks", "upgrade the chart")
    else:
        policies = sorted({str(each.get("failurePolicy", "Fail")) for each in found["webhooks"]})
        yield ok(f"{kind} {name} exists (failurePolicy {', '.join(policies)})")


def _order(known: cluster_state.ClusterState) -> Iterator[Finding]:
    ours, theirs = known.mutating, known.kserve_webhook
    if (
        isinstance(theirs, cluster_state.Failed)
        or theirs is None
        or isinstance(ours, cluster_state.Failed)
        or ours is None
    ):
        return
    again = all(each.get("reinvocationPolicy") == "IfNeeded" for each in ours.get("webhooks") or ())
    if known.place.mutating > cluster_state.KSERVE_WEBHOOK or again:
        yield ok("pods of KServe reach the injector after KServe's own webhook, or once more after it")
    else:
        yield warning(
            f"{known.place.mutating} is called before {cluster_state.KSERVE_WEBHOOK} and not again",
            "set reinvocationPolicy: IfNeeded on its webhooks",
        )


def certificate(known: cluster_state.ClusterState) -> Iterator[Finding]:
    """The API server trusts what the injector shows, and will for some days."""
    if known.place.policy:
        return
    shown = known.served or _in_secret(known.secret)
    if shown is None:
        yield from _no_certificate(known)
        return
    source = "shows" if known.served else f"has in its Secret ({_why_unreached(known)})"
    chain = shown + (_in_secret(known.secret) or b"" if known.served else b"")
    try:
        leaf = pki.read_certificates(shown)[0]
    except pki.Unreadable as error:
        yield failed(f"the certificate cannot be read: {error}", f"delete Secret {_secret(known)}")
        return
    left = leaf.not_valid_after_utc - known.now
    when = f"{leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if left < datetime.timedelta(days=_DAYS):
        state = "expired on" if left < datetime.timedelta() else "expires on"
        yield failed(
            f"the certificate the injector {source} {state} {when}: it is not renewed any more",
            "look at the injector's log (or cert-manager's) for what keeps it from renewing",
        )
    else:
        yield ok(f"the certificate the injector {source} is good for {left.days} days, until {when}")
    yield from _trusted(known, chain)


def _why_unreached(known: cluster_state.ClusterState) -> str:
    others = f": somebody else answers at {', '.join(known.strangers)}" if known.strangers else ""
    return f"its endpoints are not reachable from here{others}"


def _no_certificate(known: cluster_state.ClusterState) -> Iterator[Finding]:
    if isinstance(known.secret, cluster_state.Failed):
        yield warning(f"the certificate could not be checked: {_why_unreached(known)}", known.secret.why)
    else:
        yield failed(
            f"no endpoint shows a certificate, and Secret {_secret(known)} has none",
            "see whether the injector runs, or name its Secret with --secret-name",
        )


def _trusted(known: cluster_state.ClusterState, chain: bytes) -> Iterator[Finding]:
    for configuration, kind in ((known.mutating, places.MUTATING), (known.validating, places.VALIDATING)):
        if not isinstance(configuration, dict):
            continue
        problems = [
            f"{entry.get('name')}: {problem}"
            for entry in configuration.get("webhooks") or ()
            if (problem := _why_untrusted(entry, chain, known)) is not None
        ]
        if problems:
            yield failed(
                f"the API server does not trust the injector ({kind}): {'; '.join(problems)}",
                "see the injector's log: it needs get and patch on this configuration; with cert-manager, see its "
                "cainjector",
            )
        else:
            yield ok(f"the API server trusts it ({kind})")


def _why_untrusted(entry: model.Object, chain: bytes, known: cluster_state.ClusterState) -> str | None:
    client = entry.get("clientConfig") or {}
    bundle = client.get("caBundle")
    if not bundle:
        return "its caBundle is empty"
    try:
        trusted = base64.b64decode(bundle, validate=True)
    except binascii.Error:
        return "its caBundle is not base64"
    service = client.get("service") or {}
    host = f"{service['name']}.{service['namespace']}.svc" if service else known.place.host
    return pki.why_untrusted(chain, trusted, host, known.now)


def _in_secret(found: object) -> bytes | None:
    data = getattr(found, "data", None) or {}
    content = data.get(rotation.LEAF)
    return content if isinstance(content, bytes) and content else None


def _secret(known: cluster_state.ClusterState) -> str:
    return f"{known.place.namespace}/{known.place.secret}"


def endpoints(known: cluster_state.ClusterState) -> Iterator[Finding]:
    """Somebody answers; and where pods wait for an answer (failurePolicy Fail), more than one."""
    if known.place.policy:
        return
    place = f"Service {known.place.namespace}/{known.place.service}"
    if isinstance(known.endpoints, cluster_state.Failed):
        yield from unknown(f"the endpoints of {place}", known.endpoints)
        return
    ready = len(cluster_state.ready_addresses(known.endpoints))
    blocking = isinstance(known.mutating, dict) and _blocks(known.mutating.get("webhooks") or ())
    if ready == 0 and isinstance(known.sample, dict) and state_of(known.sample).injected:
        yield ok(f"{place} has no endpoints of its own, yet the injector answers")
    elif ready == 0:
        meaning = "such pods cannot be created" if blocking else "pods are created without the sidecar"
        yield failed(
            f"{place} has no ready endpoint: {meaning}",
            f"kubectl -n {known.place.namespace} get pods; and see their log",
        )
    elif ready == 1 and blocking:
        yield warning(
            f"{place} has one ready endpoint, and pods cannot be created without it (failurePolicy Fail)",
            "run two replicas or more, or set failurePolicy: Ignore",
        )
    else:
        yield ok(f"{place} has {ready} ready endpoint{'s' * (ready > 1)}")


_ASKING = ("true", "enabled")


def _blocks(entries: Sequence[model.Object]) -> bool:
    return any(entry.get("failurePolicy", "Fail") == "Fail" for entry in entries)


def trial(known: cluster_state.ClusterState) -> Iterator[Finding]:
    """A pod that asks for the sidecar gets it."""
    where = f"a sample pod in namespace {known.place.sample_namespace} (dry run)"
    if isinstance(known.sample, cluster_state.Failed) and known.sample.forbidden:
        yield from unknown(where, known.sample)
        return
    if isinstance(known.sample, cluster_state.Failed):
        yield failed(f"{where} is not accepted", known.sample.why)
        return
    state = state_of(known.sample)
    if state.injected is not None:
        yield ok(f"{where} gets the sidecar")
    elif known.place.policy:
        yield failed(
            f"{where} gets no sidecar by the policy",
            f"see the binding and the PodTemplate of MutatingAdmissionPolicy {known.place.policy}, and whether the API "
            "server has the feature gate",
        )
    elif known.place.sample_namespace in known.left_out:
        yield warning(
            f"{where} gets no sidecar: the webhooks leave this namespace out", "name another one: --sample-namespace"
        )
    elif state.refused:
        yield failed(f"{where} is refused: {state.refused}", "see the injector's configuration")
    else:
        yield failed(
            f"{where} gets no sidecar: the webhook was not asked, or did not answer in time",
            f"see the selectors of {known.place.mutating} (the pod had the label {pod_annotations.INJECT}), that the "
            f"API server reaches {known.place.host}, and the injector's log",
        )


_SHOWN = 5  # pods that a line names


class State(NamedTuple):
    """A pod, as far as the injector is concerned. `injected` is its status, `refused` why it has no sidecar."""

    name: str
    namespace: str
    restart: str
    """What makes a new pod in its place."""
    asks: bool
    injected: model.Object | None
    refused: str
    sidecar: str
    """Where the sidecar is: "native", "classic", or "" for nowhere."""

    @property
    def release(self) -> tuple[Any, Any] | None:
        """Version and hash of the configuration that it was injected with."""
        return (self.injected.get("version"), self.injected.get("config")) if self.injected else None

    @property
    def lost(self) -> bool:
        """Whether the sidecar is not where the status says it is."""
        return self.injected is not None and self.sidecar != ("native" if self.injected.get("native") else "classic")


def state_of(pod: model.Object) -> State:
    """What a pod's metadata and containers say."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    status = cluster_state.status_of(pod)
    name = f"{metadata.get('namespace')}/{metadata.get('name')}"
    asks = cluster_state.pod_asks(pod)
    refused = str(status.get("message") or status.get("refused") or "") if status else ""
    injected = status if status and not refused else None
    return State(
        name, str(metadata.get("namespace")), restarts.advice(pod), asks, injected, refused, _sidecar(spec)
    )  # fmt: skip


def coverage(known: cluster_state.ClusterState) -> Iterator[Finding]:
    """Pods that asked have a sidecar, or a status that says why not."""
    if isinstance(known.pods, cluster_state.Failed):
        yield from unknown("pods", known.pods)
        return
    states = [state_of(pod) for pod in known.pods if _runs(pod)]
    injected = [each for each in states if each.injected is not None]
    yield ok(f"{len(injected)} of {len(states)} running pods have been injected")
    missed = [each for each in states if each.asks and each.injected is None and not each.refused]
    yield from _by_restart(
        "asked for the sidecar and were missed", [each for each in missed if each.namespace not in known.left_out]
    )
    yield from _left_out(known, [each for each in missed if each.namespace in known.left_out])
    for each in [each for each in states if each.asks and each.refused][:_SHOWN]:
        yield warning(f"{each.name} was refused: {each.refused}", "see carpool-injector explain")
    lost = [each.name for each in injected if each.lost]
    if lost:
        yield warning(
            f"another webhook removed or changed the sidecar of: {named(lost)}",
            "set carpool.dev/sidecar-mode: classic there, or update that webhook",
        )


def _by_restart(what: str, states: Sequence[State]) -> Iterator[Finding]:
    """A line for all pods that are made anew by the same command, and one for those of the commands left over."""
    found: dict[str, list[str]] = {}
    for each in states:
        found.setdefault(each.restart, []).append(each.name)
    for number, (restart, names) in enumerate(found.items()):
        if number == _SHOWN:
            rest = [name for others in list(found.values())[number:] for name in others]
            yield warning(f"{what}: {named(rest)}", "restart these likewise")
            return
        yield warning(f"{what}: {named(names)}", f"restart them when it suits: {restart}")


def _left_out(known: cluster_state.ClusterState, asking: Sequence[State]) -> Iterator[Finding]:
    """Pods and namespaces that ask, and of which the API server tells the injector nothing."""
    spaces = {each.namespace for each in asking}
    spaces |= {name for name, each in known.left_out.items() if each.labels.get(pod_annotations.INJECT) in _ASKING}
    for space in sorted(spaces):
        names = [each.name for each in asking if each.namespace == space]
        whose, fix = "left out by the webhooks", "see webhook.excludedNamespaces and namespaceSelector of the chart"
        if space == known.place.namespace:
            whose = "the injector's own, whose pods never get a sidecar"
            fix = "install the chart into a namespace of its own: helm install --namespace carpool-system"
        what = f"{named(names)} asked" if names else "it asks"
        yield warning(f"namespace {space} is {whose}, though {what} for the sidecar", fix)


def pulling(known: cluster_state.ClusterState) -> Iterator[Finding]:
    """Namespaces whose pods get the sidecar have the secrets with which its image is pulled."""
    if isinstance(known.missing_secrets, cluster_state.Failed):
        yield from unknown("the secrets with which sidecars' images are pulled", known.missing_secrets)
        return
    for namespace, names in known.missing_secrets.items():
        yield warning(
            f"namespace {namespace} has no Secret {', '.join(names)}, with which sidecars' images are pulled",
            f"create it there: kubectl -n {namespace} create secret docker-registry {names[0]} --docker-server=…",
        )


def drift(known: cluster_state.ClusterState) -> Iterator[Finding]:
    """Injected pods have the version and the configuration that a new pod would get."""
    if isinstance(known.pods, cluster_state.Failed) or isinstance(known.sample, cluster_state.Failed):
        return
    newest = state_of(known.sample).release
    if newest is None:
        return
    states = [state_of(pod) for pod in known.pods if _runs(pod)]
    old = [each for each in states if each.release is not None and each.release != newest]
    yield from _by_restart("injected by an older version or configuration", old)
    if not old:
        yield ok(f"all sidecars are of version {newest[0]} with configuration {newest[1]}")


def _sidecar(spec: model.Object) -> str:
    for container in spec.get("initContainers") or ():
        if container.get("name") == model.CONTAINER:
            return "native" if container.get("restartPolicy") == "Always" else ""
    names = [container.get("name") for container in spec.get("containers") or ()]
    return "classic" if model.CONTAINER in names else ""


def _runs(pod: model.Object) -> bool:
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


Check = Callable[[cluster_state.ClusterState], Iterator[Finding]]

CHECKS: Mapping[str, Sequence[Check]] = {
    "Kubernetes": (versions,),
    "Webhooks": (registration, endpoints),
    "Certificates": (certificate,),
    "Injection": (trial,),
    "Pods": (coverage, pulling, drift),
    "Namespaces and Services": (namespaces.rules, callers.reached, callers.admitted),
    "KServe": (kserve,),
}


def run(known: cluster_state.ClusterState) -> dict[str, list[Finding]]:
    """The findings under their headings."""
    return {title: [finding for check in checks for finding in check(known)] for title, checks in CHECKS.items()}
