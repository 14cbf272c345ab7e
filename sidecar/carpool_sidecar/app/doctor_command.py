"""`carpool-sidecar doctor`: one command beside a running predictor that says what batching is worth there, what is
dangerous, and what to set.

It asks what every server may be asked, measures one kind of request for some seconds, and prints annotations and flags.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import NamedTuple

import yarl

from carpool.program import settings
from carpool_sidecar import admin_client, errors
from carpool_sidecar.app import measuring
from carpool_sidecar.doctor import descriptions, examination, identity
from carpool_sidecar.planning import arguments
from carpool_sidecar.protocols import interface, models
from carpool_sidecar.protocols.lists import rules
from carpool_sidecar.protocols.pairs import destinations
from carpool_sidecar.upstream import model_questions, predictor

PROG = "carpool-sidecar doctor"

_EPILOG = """\
Questions are GETs that change nothing. Then the predictor gets real load for some seconds, one call after the other,
unless --ask-only is given: do not point it at one that serves people. Where requests cannot be made up (v1), give
recorded bodies. Examples:

  carpool-sidecar doctor
  carpool-sidecar doctor --url http://127.0.0.1:8080 --path /v1/models/m:predict --body a.json b.json
  kubectl port-forward POD 8080 & carpool-sidecar doctor --url http://127.0.0.1:8080
"""

_HEADERS = (("Accept", "*/*"), ("Accept-Encoding", "identity"), ("User-Agent", "carpool"))
_QUESTION_SECONDS = 5.0
_MOST_TIMEOUTS = 3
_MOST_MODELS = 8
_LARGEST = 64


class _Target(NamedTuple):
    """What is measured: a path, the codec of its requests, and bodies; `made_up` are of other lengths.

    `by` is what joins them, as in `examination.Kind`.
    """

    path: str
    by: str
    codec: interface.Codec
    payloads: tuple[interface.Payload, ...]
    made_up: bool


def main(argv: Sequence[str]) -> int:
    """Ask, measure and print; the exit status is 0, and 1 if no question, or not even one request alone, was answered.

    Exits with 2 and one line on standard error for bad arguments or bodies.
    """
    chosen = _parser().parse_args(argv)
    try:
        base = measuring.address(chosen.url)
        if base != base.origin() / "":
            raise ValueError(f"--url is {base.origin()} alone: the path of requests to measure goes into --path")
        chosen.header = measuring.headers(chosen.header)
        found = asyncio.run(_examine(base.origin(), chosen, rules.named(chosen.lists)))
    except ValueError as error:
        settings.fail(PROG, str(error))
    except errors.UpstreamError as error:
        sys.stderr.write(f"{PROG}: error: {base.origin()}: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"{PROG}: interrupted\n")
        return 1
    told = (
        json.dumps(examination.values(found), indent=2)
        if chosen.json
        else examination.report(found, chosen.url, base.port or 80)
    )
    sys.stdout.write(told + "\n")
    return 1 if found.is_unanswered else 0


async def _examine(base: yarl.URL, chosen: argparse.Namespace, own: Sequence[rules.Rule]) -> examination.Examination:
    """`own` are the rules of --lists.

    Raises `ValueError` for bodies that cannot be batched, and for pairs that no rule makes, and `errors.UpstreamError`
    where nothing answers.
    """
    answers = await _ask(base, chosen.header, min(_QUESTION_SECONDS, chosen.timeout))
    who = identity.recognise(answers)
    described = next(
        (descriptions.operations(answers[path].body) for path in identity.DESCRIPTIONS if path in answers), ()
    )
    tensors = await _tensors(base) if who.speaks_v2 else {}
    found = examination.examine(who, described, tensors)
    if chosen.lists:
        found = found._replace(lists=",".join(chosen.lists))
    if chosen.rerank_to is not None:
        built_in = [kind.by for kind in found.kinds if kind.by in rules.built_in()]
        chosen.rerank_to.check(own or rules.load([*dict.fromkeys(built_in)]))
        found = found._replace(rerank_to=str(chosen.rerank_to))
    target = _target(found, chosen, own)
    if target is None or chosen.ask_only:
        return found
    caller = measuring.Caller(yarl.URL(f"{base}{target.path}"), target.codec, chosen.header, chosen.timeout)
    try:
        largest = measuring.fitting(target.codec, target.payloads, _LARGEST, arguments.say)
        probed = await measuring.measure(caller, target.payloads, largest, chosen.seconds, arguments.say)
    finally:
        await caller.close()
    return examination.judge(found, target.path, target.by, probed, target.made_up)


def _target(found: examination.Examination, chosen: argparse.Namespace, own: Sequence[rules.Rule]) -> _Target | None:
    """What was asked for, or else the first kind of request that can be made up."""
    if chosen.path is None and not chosen.body:
        made_up = [kind for kind in found.kinds if kind.bodies]
        if not made_up:
            return None
        path, named = made_up[0].path, [(made_up[0].path, body) for body in made_up[0].bodies]
    else:
        path, named = chosen.path or next((kind.path for kind in found.kinds if kind.by), ""), chosen.body
        if not path:
            raise ValueError("--path is needed: it is not known where such requests go")
        named = named or [(path, body) for kind in found.kinds if kind.path == path for body in kind.bodies]
        if not named:
            raise ValueError(f"--body is needed: requests to {path} cannot be made up")
    kind = next((kind for kind in found.kinds if kind.path == path), examination.Kind(path, ""))
    lists = own or rules.load([kind.by] if kind.by in rules.built_in() else [])
    to = chosen.rerank_to
    if to is None and kind.to and not own:
        to = destinations.Destination.parse(kind.to)
    codec = measuring.codec_for(path, lists, to)
    by = ",".join(rule.name for rule in lists if rule.matches(path))
    by = by or (examination.V1 if path.endswith(":predict") else examination.V2)
    payloads = [measuring.payload(codec, name, body) for name, body in named]
    first = [payload for payload in payloads if payload.key == payloads[0].key]
    if len(first) < len(payloads):
        arguments.say(f"{len(payloads) - len(first)} of {len(payloads)} bodies never share a batch with the first")
    return _Target(path, by, codec, tuple(first), not chosen.body)


async def _ask(base: yarl.URL, headers: Sequence[tuple[str, str]], timeout: float) -> dict[str, identity.Answer]:
    """Answers of status 200, by their paths; raises `errors.UpstreamError` if no question is answered at all."""
    answers: dict[str, identity.Answer] = {}
    timeouts, is_answered = 0, False
    tell = arguments.patiently()
    own = {name.lower() for name, _ in headers}
    sent = (*(usual for usual in _HEADERS if usual[0].lower() not in own), *headers)
    client = predictor.HttpPredictor(str(base), timeout, model_questions.MOST_BYTES, is_lenient=True)
    try:
        for path in identity.QUESTIONS:
            tell(f"GET {path} …")
            try:
                answer = await client.ask("GET", path, sent, timeout)
            except errors.UpstreamUnreachable:
                raise
            except errors.UpstreamStatus:
                is_answered = True
            except errors.UpstreamError as error:  # a server that does not answer one question may answer the next
                timeouts += isinstance(error, errors.UpstreamTimeout)
                if not is_answered and (timeouts == _MOST_TIMEOUTS or path == identity.QUESTIONS[-1]):
                    raise
            else:
                is_answered = True
                if answer.status == 200:
                    server = answer.headers.get(b"server", b"").decode(errors="surrogateescape")
                    answers[path] = identity.Answer(server, answer.body)
    finally:
        await client.close()
    return answers


async def _tensors(base: yarl.URL) -> dict[str, models.ModelInfo]:
    """What v2's metadata tell of each model, of the first few."""
    questions = model_questions.HttpQuestions(str(base))
    found: dict[str, models.ModelInfo] = {}
    try:
        for name in (await questions.models())[:_MOST_MODELS]:
            found[name] = await questions.model_info(models.ModelName(name))
    except errors.CarpoolError as error:
        arguments.say(f"the models cannot be asked for: {admin_client.plain(str(error))}")
    finally:
        await questions.close()
    return found


def _path(text: str) -> str:
    if not text.startswith("/") or text.startswith("//"):
        raise argparse.ArgumentTypeError(f"got {text!r}: must begin with one /")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        prog=PROG,
        description="Say what a running predictor is, what batching buys there, what is dangerous, and what to set.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8080", metavar="URL", help="the predictor's own address (%(default)s)")
    add("--path", type=_path, metavar="PATH", help="path of requests to measure; else of the first that can be made up")
    add("--body", nargs="+", default=[], type=arguments.body, metavar="FILE", help=arguments.BODY)
    add(
        "--seconds",
        type=arguments.number(0.1, 600),
        default=5.0,
        metavar="S",
        help="no size is begun later (%(default)g)",
    )
    add("--ask-only", action="store_true", help="measure nothing")
    arguments.add_for_calls(parser)
    return parser
