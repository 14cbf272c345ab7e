"""Where predictions enter a pod: which container is the app, on which ports it listens for HTTP and gRPC.

Answers are certain or refused: a sidecar in front of the wrong port serves nobody, and one in front of an app that
speaks something else answers errors only. gRPC is known of Triton and MLServer, and told by annotations of others. A
pod is taken over with both ports or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from carpool_injector.core import (
    command_lines,
    guesses,
    listening,
    model,
    pod_annotations,
    pods,
    references,
    refusals,
    servers,
    values,
)
from carpool_injector.core.refusals import Reason
from carpool_injector.core.settings import Settings

_HTTP_NAMES = ("http", "http1", "web", "rest", "api", "predict", "serving", "user")
_GRPC_NAMES = ("grpc", "h2c")
# Second words of names such as http-metrics: of ports that no predictions come by. Helm charts name what members of a
# cluster tell each other http-memberlist as well, though that is no HTTP.
_NOT_FOR_CALLERS = {
    "metrics", "prometheus", "prom", "monitoring", "probe", "probes", "health", "healthz", "healthcheck", "livez",
    "readyz", "status", "admin", "debug", "pprof", "memberlist", "gossip", "raft", "peer", "peers",
}  # fmt: skip


_NOT_HTTP1 = ("grpc", "h2c", "http2")
_TLS_NAMES = ("https", "grpcs", "tls", "ssl")


def is_for_http(entry: pods.Port) -> bool:
    """Whether a port's name says that predictions may come by HTTP there."""
    words = (entry.name or "").split("-")
    says_otherwise = not {*_NOT_FOR_CALLERS, *_NOT_HTTP1, *_TLS_NAMES}.isdisjoint(words)
    return entry.is_tcp and words[0] in _HTTP_NAMES and not says_otherwise


def entry_of(container: pods.Container, port: int) -> pods.Port | None:
    """The declaration of a port, None where there is none. Raises `Refusal` where there are several."""
    found = container.declared(port)
    if len(found) > 1:
        raise Reason.PORT_DECLARED_TWICE(container=container.name, port=port)
    return found[0] if found else None


def chosen_port(container: pods.Container, value: str, setting: str) -> int:
    """The port that an annotation's value means. Raises `Refusal` for a name that is not declared."""
    number = int(value) if value.isdecimal() else container.number(value)
    if number is None:
        names = ", ".join(entry.name for entry in container.ports if entry.name) or "none has a name"
        raise Reason.NO_SUCH_PORT(container=container.name, name=value, setting=setting, names=names)
    return number


def _check_http(container: pods.Container, port: int) -> None:
    """Raises `Refusal` if something says that the container's port is not for plain HTTP/1.1."""
    _check_own_grpc(container, port)
    by_name = [f"it is named {each.name!r}" for each in container.declared(port) if _is_named(each, _NOT_HTTP1)]
    for sign in (*by_name, *references.signs_of_grpc(container, port)):
        raise Reason.NOT_HTTP(port=port, container=container.name, sign=sign)
    asked = ["a probe asks it by HTTPS"] if references.is_asked_by_https(container, port) else []
    told = (f"the server is given {each}" for each in guesses.tls_signs(container, port))
    for sign in (*_tls_names(container, port), *asked, *told):
        raise Reason.TLS(port=port, container=container.name, sign=sign)


def _check_own_grpc(container: pods.Container, port: int) -> None:
    """Raises `Refusal` if a protocol of the server's own is answered there; says how callers get to its HTTP."""
    server = servers.recognise(container)
    if server is None or server.own_grpc is None:
        return
    if _told_by_flag(server.own_grpc, container, server.own_grpc.port) != port:
        return
    flag, usual = next(iter(server.http.names("port")), ""), servers.BY_TITLE[server.title].http.port
    http = _told_by_flag(server.http, container, None)
    # The program itself speaks gRPC only unless it is told a port for HTTP; the entrypoint of its image tells one.
    tell = f"give it {flag}={usual}, " if http is None and flag and server.programs else ""
    how = f'{tell}set carpool.dev/port: "{http or usual}"'
    raise Reason.OWN_GRPC(port=port, container=container.name, server=server.title, how=how)


def _told_by_flag(listener: servers.Listener, container: pods.Container, default: int | None) -> int | None:
    values = [command_lines.last_value(container.words, flag) for flag in listener.names("port")]
    return next((command_lines.port_in(value) for value in values if value is not None), default)


def _tls_names(container: pods.Container, port: int) -> list[str]:
    return [f"it is named {each.name!r}" for each in container.declared(port) if _is_named(each, _TLS_NAMES)]


def check_reach(
    pod: pods.Pod,
    container: pods.Container,
    port: int,
    called: references.Called,
    by_grpc: bool = False,
    is_entered: bool = True,
) -> str:
    """What outside of the manifest shows that callers reach the port, where the pod itself does not; else "".

    `is_entered`: it is the port that KServe and Knative call, if the pod is theirs.

    Raises `Refusal` if the port is or may be reached within the pod only: the sidecar would open it to everybody.
    """
    fronts = [each.name for each in pod.fronts if each.name != container.name]
    proxies = fronts or references.callers_within(pod, container, port)
    is_called = is_entered and _is_called(pod, port, proxies)
    proof = "" if is_called else references.proof_of_reach(pod, container, port, called)
    known = listening.reach(container, port, by_grpc)
    found = known or list(guesses.reach(container, port, _app_names(pod), by_grpc))
    for each in found:
        if each.kind == "any" or (proof is not None and not each.certain):
            continue
        if each.kind == "one":
            raise Reason.ONE_ADDRESS(port=port, container=container.name, sign=each.sign)
        if each.certain:
            raise Reason.LOOPBACK(port=port, container=container.name, sign=each.sign, opens=each.opens)
        raise Reason.PERHAPS_LOOPBACK(port=port, container=container.name, sign=each.sign, opens=each.opens)
    proxies = [] if known else proxies
    if proxies and proof is None:
        raise Reason.BEHIND_A_PROXY(port=port, container=container.name, proxy=proxies[0])
    is_needed = proxies or any(each.kind != "any" for each in found)
    return proof if proof and is_needed else ""


_NAMES = ("app", "app.kubernetes.io/name", "k8s-app")


def _app_names(pod: pods.Pod) -> list[str]:
    """What the pod's labels call its app."""
    return [pod.metadata.labels[label] for label in _NAMES if label in pod.metadata.labels]


def _is_called(pod: pods.Pod, port: int, proxies: Sequence[str]) -> bool:
    """Whether KServe or Knative calls the port: not where another container may stand between them and the app.

    Knative's queue-proxy says which port it calls.
    """
    queue = pod.queue_proxy
    if proxies:
        return queue is not None and queue.variable(pods.USER_PORT) == str(port)
    return queue is not None or is_kserve(pod)


def _is_named(entry: pods.Port, words: Sequence[str]) -> bool:
    """Whether one of the first two words of a port's name is one of these: `https`, `web-https`."""
    return not set(words).isdisjoint((entry.name or "").split("-")[:2])


@dataclass(frozen=True, slots=True)
class Entrance:
    """A port of the app by which predictions come. `taken`: those calls are to be the sidecar's.

    `entry` is the declared port, None where the container declares none; `setting` tells the app the port. `left` says
    why nobody but the pod may be let in there, `proof` what shows that callers reach it, where the pod does not.
    """

    port: int
    entry: pods.Port | None
    setting: listening.PortSetting | None
    by_grpc: bool = False
    taken: bool = True
    left: refusals.Refusal | None = None
    proof: str = ""


def find_grpc(
    pod: pods.Pod, container: pods.Container, settings: Settings, called: references.Called
) -> Entrance | None:
    """The app's port for gRPC; None where nothing speaks of one. It is not taken where it may be the pod's alone.

    Raises `Refusal` where one was asked for that cannot be or may be the pod's alone, or where TLS is spoken there.
    """
    known, flag, variable = servers.recognise(container), settings.app_grpc_port_arg, settings.app_grpc_port_env
    listener = servers.custom(flag, variable) if flag or variable else known.grpc if known else None
    wanted = None if settings.grpc_port in values.OFF else settings.grpc_port
    if listener is not None and listening.is_off(listener, container):
        if wanted is not None:
            raise Reason.GRPC_SWITCHED_OFF(port=wanted, switch=listener.switch)
        return None
    if wanted is None and listener is None:
        return None
    setting = listening.told(listener, container).setting if listener else None
    port = _grpc_port(container, wanted, listener, setting)
    entry = entry_of(container, port)
    is_reached = wanted is not None or setting is not None or entry is not None
    is_taken = is_reached and settings.grpc_port not in values.OFF
    left, proof = None, ""
    if is_taken:
        try:
            proof = check_reach(
                pod, container, port, called, by_grpc=True, is_entered=_is_entered(pod, container, port)
            )
        except refusals.Refusal as refusal:
            if wanted is not None or flag or variable:
                raise
            is_taken, left = False, refusal
    if is_taken or settings.upstream == "triton-grpc":
        told = listening.tls_signs(listener, container) if listener else []
        for sign in (*(f"the server is given {each}" for each in told), *_tls_names(container, port)):
            raise Reason.GRPC_TLS(port=port, container=container.name, sign=sign)
    return Entrance(port, entry, setting, by_grpc=True, taken=is_taken, left=left, proof=proof)


def _is_entered(pod: pods.Pod, container: pods.Container, port: int) -> bool:
    """Whether KServe and Knative would call the port: the first one that is declared."""
    declared = container.tcp_ports
    return (is_kserve(pod) or is_knative(pod)) and bool(declared) and declared[0].container_port == port


def _grpc_port(
    container: pods.Container,
    wanted: str | None,
    listener: servers.Listener | None,
    setting: listening.PortSetting | None,
) -> int:
    if wanted is not None:
        return chosen_port(container, wanted, "grpc-port")
    if setting is not None and setting.present:
        return setting.port
    by_name = [entry for entry in container.tcp_ports if _is_named(entry, _GRPC_NAMES)]
    port = by_name[0].container_port if len(by_name) == 1 else listener.port if listener else 0
    if not port:
        raise Reason.NO_GRPC_PORT(container=container.name)
    return port


_KSERVE_CONTAINERS = ("transformer-container", "kserve-container")
_KNATIVES_HTTP2_PORT = 8013  # networking.BackendHTTP2Port of knative/networking
_KSERVE_PORT = 8080  # constants.InferenceServiceDefaultHttpPort of kserve/kserve


@dataclass(frozen=True, slots=True)
class Site:
    """The app's container, and the ports that are `taken` over: for HTTP, for gRPC, or both in this order.

    `grpc` is the port for gRPC, if there is one that matters, taken or not. `by_grpc`: what KServe and Knative send is
    gRPC. `untold` says why nothing tells the app its port for HTTP, `proof` what shows that callers reach the port,
    where the pod itself does not.
    """

    pod: pods.Pod
    container: pods.Container
    taken: tuple[Entrance, ...]
    is_kserve: bool
    server: servers.Server | None
    grpc: Entrance | None = None
    by_grpc: bool = False
    untold: str = ""
    proof: str = ""

    @property
    def port(self) -> int:
        """The port for HTTP, or that for gRPC of an app that speaks nothing else."""
        return self.taken[0].port

    @property
    def entry(self) -> pods.Port | None:
        """Its declaration."""
        return self.taken[0].entry

    @property
    def setting(self) -> listening.PortSetting | None:
        """What tells the app that port."""
        return self.taken[0].setting

    @property
    def has_http(self) -> bool:
        """Whether the app speaks HTTP at all."""
        return not self.taken[0].by_grpc

    @property
    def taken_grpc(self) -> Entrance | None:
        """The port for gRPC, if calls to it are to be the sidecar's."""
        return self.grpc if self.grpc is not None and self.grpc.taken else None


def is_kserve(pod: pods.Pod) -> bool:
    """Whether KServe made the pod."""
    return pods.KSERVE_POD in pod.metadata.labels


def is_knative(pod: pods.Pod) -> bool:
    """Whether Knative's queue-proxy stands in front of the app."""
    return pod.queue_proxy is not None


def _is_sent_http2(pod: pods.Pod) -> bool:
    """Whether Knative was told h2c: it calls the app's port user-port all the same, and queue-proxy has another one."""
    queue = pod.queue_proxy
    return queue is not None and any(port.container_port == _KNATIVES_HTTP2_PORT for port in queue.ports)


def is_predictor(pod: pods.Pod) -> bool:
    """Whether the pod is KServe's, or some container runs a model server.

    Of a web app whose owner has made settings for the sidecar, its server is one.
    """
    if is_kserve(pod) or any(servers.serves_a_model(app) for app in pod.apps):
        return True
    has_settings = not pod_annotations.KNOWN.keys().isdisjoint(pod.metadata.annotations)
    return has_settings and any(servers.recognise(app) is not None for app in pod.apps)


def candidates(pod: pods.Pod, settings: Settings) -> list[pods.Container]:
    """The container that is the app, or where that is not told by a name, those that run a model server."""
    named = _named(pod, settings)
    return [named] if named is not None else [app for app in pod.apps if servers.serves_a_model(app)]


def find(pod: pods.Pod, settings: Settings, called: references.Called | None = None) -> Site:
    """The app's container and ports; `called` are the ports that Services target, as far as they are known.

    Raises `Refusal` where it cannot be told which ones they are, or where HTTP/1.1 or gRPC is not spoken there, or not
    without TLS, or perhaps to nobody outside of the pod.
    """
    container = _container(pod, settings)
    server, told = _server(container, settings)
    if server in servers.SERVERS and not server.http.port and told.setting is None and not told.why:
        raise Reason.NO_HTTP(title=server.title, container=container.name, flag=server.http.names("port")[0])
    grpc = find_grpc(pod, container, settings, called or {})
    if settings.upstream == "triton-grpc" and grpc is None:
        raise Reason.NO_GRPC(container=container.name)
    found = _Found(container, server, told.setting, grpc)
    of_kserve = is_kserve(pod) or is_knative(pod)
    entered = _port(found, settings, of_kserve)
    by_grpc = grpc is not None and entered == grpc.port
    if grpc is not None and by_grpc and not grpc.taken:
        raise grpc.left or Reason.ONLY_GRPC_LEFT(port=entered, container=container.name)
    port = _http_port(found, entered) if by_grpc else entered
    if not by_grpc or port != entered:
        _check_http(container, port)
    if not by_grpc and _is_sent_http2(pod):
        raise Reason.NOT_HTTP(port=port, container=container.name, sign="Knative's queue-proxy sends HTTP/2 to it")
    proof = check_reach(pod, container, entered, called or {}, by_grpc)
    if port != entered:
        check_reach(pod, container, port, called or {})
    http = [Entrance(port, entry_of(container, port), told.setting)] if grpc is None or port != grpc.port else []
    taken = (*http, *([grpc] if grpc and grpc.taken else []))
    proof = proof or (grpc.proof if grpc else "")
    return Site(pod, container, taken, of_kserve, server, grpc, by_grpc, untold=told.why, proof=proof)


class _Found(NamedTuple):
    container: pods.Container
    server: servers.Server | None
    setting: listening.PortSetting | None
    grpc: Entrance | None

    @property
    def taken_port(self) -> int | None:
        return self.grpc.port if self.grpc is not None and (self.grpc.taken or self.grpc.left) else None


def _http_port(found: _Found, entered: int) -> int:
    """Where an app that is entered by gRPC speaks HTTP; that same port where it does not."""
    if found.setting is not None and found.setting.port != entered:
        return found.setting.port
    named = [entry.container_port for entry in found.container.tcp_ports if is_for_http(entry)]
    return named[0] if len(named) == 1 else entered


def _named(pod: pods.Pod, settings: Settings) -> pods.Container | None:
    names = (settings.container,) if settings.container is not None else _KSERVE_CONTAINERS
    return next((app for name in names if (app := pod.container(name)) is not None), None)


def _container(pod: pods.Pod, settings: Settings) -> pods.Container:
    named = _named(pod, settings)
    if settings.container is not None and (named is None or named.name == model.CONTAINER):
        names = ", ".join(app.name for app in pod.apps)
        raise Reason.NO_SUCH_CONTAINER(name=settings.container, names=names)
    return named or _only(pod.apps)


def _only(apps: Sequence[pods.Container]) -> pods.Container:
    """The one app; of several the one that is a known server, or the one that declares a port for HTTP.

    Not the one that declares any port: helpers (exporters, proxies for databases) do, where apps are careless.
    """
    recognised = [app for app in apps if servers.recognise(app) is not None]
    for candidates in (apps, recognised, [app for app in apps if any(map(is_for_http, app.ports))]):
        if len(candidates) == 1:
            return candidates[0]
    names = ", ".join(app.name for app in apps) or "none"
    raise Reason.AMBIGUOUS_CONTAINER(names=names)


def _server(container: pods.Container, settings: Settings) -> tuple[servers.Server | None, listening.Told]:
    """The server, as far as it matters how it is told its port, and by what it is.

    What a server that is known is given counts more than what the pod's owner names: it is what the server reads. Where
    code may overrule what it is given, the owner knows whether it does.
    """
    known = servers.recognise(container)
    if settings.app_port_arg or settings.app_port_env:
        told = listening.told(known.http, container) if known else listening.Told(None)
        vouched = known is not None and settings.app_port_env in known.http.names("urls")
        if (told.why and not vouched) or (told.setting is not None and told.setting.present):
            return known, told
        custom = servers.Server("the app", servers.custom(settings.app_port_arg, settings.app_port_env))
        return custom, listening.told(custom.http, container)
    if known is None:
        told = listening.twelve_factor(container)
        return (servers.TWELVE_FACTOR if told.setting else None), told
    is_off = listening.is_off(known.http, container)
    return known, listening.Told(None) if is_off else listening.told(known.http, container)


def _port(found: _Found, settings: Settings, of_kserve: bool) -> int:
    """The port that is entered: for HTTP, or the one for gRPC where that is the only one, or KServe's choice."""
    container, setting = found.container, found.setting
    if settings.port is not None:
        return chosen_port(container, settings.port, "port")
    if found.taken_port is not None and found.server and listening.is_off(found.server.http, container):
        return found.taken_port
    declared = container.tcp_ports
    if of_kserve:  # KServe and Knative send to the first one
        return declared[0].container_port if declared else _KSERVE_PORT
    if setting is not None and setting.port in [entry.container_port for entry in declared]:
        return setting.port
    listener = found.server.http if found.server else None
    is_known = setting is not None and (setting.present or not listening.may_be_in_a_file(listener, container))
    if setting is not None and is_known and not declared:
        return setting.port
    return _declared_port(found)


def _declared_port(found: _Found) -> int:
    """The one for HTTP; the one for gRPC, where a server's own port for HTTP is not declared."""
    container, ports = found.container, found.container.tcp_ports
    of_grpc = [entry for entry in ports if entry.container_port == found.taken_port]
    others = [entry for entry in ports if entry.container_port != found.taken_port]
    is_undeclared = found.setting is not None and not any(map(is_for_http, others))
    declared = of_grpc if of_grpc and (is_undeclared or not others) else others
    for candidates in (declared, [entry for entry in declared if is_for_http(entry)]):
        if len(candidates) == 1:
            return candidates[0].container_port
    if not declared:
        raise Reason.NO_PORT(container=container.name)
    numbers = ", ".join(str(entry.container_port) for entry in declared)
    raise Reason.AMBIGUOUS_PORT(container=container.name, ports=numbers)
