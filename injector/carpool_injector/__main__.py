"""The console script, and `python -m carpool_injector`: runs the command line, or says which packages it lacks."""

from __future__ import annotations

import sys
from typing import NoReturn

from carpool.program import signals

# Packages of the extra `injector`: a plain install has the sidecar's only.
_EXTRA = {"click", "ruamel", "cryptography", "kubernetes"}


def main() -> NoReturn:
    """Exits with the subcommand's status; 2 where a package of the extra `injector` is missing, 130 on SIGINT."""
    serves = sys.argv[1:2] == ["serve"]
    if serves:
        signals.at_start("carpool-injector")
    try:
        from carpool_injector import cli

        cli.program.main()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.stderr.write(f"carpool-injector: {error.name} is missing; run: pip install carpool-injector\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(signals.INTERRUPTED) from None
    finally:
        if serves:
            signals.at_end()


if __name__ == "__main__":
    main()
