"""`carpool-sidecar probe`: measures what batches of one's own requests take at one's own predictor.

It is what people do by hand before they switch batching on. Recorded bodies are sent alone and in batches, made by the
same codecs that the sidecar uses.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Sequence

from carpool.program import settings
from carpool_sidecar.app import measuring
from carpool_sidecar.planning import arguments, probing
from carpool_sidecar.protocols import interface
from carpool_sidecar.protocols.lists import rules

PROG = "carpool-sidecar probe"

_EPILOG = """\
The predictor gets real load, one call after the other: do not point it at one that serves people. Copies of one body
make batches of equal instances, which a predictor with a cache answers too fast: give several bodies. Examples:

  carpool-sidecar probe --url http://127.0.0.1:8080/v1/models/m:predict --body request.json
  carpool-sidecar probe --url http://127.0.0.1:8080/v1/embeddings --lists openai-embeddings --body a.json b.json
  carpool-sidecar probe --url http://127.0.0.1:8080/rerank --lists tei-rerank --rerank-to tei-predict --body a.json
"""


def main(argv: Sequence[str]) -> int:
    """Measure and print; the exit status is 0, and 1 if not even one request alone was answered.

    Exits with 2 and one line on standard error for bad arguments or bodies.
    """
    chosen = _parser().parse_args(argv)
    try:
        url = measuring.address(chosen.url)
        codec = measuring.codec_for(url.raw_path, rules.named(chosen.lists), chosen.rerank_to)
        payloads = [measuring.payload(codec, name, body) for name, body in chosen.body]
        caller = measuring.Caller(url, codec, measuring.headers(chosen.header), chosen.timeout)
        largest = measuring.fitting(codec, payloads, chosen.largest, arguments.say)
        found = asyncio.run(_measure(caller, payloads, largest))
    except ValueError as error:
        settings.fail(PROG, str(error))
    except KeyboardInterrupt:
        sys.stderr.write(f"{PROG}: interrupted; nothing was measured to the end\n")
        return 1
    text = json.dumps(probing.values(found), indent=2) if chosen.json else probing.report(found)
    sys.stdout.write(text + "\n")
    return 0 if found.sizes else 1


async def _measure(caller: measuring.Caller, payloads: Sequence[interface.Payload], largest: int) -> probing.Probed:
    try:
        return await measuring.measure(caller, payloads, largest, math.inf, arguments.say)
    finally:
        await caller.close()


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        prog=PROG,
        description="Send recorded requests alone and in batches to a predictor: what batching buys, where it fails.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("--url", required=True, metavar="URL", help="the predictor's own address, with the path that callers use")
    add("--body", required=True, nargs="+", type=arguments.body, metavar="FILE", help=arguments.BODY)
    add(
        "--largest",
        type=arguments.whole(1, 4096),
        default=64,
        metavar="N",
        help="most requests in a batch (%(default)s)",
    )
    arguments.add_for_calls(parser)
    return parser
