"""Makes the lower part of golden cases again; what is written by hand above it stays as it is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection

from tests.injector.golden import cases


def main(names: Collection[str]) -> None:
    """Write those with these names, or all."""
    cases.USUAL.write_text(cases.usual())
    for case in cases.load_all():
        if names and case.name not in names:
            continue
        made = cases.render(case, case.inject())
        if made != case.expected:
            case.path.write_text(case.written + cases.MARKER + made)
            sys.stdout.write(f"{case.name}: changed\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.injector.golden", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these; default: all")
    main(parser.parse_args().names)
