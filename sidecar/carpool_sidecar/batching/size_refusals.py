"""Which refusals of a predictor's are about the size of a batch, and which size it says that it takes.

No protocol has a word for it. Servers have a status (413), words of their own about batch sizes in a 400 or 422, or
an allocator that failed: `batch size 33 > maximum allowed batch size 32`, `CUDA out of memory`. A refusal may also
quote what a caller sent, and a message about a size may be about something else in the batch. So words count only
beside a status that goes with them, and numbers only if they fit the batch. Whoever is mistaken all the same costs the
predictor some calls: the batch is tried in smaller pieces, and who is refused alone gets the predictor's answer.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from carpool_sidecar import errors

# Messages begin with what is wrong; tracebacks end with it. Between the two is what they quote.
_LOOKED_AT = 4096
_MESSAGE = 1024

_SAYS_SIZE = frozenset({400, 413, 422})
_SAYS_NUMBER = _SAYS_SIZE | {500}
# Beside 5xx: what a server answers whose backend failed (TEI), and RESOURCE_EXHAUSTED in HTTP.
_NAMES_MEMORY = frozenset({424, 429})
# They tell of no computation.
_NEVER = frozenset({501, 503, 505})

_SIZE = rb"(?:batch[ _-]?size|number of (?:inputs|instances|items|rows|texts|sentences|documents|records))"
_MOST = rb"(?P<most>\d{1,9})\b"
_ROWS = rb"(?P<rows>\d{1,9})\b"
_OVER = rb"(?:>|\\u003e|exceeds|(?:is |was )?(?:larger|greater|bigger|more) than)"

# With the predictor's number, the one that fits a server best first; `rows` is how many it says that it was given.
_NUMBERS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # text-embeddings-inference; and whoever says it like this
        rb"batch[ _-]?size:? \(?" + _ROWS + rb"\)? " + _OVER + rb" (?:the )?(?:[a-z]+ ){0,4}" + _SIZE
        + rb" (?:of )?" + _MOST,
        # Triton
        rb"batch[ _-]?size must be (?:<=|\\u003c=|at most|no more than|less than or equal to) " + _MOST,
        # OpenVINO Model Server
        rb"Invalid batch size - Expected: " + _MOST + rb"; Actual: " + _ROWS,
        # OpenAI
        rb"array too long\. Expected an array with maximum length " + _MOST
        + rb", but got an array with length " + _ROWS,
        # Azure OpenAI
        rb"max(?:imum)? number of (?:inputs|instances|items|rows|texts) (?:allowed )?is " + _MOST,
        # pydantic 2 and 1, which FastAPI servers pass on
        rb"List should have at most " + _MOST + rb" items? after validation, not " + _ROWS,
        rb"ensure this value has at most " + _MOST + rb" items",
        # Vertex AI
        _MOST + rb" instance\(s\) is allowed per prediction\. Actual: " + _ROWS,
        # Cohere, Voyage and others
        rb"number of (?:inputs|instances|items|rows|texts) must be (?:at most|<=|\\u003c=) " + _MOST,
        rb"max(?:imum)?(?: allowed| supported| client)? batch[ _-]?size(?: is|:| =| of) " + _MOST,
    )
]  # fmt: skip

_WORDS = re.compile(
    _SIZE
    + rb"\b[^.\n]{0,60}?\b(?:exceed|too (?:large|big|many|high)|(?:larger|greater|bigger|more) than|maximum|limit)"
    rb"|\b(?:exceed(?:s|ed|ing)?|maximum|max|over the limit of|larger than)\b[^.\n]{0,40}?" + _SIZE + rb"\b"
    rb"|\btoo many (?:inputs|instances|items|rows|texts|sentences|documents|records)\b"
    rb"|\bbatch (?:is |was )?too (?:large|big|long)\b",
    re.IGNORECASE,
)

_MEMORY = re.compile(
    rb"\b(?:CUDA|HIP|XPU|MPS backend|GPU|device|NPU)(?: error:| is| ran|:)? out of memory\b"
    rb"|\bOut ?Of ?Memory ?(?:Error|Exception)\b|\b(?:CUDA|HIP)_?ERROR_?OUT_?OF_?MEMORY\b|\bcudaErrorMemoryAllocation\b"
    rb"|\b(?:CUBLAS|CUDNN|CUSOLVER)_STATUS_ALLOC_FAILED\b"
    rb"|\bRESOURCE_EXHAUSTED: (?:OOM|Out of memory|Failed to allocate|Error allocating)"
    rb"|\bResource exhausted: OOM\b|\bOOM when allocating\b|\bResourceExhaustedError\b"
    rb"|\bbad_alloc\b|\bMemoryError\b"
    rb"|\bUnable to allocate [\d.]+ [KMGT]?i?B\b"
    rb"|\bFailed to allocate memory\b|\bcan't allocate memory\b|\bCannot allocate memory\b"
    rb"|\bnot enough memory: you tried to allocate\b|\b[Oo]ut of memory (?:while trying to allocate|allocating)\b"
)  # fmt: skip
# RESOURCE_EXHAUSTED may mean memory or a quota.
_EXHAUSTED = re.compile(rb"\bout of memory\b|\bOOM\b|\ballocat", re.IGNORECASE)


class Sign(NamedTuple):
    """A batch was too large: for more than `most` rows, if the predictor says so; for the `memory` that it took.

    Of a lone row `most` is what the predictor's words say all the same.
    """

    most: int | None = None
    memory: bool = False


def read(refusal: errors.UpstreamStatus, rows: int) -> Sign | None:
    """What a refusal of a batch of so many rows says of its size; None if it is not about that."""
    status, body = refusal.status, refusal.body
    if status in _SAYS_NUMBER:
        found = _number(body[:_MESSAGE], rows)
        if found is not None:
            if rows == 1:
                return Sign(found)  # words that are about something else, as no batch can be smaller
            return None if found >= rows and status != 413 else Sign(found if found < rows else None)
    if status == 413 or (status in _SAYS_SIZE and _WORDS.search(body[:_MESSAGE])):
        return Sign()
    if _names_memory(status, body):
        return Sign(memory=True)
    return None


def _number(text: bytes, rows: int) -> int | None:
    """How many rows the predictor says it takes. It is `rows` or more if it speaks of something else."""
    for pattern in _NUMBERS:
        found = pattern.search(text)
        if found is not None:
            named = found.groupdict()
            most = int(named["most"])
            is_other = int(named.get("rows") or rows) != rows or not most
            return max(rows, most) if is_other else most
    return None


def _names_memory(status: int, body: bytes) -> bool:
    if status in _NEVER or (status < 500 and status not in _NAMES_MEMORY):
        return False
    pattern = _EXHAUSTED if status == 429 else _MEMORY
    looked_at = body if len(body) <= 2 * _LOOKED_AT else body[:_LOOKED_AT] + b" " + body[-_LOOKED_AT:]
    # A traceback's lines, in JSON: what follows must look like the beginning of a word.
    return pattern.search(looked_at.replace(rb"\n", b"\n")) is not None
