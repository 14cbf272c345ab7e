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


@dataclass(frozen=True, slots=True)
class Reach:
    """Who reaches a server: whoever reaches the pod (`any`), its own containers (`loopback`), who calls `one` address.

    `sign` says in words by what that is known; it is `certain` where the manifest says so itself.
    """

    kind: hosts.Kind
    sign: str = ""
    certain: bool = False


class _Source(NamedTuple):
    """Words and variables that a server is given."""

    words: Sequence[str]
    variable: Callable[[str], str | None]
    has_variable: Callable[[str], bool]


_POD_ADDRESS = "the-pods-address"


def _of(container: pods.Container, run: invocations.Invocation | None = None) -> _Source:
    """What the program that the container runs is given, or `run`, another of its programs."""
    run = run or invocations.of(container)
    own: Mapping[str, str | None] = run.variables

    def variable(name: str) -> str | None:
        if name in own:
            return own[name]
        return _POD_ADDRESS if container.is_pod_address(name) else container.variable(name)

    return _Source(run.behind, variable, lambda name: name in own or container.has_variable(name))


def _given(setting: Setting, source: _Source) -> list[tuple[str, str | None]]:
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
        elif source.has_variable(name):
            found.append((-1, name, source.variable(name)))
    return [(name, value) for _, name, value in sorted(found, key=lambda each: each[0])]


def _positional(subcommand: str, words: Sequence[str]) -> Iterator[tuple[int, str, str | None]]:
    at = list(words).index(subcommand) if subcommand in words else len(words)
    for place, word in enumerate(words[at + 1 :]):
        if not word.startswith("-"):
            yield place, subcommand, word
            return


def _inner(value: str, source: _Source) -> _Source:
    """The words that a variable with further flags holds; variables count with the container's own."""
    return _Source(invocations.split(value), source.variable, lambda name: False)


_UNTELLING: Mapping[servers.Kind, str] = {
    "file": "{name} may tell it another one",
    "hint": "its code may overrule {name}",
    "elsewhere": "{name} lets it listen elsewhere",
}


def told(listener: Listener, container: pods.Container) -> Told:
    """How a server can be told another port: by the strongest setting that tells it one, or by one that is added.

    A flag that refers to a variable (`--port=$(PORT)`) is told by that variable.
    """
    run = invocations.of(container)
    source = _of(container, run)
    for at, setting in enumerate(listener.settings):
        given = _given(setting, source)
        if not given or setting.kind == "host":
            continue
        name, value = given[-1]
        if setting.kind == "file" and listener.adds in Listener(0, listener.settings[:at]).names("port"):
            break  # what is added is stronger
        if setting.kind == "flags":
            if value is None or any(_given(each, _inner(value, source)) for each in listener.settings):
                return Told(None, f"{name} tells it one")
            continue
        if setting.kind in _UNTELLING:
            return Told(None, _UNTELLING[setting.kind].format(name=name))
        if setting.several and len(given) > 1:
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
    source = _of(container)
    files = [setting for setting in listener.settings if setting.kind == "file"] if listener else []
    return any(_given(setting, source) for setting in files)


def tls_signs(listener: Listener, container: pods.Container, run: invocations.Invocation | None = None) -> list[str]:
    """The flags and variables by which a server speaks TLS there; `run`: as this program of the container."""
    source = _of(container, run)
    sources = [source, *(_inner(source.variable(name) or "", source) for name in listener.names("flags"))]

    def values(name: str) -> list[str | None]:
        return [value for each in sources for _, value in _given(Setting("file", (name,)), each)]

    found = [name for name in listener.mutual_tls if values(name)]
    for name in listener.tls:
        no = _NO if name.startswith("-") else (*_NO, "")
        last = values(name)[-1:]
        found += [name] if last and (last[0] is None or last[0].lower() not in no) else []
    return found


def reach(container: pods.Container, by_grpc: bool = False) -> list[Reach]:
    """Who reaches each server that the container is known to run, by HTTP or gRPC; none where none is known."""
    server = servers.recognise(container)
    if server is not None:
        listener = server.grpc if by_grpc and server.grpc else server.http
        return [_reach(server, listener, container, _of(container))]
    runs = [(each, found) for each, found in _in_shell(container) if each.program in found.programs]
    reached = [_reach(found, found.http, container, _of(container, each)) for each, found in runs]
    return [replace(each, certain=False) for each in reached]


def _in_shell(container: pods.Container) -> Iterator[tuple[invocations.Invocation, servers.Server]]:
    """What a shell of the container runs and is a known server."""
    runs = ((each, servers.recognise(container, each)) for each in invocations.in_shell(container))
    return ((each, server) for each, server in runs if server is not None)


def told_reach(listener: Listener, container: pods.Container) -> hosts.Kind:
    """Who reaches a listener by what it is told; `any` where it is told nothing."""
    found = _told_reach(listener.settings, _of(container))
    return found.kind if found else "any"


def tls_of_runs(container: pods.Container) -> list[str]:
    """The flags and variables by which a server that the container runs speaks TLS."""
    known = servers.recognise(container)
    if known is not None:
        return tls_signs(known.http, container)
    found = [sign for each, server in _in_shell(container) for sign in tls_signs(server.http, container, each)]
    return found or list(_usual_tls(container))


# Of programs that nobody knows.
_TLS_FLAGS = {
    "--ssl-keyfile", "--ssl-certfile", "--keyfile", "--certfile", "--ssl_config_file", "--ssl-cert", "--ssl-key",
    "--ssl-key-file", "--ssl-cert-file", "--tls-key", "--tls-cert", "--tls-key-file", "--tls-cert-file",
    "--tls-private-key-file", "--tls-keyfile", "--tls-certfile",
}  # fmt: skip
_TLS_VARIABLE = re.compile(r"((APP|SERVER|HTTP|HTTPS|WEB|API)_)?(TLS|SSL)_(PRIVATE_)?KEY(_?FILE|_PATH)?", re.ASCII)
_TLS_ADDRESS = re.compile(r"https://(0\.0\.0\.0|\+|\*|\[::\])(:[0-9]+)?/?", re.ASCII)


def _usual_tls(container: pods.Container) -> Iterator[str]:
    yield from (flag for flag in (word.partition("=")[0] for word in container.words) if flag in _TLS_FLAGS)
    for item in container.env:
        value = item.get("value")
        is_told = "KEY" in item["name"] and _TLS_VARIABLE.fullmatch(item["name"]) and value != ""
        if is_told or (value is not None and value.startswith("https:") and _TLS_ADDRESS.fullmatch(value)):
            yield item["name"]


def _reach(server: servers.Server, listener: Listener, container: pods.Container, source: _Source) -> Reach:
    found = _told_reach(listener.settings, source)
    if found is not None:
        return found
    if not container.image_names.isdisjoint(server.opened_by) or listener.host == servers.ANY:
        return Reach("any")
    if listener.host:
        return Reach("loopback", f"{server.title} listens on {listener.host} unless it is told otherwise")
    return Reach("unknown")


def _told_reach(settings: Sequence[Setting], source: _Source) -> Reach | None:
    for setting in settings:
        for name, value in _given(setting, source)[::-1]:
            if setting.kind == "elsewhere":
                return Reach("loopback", name, True)
            if setting.kind == "file":
                return Reach("unknown", f"{name} may tell it where to listen")
            if setting.kind == "flags":
                inner = _told_reach(settings, _inner(value or "", source))
                if value is None or inner is not None:
                    return inner or Reach("unknown", f"{name} may tell it where to listen")
            elif setting.kind in ("port", "hint"):
                if setting.host:
                    return Reach("any", certain=True)
            else:
                return _reach_of_values(setting, [value for _, value in _given(setting, source)], name, source)
    return None


def _reach_of_values(setting: Setting, values: list[str | None], name: str, source: _Source) -> Reach:
    kinds = {_kind(setting, value, source) for value in (values if setting.several else values[-1:])}
    sign = f"{name} {values[-1] or ''}".strip()
    if len(kinds) > 1:
        return Reach("unknown", f"{name} names several addresses")
    (kind,) = kinds
    return Reach(kind, sign, kind != "unknown")


def _kind(setting: Setting, value: str | None, source: _Source) -> hosts.Kind:
    if value is None:
        return "unknown"
    if setting.bare_host and (not value or value.startswith("-")):
        return hosts.kind(setting.bare_host)
    text = _expanded(value, source)
    if setting.kind == "host":
        is_text = setting.host and not re.fullmatch(r"[0-9a-fA-F:.*\[\]]*|localhost", text)
        return hosts.kind(setting.host if is_text else text)
    if text.partition(":")[0] in ("unix", "fd") or (setting.kind == "positional" and text.isdecimal()):
        return "loopback"  # a socket's file; a port alone
    return hosts.kind(hosts.host_of(text))


def _expanded(text: str, source: _Source) -> str:
    """With the variables that it refers to; of those that come from elsewhere nothing is known."""

    def variable(name: str) -> str | None:
        known = source.variable(name)
        return f"${name}" if known is None and source.has_variable(name) else known

    return invocations.expanded(text, variable)


# Flags and variables by which programs of any kind are told where to listen.
_HOST_FLAGS = (
    "--host", "--hostname", "--http-address", "--http-host", "--bind", "-b", "--bind-address", "--bind-host",
    "--listen", "--listen-address", "--listen-addr", "--listen-host", "--address", "--addr", "--ip", "--http",
    "--server-host", "--server.address", "--server-address", "--web.listen-address", "-listen", "-addr", "-address",
    "-bind", "-host", "-http",
)  # fmt: skip
_HOST_VARIABLE = re.compile(
    r"((APP|SERVER|HTTP|WEB|API|SERVICE)_)?(HOST|BIND|LISTEN)|([A-Z]+_)*(BIND|LISTEN)_(HOST|ADDR|ADDRESS|IP)"
)


_ENDS_AS_A_HOST = re.compile(r"(HOST|BIND|LISTEN|ADDR|ADDRESS|IP)$")
_PROGRAMS = frozenset(program for server in servers.SERVERS for program in server.programs)
_MOST = 8  # names of programs among the words of another one
_STARTS_NOTHING = {
    "pip", "pip3", "apt", "apt-get", "apk", "echo", "printf", "which", "command", "type", "test", "[", "[[", "pgrep",
    "pkill", "killall", "cd", "ls", "cp", "mkdir", "chmod", "chown",
}  # fmt: skip


def guesses(container: pods.Container, port: int) -> Iterator[Reach]:
    """What speaks for it that a program that nobody knows is reached within the pod only.

    Proof outweighs it, but for a plain flag for the host.
    """
    run = invocations.of(container)
    runs = [each for each in invocations.in_shell(container) if not each.is_shell] or [run]
    for each in runs:
        yield from _hidden(container, each)
    found = _told_as_usual(container, runs, port)
    if found is not None and found.kind == "loopback":
        yield Reach(found.kind, found.sign, found.certain and not run.is_shell)


def _hidden(container: pods.Container, run: invocations.Invocation) -> Iterator[Reach]:
    """Servers that a program may start whose command line is not understood, unless they are told to listen to all."""
    if run.program in _STARTS_NOTHING or not {"install", "add"}.isdisjoint(run.behind[:3]):
        return
    words = [part for word in run.behind for part in re.split(r"[\s;&|()'\"]+", word)]
    starts = [at for at, word in enumerate(words) if word.rpartition("/")[2] in _PROGRAMS]
    for each in (invocations.of_words(words[at:]) for at in starts[:_MOST]):
        server = servers.recognise(container, each)
        if server is not None and each.program in server.programs:
            source = _of(container, replace(each, variables={**run.variables, **each.variables}))
            if run.program == "env":  # which takes variables away
                source = _inner("", source)._replace(words=each.behind)
            found = _reach(server, server.http, container, source)
            if found.kind != "any":
                yield Reach("unknown", f"{run.program or 'its image'} may run {server.title}")


def _told_as_usual(container: pods.Container, runs: Sequence[invocations.Invocation], port: int) -> Reach | None:
    """Who reaches these programs, by flags and variables that programs commonly have; None where they say nothing.

    Addresses with another port say nothing, nor does anything beside one that says to listen to all on this port.
    Flags come before variables. In a shell, a host without a port counts for its last program only.
    """
    exact: list[Reach] = []  # by addresses with this port
    found: list[Reach] = []  # the strongest first
    for run in runs:
        source, words = _of(container, run), (run.program, *run.behind)
        ports = set(command_lines.ports_in_flags(words))
        is_of_another = run is not runs[-1] or (ports and port not in ports)
        for flag in _HOST_FLAGS:
            for _, _, value in list(command_lines.flag_values(words, flag))[-1:]:
                kind, named = _address(_expanded(value, source))
                if named == port:
                    exact.append(Reach(kind, f"{flag} {value}"))
                elif named is None and not is_of_another:
                    found.append(Reach(kind, f"{flag} {value}", flag.endswith("host")))
        values = [(word, word.rpartition("=")[2]) for word in words]
        exact += [Reach(_address(value)[0], word) for word, value in values if _ends_with_port(value, port)]
    found = [*exact, *found]
    for name, value, is_exact in _in_variables(container, runs[-1], port):
        found.append(Reach(_address(value)[0], f"{name} {value}"))
        exact += found[-1:] if is_exact else []
    if any(each.kind == "any" for each in exact):
        return None
    return next((each for each in found if each.kind in ("loopback", "any")), None)


def _ends_with_port(value: str, port: int) -> bool:
    return value.endswith(f":{port}") and "/" not in value


def _in_variables(container: pods.Container, run: invocations.Invocation, port: int) -> Iterator[tuple[str, str, bool]]:
    """Variables that may tell a program where to listen: name, value, and whether it is an address with this port."""
    pairs = [(item["name"], item.get("value")) for item in container.env if item["name"] not in run.variables]
    for name, value in (*pairs, *run.variables.items()):
        if not value:
            continue
        is_exact = _ends_with_port(value, port)
        if not is_exact and not any(mark in value for mark in ("127.", "localhost", ":1")):
            continue  # as most are, of hundreds
        is_host = _HOST_VARIABLE.fullmatch(name) is not None and "/" not in value and _address(value)[1] is None
        beside = container.variable(_ENDS_AS_A_HOST.sub("PORT", name))
        if is_exact or (is_host and beside in (None, str(port))):
            yield name, value, is_exact


def _address(text: str) -> tuple[hosts.Kind, int | None]:
    """Who reaches an address, and its port."""
    host, text = hosts.host_of(text), text.rstrip("/")
    port = "" if host and text.endswith(host) else text.rpartition(":")[2]
    return hosts.kind(host), int(port) if port.isdecimal() else None


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
    if any("PORT" in each.variables for each in (run, *invocations.in_shell(container))):
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
    for each, server in _in_shell(container):
        told = server.http.names("port", "address") if each.program in server.programs else ("PORT",)
        if "PORT" not in told and not any("PORT" in word for word in each.behind):
            yield f"the shell runs {server.title}, which does not read PORT"
