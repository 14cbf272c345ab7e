"""`python -m tests.tracing.build_collector`: OpenTelemetry's collector, of its Go modules. It takes some minutes."""

from __future__ import annotations

import pathlib
import sys

from benchmarks import golang
from benchmarks.peers import environments

PROGRAM = golang.Program(
    pathlib.Path(__file__).parent / "collector",
    environments.default_cache().parent / "collector" / "collector",
    "OpenTelemetry's collector",
)


def main() -> int:
    """Build it unless it is built; 1 if that fails."""
    if reason := golang.missing():
        print(reason, file=sys.stderr)  # noqa: T201 - a program for people
        return 1
    try:
        PROGRAM.prepare(lambda text: print(text, file=sys.stderr))  # noqa: T201
    except OSError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
