"""Asking a sidecar's admin port from a command line: `drain`, `advise`, `top` and `tap`.

They run beside the serving process, within its small share of a CPU, so this loads the standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple, NoReturn

EXIT_FAILED, EXIT_USAGE = 1, 2

_SHOWN_CHARACTERS = 200
# Where a server that listens on all interfaces is found without leaving the pod.
_LOOPBACK_OF = dict.fromkeys(("", "0.0.0.0", "::"), "127.0.0.1")  # a sidecar takes IPv4 on :: as well


class Parser(argparse.ArgumentParser):
    """Tells a mistake in one line and exits with status 2. It has the options that say where the admin port is."""

    def __init__(self, word: str, description: str, epilog: str, environment: Mapping[str, str]) -> None:
        super().__init__(
            prog=f"carpool-sidecar {word}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        host = environment.get("CARPOOL_ADMIN_HOST", "::")
        self.add_argument("--admin-host", default=host, metavar="ADDRESS", help="as given to the sidecar (%(default)s)")
        self.add_argument("--admin-port", default=_port_from(environment), metavar="N", type=_port, help=_PORT)

    def error(self, message: str) -> NoReturn:
        """See `argparse`."""
        sys.stderr.write(f"{self.prog}: error: {message.removeprefix('argument ')} (see {self.prog} --help)\n")
        raise SystemExit(EXIT_USAGE)


class Address(NamedTuple):
    """Where to connect to."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Unreachable(Exception):
    """There is no usable answer; `str()` says why, as what is said of the admin port: it "cannot be reached: …"."""


def address(chosen: argparse.Namespace) -> Address:
    """Where the options of a `Parser` say that it is. Addresses that mean "all" are reached over loopback."""
    return Address(_LOOPBACK_OF.get(chosen.admin_host, chosen.admin_host), chosen.admin_port)


@contextlib.contextmanager
def asked(
    where: Address, method: str, path: str, timeout: float | None, accept: str = "*/*", token: str = ""
) -> Iterator[http.client.HTTPResponse]:
    """The answer, of status 200, to be read inside the `with`.

    Raises `Unreachable` for any other status and for whatever else fails, reading included, but `TimeoutError` if
    nothing came for `timeout` seconds (None: it may take as long as it likes).
    """
    connection: http.client.HTTPConnection | None = None
    try:
        connection = http.client.HTTPConnection(*where, timeout=timeout)
        authorization = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, path, headers={"Accept": accept, **authorization})
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise Unreachable(f"answered {answer.status}: {shown(answer.read(4096))}")
        yield answer
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        words = f"cannot be reached: {reason}; are --admin-host and --admin-port those of the sidecar?"
        raise Unreachable(words) from None
    finally:
        if connection is not None:
            connection.close()


def shown(said: bytes) -> str:
    """The beginning of what was answered, in one line of printable characters."""
    text = " ".join(said.decode(errors="replace").split())[:_SHOWN_CHARACTERS]
    return plain(text) or "nothing"


def plain(text: str) -> str:
    """What a terminal shows and does not obey: callers choose paths and ids, servers what they answer."""
    return "".join(each if each.isprintable() else "?" for each in text)


def fail(prog: str, where: Address, problem: str) -> int:
    """Tell what is wrong with the admin port; returns the exit status 1."""
    sys.stderr.write(f"{prog}: error: the admin port {where} {problem}\n")
    return EXIT_FAILED


_PORT = "as given to the sidecar (%(default)s)"


def _port_from(environment: Mapping[str, str]) -> str:
    value = environment.get("CARPOOL_ADMIN_PORT", "")
    # In the namespace of a Service named "carpool-admin" Kubernetes sets it to tcp://… in every pod.
    return "9082" if value.startswith(("tcp://", "udp://", "sctp://")) or not value else value


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"(CARPOOL_ADMIN_PORT) got {text!r}: must be a port from 1 to 65535")
    return int(text)
