"""What the rules of a namespace make of the sidecar: pods that its LimitRange or ResourceQuota forbids never exist.

No webhook can see that: both are checked after it, and whoever made the pod is told, a controller mostly. The amounts
are those of the sample pod's sidecar, which has them from the injector's configuration, and what the namespace's
annotations change about them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from carpool_injector.core import model, values
from carpool_injector.diagnosis.cluster_state import ClusterState
from carpool_injector.diagnosis.findings import Failed, Finding, named, ok, unknown, warning
from carpool_injector.objects import parts
from carpool_injector.objects.pod_state import PodState

_NAMES = ("cpu", "memory")
# Namespaces of which the chart's webhooks hear nothing.
_SYSTEM = ("kube-system", "kube-public", "kube-node-lease", "cert-manager")
Amounts = Mapping[str, Mapping[str, str]]
"""Requests and limits by their names, as quantities."""


def rules(known: ClusterState) -> Iterator[Finding]:
    """LimitRanges and ResourceQuotas let pods with the sidecar be."""
    sidecar = None if isinstance(known.sample, Failed) else PodState(known.sample).sidecar
    own = parts.part(sidecar[1], "resources") if sidecar else {}
    annotations = {each.name: each.annotations for each in known.namespaces}
    found: dict[tuple[str, str], list[str]] = {}
    for what, objects in (("LimitRanges", known.limit_ranges), ("ResourceQuotas", known.quotas)):
        if isinstance(objects, Failed):
            yield from unknown(what, objects)
            continue
        for thing in objects if sidecar else ():
            namespace = str(thing["metadata"].get("namespace"))
            if namespace in _SYSTEM:
                continue
            amounts = _in_namespace(own, annotations.get(namespace, {}))
            problems = _by_limit_range if what == "LimitRanges" else _by_quota
            for problem in problems(thing.get("spec") or {}, thing.get("status") or {}, amounts):
                found.setdefault((what, problem), []).append(f"{namespace}/{thing['metadata'].get('name')}")
    for (what, problem), names in found.items():
        yield warning(
            f"{what} forbid pods with the sidecar, as {problem}: {named(names)}",
            "annotate the namespace, or pods in it, with other amounts (carpool.dev/resources-requests-cpu, "
            "-limits-cpu, -requests-memory, -limits-memory), or set others in the chart's config.resources",
        )
    is_known = not any(isinstance(each, Failed) for each in (known.limit_ranges, known.quotas))
    if not found and is_known and sidecar:
        yield ok("LimitRanges and ResourceQuotas let pods with the sidecar be")


def _in_namespace(amounts: Amounts, annotations: Mapping[str, str]) -> Amounts:
    """The amounts by annotation of the namespace where it has some."""
    found: dict[str, dict[str, str]] = {}
    for kind in ("requests", "limits"):
        found[kind] = dict(amounts.get(kind) or {})
        for name in _NAMES:
            text = annotations.get(f"{model.PREFIX}resources-{kind}-{name}")
            if text == values.NO_LIMIT:
                found[kind].pop(name, None)
            elif text is not None:
                found[kind][name] = text
    return found


def _by_limit_range(spec: model.Object, _: model.Object, amounts: Amounts) -> Iterator[str]:
    for item in spec.get("limits") or ():
        of_pod = item.get("type") == "Pod"
        for name in _NAMES if item.get("type") in ("Container", "Pod") else ():
            limit = amounts["limits"].get(name) or (item.get("default") or {}).get(name)
            request = amounts["requests"].get(name) or limit
            yield from _above(name, limit, (item.get("max") or {}).get(name), of_pod)
            least, ratio = (item.get(key) or {} for key in ("min", "maxLimitRequestRatio"))
            if name in least and request is not None and not of_pod and _is_less(request, least[name]):
                yield f"its request of {name} ({request}) is below the least ({least[name]})"
            if name in ratio and not of_pod:
                yield from _beyond_ratio(name, limit, request, str(ratio[name]))


def _above(name: str, limit: str | None, most: Any, of_pod: bool) -> Iterator[str]:
    if most is None:
        return
    if limit is None:
        yield f"it has no limit of {name}, and there has to be one"
    elif _is_less(str(most), limit):
        yield f"its limit of {name} ({limit}) is above the most {'of a whole pod ' if of_pod else ''}({most})"


def _beyond_ratio(name: str, limit: str | None, request: str | None, most: str) -> Iterator[str]:
    if limit is None or request is None:
        yield f"it has no limit of {name}, and there has to be one"
        return
    bound, asked, ratio = _amount(limit), _amount(request), _amount(most)
    if bound is not None and asked and ratio is not None and bound / asked > ratio:
        yield f"its limit of {name} ({limit}) is more than {most} times its request ({request})"


def _by_quota(spec: model.Object, status: model.Object, amounts: Amounts) -> Iterator[str]:
    if spec.get("scopes") or spec.get("scopeSelector"):
        return  # it may be about other pods
    hard, used = spec.get("hard") or {}, status.get("used") or {}
    for key, most in hard.items():
        kind, _, name = key.partition(".") if "." in key else ("requests", "", key)
        if kind not in amounts or name not in _NAMES:
            continue
        ours = amounts[kind].get(name)
        if ours is None:
            yield f"it has no {kind.removesuffix('s')} of {name}, and there has to be one"
            continue
        bound, taken, wanted = _amount(str(most)), _amount(str(used.get(key, "0"))), _amount(ours)
        if None not in (bound, taken, wanted) and taken + wanted > bound:  # type: ignore[operator]
            yield f"of {key} {used.get(key, '0')} of {most} are used, and it needs {ours}"


def _is_less(one: str, other: Any) -> bool:
    left, right = _amount(one), _amount(str(other))
    return left is not None and right is not None and left < right


def _amount(text: str) -> Decimal | None:
    """None for what only Kubernetes reads, such as 1e3."""
    try:
        return values.amount(text)
    except ValueError:
        return None
