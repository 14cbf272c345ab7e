"""Small edits of one container's JSON: variables, arguments, ports, probes. Each can be told twice without harm."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from carpool_injector.core import model

APP_PORT_NAME = "carpool-app"
"""Name of the app's port once the sidecar has taken its name over."""
APP_GRPC_PORT_NAME = "carpool-app-rpc"
"""Likewise, of its port for gRPC: a port's name has 15 characters at most."""

_HANDLERS = ("readinessProbe", "livenessProbe", "startupProbe")
_HOOKS = ("postStart", "preStop")
_ENDING_IN_NUMBER = re.compile(r"(|.*:)([0-9]{1,5})", re.ASCII | re.DOTALL)


def set_variable(container: model.Object, name: str, value: str) -> None:
    """Give every variable of that name this value; a new one if there is none."""
    found = [item for item in container.get("env") or () if item.get("name") == name]
    for item in found:
        item.pop("valueFrom", None)
        item["value"] = value
    if not found:
        container["env"] = [*(container.get("env") or ()), {"name": name, "value": value}]


def variable(container: model.Object, name: str) -> str | None:
    """The literal value of a variable."""
    return next((item.get("value") for item in container.get("env") or () if item.get("name") == name), None)


def remove_variable(container: model.Object, name: str) -> None:
    """Take a variable out; the last one takes the list with it."""
    rest = [item for item in container.get("env") or () if item.get("name") != name]
    _put_or_drop(container, "env", rest)


def port_in(value: str) -> int | None:
    """The port a flag's value ends in: `8080`, `0.0.0.0:8080`; None for what is no port."""
    found = _ENDING_IN_NUMBER.fullmatch(value)
    return int(found[2]) if found and 1 <= int(found[2]) <= 65535 else None


def with_port(value: str, port: int) -> str:
    """That value with another port."""
    found = _ENDING_IN_NUMBER.fullmatch(value)
    return f"{found[1]}{port}" if found else str(port)


def flag_values(words: Sequence[str], flag: str) -> Iterator[tuple[int, str, str]]:
    """Where a flag's values stand: the word's place, what is before the value in it, and the value.

    `--flag=value`, `--flag value`, and for flags of one letter `-fvalue` where the value is a number.
    """
    for at, word in enumerate(words):
        if word.startswith(flag + "="):
            yield at, flag + "=", word[len(flag) + 1 :]
        elif word == flag and at + 1 < len(words):
            yield at + 1, "", words[at + 1]
        elif len(flag) == 2 and word.startswith(flag) and word[2:].isdecimal():
            yield at, flag, word[2:]


def ports_in_flags(words: Sequence[str]) -> Iterator[int]:
    """Numbers that flags with `port` in their name are given, e.g. `--grpc-port=9000`."""
    for at, word in enumerate(words):
        name, joined, value = word.partition("=")
        if not joined and at + 1 < len(words):
            value = words[at + 1]
        if name.startswith("-") and "port" in name and value.isdecimal() and value.isascii() and len(value) <= 5:
            yield int(value)


def change_flag_port(container: model.Object, flag: str, old: int, new: int) -> None:
    """Make every value of the flag that ends in port `old` end in `new`, in the command and the arguments."""
    for group in ("command", "args"):
        words: list[str] = container.get(group) or []
        for at, before, value in list(flag_values(words, flag)):
            if port_in(value) == old:
                words[at] = before + with_port(value, new)


def drop_words(container: model.Object, group: str, words: list[str]) -> None:
    """Take the first occurrence of each word out; the last one takes the list with it."""
    rest = list(container.get(group) or ())
    for word in words:
        if word in rest:
            rest.remove(word)
    _put_or_drop(container, group, rest)


def without_flags(words: list[str], flags: dict[str, bool]) -> list[str]:
    """The words without some flags. `flags` tells of each whether its value is a word of its own."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in flags:
            skip = flags[word]
        elif word.partition("=")[0] not in flags:
            kept.append(word)
    return kept


def actions(container: model.Object) -> Iterator[model.Object]:
    """All httpGet, tcpSocket and grpc actions of a container's probes and hooks, as they stand in it."""
    lifecycle = container.get("lifecycle") or {}
    handlers = [container.get(name) for name in _HANDLERS] + [lifecycle.get(name) for name in _HOOKS]
    for handler in handlers:
        for kind in ("httpGet", "tcpSocket", "grpc"):
            action = (handler or {}).get(kind)
            if action is not None:
                yield action


def change_probe_ports(container: model.Object, changes: dict[Any, Any]) -> None:
    """Replace ports, numbers or names, in all probes and hooks."""
    for action in actions(container):
        if action.get("port") in changes:
            action["port"] = changes[action["port"]]


def resolved_probe(container: model.Object, probe: model.Object) -> str | None:
    """A probe as the JSON a sidecar takes (SERVING_READINESS_PROBE), named ports resolved; None for exec probes."""
    ports = {port["name"]: port["containerPort"] for port in container.get("ports") or () if port.get("name")}
    for kind in ("httpGet", "tcpSocket", "grpc"):
        action = probe.get(kind)
        if action is None:
            continue
        port = ports.get(action.get("port"), action.get("port"))
        if isinstance(port, str):
            return None
        timeout = {"timeoutSeconds": probe["timeoutSeconds"]} if probe.get("timeoutSeconds") else {}
        return json.dumps({kind: {**action, "port": port}, **timeout}, separators=(",", ":"))
    return None


def _put_or_drop(container: model.Object, key: str, items: list[Any]) -> None:
    if items:
        container[key] = items
    elif key in container:
        del container[key]
