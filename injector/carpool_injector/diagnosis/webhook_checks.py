"""Checks of the way from the API server to the injector: registration, certificate, endpoints, and a pod as a trial."""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Iterator, Sequence

from carpool_injector.certificates import pem, rotation, trust
from carpool_injector.core import model, pod_annotations
from carpool_injector.diagnosis import cluster_state, findings, pod_checks

_DAYS = 7  # a self-managed leaf is renewed with ten days left


def registration(known: cluster_state.Facts) -> Iterator[findings.Finding]:
    """The API server knows the webhooks, and calls ours such that KServe's may come before or after."""
    yield from _registered(known.mutating, cluster_state.MUTATING, known.place.mutating, required=True)
    yield from _registered(known.validating, cluster_state.VALIDATING, known.place.validating, required=False)
    yield from _order(known)


def _registered(
    found: model.Object | cluster_state.Failed | None, kind: str, name: str, required: bool
) -> Iterator[findings.Finding]:
    if isinstance(found, cluster_state.Failed):
        yield from findings.unknown(f"{kind} {name}", found)
    elif found is None and required:
        yield findings.failed(
            f"there is no {kind} {name}: no pod is injected", "install the chart, or name it with --mutating-webhook"
        )
    elif found is None:
        yield findings.warning(
            f"there is no {kind} {name}: nobody hears of bad annotations",
            "install the chart, or name it with --validating-webhook",
        )
    elif not found.get("webhooks"):
        yield findings.failed(f"{kind} {name} has no webhooks", "upgrade the chart")
    else:
        policies = sorted({str(each.get("failurePolicy", "Fail")) for each in found["webhooks"]})
        yield findings.ok(f"{kind} {name} exists (failurePolicy {', '.join(policies)})")


def _order(known: cluster_state.Facts) -> Iterator[findings.Finding]:
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
        yield findings.ok("pods of KServe reach the injector after KServe's own webhook, or once more after it")
    else:
        yield findings.warning(
            f"{known.place.mutating} is called before {cluster_state.KSERVE_WEBHOOK} and not again",
            "set reinvocationPolicy: IfNeeded on its webhooks",
        )


def certificate(known: cluster_state.Facts) -> Iterator[findings.Finding]:
    """The API server trusts what the injector shows, and will for some days."""
    shown = known.served or _in_secret(known.secret)
    if shown is None:
        yield from _no_certificate(known)
        return
    source = "shows" if known.served else "has in its Secret (its endpoints cannot be reached from here)"
    chain = shown + (_in_secret(known.secret) or b"" if known.served else b"")
    try:
        leaf = pem.read_certificates(shown)[0]
    except pem.Unreadable as error:
        yield findings.failed(f"the certificate cannot be read: {error}", f"delete Secret {_secret(known)}")
        return
    left = leaf.not_valid_after_utc - known.now
    when = f"{leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if left < datetime.timedelta(days=_DAYS):
        state = "expired on" if left < datetime.timedelta() else "expires on"
        yield findings.failed(
            f"the certificate the injector {source} {state} {when}: it is not renewed any more",
            "look at the injector's log (or cert-manager's) for what keeps it from renewing",
        )
    else:
        yield findings.ok(f"the certificate the injector {source} is good for {left.days} days, until {when}")
    yield from _trusted(known, chain)


def _no_certificate(known: cluster_state.Facts) -> Iterator[findings.Finding]:
    if isinstance(known.secret, cluster_state.Failed):
        yield from findings.unknown("the certificate", known.secret)
    else:
        yield findings.failed(
            f"no endpoint shows a certificate, and Secret {_secret(known)} has none",
            "see whether the injector runs, or name its Secret with --secret-name",
        )


def _trusted(known: cluster_state.Facts, chain: bytes) -> Iterator[findings.Finding]:
    for configuration, kind in ((known.mutating, cluster_state.MUTATING), (known.validating, cluster_state.VALIDATING)):
        if not isinstance(configuration, dict):
            continue
        problems = [
            f"{entry.get('name')}: {problem}"
            for entry in configuration.get("webhooks") or ()
            if (problem := _why_untrusted(entry, chain, known)) is not None
        ]
        if problems:
            yield findings.failed(
                f"the API server does not trust the injector ({kind}): {'; '.join(problems)}",
                "see the injector's log: it needs get and patch on this configuration; with cert-manager, see its "
                "cainjector",
            )
        else:
            yield findings.ok(f"the API server trusts it ({kind})")


def _why_untrusted(entry: model.Object, chain: bytes, known: cluster_state.Facts) -> str | None:
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
    return trust.why_untrusted(chain, trusted, host, known.now)


def _in_secret(found: object) -> bytes | None:
    data = getattr(found, "data", None) or {}
    content = data.get(rotation.LEAF)
    return content if isinstance(content, bytes) and content else None


def _secret(known: cluster_state.Facts) -> str:
    return f"{known.place.namespace}/{known.place.secret}"


def endpoints(known: cluster_state.Facts) -> Iterator[findings.Finding]:
    """Somebody answers; and where pods wait for an answer (failurePolicy Fail), more than one."""
    place = f"Service {known.place.namespace}/{known.place.service}"
    if isinstance(known.endpoints, cluster_state.Failed):
        yield from findings.unknown(f"the endpoints of {place}", known.endpoints)
        return
    ready = len(cluster_state.ready_addresses(known.endpoints))
    blocking = isinstance(known.mutating, dict) and _blocks(known.mutating.get("webhooks") or ())
    if ready == 0 and isinstance(known.sample, dict) and pod_checks.state(known.sample).injected:
        yield findings.ok(f"{place} has no endpoints of its own, yet the injector answers")
    elif ready == 0:
        meaning = "such pods cannot be created" if blocking else "pods are created without the sidecar"
        yield findings.failed(
            f"{place} has no ready endpoint: {meaning}",
            f"kubectl -n {known.place.namespace} get pods; and see their log",
        )
    elif ready == 1 and blocking:
        yield findings.warning(
            f"{place} has one ready endpoint, and pods cannot be created without it (failurePolicy Fail)",
            "run two replicas or more, or set failurePolicy: Ignore",
        )
    else:
        yield findings.ok(f"{place} has {ready} ready endpoint{'s' * (ready > 1)}")


def _blocks(entries: Sequence[model.Object]) -> bool:
    return any(entry.get("failurePolicy", "Fail") == "Fail" for entry in entries)


def trial(known: cluster_state.Facts) -> Iterator[findings.Finding]:
    """A pod that asks for the sidecar gets it."""
    where = f"a sample pod in namespace {known.place.sample_namespace} (dry run)"
    if isinstance(known.sample, cluster_state.Failed) and known.sample.forbidden:
        yield from findings.unknown(where, known.sample)
        return
    if isinstance(known.sample, cluster_state.Failed):
        yield findings.failed(f"{where} is not accepted", known.sample.why)
        return
    state = pod_checks.state(known.sample)
    if state.injected is not None:
        yield findings.ok(f"{where} gets the sidecar")
    elif state.refused:
        yield findings.failed(f"{where} is refused: {state.refused}", "see the injector's configuration")
    else:
        yield findings.failed(
            f"{where} gets no sidecar: the webhook was not asked, or did not answer in time",
            f"see the selectors of {known.place.mutating} (the pod had the label {pod_annotations.INJECT}), that the "
            f"API server reaches {known.place.host}, and the injector's log",
        )
