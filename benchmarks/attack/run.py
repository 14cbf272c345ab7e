"""A run: the tools first, then attack after attack, each on a server that has held all before it."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks import golang
from benchmarks.attack import attack, catalogue, conformance, stand, trial, verdicts

NO_SKIPS = "CARPOOL_E2E_NO_SKIPS"
"""An environment variable: where it is set and not 0, what cannot be checked here counts as a failure."""

Say = Callable[[str], None]


@dataclass
class Plan:
    """What to do; `cache` is where programs in Go are built, `seconds` another length of each attack."""

    tools: Sequence[str]
    attacks: dict[str, list[attack.Attack]]
    cache: pathlib.Path
    seconds: float | None = None
    is_once: bool = False
    """Whether no attack is tried a second time."""

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.tools) + sum(map(len, self.attacks.values()))


@dataclass
class Outcome:
    """What came of it so far."""

    trials: list[verdicts.Trial] = field(default_factory=list)
    checks: list[conformance.Check] = field(default_factory=list)

    @property
    def held(self) -> int:
        """Attacks on the sidecar and checks that went well."""
        return sum(not each.misses() for each in self._ours) + sum(each.has_passed for each in self.checks)

    @property
    def missed(self) -> int:
        """The others. What plain grpcio does not hold is not among them: it is there to compare with."""
        return len(self._ours) + len(self.checks) - self.held

    @property
    def _ours(self) -> list[verdicts.Trial]:
        return [each for each in self.trials if each.server == "carpool"]


def planned(only: Sequence[str], servers: Sequence[str], cache: pathlib.Path) -> Plan:
    """What these names stand for; everything if there are none. Raises `ValueError` for a name that there is not."""
    names = [name for name in only if name not in conformance.NAMES]
    is_all = not only
    attacks = {each: catalogue.select(names, each) if names or is_all else [] for each in servers}
    tools = [name for name in conformance.NAMES if "carpool" in servers and (is_all or name in only)]
    return Plan(tools, attacks, cache)


def carry_out(chosen: Plan, outcome: Outcome, say: Say) -> Iterator[None]:
    """Step by step; each adds to the outcome. Raises `OSError` and `processes.ChildFailed`."""
    for name in chosen.tools:
        outcome.checks += check(name, chosen.cache, say)
        yield
    for name in chosen.attacks:
        for found in _attack_all(name, chosen, say):
            outcome.trials.append(found)
            yield


def check(name: str, cache: pathlib.Path, say: Say) -> list[conformance.Check]:
    """A tool's checks; where there is no Go, one that says so."""
    if reason := golang.missing():
        return [conformance.Check(name, "all", os.environ.get(NO_SKIPS, "") in ("", "0"), f"skipped: {reason}")]
    tool = conformance.h2spec if name == conformance.H2SPEC else conformance.interop
    return tool(cache, say)


def _attack_all(name: str, plan: Plan, say: Say) -> Iterator[verdicts.Trial]:
    """One attack after the other on the same server, for as long as it holds and fits; after a miss on a new one."""
    waiting = list(plan.attacks[name])
    while waiting:
        needs = waiting[0].needs
        with stand.SERVERS[name](*needs) as server:
            while waiting and waiting[0].needs == needs:
                chosen = waiting.pop(0)
                say(f"{name}: {chosen.name}")
                found = trial.run(chosen, server, plan.seconds)
                if found.misses():
                    break
                yield found
            else:
                continue
        # Where only times were missed, other programs on the machine may be why.
        if plan.is_once or found.misses() != found.times_missed():
            yield found
        else:
            say(f"{name}: {chosen.name}, again")
            yield _second(name, chosen, plan.seconds)


def _second(name: str, chosen: attack.Attack, seconds: float | None) -> verdicts.Trial:
    with stand.SERVERS[name](*chosen.needs) as server:
        found = trial.run(chosen, server, seconds)
    found.runs = 2
    return found
