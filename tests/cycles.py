"""Finds what only the garbage collector would free: in production it hardly ever comes round."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

LARGE = 100_000
"""Bytes from which a message counts as one that must not be kept."""


@contextmanager
def counted() -> Iterator[list[str]]:
    """Fills the list at the end: objects in reference cycles that are the sidecar's, or keep a large message."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += [_name(each) for each in gc.garbage if _is_ours(each) or _keeps_a_message(each)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _is_ours(found: object) -> bool:
    module = getattr(found, "f_globals", {}).get("__name__") if _is_frame(found) else type(found).__module__
    return str(module).startswith(("carpool.", "carpool_sidecar."))


def _keeps_a_message(found: object) -> bool:
    return any(isinstance(each, bytes | bytearray) and len(each) >= LARGE for each in gc.get_referents(found))


def _is_frame(found: object) -> bool:
    return type(found).__name__ == "frame"


def _name(found: object) -> str:
    return f"frame of {found.f_code.co_qualname}" if _is_frame(found) else type(found).__qualname__  # type: ignore[attr-defined]
