"""`python -m benchmarks.attack.attacker NAME ...`: one attack in a process of its own, which tells how it went."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence

import uvloop

from benchmarks.attack import attack, catalogue, link, target

_NICE = 5  # behind its victims, where they share a core
_GRACE = 10.0  # seconds on top, for building what is sent and for leaving


async def carry_out(chosen: attack.Attack, to: target.Target) -> target.Told:
    """The attack, from beginning to end."""
    with contextlib.suppress(link.Gone, target.Exhausted, TimeoutError):
        async with asyncio.timeout(to.seconds + _GRACE):
            await chosen.run(to)
    to.told.seconds = to.elapsed
    return to.told


def command(
    python: str, name: str, host: str, grpc_port: int, http_port: int, admin_port: int, seconds: float
) -> list[str]:
    """What starts it."""
    where = ["--host", host, "--grpc-port", str(grpc_port), "--http-port", str(http_port)]
    where += ["--admin-port", str(admin_port)]
    return [python, "-m", "benchmarks.attack.attacker", name, *where, "--seconds", str(seconds)]


def main(argv: Sequence[str] | None = None) -> int:
    """Attack, and print one line of JSON."""
    parser = argparse.ArgumentParser(description="Carries out one attack on servers on loopback.")
    parser.add_argument("name", choices=catalogue.ALL)
    parser.add_argument("--host", required=True)
    parser.add_argument("--grpc-port", type=int, required=True)
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--admin-port", type=int, default=0)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args(argv)
    try:
        to = target.Target(options.host, options.grpc_port, options.http_port, options.seconds, options.admin_port)
    except target.NotLoopback as error:
        parser.error(str(error))
    target.limit_own_memory()
    os.nice(_NICE)
    told = uvloop.run(carry_out(catalogue.ALL[options.name], to))
    print(told.as_json(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
