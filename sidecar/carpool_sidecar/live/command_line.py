"""What the command lines of `top` and `tap` have in common: which sidecar, and how mistakes are told."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import NoReturn

EXIT_FAILED, EXIT_USAGE = 1, 2

EPILOG = """\
Inside the sidecar's container the address and port come from the environment variables that it was started with. From
elsewhere, forward the admin port first, or name the pod's address:

  kubectl exec POD -c CONTAINER -- carpool-sidecar {word}
  kubectl port-forward POD 9082  and then  carpool-sidecar {word}
"""

# Where a server that listens on all interfaces is found without leaving the pod.
_LOOPBACK_OF = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


class Parser(argparse.ArgumentParser):
    """Tells a mistake in one line and exits with status 2."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: error: {message.removeprefix('argument ')} (see {self.prog} --help)\n")
        raise SystemExit(EXIT_USAGE)


def parser(word: str, description: str, environment: Mapping[str, str]) -> Parser:
    """A parser with the options that say where the sidecar is."""
    made = Parser(
        prog=f"carpool-sidecar {word}",
        description=description,
        epilog=EPILOG.format(word=word),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    host = environment.get("CARPOOL_ADMIN_HOST", "127.0.0.1")
    made.add_argument("--admin-host", default=host, metavar="ADDRESS", help="address of the sidecar (%(default)s)")
    made.add_argument(
        "--admin-port", default=_port_from(environment), metavar="N", type=_port, help="its admin port (%(default)s)"
    )
    return made


def address(chosen: argparse.Namespace) -> tuple[str, int]:
    """Where to connect to. Addresses that mean "all" are reached over loopback."""
    return _LOOPBACK_OF.get(chosen.admin_host, chosen.admin_host), chosen.admin_port


def fail(prog: str, where: tuple[str, int], problem: str) -> int:
    """Tell what is wrong with the admin port; returns the exit status 1."""
    host, port = where
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    sys.stderr.write(f"{prog}: error: the admin port {shown} {problem}\n")
    return EXIT_FAILED


def _port_from(environment: Mapping[str, str]) -> str:
    value = environment.get("CARPOOL_ADMIN_PORT", "")
    # In the namespace of a Service named "carpool-admin" Kubernetes sets it to tcp://… in every pod.
    return "9082" if value.startswith(("tcp://", "udp://", "sctp://")) or not value else value


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"(CARPOOL_ADMIN_PORT) got {text!r}: must be a port from 1 to 65535")
    return int(text)
