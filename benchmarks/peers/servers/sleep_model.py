"""The affine sleep model that every model server here serves, and its figures from the environment.

A batch of n rows takes FIXED_MS + PER_ROW_MS * n and answers each row with itself, so that a caller can tell its own
answer from another's. It runs in each peer's own environment: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import TypeVar

FIXED_MS = float(os.environ.get("PEER_FIXED_MS", "0"))
PER_ROW_MS = float(os.environ.get("PEER_PER_ROW_MS", "0"))
MAX_BATCH = int(os.environ.get("PEER_MAX_BATCH", "32"))
WAIT_MS = float(os.environ.get("PEER_WAIT_MS", "5"))
HOST = "127.0.0.1"
PORT = int(os.environ.get("PEER_PORT", "8000"))

Row = TypeVar("Row")

_PR_SET_TIMERSLACK = 29  # prctl(2)
_thread = threading.local()


def predict(rows: Sequence[Row]) -> list[Row]:
    """Each row as it came, after the time that a batch of so many takes. Blocks the thread, as a device call does."""
    if len(rows) > MAX_BATCH:
        raise ValueError(f"a batch of {len(rows)} rows, though {MAX_BATCH} is the most")
    seconds = (FIXED_MS + PER_ROW_MS * len(rows)) / 1000
    if seconds > 0:
        _sleep_exactly()
        time.sleep(seconds)
    return list(rows)


def _sleep_exactly() -> None:
    """Let this thread's sleeps end on time. Linux adds 0.05 ms otherwise; spinning instead would hold Python's lock."""
    if sys.platform == "linux" and not getattr(_thread, "is_exact", False):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        _thread.is_exact = True
