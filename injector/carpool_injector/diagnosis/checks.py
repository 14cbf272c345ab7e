"""What `carpool-injector check` looks at: functions from the state of a cluster to findings, each with its next step.

`CHECKS` has them in the order in which they are told: what comes first explains what fails later.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from carpool_injector.certificates import pki, rotation
from carpool_injector.core import model, pod_annotations
from carpool_injector.diagnosis import callers, cluster_state, namespaces, places
from carpool_injector.diagnosis.cluster_state import ClusterState
from carpool_injector.diagnosis.findings import Failed, Finding, check, failed, named, ok, require, unknown, warning
from carpool_injector.objects.pod_state import PodState

_LISTS = ("serviceAnnotationDisallowedList", "serviceLabelDisallowedList")


@check
def versions(known: ClusterState) -> Iterator[Finding]:
    """API server and kubelets are new enough for native sidecars."""
    if isinstance(known.server, Failed):
        yield failed("the API server does not tell its version", known.server.why)
        return
    yield ok(f"the API server answers: Kubernetes {_text(known.server)}")
    oldest = min(require(known.kubelets, "the versions of the nodes"), default=None)
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


@check
def kserve(known: ClusterState) -> Iterator[Finding]:
    """KServe passes our labels and annotations on to its pods."""
    name = f"ConfigMap {known.place.kserve_namespace}/{cluster_state.KSERVE_CONFIG}"
    found = require(known.kserve_config, f"KServe's {name}")
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


@check
def registration(known: ClusterState) -> Iterator[Finding]:
    """The API server knows the webhooks, and calls ours such that KServe's may come before or after."""
    place = known.place
    if place.policy:
        yield ok(f"mode policy: MutatingAdmissionPolicy {place.policy} exists; there is no webhook")
        return
    for kind, name, found, lack, meaning, flag in (
        (places.MUTATING, place.mutating, known.mutating, failed, "no pod is injected", "--mutating-webhook"),
        (
            places.VALIDATING, place.validating, known.validating, warning, "nobody hears of bad annotations",
            "--validating-webhook",
        ),
    ):  # fmt: skip
        if isinstance(found, Failed):
            yield from unknown(f"{kind} {name}", found)
        elif found is None:
            yield lack(f"there is no {kind} {name}: {meaning}", f"install the chart, or name it with {flag}")
        elif not found.get("webhooks"):
            yield failed(f"{kind} {name} has no webhooks", "upgrade the chart")
        else:
            policies = sorted({str(each.get("failurePolicy", "Fail")) for each in found["webhooks"]})
            yield ok(f"{kind} {name} exists (failurePolicy {', '.join(policies)})")
    if isinstance(known.mutating, dict) and isinstance(known.kserve_webhook, dict):
        yield _order(place.mutating, known.mutating)
    others = require(known.others, "whether there is another injector")
    if isinstance(known.mutating, dict):
        yield from _others(others, known.mutating)


def _order(name: str, own: model.Object) -> Finding:
    again = all(each.get("reinvocationPolicy") == "IfNeeded" for each in own.get("webhooks") or ())
    if name > cluster_state.KSERVE_WEBHOOK or again:
        return ok("pods of KServe reach the injector after KServe's own webhook, or once more after it")
    return warning(
        f"{name} is called before {cluster_state.KSERVE_WEBHOOK} and not again",
        "set reinvocationPolicy: IfNeeded on its webhooks",
    )


def _others(others: Sequence[model.Object], own: model.Object) -> Iterator[Finding]:
    """Of two injectors that see the same pod, the one that is called last decides: nobody wants that by accident."""
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


def certificate(known: ClusterState) -> Iterator[Finding]:
    """The API server trusts what the injector shows, and will for some days."""
    if known.place.policy:
        return
    kept, secret = _in_secret(known.secret), f"{known.place.namespace}/{known.place.secret}"
    strangers = f": somebody else answers at {', '.join(known.strangers)}" if known.strangers else ""
    unreached = f"its endpoints are not reachable from here{strangers}"
    shown = known.served or kept
    if shown is None and isinstance(known.secret, Failed):
        yield warning(f"the certificate could not be checked: {unreached}", known.secret.why)
        return
    if shown is None:
        yield failed(
            f"no endpoint shows a certificate, and Secret {secret} has none",
            "see whether the injector runs, or name its Secret with --secret-name",
        )
        return
    try:
        leaf = pki.read_certificates(shown)[0]
    except pki.Unreadable as error:
        yield failed(f"the certificate cannot be read: {error}", f"delete Secret {secret}")
        return
    source = "shows" if known.served else f"has in its Secret ({unreached})"
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
    yield from _trusted(known, known.served + (kept or b"") if known.served else shown)


def _trusted(known: ClusterState, chain: bytes) -> Iterator[Finding]:
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


def _why_untrusted(entry: model.Object, chain: bytes, known: ClusterState) -> str | None:
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


@check
def endpoints(known: ClusterState) -> Iterator[Finding]:
    """Somebody answers; and where pods wait for an answer (failurePolicy Fail), more than one."""
    if known.place.policy:
        return
    place = f"Service {known.place.namespace}/{known.place.service}"
    ready = len(cluster_state.ready_addresses(require(known.endpoints, f"the endpoints of {place}")))
    entries = known.mutating.get("webhooks") or () if isinstance(known.mutating, dict) else ()
    blocking = any(entry.get("failurePolicy", "Fail") == "Fail" for entry in entries)
    if ready == 0 and isinstance(known.sample, dict) and PodState(known.sample).injected:
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


@check
def trial(known: ClusterState) -> Iterator[Finding]:
    """A pod that asks for the sidecar gets it."""
    where = f"a sample pod in namespace {known.place.sample_namespace} (dry run)"
    if isinstance(known.sample, Failed) and not known.sample.forbidden:
        yield failed(f"{where} is not accepted", known.sample.why)
        return
    state = PodState(require(known.sample, where))
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
_ASKING = ("true", "enabled")


@check
def coverage(known: ClusterState) -> Iterator[Finding]:
    """Pods that asked have a sidecar, or a status that says why not."""
    states = [each for each in require(known.states, "pods") if each.runs]
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


def _by_restart(what: str, states: Sequence[PodState]) -> Iterator[Finding]:
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


def _left_out(known: ClusterState, asking: Sequence[PodState]) -> Iterator[Finding]:
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


@check
def pulling(known: ClusterState) -> Iterator[Finding]:
    """Namespaces whose pods get the sidecar have the secrets with which its image is pulled."""
    missing = require(known.missing_secrets, "the secrets with which sidecars' images are pulled")
    for namespace, names in missing.items():
        yield warning(
            f"namespace {namespace} has no Secret {', '.join(names)}, with which sidecars' images are pulled",
            f"create it there: kubectl -n {namespace} create secret docker-registry {names[0]} --docker-server=…",
        )


@check
def drift(known: ClusterState) -> Iterator[Finding]:
    """Injected pods have the version and the configuration that a new pod would get."""
    states, newest = require(known.states), PodState(require(known.sample)).release
    if newest is None:
        return
    old = [each for each in states if each.runs and each.release is not None and each.release != newest]
    yield from _by_restart("injected by an older version or configuration", old)
    if not old:
        yield ok(f"all sidecars are of version {newest[0]} with configuration {newest[1]}")


Check = Callable[[ClusterState], Iterator[Finding]]

CHECKS: Mapping[str, Sequence[Check]] = {
    "Kubernetes": (versions,),
    "Webhooks": (registration, endpoints),
    "Certificates": (certificate,),
    "Injection": (trial,),
    "Pods": (coverage, pulling, drift),
    "Namespaces and Services": (namespaces.rules, callers.reached, callers.admitted),
    "KServe": (kserve,),
}


def run(known: ClusterState) -> dict[str, list[Finding]]:
    """The findings under their headings."""
    return {title: [finding for each in checks for finding in each(known)] for title, checks in CHECKS.items()}
