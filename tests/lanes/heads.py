"""Strategies for heads of requests: request lines and header fields, mostly as they should be."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.http1.tables import (
    KNOWN,
    LENGTHS,
    METHODS,
    NAMES,
    ODD_TARGETS,
    SPELLINGS,
    VALUES,
    VERSIONS,
    Field,
    target,
)  # fmt: skip
from tests.lanes import recorder

methods = st.sampled_from([b"POST"] * 12 + METHODS)
versions = st.sampled_from([b"HTTP/1.1"] * 16 + VERSIONS)
_ECHO = target(b"echo")
plain_targets = st.sampled_from([target(name.encode()) for name in recorder.BEHAVIOURS] + [_ECHO] * 12)
odd_targets = st.sampled_from(ODD_TARGETS)

unknown = st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES))
lengths = st.sampled_from(LENGTHS)
known = st.sampled_from(KNOWN)


@st.composite
def line(draw: st.DrawFn, field: Field) -> bytes:
    """One header line without its end, in one of many spellings, mostly the usual."""
    return draw(st.sampled_from([SPELLINGS[0]] * 12 + SPELLINGS))(*field)
