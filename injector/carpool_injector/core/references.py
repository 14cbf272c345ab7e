"""Every place of a pod that names a port of its app, and what becomes of each when the sidecar takes that port.

Whoever moves a port, warns or explains reads this list; a place that is not in it would go on meaning the old port.
What names the port from outside of the pod (Services, policies) is in `surroundings`. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from carpool_injector.core import command_lines, edits, hosts, listening, model, pods


class Fate(enum.Enum):
    """What becomes of a place."""

    FOLLOWS = "follows the app to its other port"
    STAYS = "stays as it is"
    UNCLEAR = "may mean the app, or something else"


@dataclass(frozen=True, slots=True)
class Reference:
    """A place of `container` that names `port`. `why` says of one that stays who answers there, or what it means.

    `from_outside`: who is asked there is the pod, as its callers reach it.
    """

    container: str
    place: str
    port: int
    fate: Fate
    why: str = ""
    from_outside: bool = False

    def __str__(self) -> str:
        return f"{self.place} of container {self.container!r}"


Called = Mapping[int | str, str]
"""Ports that Services target, by number or name, each with the name of one."""
_ANSWERED = "the sidecar answers there"


def find(pod: pods.Pod, app: pods.Container, port: int, setting: listening.PortSetting | None) -> list[Reference]:
    """All places that name the app's port; `setting` is the one by which the app is told another."""
    found = [Reference(app.name, "the declared port", port, Fate.FOLLOWS) for _ in _declared(app, port)]
    if setting is not None and setting.present:
        found.append(Reference(app.name, str(setting), port, Fate.FOLLOWS))
    for container in _others(pod):
        found += _in_handlers(container, app, port, setting)
        found += _in_settings(container, app, port, setting)
    return found


def _others(pod: pods.Pod) -> Iterator[pods.Container]:
    return (each for each in pod.all_containers if each.name not in pods.MIRRORED)


def staying(pod: pods.Pod, app: pods.Container, port: int, setting: listening.PortSetting | None) -> Iterator[str]:
    """A sentence for each place that goes on naming the port, and why that is right."""
    for each in find(pod, app, port, setting):
        if each.fate is Fate.STAYS:
            yield f"{each} goes on naming {port}: {each.why}"


def _declared(container: pods.Container, port: int) -> list[pods.Port]:
    return [entry for entry in container.ports if entry.is_tcp and entry.container_port == port]


def _in_handlers(
    container: pods.Container, app: pods.Container, port: int, setting: listening.PortSetting | None
) -> Iterator[Reference]:
    is_app = container.name == app.name
    for name, handler in container.handlers:
        for action in handler.actions:
            if container.number(action.port) != port:
                continue
            if not hosts.is_own(action.host):
                yield Reference(container.name, name, port, Fate.STAYS, f"it asks {action.host}")
            elif is_app:
                yield Reference(container.name, name, port, Fate.FOLLOWS, from_outside=not action.host)
            else:
                yield Reference(container.name, name, port, Fate.STAYS, _ANSWERED, from_outside=not action.host)
        if port in command_lines.ports(handler.words):
            fate, why = (Fate.FOLLOWS, "") if is_app else (Fate.STAYS, _ANSWERED)
            yield Reference(container.name, f"the command of its {name}", port, fate, why)
        if is_app and (unclear := command_lines.unclear(handler.words, port, _known(container, setting))):
            yield Reference(container.name, f"the command of its {name}", port, Fate.UNCLEAR, unclear[:80])


def _known(container: pods.Container, setting: listening.PortSetting | None) -> command_lines.Variable:
    """Variables as they will be: the one by which the app is told its port changes with it."""
    told_by = setting.name if setting else None
    return lambda name: "" if name == told_by else container.variable(name)


def _in_settings(
    container: pods.Container, app: pods.Container, port: int, setting: listening.PortSetting | None
) -> Iterator[Reference]:
    """Words and variables with the port in them. In the app's own they are for callers of its, or for itself."""
    told_by = setting.name if setting and container.name == app.name else ""
    telling = {at for at, _, _ in edits.flag_values(container.words, told_by)} if told_by.startswith("-") else set()
    text = str(port)  # most of hundreds of variables do not have it
    words = [word for at, word in enumerate(container.words) if at not in telling]
    if port in (*command_lines.ports(words), *edits.ports_in_flags(words)):
        yield Reference(container.name, "an argument", port, Fate.STAYS, _ANSWERED)
    for item in container.env:
        value = item.get("value") or ""
        if text in value and item["name"] != told_by and (value == text or port in command_lines.ports([value])):
            yield Reference(container.name, f"the variable {item['name']}", port, Fate.STAYS, _ANSWERED)


def callers_within(pod: pods.Pod, app: pods.Container, port: int) -> list[str]:
    """The other containers that call the app's port within the pod: a proxy in front of it, say."""
    text = str(port)
    others = (each for each in pod.running if each.name not in (app.name, *pods.MIRRORED))
    return [
        each.name
        for each in others
        if port in command_lines.ports(each.words)
        or any(port in command_lines.ports([value]) for value in each.values if text in value)
    ]


def proof_of_reach(pod: pods.Pod, app: pods.Container, port: int, called: Called) -> str | None:
    """What shows that the app's port is reached from outside of the pod: a Service's name, or "" for the pod itself.

    In the pod that is a probe or hook of the kubelet's, which calls the pod's address, or a port of the node. None
    where nothing shows it.
    """
    declared = _declared(app, port)
    handlers = (each for held in _others(pod) for each in _in_handlers(held, app, port, None))
    if any(entry.host_port for entry in declared) or any(each.from_outside for each in handlers):
        return ""
    names: list[int | str] = [
        port,
        *(entry.name for entry in declared if entry.name and _is_first(pod, app, entry.name)),
    ]
    return next((called[name] for name in names if name in called), None)


def _is_first(pod: pods.Pod, app: pods.Container, name: str) -> bool:
    """Whether a Service that targets a port by this name finds the app: the first container that has it counts."""
    others = (each for each in pod.running if each.name != model.CONTAINER)
    first = next((each for each in others if any(port.is_tcp and port.name == name for port in each.ports)), None)
    return first is app
