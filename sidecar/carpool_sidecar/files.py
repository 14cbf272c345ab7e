"""Open files: a process may have so many, and the last of them are for the admin port.

Probes ask there, and a pod whose sidecar cannot be asked is taken out of service or restarted, whatever else it does. A
new file gets the lowest number that is free. So whoever keeps below a number takes none of those above it, however many
connections there are, and whatever else the process has open is counted, too.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import sys
from typing import Final

SPARED: Final = 48
"""Files that are the admin port's: its connections, and those that come in one turn of the event loop."""


def limit() -> int:
    """How many files the process may have open."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def is_spared(number: int) -> bool:
    """Whether a file of this number is one of those that are the admin port's."""
    return number >= limit() - SPARED


def check() -> None:
    """Raises `OSError` (EMFILE) if a socket that is made next would be one of those."""
    with socket.socket() as made:
        if is_spared(made.fileno()):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
