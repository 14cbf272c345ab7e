"""Ports in words: in flags that programs are given, and in the command lines of exec probes and hooks.

A command of a probe runs inside of the container, so `localhost:8000` there is the app. When the app moves, such an
address has to move with it: the sidecar would answer in its place, and say that it is well while no app runs. An
address is certain where its host is the loopback, or left out as Go's programs allow. Where a port is spoken of in
another way (in a variable, as a flag of some script, behind a host that a shell works out) nobody can know what is
meant. Another host's name is another host. Pure: words in, words or findings out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

# Words are looked at in one piece, so that a host and a port may be two of them.
_END = "\0"
_LOOPBACK = (
    r"(?:(?i:localhost(?:\.localdomain)?\.?|ip6-localhost|ip6-loopback)|127(?:\.[0-9]{1,3}){1,3}|0\.0\.0\.0|(?<=//)0"
    r"|\[::1?\]|\[(?:0{1,4}:){7}0{0,3}1\]|(?i:\[::ffff:127(?:\.[0-9]{1,3}){3}\])|::1)"
)
_BEHIND = r"(?P<port>[1-9][0-9]{0,4})(?![\w.-])"
# `localhost:8000`, `localhost 8000`, `('localhost', 8000)`, `/dev/tcp/localhost/8000`; `:8000` of Go.
_NAMED = rf"(?<![\w.-]){_LOOPBACK}['\"]?(?:[\s\0]*[,:][\s\0]*|[\s\0]+|/)"
_LEFT_OUT = r"(?:^|[=\s\0@]|(?<![\w.})`])['\"]|//):"  # a quote that closes has a host before it
_CERTAIN = re.compile(rf"(?P<host>{_NAMED}|{_LEFT_OUT}){_BEHIND}", re.ASCII)
# Of `${NAME}:8000` and `$(command):8000` the end is enough, however deep they go, and needs no search.
_COMPUTED = r"(?:\$\w+|[})`])['\"]?:"
_FLAG = r"(?i:port)['\"]?[\s\0=:,]+['\"]?|(?<![\w-])-p[\s\0=]*"
_ALONE = r"(?<![\w.:-])"
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::?[-=](?P<otherwise>[0-9]{1,5})\})?|\((\w+)\)|(\w+))", re.ASCII)
_SHOWN = 60
Variable = Callable[[str], str | None]
"""What a variable literally is; None for one that is not known."""
_LOWEST = 1024  # a smaller number by itself is as likely seconds, or a signal

_GRPC_PROGRAMS = re.compile(r"(?<![\w-])(grpc_health_probe|grpc-health-probe|grpcurl)(?![\w-])", re.ASCII)
_ANY_PORT = re.compile(r":([0-9]{1,5})(?![\w.])", re.ASCII)


def with_ports(words: Sequence[str], changes: Mapping[int, int]) -> list[str]:
    """The words with other ports in the addresses that are certainly this pod's; as they are if one has a NUL."""
    if any(_END in word for word in words):
        return list(words)

    def changed(found: re.Match[str]) -> str:
        port = int(found["port"])
        return f"{found['host']}{changes.get(port, port)}"

    return _CERTAIN.sub(changed, _END.join(words)).split(_END)


def ports(words: Sequence[str]) -> Iterator[int]:
    """The ports of the addresses that are certainly this pod's."""
    return (int(found["port"]) for found in _CERTAIN.finditer(_END.join(words)))


def unclear(words: Sequence[str], port: int, variable: Variable) -> str:
    """What may or may not mean the app's `port`, "" if nothing does.

    `variable` gives what a variable literally is, None for one that is not known.
    """
    text = _CERTAIN.sub("", _END.join(words))
    behind = rf"{port}(?![\w.])"
    patterns = [rf"{_COMPUTED}{behind}", rf"(?:{_FLAG}){behind}"]
    patterns += [rf"{_ALONE}{behind}"] if port >= _LOWEST else []
    for pattern in patterns:
        found = re.search(pattern, text, re.ASCII)
        if found:
            return _shown(text, found)
    values: dict[str, str | None] = {}
    for found in _VARIABLE.finditer(text):
        name = _name(found)
        if name not in values:
            values[name] = variable(name)
        value = values[name]
        if port in (_ports_in(value) if value is not None else {int(found["otherwise"] or 0)}):
            return found[0]
    return ""


def _shown(text: str, found: re.Match[str]) -> str:
    """What was found; of something computed from where it begins, as far as that is near."""
    opening = {"}": "${", ")": "$(", "`": "`"}.get(found[0][0])
    start = text.rfind(opening, max(0, found.start() - _SHOWN), found.start()) if opening else -1
    return text[start if start >= 0 else found.start() : found.end()].replace(_END, " ")


def _name(found: re.Match[str]) -> str:
    return str(found["braced"] or found[3] or found[4])


def _ports_in(value: str) -> set[int]:
    """The port that a variable's value is, or the ports of this pod's addresses in it."""
    number = whole(value)
    return set(ports([value])) if number is None else {number}


def grpc_program(words: Sequence[str], port: int, variable: Variable, only_port: bool) -> str:
    """The program that asks this port by gRPC; "" if none does. Where none is named, it asks the app's `only_port`."""
    text = _END.join(words)
    program = _GRPC_PROGRAMS.search(text)
    if program is None:
        return ""
    named = {int(found[1]) for found in _ANY_PORT.finditer(text)}
    for found in _VARIABLE.finditer(text):
        named |= _ports_in(variable(_name(found)) or "")
    return program[0] if port in named or (not named and only_port) else ""


_ENDING_IN_NUMBER = re.compile(r"(|.*:)([0-9]{1,5})", re.ASCII | re.DOTALL)
_JOINED = re.compile(r"[0-9.]+$|:+[0-9]|[0-9*\[][^=]*:|localhost", re.ASCII)


def whole(text: str | None, digits: int = 5) -> int | None:
    """The number that a text is in plain digits, as ports are written; None for others."""
    is_number = text is not None and text.isascii() and text.isdecimal() and len(text) <= digits
    return int(text) if text is not None and is_number else None


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

    `--flag=value`, `--flag value`, and for flags of one letter `-fvalue` where the value is a number or an address.
    """
    for at, word in enumerate(words):
        if word.startswith(flag + "="):
            yield at, flag + "=", word[len(flag) + 1 :]
        elif word == flag and at + 1 < len(words):
            yield at + 1, "", words[at + 1]
        elif len(flag) == 2 and word.startswith(flag) and _JOINED.match(word, 2):
            yield at, flag, word[2:]


def last_value(words: Sequence[str], flag: str) -> str | None:
    """The value that a flag is given last, which is the one that counts."""
    found = [value for _, _, value in flag_values(words, flag)]
    return found[-1] if found else None


_PORT_FLAG = re.compile(r"-.*port.*", re.ASCII | re.DOTALL)


def ports_in_flags(words: Sequence[str], flags: re.Pattern[str] = _PORT_FLAG) -> Iterator[int]:
    """Numbers that `flags` are given, those with `port` in their name if not told which: `--grpc-port=9000`."""
    for at, word in enumerate(words):
        name, joined, value = word.partition("=")
        if not joined and at + 1 < len(words):
            value = words[at + 1]
        number = whole(value) if flags.fullmatch(name) else None
        if number is not None:
            yield number
