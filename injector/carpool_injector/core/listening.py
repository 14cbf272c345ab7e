"""Where the server in a container listens, by its row in `servers` and what the container tells it.

What a manifest does not show (an image's variables, files, code) is not known, and said to be. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from carpool_injector.core import command_lines, hosts, invocations, pods, servers
from carpool_injector.core.servers import Listener, Setting


@dataclass(frozen=True, slots=True)
class PortSetting:
    """Where a server is told its port: a flag or a variable, there already or to be added."""

    name: str
    port: int
    present: bool

    @property
    def is_flag(self) -> bool:
        return self.name.startswith("-")

    def __str__(self) -> str:
        return f"argument {self.name}" if self.is_flag else f"environment variable {self.name}"


class Told(NamedTuple):
    """The setting by which a server can be told another port; None: there is none, and `why` says why."""

    setting: PortSetting | None
    why: str = ""


_BY_FLAG = "--host or --bind"


@dataclass(frozen=True, slots=True)
class Reach:
    """Who reaches a server: whoever reaches the pod (`any`), its own containers (`loopback`), who calls `one` address.

    `sign` says in words by what that is known; it is `certain` where the manifest says so itself. `opens` is what would
    let it listen to all.
    """

    kind: hosts.Kind
    sign: str = ""
    certain: bool = False
    opens: str = _BY_FLAG


class Source(NamedTuple):
    """Words and variables that a server is given."""

    words: Sequence[str]
    variable: Callable[[str], str | None]
    has_variable: Callable[[str], bool]
    variables: Sequence[str] = ()


_POD_ADDRESS = "the-pods-address"


def source_of(container: pods.Container, run: invocations.Invocation | None = None) -> Source:
    """What the program that the container runs is given, or `run`, another of its programs."""
    run = run or invocations.of(container)
    own: Mapping[str, str | None] = run.variables

    def variable(name: str) -> str | None:
        if name in own:
            return own[name]
        return _POD_ADDRESS if container.is_pod_address(name) else container.variable(name)

    names = (*own, *(item["name"] for item in container.env))
    return Source(run.behind, variable, lambda name: name in own or container.has_variable(name), names)


def _given(setting: Setting, source: Source) -> list[tuple[str, str | None]]:
    """The names of a setting that are given, with their values (None: not known), the one that counts last."""
    found: list[tuple[int, str, str | None]] = []
    for name in setting.names:
        if name.startswith("-"):
            found += [(at, name, value) for at, _, value in command_lines.flag_values(source.words, name)]
            bare = [at for at, word in enumerate(source.words) if word == name]
            found += [(at + 1, name, "") for at in bare if at + 1 == len(source.words)]
            if setting.kind == "file" and len(name) == 2:
                joined = [(at, word) for at, word in enumerate(source.words) if word.startswith(name) and word != name]
                found += [(at, name, word[2:]) for at, word in joined]
        elif setting.kind == "positional":
            found += _positional(name, source.words)
        elif "*" in name:
            pattern = re.compile(re.escape(name).replace(r"\*", ".*"), re.DOTALL)
            found += [(-1, each, source.variable(each)) for each in source.variables if pattern.fullmatch(each)]
        elif source.has_variable(name):
            found.append((-1, name, source.variable(name)))
    return [(name, value) for _, name, value in sorted(found, key=lambda each: each[0])]


def _positional(subcommand: str, words: Sequence[str]) -> Iterator[tuple[int, str, str | None]]:
    at = list(words).index(subcommand) if subcommand in words else len(words)
    for place, word in enumerate(words[at + 1 :]):
        if not word.startswith("-"):
            yield place, subcommand, word
            return


def inner_source(value: str, source: Source) -> Source:
    """The words that a variable with further flags holds; variables count with the container's own."""
    return Source(invocations.split(value), source.variable, lambda name: False)


_UNTELLING: Mapping[servers.Kind, str] = {
    "file": "{name} may tell it another one",
    "hint": "its code may overrule {name}",
    "urls": "its code may overrule {name}",
    "elsewhere": "{name} lets it listen elsewhere",
}


def told(listener: Listener, container: pods.Container) -> Told:
    """How a server can be told another port: by the strongest setting that tells it one, or by one that is added.

    A flag that refers to a variable (`--port=$(PORT)`) is told by that variable.
    """
    run = invocations.of(container)
    source = source_of(container, run)
    for at, setting in enumerate(listener.settings):
        given = _given(setting, source)
        if not given or setting.kind == "host":
            continue
        name, value = given[-1]
        if setting.kind == "file" and listener.adds in Listener(0, listener.settings[:at]).names("port"):
            break  # what is added is stronger
        if setting.kind == "flags":
            if value is None or any(_given(each, inner_source(value, source)) for each in listener.settings):
                return Told(None, f"{name} tells it one")
            continue
        if setting.kind in _UNTELLING:
            return Told(None, _UNTELLING[setting.kind].format(name=name))
        if setting.several and (len(given) > 1 or len(addresses(value or "")) > 1):
            return Told(None, f"{name} names several addresses")
        if name in run.variables:
            return Told(None, f"its command line sets {name}")
        return _told(setting, name, value, container)
    return Told(PortSetting(listener.adds, listener.port, False) if listener.adds else None)


def _told(setting: Setting, name: str, value: str | None, container: pods.Container) -> Told:
    if setting.kind == "positional":
        return Told(None, f"{value} is no flag or variable")
    if value is None:
        return Told(None, f"{name} comes from elsewhere")
    reference = re.fullmatch(r"(?:.*:)?\$\(([A-Za-z_][A-Za-z0-9_]*)\)", value)
    if reference:
        name, value = reference[1], container.variable(reference[1]) or ""
    if name.startswith("-") and invocations.of(container).is_shell:
        return Told(None, "a shell runs it")
    port = command_lines.port_in(value)
    return Told(None if port is None else PortSetting(name, port, True), f"{name} names no port")


def is_off(listener: Listener, container: pods.Container) -> bool:
    """Whether its switch says that it does not listen; the last one counts."""
    last = command_lines.last_value(container.words, listener.switch) if listener.switch else None
    return last is not None and last.lower() in _NO


_NO = ("false", "off", "0")  # what flags take for no


def may_be_in_a_file(listener: Listener | None, container: pods.Container) -> bool:
    """Whether a file that is not seen here may say another port than the default."""
    source = source_of(container)
    files = [setting for setting in listener.settings if setting.kind == "file"] if listener else []
    return any(_given(setting, source) for setting in files)


def tls_signs(
    listener: Listener, container: pods.Container, run: invocations.Invocation | None = None, port: int | None = None
) -> list[str]:
    """The flags and variables by which a server speaks TLS there; `run`: as this program of the container.

    Of addresses those with this `port` count, or all where none has it.
    """
    source = source_of(container, run)
    sources = [source, *(inner_source(source.variable(name) or "", source) for name in listener.names("flags"))]

    def values(name: str) -> list[str | None]:
        return [value for each in sources for _, value in _given(Setting("file", (name,)), each)]

    found = [name for name in listener.mutual_tls if values(name)]
    for name in listener.tls:
        no = _NO if name.startswith("-") else (*_NO, "")
        last = values(name)[-1:]
        found += [name] if last and (last[0] is None or last[0].lower() not in no) else []
    told = [(each, name, value or "") for each in listener.settings for name, value in _urls(each, source)]
    found += tls_of_urls([(name, text, each.tls) for each, name, value in told for text in addresses(value)], port)
    return found


def _urls(setting: Setting, source: Source) -> list[tuple[str, str | None]]:
    return _given(setting, source) if setting.kind == "urls" else []


def tls_of_urls(addresses: Sequence[tuple[str, str, bool]], port: int | None) -> list[str]:
    """The name of what tells the port's address, the strongest first, if TLS is spoken there.

    Addresses are told by name and text; of a port alone it is said whether it is for TLS.
    """
    exact = [(name, text, tls) for name, text, tls in addresses if port is not None and port_of(text) == port]
    asked = exact[:1] or [(name, text, tls) for name, text, tls in addresses if "://" in text]
    return [asked[0][0]] if asked and all(tls or text.lower().startswith("https:") for _, text, tls in asked) else []


def addresses(text: str) -> list[str]:
    """Those that a text names, with `;` or blanks between them."""
    return re.split(r"[;\s]+", text.strip("; \t\n\"'"))


def port_of(address: str) -> int | None:
    number = command_lines.whole(address)
    return hosts.split(address)[1] if number is None else number


def reach(container: pods.Container, port: int | None = None, by_grpc: bool = False) -> list[Reach]:
    """Who reaches each server that the container is known to run, by HTTP or gRPC; none where none is known.

    Of several addresses those with this `port` count, or all where none has it.
    """
    server = servers.recognise(container)
    if server is not None:
        listener = server.grpc if by_grpc else server.http
        return [reach_of(server, listener, container, source_of(container), port)] if listener else []
    runs = [(each, found) for each, found in in_shell(container) if each.program in found.programs]
    asked = ((each, found, found.grpc if by_grpc else found.http) for each, found in runs)
    reached = [reach_of(found, by, container, source_of(container, each), port) for each, found, by in asked if by]
    return [replace(each, certain=False) for each in reached]


def in_shell(container: pods.Container) -> Iterator[tuple[invocations.Invocation, servers.Server]]:
    """What a shell of the container runs and is a known server."""
    runs = ((each, servers.recognise(container, each)) for each in invocations.in_shell(container))
    return ((each, server) for each, server in runs if server is not None)


def reach_of(
    server: servers.Server, listener: Listener, container: pods.Container, source: Source, port: int | None
) -> Reach:
    found = _told_reach(listener.settings, source, port)
    if found is not None:
        return found
    if not container.image_names.isdisjoint(server.opened_by) or listener.host == servers.ANY:
        return Reach("any")
    if listener.host:
        return Reach("loopback", f"{server.title} listens on {listener.host} unless it is told otherwise")
    return Reach("unknown")


def _told_reach(settings: Sequence[Setting], source: Source, port: int | None = None) -> Reach | None:
    for setting in settings:
        given = _given(setting, source)
        for name, value in given[::-1]:
            if setting.kind == "elsewhere":
                return Reach("loopback", name, True)
            if setting.kind == "file":
                return Reach("unknown", f"{name} may tell it where to listen")
            if setting.kind == "flags":
                inner = _told_reach(settings, inner_source(value or "", source), port)
                if value is None or inner is not None:
                    return inner or Reach("unknown", f"{name} may tell it where to listen")
            elif setting.host and setting.kind in ("port", "hint", "urls"):
                return Reach("any", certain=True)
            elif setting.kind not in ("port", "hint"):
                return _reach_of_values(setting, [value for _, value in given], name, source, port)
    return None


def _reach_of_values(setting: Setting, values: list[str | None], name: str, source: Source, port: int | None) -> Reach:
    told = values[-1:]
    if setting.several:
        told = [text for value in values for text in (addresses(value) if value is not None else [None])]
        is_exact = [bool(text and port) and port_of(expanded(text or "", source)) == port for text in told]
        if any(is_exact) and None not in told:
            told = [text for text, exact in zip(told, is_exact, strict=True) if exact]
    kinds = {_kind(setting, value, source) for value in told}
    if len(kinds) > 1:
        return Reach("unknown", f"{name} names several addresses")
    (kind,) = kinds
    opens = _BY_FLAG if name.startswith("-") and setting.kind != "urls" else opening(name, told[-1] or "")
    return Reach(kind, f"{name} {values[-1] or ''}".strip(), kind != "unknown", opens)


def opening(name: str, value: str) -> str:
    """The setting as it would be with a host that stands for all addresses."""
    joined = " " if name.startswith("-") else "="
    scheme, colon, text = value.rpartition("://")
    _, port = hosts.split(text)
    return f"{name}{joined}{scheme}{colon}{servers.ANY}{'' if port is None else f':{port}'}"


def _kind(setting: Setting, value: str | None, source: Source) -> hosts.Kind:
    if value is None:
        return "unknown"
    if setting.bare_host and (not value or value.startswith("-")):
        return hosts.kind(setting.bare_host)
    text = expanded(value, source)
    if setting.kind == "host":
        return _kind_of_text(text, setting.host)
    is_url = setting.kind == "urls"
    if re.match(r"(https?://)?(unix|fd):", text) or (setting.kind == "positional" and text.isdecimal()):
        return "loopback"  # a socket's file; a port alone
    host = hosts.host_of(text)
    return _kind_of_text(host, servers.ANY if is_url and "$" not in host else "")


def _kind_of_text(text: str, otherwise: str) -> hosts.Kind:
    """Who reaches a host; what is no address may stand for another one."""
    is_text = otherwise and not re.fullmatch(r"[0-9a-fA-F:.*\[\]]*|localhost", text, re.IGNORECASE)
    return hosts.kind(otherwise if is_text else text)


def expanded(text: str, source: Source) -> str:
    """With the variables that it refers to; of those that come from elsewhere nothing is known."""

    def variable(name: str) -> str | None:
        known = source.variable(name)
        return f"${name}" if known is None and source.has_variable(name) else known

    return invocations.expanded(text, variable)


_TELLS_A_PORT = re.compile(r"((APP|SERVER|HTTP|WEB|API|LISTEN|BIND)_)PORT|([A-Z]+_)*(BIND|LISTEN|ADDR|ADDRESS)")
_OF_SERVERS = frozenset(
    name for server in servers.SERVERS for name in server.http.names("port", "address", "flags") if name[0] != "-"
)


def twelve_factor(container: pods.Container) -> Told:
    """Whether the app is told one of its declared ports by PORT, as twelve-factor apps are, and by nothing else.

    A shell that does not speak of PORT is not believed. `why` is empty where PORT does not tell a declared port.
    """
    run, value = invocations.of(container), container.variable("PORT") or ""
    is_heard = not run.is_shell or any(re.search(r"\$\{?PORT\b", word) for word in container.words)
    if not is_heard or not any(value == str(port.container_port) for port in container.ports):
        return Told(None)
    runs = list(invocations.in_shell(container))
    if run.is_shell and not runs:
        return Told(None)
    if any("PORT" in each.variables for each in (run, *runs)):
        return Told(None, "its command line sets PORT")
    rival = next(_rivals(container, value), None)
    if rival is not None:
        return Told(None, f"beside PORT, {rival}, which may count more")
    return Told(PortSetting("PORT", int(value), True))


def _rivals(container: pods.Container, port: str) -> Iterator[str]:
    """What may tell the app this port beside PORT, in words."""
    for at, word in enumerate(container.words):
        if re.search(rf"(?<![0-9.]){port}(?![0-9.])", word):
            before = container.words[at - 1] if at and word == port else ""
            yield f"its words say {f'{before} {word}'.strip()[:60]!r}"
    for item in container.env:
        name, value = item["name"], item.get("value") or ""
        if port not in value or name == "PORT" or not (name in _OF_SERVERS or _TELLS_A_PORT.fullmatch(name)):
            continue
        is_of_another = value.endswith(f":{port}") and not hosts.is_own(hosts.host_of(value))
        if not is_of_another and re.search(rf"(?<![0-9.]){port}(?![0-9.])", value):
            yield f"the variable {name} says it"
    for each, server in in_shell(container):
        told = server.http.names("port", "address") if each.program in server.programs else ("PORT",)
        if "PORT" not in told and not any("PORT" in word for word in each.behind):
            yield f"the shell runs {server.title}, which does not read PORT"
