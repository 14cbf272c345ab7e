"""The sidecar's way out, fitted into the time the pod has for it.

The kubelet kills what is left after terminationGracePeriodSeconds; the sidecar has to be done before, and its quiet
period, in which it still serves, is a part of that.
"""

from __future__ import annotations

from carpool_injector.core import model, pods
from carpool_injector.core.errors import BadSettings
from carpool_injector.core.settings import Settings

_POD_SECONDS = 30  # terminationGracePeriodSeconds where a pod says nothing
_MARGIN = 5
_LONGEST = 86_400.0  # what the sidecar takes
# The sidecar's own defaults, which fit into a pod's.
_GRACE, _QUIET = 25.0, 5.0


def flags(pod: pods.Pod, settings: Settings) -> dict[str, str]:
    """`--grace-period` and `--quiet-period` where the sidecar's defaults are not right.

    Raises `BadSettings` for a quiet period that does not fit.
    """
    seconds = pod.spec.termination_grace_period_seconds
    left = _left(_POD_SECONDS if seconds is None else max(seconds, 0))
    grace = settings.grace_period or left
    quiet = min(_QUIET, grace / 3) if settings.quiet_period is None else settings.quiet_period
    if quiet >= grace:
        limits = "terminationGracePeriodSeconds and carpool.dev/grace-period"
        problem = f"must be shorter than the {grace:g} seconds that {limits} leave"
        raise BadSettings([f"annotation {model.PREFIX}quiet-period: got {quiet:g}: {problem}"])
    found = {"--quiet-period": (quiet, _QUIET), "--grace-period": (grace, _GRACE)}
    return {name: _written(value) for name, (value, default) in found.items() if value != default}


def is_too_long(pod: pods.Pod, settings: Settings) -> bool:
    """Whether the annotated grace period outlasts the pod's."""
    seconds = pod.spec.termination_grace_period_seconds
    given = _POD_SECONDS if seconds is None else seconds
    return settings.grace_period is not None and settings.grace_period > given


def _left(seconds: int) -> float:
    return min(max(float(seconds - _MARGIN), seconds / 2, 0.2), _LONGEST)


def _written(value: float) -> str:
    return str(int(value)) if value.is_integer() else f"{value:.3g}"
