"""The sidecar container: built from checked values only, fit for restricted Pod Security, and the same each time.

Defaults of the API server are written out inside whatever is built here: the API server fills them in between two
webhooks, and a second review must change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from decimal import Decimal
from typing import Any

from carpool_injector.core import command_lines, model, pod_annotations, pods, values
from carpool_injector.core.config import Config
from carpool_injector.core.refusals import BadSettings, Reason
from carpool_injector.core.settings import Settings
from carpool_injector.core.takeover import proxies
from carpool_injector.core.takeover.context import Effects

ADMIN_PORT_NAME = "carpool-admin"

# A volume over the place of the service account's token keeps the token out: the API server mounts it in every
# container that mounts nothing there, ours included, when it looks at the pod again after this webhook.
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105

_USER = 65532  # of the sidecar's image


def volume() -> model.Object:
    """The volume that hides the service account's token from the sidecar: the pod's name in a file, and no more.

    No emptyDir: `kubectl drain` takes any for data and asks for --delete-emptydir-data, whatever its medium. Of the
    volumes that are none, Knative allows projected ones (fieldmask.go of knative/serving). It is not empty, as an empty
    list of sources comes back from the API server as null.
    """
    name = {"path": "pod", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}
    return {
        "name": pod_annotations.TOKEN_SHIELD,
        "projected": {"sources": [{"downwardAPI": {"items": [name]}}], "defaultMode": 420},
    }


PORT_START = "net.ipv4.ip_unprivileged_port_start"
"""The kernel parameter of a pod from which port on programs may listen without a capability, over IPv6 as well."""
_USUAL_PORT_START = 1024


def needs_port_start(pod: pods.Pod, plan: model.Plan) -> bool:
    """Whether the pod needs `PORT_START`, because the sidecar listens on a low port and has no capabilities.

    containerd from 2.0 on and CRI-O set it anyhow, older ones do not. Kubernetes counts it as safe, and so does Pod
    Security.
    """
    return _lowest(plan) < _USUAL_PORT_START and _chosen_port_start(pod) is None


def check_port_start(pod: pods.Pod, plan: model.Plan) -> None:
    """Raises `Refusal` where the pod's owner set `PORT_START` too high for the sidecar's ports."""
    chosen, lowest = _chosen_port_start(pod), _lowest(plan)
    number = command_lines.whole(chosen, digits=9)
    if chosen is not None and (number is None or number > lowest):
        raise Reason.LOW_PORT(port=lowest, sysctl=PORT_START, value=chosen[:20])


def _lowest(plan: model.Plan) -> int:
    return min(plan.listen_port, plan.admin_port, plan.grpc_listen_port or plan.listen_port)


def _chosen_port_start(pod: pods.Pod) -> str | None:
    sysctls = pod.spec.security_context.sysctls if pod.spec.security_context else ()
    return next((each.value for each in sysctls if each.name == PORT_START), None)


def build(pod: pods.Pod, plan: model.Plan, effects: Effects, settings: Settings, config: Config) -> model.Object:
    """The container, in the order a person would write it."""
    admin_port = {"name": ADMIN_PORT_NAME, "containerPort": plan.admin_port, "protocol": "TCP"}
    drain = ["carpool-sidecar", "drain", f"--admin-port={plan.admin_port}"]
    return {
        "name": model.CONTAINER,
        "image": config.channels[settings.image_channel] if settings.image_channel else config.image,
        **({"imagePullPolicy": config.image_pull_policy} if config.image_pull_policy else {}),
        "args": list(_args(pod, plan, settings)),
        **({"env": [{"name": proxies.PROBE, "value": effects.readiness}]} if effects.readiness else {}),
        "ports": [*effects.ports, admin_port],
        "resources": _resources(pod, plan, settings, config),
        "securityContext": _security_context(pod, config),
        **{name: _probe(plan.admin_port, *form) for name, form in _PROBES.items()},
        "lifecycle": {"preStop": {"exec": {"command": drain}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": pod_annotations.TOKEN_SHIELD, "mountPath": _TOKEN_PATH, "readOnly": True}],
        **({"restartPolicy": "Always"} if plan.native else {}),
    }


def merged(existing: model.Object | None, built: model.Object, annotations: Mapping[str, str]) -> model.Object:
    """The container built anew, with what others added to the one that was there before.

    Kept are variables and mounts of other names, fields that are none of ours, and a limit that the namespace's
    LimitRange gave, as the pod's `annotations` tell.
    """
    if existing is None:
        return built
    rest = {key: value for key, value in existing.items() if key not in built and key not in _OURS}
    env = _with_others(existing.get("env"), built.get("env") or [], "name", leave_out={proxies.PROBE})
    return {
        **built,
        **({"env": env} if env else {}),
        "volumeMounts": _with_others(existing.get("volumeMounts"), built["volumeMounts"], "mountPath"),
        "ports": [{**_defaults_of(existing.get("ports"), port), **port} for port in built["ports"]],
        "resources": _same_amounts(existing.get("resources"), _with_default_limits(existing, built, annotations)),
        "securityContext": {**_assigned(existing.get("securityContext")), **built["securityContext"]},
        **rest,
    }


# Where the API server's LimitRanger tells what it filled in, after our answer as well.
_LIMIT_RANGER = "kubernetes.io/limit-ranger"
_DEFAULT_LIMITS = re.compile(rf"([a-z, -]+) limit for (?:init )?container {model.CONTAINER}", re.ASCII)


def _with_default_limits(existing: model.Object, built: model.Object, annotations: Mapping[str, str]) -> model.Object:
    """Without the limit that it was given, the pod may be one that its LimitRange forbids."""
    told = annotations.get(_LIMIT_RANGER, "").rpartition(": ")[2].split("; ")
    names = [name for text in told if (found := _DEFAULT_LIMITS.fullmatch(text)) for name in found[1].split(", ")]
    before = (existing.get("resources") or {}).get("limits") or {}
    given = {name: before[name] for name in names if name in before}
    limits = {**given, **built["resources"].get("limits", {})}
    return {**built["resources"], **({"limits": limits} if limits else {})}


# What we set in some pods and not in others, and what decides which program runs: never taken over from anybody.
_OURS = {"env", "restartPolicy", "command", "workingDir", "stdin", "stdinOnce", "tty"}


def _assigned(existing: Any) -> model.Object:
    """User, group and SELinux label, as OpenShift assigns them to each container; never root."""
    found = existing if isinstance(existing, dict) else {}
    numbers = {key: found[key] for key in ("runAsUser", "runAsGroup") if type(found.get(key)) is int and found[key] > 0}
    label = {"seLinuxOptions": found["seLinuxOptions"]} if isinstance(found.get("seLinuxOptions"), dict) else {}
    return {**numbers, **label}


def _defaults_of(ports: Any, port: model.Object) -> model.Object:
    same = (item for item in ports or () if item.get("containerPort") == port["containerPort"])
    return {"protocol": "TCP"} if "protocol" in next(same, {}) else {}


def _args(pod: pods.Pod, plan: model.Plan, settings: Settings) -> Iterator[str]:
    yield f"--port={plan.listen_port}"
    yield f"--component-port={plan.app_port}"
    if plan.grpc_listen_port is not None:
        yield f"--grpc-port={plan.grpc_listen_port}"
    if plan.grpc_app_port is not None:
        yield f"--component-grpc-port={plan.grpc_app_port}"
    yield f"--admin-port={plan.admin_port}"
    flags = dict(settings.flags()) | period_flags(pod, settings)
    if settings.host is not None:
        flags["--admin-host"] = settings.host
    # Kubernetes expands $(NAME) in arguments, and reads $$ as a plain $.
    yield from (f"{name}={value.replace('$', '$$')}" for name, value in flags.items())


# Path, seconds from one to the next, failures that count.
_PROBES = {"startupProbe": ("/livez", 1, 60), "readinessProbe": ("/readyz", 5, 2), "livenessProbe": ("/livez", 10, 6)}


def _probe(admin_port: int, path: str, period: int, failures: int) -> model.Object:
    return {
        "httpGet": {"path": path, "port": admin_port, "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "successThreshold": 1,
        "failureThreshold": failures,
    }


def _security_context(pod: pods.Pod, config: Config) -> model.Object:
    """Pod Security's restricted profile, on the container itself: a pod's own settings do not count for all of it.

    The user is the image's, unless the admin says otherwise or the pod is root's, which would count for ours as well.
    """
    of_pod = pod.spec.security_context.run_as_user if pod.spec.security_context else None
    chosen = config.run_as_user or (_USER if of_pod == 0 else None)
    user = {} if chosen is None else {"runAsUser": chosen}
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        **user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _resources(pod: pods.Pod, plan: model.Plan, settings: Settings, config: Config) -> model.Object:
    """Requests and limits, as annotations or the admin say.

    A pod with resources of its own shares them: requests of its containers may not add up to more. One of the class
    Guaranteed gets requests that are the limits, so that it keeps its class.
    """
    asked_requests, asked_limits = settings.amounts("requests"), settings.amounts("limits")
    known_limits = _known(asked_limits)
    if pod.spec.resources is not None:
        found = {"requests": asked_requests, "limits": known_limits}
        return {kind: amounts for kind, amounts in found.items() if amounts}
    if is_guaranteed(pod, plan) and not any(_unequal_amounts(settings)):
        equal = {**config.resources.in_guaranteed(), **asked_requests, **known_limits}
        return {"requests": dict(equal), "limits": equal}
    limits = _known({**config.resources.limits.model_dump(), **asked_limits})
    requests = {**config.resources.requests.model_dump(), **asked_requests}
    for name in limits:
        # One of the two was set by an annotation, past the other's default: the annotation counts.
        if values.amount(requests[name]) > values.amount(limits[name]):
            asked = name in asked_requests
            (limits if asked else requests)[name] = (requests if asked else limits)[name]
    return {"requests": requests, "limits": limits}


def _known(limits: Mapping[str, str | None]) -> dict[str, str]:
    return {name: limit for name, limit in limits.items() if limit not in (None, values.NO_LIMIT)}


def _unequal_amounts(settings: Settings) -> Iterator[str]:
    """Where annotations give a request and another limit, which no Guaranteed pod has."""
    limits = _known(settings.amounts("limits"))
    for name, request in settings.amounts("requests").items():
        limit = limits.get(name, request)
        if values.amount(limit) != values.amount(request):
            yield f"carpool.dev/resources-requests-{name} ({request}) and its limit ({limit})"


def is_guaranteed(pod: pods.Pod, plan: model.Plan) -> bool:
    """Quality of service Guaranteed: every container has limits, and requests equal to them or none.

    KServe's agent counts as the plan leaves it or expects it, so that the answer is the same at a second review.
    """
    agent = proxies.find_agent(pod)
    if agent.stays and not agent.present:
        return False  # it is still to come, and has requests below its limits
    leaves = agent.present and not agent.stays and plan.takeover in ("kserve-agent", "queue-proxy")
    others = {model.CONTAINER, *((pods.AGENT,) if leaves else ())}
    return all(_has_equal_amounts(each.resources) for each in pod.all_containers if each.name not in others)


def _has_equal_amounts(resources: pods.Resources | None) -> bool:
    if resources is None:
        return False
    for name in ("cpu", "memory"):
        limit = resources.limits.get(name)
        if limit is None or _amount(resources.requests.get(name, limit)) != _amount(limit):
            return False
    return True


def _amount(value: str | float) -> Decimal | str:
    try:
        return values.amount(str(value))
    except ValueError:
        return str(value)


def _with_others(existing: Any, built: list[Any], key: str, leave_out: Set[str] = frozenset()) -> list[Any]:
    names = {item[key] for item in built} | leave_out
    return built + [item for item in existing or () if item.get(key) not in names]


def _same_amounts(existing: Any, built: model.Object) -> model.Object:
    """The API server writes 0.5 as 500m: the same amount in other words is no change."""

    def settled(held: model.Object, wanted: dict[str, str]) -> model.Object:
        same = {name for name, text in wanted.items() if name in held and _amount(held[name]) == values.amount(text)}
        return {name: held[name] if name in same else text for name, text in wanted.items()}

    before = existing or {}
    return {**before, **{kind: settled(before.get(kind) or {}, wanted) for kind, wanted in built.items()}}


def resource_advice(pod: pods.Pod, plan: model.Plan, settings: Settings) -> Iterator[str]:
    """Warnings where annotations about resources and the class of a Guaranteed pod do not go together."""
    if pod.spec.resources is not None or not is_guaranteed(pod, plan):
        return
    for unequal in _unequal_amounts(settings):
        yield f"{unequal} differ: the pod is not of the class Guaranteed any more; leave one out to keep it"
    if settings.resources_limits_cpu == values.NO_LIMIT:
        yield (
            "carpool.dev/resources-limits-cpu: none has no effect in a pod of the class Guaranteed, of which every "
            "container has limits"
        )


_POD_SECONDS = 30  # terminationGracePeriodSeconds where a pod says nothing
_MARGIN = 5
_LONGEST = 86_400.0  # what the sidecar takes
# The sidecar's own defaults, which fit into a pod's.
_GRACE, _QUIET = 25.0, 5.0


def period_flags(pod: pods.Pod, settings: Settings) -> dict[str, str]:
    """`--grace-period` and `--quiet-period` where the sidecar's defaults are not right.

    Raises `BadSettings` for a quiet period that does not fit.
    """
    seconds = max(_seconds_of(pod), 0)
    left = min(max(float(seconds - _MARGIN), seconds / 2, 0.2), _LONGEST)
    grace = settings.grace_period or left
    quiet = min(_QUIET, grace / 3) if settings.quiet_period is None else settings.quiet_period
    if quiet >= grace:
        limits = "terminationGracePeriodSeconds and carpool.dev/grace-period"
        problem = f"must be shorter than the {grace:g} seconds that {limits} leave"
        raise BadSettings([f"annotation {model.PREFIX}quiet-period: got {quiet:g}: {problem}"])
    found = {"--quiet-period": (quiet, _QUIET), "--grace-period": (grace, _GRACE)}
    told = {name: value for name, (value, usual) in found.items() if value != usual}
    return {name: str(int(value)) if value.is_integer() else f"{value:.3g}" for name, value in told.items()}


def outlasts_the_pod(pod: pods.Pod, settings: Settings) -> bool:
    """Whether the annotated grace period outlasts the pod's."""
    return settings.grace_period is not None and settings.grace_period > _seconds_of(pod)


def _seconds_of(pod: pods.Pod) -> int:
    seconds = pod.spec.termination_grace_period_seconds
    return _POD_SECONDS if seconds is None else seconds
