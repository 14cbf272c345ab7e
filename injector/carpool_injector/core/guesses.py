"""What speaks for it that a program that nobody knows is reached within its pod only, or speaks TLS.

Such programs have no row in `servers`; but most read flags and variables that go by the same few names, and a launcher
that nobody knows may start a server that has one. Proof that callers reach the port outweighs nearly all of it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from carpool_injector.core import command_lines, hosts, invocations, listening, pods, servers
from carpool_injector.core.listening import Reach

# A flag and variables with URLs, one of which may be the one where the program listens.
_URL_FLAG = "--urls"
_URLS = re.compile(r"((ASPNETCORE|DOTNET)_)?(URLS|Kestrel__Endpoints__\w+__Url)", re.ASCII | re.IGNORECASE)
# Flags and variables by which programs of any kind are told where to listen.
_HOST_FLAGS = (
    "--host", "--hostname", "--http-address", "--http-host", "--bind", "-b", "--bind-address", "--bind-host",
    "--listen", "--listen-address", "--listen-addr", "--listen-host", "--address", "--addr", "--ip", "--http",
    "--server-host", "--server.address", "--server-address", "--web.listen-address", "-listen", "-addr", "-address",
    "-bind", "-host", "-http", "-Dserver.address", "-Dserver.host", "-Dhttp.host", "-Dquarkus.http.host",
    "-Dmicronaut.server.host", _URL_FLAG,
)  # fmt: skip
_GRPC_HOST_FLAGS = (
    "--grpc-host", "--grpc-hostname", "--grpc-address", "--grpc-addr", "--grpc-bind", "--grpc-bind-address",
    "--grpc-listen", "--grpc-listen-address", "--grpc-listen-addr", "--grpc_host", "--grpc_address", "--grpc", "-grpc",
    *_HOST_FLAGS,
)  # fmt: skip
_HOST_VARIABLE = re.compile(
    r"((APP|SERVER|HTTP|WEB|API|SERVICE|QUARKUS_HTTP|MICRONAUT_SERVER)_)?(HOST|BIND|LISTEN)|SERVER_ADDRESS"
    r"|([A-Z]+_)*(BIND|LISTEN)_(HOST|ADDR|ADDRESS|IP)"
)
# Those that tell it a port beside such a host.
_PORT_FLAG = re.compile(
    r"--?(D?(http|https|server|web|app|api|listen|bind|service|quarkus\.http|micronaut\.server)[-_.]?)?port", re.ASCII
)
_GRPC_PORT_FLAG = re.compile(rf"--?grpc[-_.]?port|{_PORT_FLAG.pattern}", re.ASCII)
# Variables with options for Java's virtual machine, the weakest first; the last ones are read by scripts.
_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "JAVA_OPTS", "JAVA_OPTS_APPEND", "JVM_OPTS", "CATALINA_OPTS")
_OPTIONS_THAT_COUNT_MOST = ("_JAVA_OPTIONS",)
_ENDS_AS_A_HOST = re.compile(r"(HOST|BIND|LISTEN|ADDR|ADDRESS|IP)$")
_KINDS_OF_APPS = re.compile(r"(_(SERVER|SERVICE|SVC|HTTP|WEB|API|APP|BACKEND|V[0-9]+))+$", re.ASCII)
_PROGRAMS = frozenset(program for server in servers.SERVERS for program in server.programs)
_MOST = 8  # names of programs among the words of another one
_STARTS_NOTHING = {
    "pip", "pip3", "apt", "apt-get", "apk", "echo", "printf", "which", "command", "type", "test", "[", "[[", "pgrep",
    "pkill", "killall", "cd", "ls", "cp", "mkdir", "chmod", "chown",
}  # fmt: skip


def reach(container: pods.Container, port: int, named: Iterable[str] = (), by_grpc: bool = False) -> Iterator[Reach]:
    """What speaks for it that a program that nobody knows is reached within the pod only.

    Proof outweighs it, but for a plain flag for the host. `named` is what the app may be called, beside its container,
    image and program: a variable of that name tells it where it listens, one of another name may speak of a database.
    """
    runs = _runs(container)
    for each in runs:
        yield from _hidden(container, each, port, by_grpc)
    own = _own_words([*named, container.name, (container.image or "").rpartition("/")[2], runs[-1].program])
    found = _told_as_usual(container, runs, port, own, by_grpc)
    if found is not None and found.kind == "loopback":
        yield replace(found, certain=found.certain and not invocations.of(container).is_shell)


def _runs(container: pods.Container) -> Sequence[invocations.Invocation]:
    """The programs that the container runs: what its shell runs in turn, or itself."""
    return [each for each in invocations.in_shell(container) if not each.is_shell] or [invocations.of(container)]


def _words(container: pods.Container, run: invocations.Invocation) -> list[str]:
    """A program and its words, among those that variables with options give it; the last one counts."""
    source = listening.source_of(container, run)

    def options(names: Sequence[str]) -> list[str]:
        return [word for name in names for word in invocations.split(source.variable(name) or "")]

    return [run.program, *options(_OPTIONS), *run.behind, *options(_OPTIONS_THAT_COUNT_MOST)]


def _variables(container: pods.Container, run: invocations.Invocation) -> list[tuple[str, str | None]]:
    """The variables that a program sees, with their values as far as they are known."""
    pairs = [(item["name"], item.get("value")) for item in container.env if item["name"] not in run.variables]
    return [*pairs, *run.variables.items()]


def _own_words(names: Iterable[str]) -> frozenset[str]:
    """Names as variables begin with them, also without a word behind that apps of any kind have: NOTES of notes-api."""
    plain = (re.split(r"[:@.]", name)[0] for name in names)
    found = {re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_") for name in plain}
    return frozenset(filter(None, found | {_KINDS_OF_APPS.sub("", name) for name in found}))


def _is_own_host(name: str, own: frozenset[str]) -> bool:
    """Whether a variable is named like the host of the app itself: NOTES_HOST, NOTES_SERVER_HOST."""
    begin, _, end = name.rpartition("_")
    return _ENDS_AS_A_HOST.fullmatch(end) is not None and not own.isdisjoint((begin, _KINDS_OF_APPS.sub("", begin)))


def _hidden(container: pods.Container, run: invocations.Invocation, port: int, by_grpc: bool) -> Iterator[Reach]:
    """Servers that a program may start whose command line is not understood, unless they are told to listen to all."""
    if run.program in _STARTS_NOTHING or not {"install", "add"}.isdisjoint(run.behind[:3]):
        return
    words = [part for word in run.behind for part in re.split(r"[\s;&|()'\"]+", word)]
    starts = [at for at, word in enumerate(words) if word.rpartition("/")[2] in _PROGRAMS]
    for each in (invocations.of_words(words[at:]) for at in starts[:_MOST]):
        server = servers.recognise(container, each)
        listener = server and (server.grpc if by_grpc else server.http)
        if server is not None and listener and each.program in server.programs:
            source = listening.source_of(container, replace(each, variables={**run.variables, **each.variables}))
            if run.program == "env":  # which takes variables away
                source = listening.inner_source("", source)._replace(words=each.behind)
            found = listening.reach_of(server, listener, container, source, port)
            if found.kind != "any":
                yield Reach("unknown", f"{run.program or 'its image'} may run {server.title}")


def _told_as_usual(
    container: pods.Container,
    runs: Sequence[invocations.Invocation],
    port: int,
    own: frozenset[str],
    by_grpc: bool,
) -> Reach | None:
    """Who reaches these programs, by flags and variables that programs commonly have; None where they say nothing.

    Addresses with another port say nothing, nor does anything beside one that says to listen to all on this port.
    Flags come before variables. In a shell, a host without a port counts for its last program only.
    """
    exact: list[Reach] = []  # by addresses with this port
    found: list[Reach] = []  # the strongest first
    for run in runs:
        source, words = listening.source_of(container, run), _words(container, run)
        ports = set(command_lines.ports_in_flags(words, _GRPC_PORT_FLAG if by_grpc else _PORT_FLAG))
        has_others = any(True for _ in command_lines.ports_in_flags(words))
        is_of_another = run is not runs[-1] or (ports and port not in ports)
        for flag in _GRPC_HOST_FLAGS if by_grpc else _HOST_FLAGS:
            given = list(command_lines.flag_values(words, flag))[-1:]
            for value in (text for _, _, each in given for text in listening.addresses(each)):
                kind, named = _address(listening.expanded(value, source))
                if named == port:
                    exact.append(Reach(kind, f"{flag} {value}"))
                elif named is None and not is_of_another:
                    is_plain = flag.endswith("host") and (port in ports or not has_others)
                    found.append(Reach(kind, f"{flag} {value}", is_plain))
        values = [(word, word.rpartition("=")[2]) for word in words]
        exact += [Reach(_address(value)[0], word) for word, value in values if _ends_with_port(value, port)]
    found = [*exact, *found]
    for name, value, is_exact in _in_variables(container, runs[-1], port, own):
        found.append(Reach(_address(value)[0], f"{name} {value}", opens=listening.opening(name, value)))
        exact += found[-1:] if is_exact else []
    if any(each.kind == "any" for each in exact):
        return None
    return next((each for each in found if each.kind in ("loopback", "any")), None)


def _ends_with_port(value: str, port: int) -> bool:
    return value.endswith(f":{port}") and "/" not in value


def _in_variables(
    container: pods.Container, run: invocations.Invocation, port: int, own: frozenset[str]
) -> Iterator[tuple[str, str, bool]]:
    """Variables that may tell a program where to listen: name, value, and whether it is an address with this port."""
    for name, value in _variables(container, run):
        if not value:
            continue
        is_exact = _ends_with_port(value, port)
        if not is_exact and not any(mark in value for mark in ("127.", "localhost", ":1", f":{port}")):
            continue  # as most are, of hundreds
        if _URLS.fullmatch(name):
            told = ((text, listening.port_of(text)) for text in listening.addresses(value))
            yield from ((name, text, named == port) for text, named in told if named in (None, port))
            continue
        is_named_so = _HOST_VARIABLE.fullmatch(name) is not None or _is_own_host(name, own)
        is_host = is_named_so and "/" not in value and _address(value)[1] is None
        beside = container.variable(_ENDS_AS_A_HOST.sub("PORT", name))
        if is_exact or (is_host and beside in (None, str(port))):
            yield name, value, is_exact


def _address(text: str) -> tuple[hosts.Kind, int | None]:
    """Who reaches an address, and its port."""
    host, port = hosts.split(text)
    return hosts.kind(host), port


def tls_signs(container: pods.Container, port: int) -> list[str]:
    """The flags and variables by which a server that the container runs speaks TLS on a port."""
    known = servers.recognise(container)
    if known is not None:
        return listening.tls_signs(known.http, container, port=port)
    runs = listening.in_shell(container)
    found = [sign for each, server in runs for sign in listening.tls_signs(server.http, container, each, port)]
    return found or list(_usual_tls(container, port))


_TLS_FLAGS = {
    "--ssl-keyfile", "--ssl-certfile", "--keyfile", "--certfile", "--ssl_config_file", "--ssl-cert", "--ssl-key",
    "--ssl-key-file", "--ssl-cert-file", "--tls-key", "--tls-cert", "--tls-key-file", "--tls-cert-file",
    "--tls-private-key-file", "--tls-keyfile", "--tls-certfile", *servers.SPRINGS_TLS,
}  # fmt: skip
_TLS_VARIABLE = re.compile(
    r"((APP|SERVER|HTTP|HTTPS|WEB|API)_)?(TLS|SSL)_(PRIVATE_)?KEY((_?FILE|_PATH)?|_?STORE)", re.ASCII
)
_TLS_ADDRESS = re.compile(r"https://(0\.0\.0\.0|\+|\*|\[::\])(:[0-9]+)?/?", re.ASCII)


def _usual_tls(container: pods.Container, port: int) -> Iterator[str]:
    runs = _runs(container)
    words = [word for each in runs for word in _words(container, each)]
    yield from (flag for flag in (word.partition("=")[0] for word in words) if flag in _TLS_FLAGS)
    flags = command_lines.flag_values(words, _URL_FLAG)
    urls = [(_URL_FLAG, text, False) for _, _, value in flags for text in listening.addresses(value)]
    for name, value in _variables(container, runs[-1]):
        if "KEY" in name and _TLS_VARIABLE.fullmatch(name) and value != "":
            yield name
        elif value is not None and "https:" in value and _URLS.fullmatch(name):
            urls += [(name, text, False) for text in listening.addresses(value)]
        elif value is not None and value.startswith("https:") and _TLS_ADDRESS.fullmatch(value):
            yield name
    yield from listening.tls_of_urls(urls, port)
