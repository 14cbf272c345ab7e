"""Every place of a pod that names a port of its app, and what becomes of each when the sidecar takes that port.

`find` lists the places. `move` gives those that follow the app its other port, `move_back` undoes it by the status.
Whoever plans, warns or explains asks here, and nobody else reads probes and hooks or changes them: a place that is not
in this list would go on meaning the old port. What names ports from outside of the pod is in `surroundings`. Pure.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    found = [Reference(app.name, "the declared port", port, Fate.FOLLOWS) for _ in app.declared(port)]
    if setting is not None and setting.present:
        found.append(Reference(app.name, str(setting), port, Fate.FOLLOWS))
    for container in _own_containers(pod):
        found += _in_handlers(container, app, port, setting)
        found += _in_settings(container, app, port, setting)
    return found


def staying(pod: pods.Pod, app: pods.Container, port: int, setting: listening.PortSetting | None) -> Iterator[str]:
    """A sentence for each place that goes on naming the port, and why that is right."""
    for each in find(pod, app, port, setting):
        if each.fate is Fate.STAYS:
            yield f"{each} goes on naming {port}: {each.why}"


def _own_containers(pod: pods.Pod) -> Iterator[pods.Container]:
    mirrored = pod.mirrored
    return (each for each in pod.all_containers if each.name not in mirrored)


def _in_handlers(
    container: pods.Container, app: pods.Container, port: int, setting: listening.PortSetting | None
) -> Iterator[Reference]:
    is_app = container.name == app.name
    fate, why = (Fate.FOLLOWS, "") if is_app else (Fate.STAYS, _ANSWERED)
    for name, handler in container.handlers:
        for action in handler.actions:
            if container.number(action.port) == port and not hosts.is_own(action.host):
                yield Reference(container.name, name, port, Fate.STAYS, f"it asks {action.host}")
            elif container.number(action.port) == port:
                yield Reference(container.name, name, port, fate, why, from_outside=not action.host)
        command = f"the command of its {name}"
        if port in command_lines.ports(handler.words):
            yield Reference(container.name, command, port, fate, why)
        if is_app and (unclear := command_lines.unclear(handler.words, port, _known(container, setting))):
            yield Reference(container.name, command, port, Fate.UNCLEAR, unclear[:80])


def _known(container: pods.Container, setting: listening.PortSetting | None) -> command_lines.Variable:
    """Variables as they will be: the one by which the app is told its port changes with it."""
    told_by = setting.name if setting else None
    return lambda name: "" if name == told_by else container.variable(name)


def _in_settings(
    container: pods.Container, app: pods.Container, port: int, setting: listening.PortSetting | None
) -> Iterator[Reference]:
    """Words and variables with the port in them. In the app's own they are for callers of its, or for itself."""
    told_by = setting.name if setting and container.name == app.name else ""
    values = command_lines.flag_values(container.words, told_by) if told_by.startswith("-") else ()
    telling = {at for at, _, _ in values}
    words = [word for at, word in enumerate(container.words) if at not in telling]
    if port in (*command_lines.ports(words), *command_lines.ports_in_flags(words)):
        yield Reference(container.name, "an argument", port, Fate.STAYS, _ANSWERED)
    text = str(port)  # most of hundreds of variables do not have it
    for name, value in container.literals:
        if text in value and name != told_by and (value == text or port in command_lines.ports([value])):
            yield Reference(container.name, f"the variable {name}", port, Fate.STAYS, _ANSWERED)


def ports_named(pod: pods.Pod) -> Iterator[int]:
    """The ports that anything in the pod declares, listens on or asks, as far as its containers tell."""
    for container in _own_containers(pod):
        for entry in container.ports:
            yield from (entry.container_port, *([entry.host_port] if entry.host_port else []))
        for _, handler in container.handlers:
            yield from (action.port for action in handler.actions if isinstance(action.port, int))
            yield from command_lines.ports(handler.words)
        yield from command_lines.ports_in_flags(container.words)
        for name, value in container.literals:
            number = command_lines.whole(value) if "PORT" in name else None
            yield from [] if number is None else [number]


def callers_within(pod: pods.Pod, app: pods.Container, port: int) -> list[str]:
    """The other containers that call the app's port within the pod: a proxy in front of it, say.

    Not those that collect metrics: whom an app is asked by for itself says nothing about its callers.
    """
    text, passed_over = str(port), {app.name, *pod.mirrored}
    others = (each for each in pod.running if each.name not in passed_over and not each.is_collector)
    return [
        each.name
        for each in others
        if port in command_lines.ports(each.words)
        or any(port in command_lines.ports([value]) for _, value in each.literals if text in value)
    ]


def proof_of_reach(pod: pods.Pod, app: pods.Container, port: int, called: Called) -> str | None:
    """What shows that the app's port is reached from outside of the pod: a Service's name, or "" for the pod itself.

    In the pod that is a probe or hook of the kubelet's, which calls the pod's address, or a port of the node. None
    where nothing shows it.
    """
    declared = app.declared(port)
    handlers = (each for held in _own_containers(pod) for each in _in_handlers(held, app, port, None))
    if any(entry.host_port for entry in declared) or any(each.from_outside for each in handlers):
        return ""
    names: list[int | str] = [port, *(each.name for each in declared if each.name and _is_first(pod, app, each.name))]
    return next((called[name] for name in names if name in called), None)


def _is_first(pod: pods.Pod, app: pods.Container, name: str) -> bool:
    """Whether a Service that targets a port by this name finds the app: the first container that has it counts."""
    others = (each for each in pod.running if each.name != model.CONTAINER)
    return next((each for each in others if any(port.name == name for port in each.tcp_ports)), None) is app


def signs_of_grpc(container: pods.Container, port: int) -> Iterator[str]:
    """Probes and hooks that ask the port by gRPC, in words."""
    only_port = len(container.tcp_ports) <= 1
    for _, handler in container.handlers:
        if handler.grpc and container.number(handler.grpc.port) == port:
            yield "a grpc probe asks it"
        if program := command_lines.grpc_program(handler.words, port, container.variable, only_port):
            yield f"a probe asks it by {program}"


def is_asked_by_https(container: pods.Container, port: int) -> bool:
    """Whether a probe or hook asks the port by TLS."""
    actions = (handler.http_get for _, handler in container.handlers if handler.http_get)
    asked = (each for each in actions if hosts.is_own(each.host) and container.number(each.port) == port)
    return any(each.scheme == "HTTPS" for each in asked)


def asks_anything(container: pods.Container) -> bool:
    """Whether the kubelet's probes ask the container over the network."""
    return any(name in pods.PROBES and any(True for _ in handler.actions) for name, handler in container.handlers)


# --- A container's JSON under change.

ACTIONS = ("httpGet", "tcpSocket", "grpc")
"""What a probe or a hook may do, beside a command."""


def with_handlers(container: model.Object, change: Callable[[str, model.Object], model.Object]) -> model.Object:
    """The container with each probe and hook as `change` makes it of its name and JSON; the same if none differs."""
    probes = _changed(container, pods.PROBES, change)
    lifecycle = container.get("lifecycle") or {}
    hooks = _changed(lifecycle, pods.HOOKS, change)
    if not probes and not hooks:
        return container
    return {**container, **probes, **({"lifecycle": {**lifecycle, **hooks}} if hooks else {})}


def _changed(
    held: model.Object, members: Sequence[str], change: Callable[[str, model.Object], model.Object]
) -> model.Object:
    made = {member: change(member, held[member]) for member in members if held.get(member)}
    return {member: handler for member, handler in made.items() if handler is not held[member]}


def action_of(handler: model.Object) -> tuple[str, model.Object] | None:
    """What a probe or hook does and the members of that; None for commands, and for what does nothing."""
    return next(((kind, handler[kind]) for kind in ACTIONS if handler.get(kind) is not None), None)


def with_action(handler: model.Object, kind: str, members: model.Object) -> model.Object:
    """The probe or hook with another action in place of its own."""
    return {**{key: value for key, value in handler.items() if key not in ACTIONS}, kind: members}


def readiness(container: model.Object) -> str | None:
    """The readiness probe as the JSON a sidecar takes (SERVING_READINESS_PROBE), named ports resolved.

    None for exec probes, and for those that ask another host: it is not the app that answers there.
    """
    probe = container.get("readinessProbe") or {}
    ports = {port["name"]: port["containerPort"] for port in container.get("ports") or () if port.get("name")}
    for kind in ACTIONS:
        action = probe.get(kind)
        if action is None or not hosts.is_own(action.get("host")):
            continue
        port = ports.get(action.get("port"), action.get("port"))
        if isinstance(port, str):
            return None
        timeout = {"timeoutSeconds": probe["timeoutSeconds"]} if probe.get("timeoutSeconds") else {}
        return json.dumps({kind: {**action, "port": port}, **timeout}, separators=(",", ":"))
    return None


_STOP = "preStop"
DRAINED = "/drained"
"""Where the sidecar's admin port answers once everything accepted has been answered."""
_KNATIVE_DRAIN = "/wait-for-drain"


def has_own_stop(container: pods.Container) -> bool:
    """Whether its owner gave it a hook before it stops; Knative's, which waits for its own proxy, is none."""
    hook = dict(container.handlers).get(f"{_STOP} hook")
    return hook is not None and (hook.http_get is None or hook.http_get.path != _KNATIVE_DRAIN)


def let_wait(app: model.Object, admin_port: int) -> None:
    """Let the app serve until the sidecar has drained: the kubelet stops apps before native sidecars."""
    lifecycle = app.get("lifecycle") or {}
    if not lifecycle.get(_STOP):
        hook = {"httpGet": {"path": DRAINED, "port": admin_port, "scheme": "HTTP"}}
        app["lifecycle"] = {**lifecycle, _STOP: hook}


def waits(member: str, handler: model.Object, admin_port: int | None = None) -> bool:
    """Whether a probe or hook is the one by which the app waits for its sidecar (on this admin port)."""
    action = handler.get("httpGet") or {}
    return member == _STOP and action.get("path") == DRAINED and admin_port in (None, action.get("port"))


def let_go(app: model.Object, admin_port: int) -> None:
    """Take that hook out again, if it is there; the last one takes the lifecycle with it."""
    lifecycle = dict(app.get("lifecycle") or {})
    if waits(_STOP, lifecycle.get(_STOP) or {}, admin_port):
        del lifecycle[_STOP]
        edits.put_or_drop(app, "lifecycle", lifecycle)


@dataclass(frozen=True, slots=True)
class _Names:
    """Of the ports for a protocol: `app` once the sidecar has the app's name, `own` for the sidecar if it had none."""

    app: str
    own: str


_NAMES = {False: _Names("carpool-app", "carpool-http"), True: _Names("carpool-app-rpc", "carpool-grpc")}
PORT_NAMES = frozenset(name for each in _NAMES.values() for name in (each.app, each.own))
"""All of them; a port's name has 15 characters at most."""


def own_port(listen: int, by_grpc: bool = False) -> model.Object:
    """The declared port of a sidecar that took no port of the app's over."""
    return {"name": _NAMES[by_grpc].own, "containerPort": listen, "protocol": "TCP"}


def move(app: model.Object, moves: Sequence[model.Move]) -> dict[bool, model.Object]:
    """Let the app and all that follows it name its other ports, or its ports by other names.

    Returns the sidecar's declared ports, the one for gRPC by True. Of a port that the app leaves it is the app's, name
    and hostPort included.
    """
    taken: dict[bool, model.Object] = {}
    become: dict[int | str, int | str] = {}
    meant: dict[int | str, int] = {}
    for each in moves:
        if each.told_by is not None and each.added:
            _add(app, each.told_by, each.new)
        elif each.told_by is not None:
            _tell(app, each.told_by, each.old, each.new)
        entry = _hand_over(app, each)
        if not each.stays:
            become[each.old] = each.new
        if entry.get("name"):
            become[entry["name"]], meant[entry["name"]] = _NAMES[each.by_grpc].app, each.old
        own = own_port(each.listen, each.by_grpc)
        name = {"name": entry["name"]} if entry.get("name") else {}
        taken[each.by_grpc] = {**own, **name} if each.stays else {"name": own["name"], **(entry or own)}
    _follow(app, become, meant)
    return taken


def move_back(app: model.Object, moves: Sequence[model.Move], sidecar: model.Object) -> None:
    """Undo `move`, by the declared ports that the sidecar has."""
    become: dict[int | str, int | str] = {}
    ports = sidecar.get("ports") or ()
    for each in moves:
        own: model.Object = next((port for port in ports if port.get("containerPort") == each.listen), {})
        become |= {each.new: each.old, _NAMES[each.by_grpc].app: own.get("name") or each.old}
        _hand_back(app, each, own)
        if each.told_by is not None and each.added:
            _drop(app, each.told_by, each.new)
        elif each.told_by is not None:
            _tell(app, each.told_by, each.new, each.old)
    _follow(app, become, {})


def _follow(app: model.Object, become: Mapping[Any, Any], meant: Mapping[Any, int]) -> None:
    """Replace ports, numbers or names, in all probes and hooks that ask the pod; also in their command lines.

    Another host is asked on the port as it was: `meant` has the number of a name that goes.
    """
    if not become:
        return
    numbers = {old: new for old, new in become.items() if isinstance(old, int) and isinstance(new, int)}

    def following(_: str, handler: model.Object) -> model.Object:
        changed = dict(handler)
        for kind in ACTIONS:
            action = handler.get(kind) or {}
            ports = become if hosts.is_own(action.get("host")) else meant
            if action.get("port") in ports:
                changed[kind] = {**action, "port": ports[action["port"]]}
        if words := (handler.get("exec") or {}).get("command"):
            changed["exec"] = {**handler["exec"], "command": command_lines.with_ports(words, numbers)}
        return changed

    app.update(with_handlers(app, following))


def _hand_over(app: model.Object, each: model.Move) -> model.Object:
    """Give the app's declared port another number or name; returns it as it was, {} if there is none."""
    for at, entry in enumerate(app.get("ports") or ()):
        if entry["containerPort"] == each.old and entry.get("protocol") in (None, "", "TCP"):
            name = {"name": _NAMES[each.by_grpc].app} if entry.get("name") else {}
            protocol = {"protocol": "TCP"} if "protocol" in entry else {}
            moved = {**name, "containerPort": each.new, **protocol}
            app["ports"][at] = {**entry, **name} if each.stays else moved
            return dict(entry)
    return {}


def _hand_back(app: model.Object, each: model.Move, own: model.Object) -> None:
    names = _NAMES[each.by_grpc]
    for at, entry in enumerate(app.get("ports") or ()):
        if own and not each.stays and entry.get("containerPort") == each.new:
            is_named = own.get("name") != names.own
            app["ports"][at] = {key: value for key, value in own.items() if is_named or key != "name"}
        elif own.get("name") and each.stays and entry.get("name") == names.app:
            entry["name"] = own["name"]


def _tell(app: model.Object, told_by: str, old: int, new: int) -> None:
    """Change the setting that tells the app its port, as far as it says the old one."""
    value = edits.variable(app, told_by) or ""
    if told_by.startswith("-"):
        edits.change_flag_port(app, told_by, old, new)
    elif command_lines.port_in(value) == old:
        edits.set_variable(app, told_by, command_lines.with_port(value, new))


def _add(app: model.Object, told_by: str, port: int) -> None:
    if told_by.startswith("-"):
        app["args"] = [*(app.get("args") or ()), f"{told_by}={port}"]
    else:
        edits.set_variable(app, told_by, str(port))


def _drop(app: model.Object, told_by: str, port: int) -> None:
    if told_by.startswith("-"):
        edits.drop_words(app, "args", [f"{told_by}={port}"])
    elif command_lines.port_in(edits.variable(app, told_by) or "") == port:
        edits.remove_variable(app, told_by)


def edited(app: model.Object, name: str, moves: Sequence[model.Move]) -> Iterator[str]:
    """A warning for each setting that does not tell an injected app the port that it was given, and so stays as it is.

    Somebody has changed or removed it since.
    """
    for each in moves:
        if each.told_by is None:
            continue
        words = [*(app.get("command") or ()), *(app.get("args") or ())]
        values = [value for _, _, value in command_lines.flag_values(words, each.told_by)]
        held = values if each.told_by.startswith("-") else [edits.variable(app, each.told_by) or ""]
        if each.new not in map(command_lines.port_in, held):
            yield (
                f"{each.told_by} of container {name!r} does not say {each.new}, as it did once it was injected: it "
                f"stays as it is; see that the app listens on {each.old} again"
            )
