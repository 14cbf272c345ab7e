"""Makes the lower part of every golden case again; what is written by hand above it stays as it is.

python -m tests.injector.golden [NAME ...]
"""

from __future__ import annotations

import sys

from tests.injector.golden import cases


def main(names: list[str]) -> None:
    cases.USUAL.write_text(cases.usual())
    for case in cases.load_all():
        if names and case.name not in names:
            continue
        made = cases.render(case, case.inject())
        if made != case.expected:
            case.path.write_text(case.written + cases.MARKER + made)
            sys.stdout.write(f"{case.name}: changed\n")


if __name__ == "__main__":
    main(sys.argv[1:])
