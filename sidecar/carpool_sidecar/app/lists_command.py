"""`carpool-sidecar lists`: shows the rules of `--lists`, and tries them on recorded requests before anybody is served.

A rule that is wrong would only be seen by its callers, so this says what a rule makes of a request: its rows, whom it
meets, the call that they become, and, given that call's answer, what each caller gets.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import NamedTuple

from carpool.program import settings
from carpool_sidecar import errors
from carpool_sidecar.app import measuring
from carpool_sidecar.planning import arguments
from carpool_sidecar.protocols import interface
from carpool_sidecar.protocols.lists import codec, room, rules
from carpool_sidecar.protocols.pairs import codec as pairs
from carpool_sidecar.protocols.pairs import destinations

PROG = "carpool-sidecar lists"

_EPILOG = """\
Without any RULES the built-in ones are shown. Examples:

  carpool-sidecar lists                                  the rules that are built in
  carpool-sidecar lists lists.yaml                       check a file of rules
  carpool-sidecar lists lists.yaml --path /embed --request one.json two.json
                                                         what becomes of these two when they come together
  carpool-sidecar lists lists.yaml --path /embed --request one.json two.json --answer answer.json
                                                         and what each is given of this answer to their call
"""

_MOST_ROWS = 100_000


class _Request(NamedTuple):
    """A file with a request, and what was found in it: a payload, or the reason why there is none."""

    name: str
    payload: interface.Payload | None
    reason: errors.NotBatched | None


def main(argv: Sequence[str]) -> int:
    """Print rules, or what they make of requests; the exit status is 0, and 1 if a request is not batched.

    Exits with 2 and one line on standard error for rules or arguments that are wrong.
    """
    parser = _parser()
    chosen = parser.parse_args(argv)
    try:
        found = rules.named(chosen.rules) if chosen.rules else tuple(rules.built_in().values())
        if chosen.rerank_to is not None:
            chosen.rerank_to.check(found)
    except ValueError as error:
        settings.fail(PROG, str(error))
    if chosen.path is None:
        if chosen.request or chosen.answer:
            parser.error("--request and --answer need --path, by which a rule is found")
        sys.stdout.write(_table(found))
        return 0
    if not chosen.request:
        parser.error("--path needs --request FILE, whose rows are looked for")
    return _try(found, chosen.path, chosen.request, chosen.answer, chosen.rerank_to)


def _table(found: Sequence[rules.Rule]) -> str:
    blocks = []
    for rule in found:
        lists = ", ".join(place.text for place in rule.rows)
        answers = ", ".join(place.text for place in rule.answers)
        blocks.append(
            f"{rule.name}: {rule.about or 'a rule of your own'}\n"
            f"  POST {' '.join(rule.paths)}\n"
            f"  rows at {lists}; answers at {answers}\n"
        )
    return "\n".join(blocks)


# --- trying rules -----------------------------------------------------------------------------------------------


def _try(
    found: Sequence[rules.Rule],
    path: str,
    names: Sequence[str],
    answer: str | None,
    to: destinations.Destination | None,
) -> int:
    try:
        matching = codec.rules_for(path.partition("?")[0], found)
    except errors.Unbatchable as verdict:
        sys.stdout.write(f"{path}: not batched, {verdict.reason}: {verdict.reason.meaning}\n")
        return 1
    if not matching:
        paths = ", ".join(each for rule in found for each in rule.paths)
        settings.fail(PROG, f"no rule is for the path {path}; there are rules for {paths}")
    by = pairs.codec_by(matching, to, clock=lambda: 0.0)
    requests = [_read(by, name) for name in names]
    groups: dict[Hashable, list[_Request]] = {}
    for request in requests:
        if request.payload is None:
            reason = request.reason
            sys.stdout.write(f"{request.name}: not batched, {reason}: {reason.meaning if reason else ''}\n")
        else:
            groups.setdefault(request.payload.key, []).append(request)
    for number, members in enumerate(groups.values(), 1):
        if not _show(by, path, f"call {number} of {len(groups)}", members, answer):
            return 1
    return 0 if all(request.payload is not None for request in requests) else 1


def _read(by: interface.Codec, name: str) -> _Request:
    body = _bytes(name)
    try:
        return _Request(name, by.parse(body, _MOST_ROWS), None)
    except errors.Unbatchable as verdict:
        return _Request(name, None, verdict.reason)
    except errors.CarpoolError as error:
        settings.fail(PROG, f"{name}: {error}")


def _show(by: interface.Codec, path: str, title: str, members: Sequence[_Request], answer: str | None) -> bool:
    """Print one call and what comes of it; whether the answer, if there is one, is as the rule says."""
    payloads = [member.payload for member in members if member.payload is not None]
    call = measuring.merged(by, "tried", path, payloads)
    sys.stdout.write(f"{title}: {', '.join(member.name for member in members)}\n")
    for member, payload in zip(members, payloads, strict=True):
        sys.stdout.write(
            f"  {member.name}: {payload.row_count} row(s), {sum(payload.row_sizes(0, payload.row_count))} bytes\n"
        )
    taken = sum(sum(payload.row_room(0, payload.row_count)) for payload in payloads) / room.WHOLE
    if taken:
        several = "" if taken <= 1 else ": it becomes several calls"
        sys.stdout.write(f"  {taken:.1%} of what the limits of its rule let into one call{several}\n")
    sys.stdout.write(f"  POST {call.target}\n  {_shown(b''.join(call.body))}\n")
    if answer is None:
        return True
    try:
        found = call.read(interface.UpstreamResponse(_bytes(answer), {b"content-type": b"application/json"}))
    except errors.UpstreamError as error:
        sys.stdout.write(f"  {answer}: {error}\n")
        return False
    for member, body in zip(members, measuring.bodies("tried", found, payloads), strict=True):
        sys.stdout.write(f"  {member.name} gets {_shown(body)}\n")
    return True


def _shown(body: bytes) -> str:
    text = body.decode(errors="replace").strip()
    return text if len(text) <= 2000 else f"{text[:2000]}… ({len(body)} bytes)"


def _bytes(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        settings.fail(PROG, f"{name} cannot be read: {error.strerror}")


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        prog=PROG,
        description="Show the rules of --lists, or try them on recorded requests. Nothing is sent.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("rules", nargs="*", metavar="RULES", help="names of built-in rules, YAML files, or YAML, as for --lists")
    add("--path", metavar="PATH", help="path that the requests go to")
    add("--request", nargs="+", default=[], metavar="FILE", help="bodies of requests; - is standard input")
    add("--answer", metavar="FILE", help="body of the server's answer to the call that they become")
    arguments.add_destination(parser)
    return parser
