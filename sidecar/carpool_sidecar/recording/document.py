"""The form in which arrivals leave the sidecar: `/arrivals` on the admin port, and the file of `--record`.

Lines of JSON. A `head` says under which settings what follows came and what had been learned; each line of `arrivals`
is a block of at most some thousands. A file has a head wherever the sidecar began to write, or its settings changed.
Whoever reads it leaves out lines that are damaged, as the last one is after a crash.

In a block all lists of arrivals have the same length, and so have those of batches. Moments are whole microseconds
after `began` (those of requests that came before that are negative), which is seconds since 1970.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from carpool import measures
from carpool_sidecar.recording import ring

_Whole = Annotated[int, msgspec.Meta(ge=0)]
_Rows = Annotated[int, msgspec.Meta(ge=1)]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that a replay obeys, by the names and in the units of the sidecar's flags. None: not given."""

    policy: Literal["window", "adaptive"]
    max_batch_size: _Rows = 32
    max_latency: float | None = None
    slo: float | None = None
    max_in_flight: int | None = None
    timeout: float = 60.0
    max_queue_instances: int = 16_384
    max_queue_bytes: int = 256 * 1024 * 1024
    max_batch_bytes: int = 0
    instance_cost: str = "none"
    max_batch_cost: int = 0
    allowed_batch_sizes: tuple[_Rows, ...] = ()
    small_batch_threshold: int = 0
    priority_ageing: float = 1000.0


def changed(setting: Setting, changes: Mapping[str, Any]) -> Setting:
    """The same setting but for these fields."""
    return msgspec.structs.replace(setting, **changes)


class Head(msgspec.Struct, tag_field="line", tag="head", kw_only=True):
    """What holds for the blocks that follow: their settings, and what the policy knew when this was written.

    `form` is the version of the form itself.
    """

    form: Literal[1] = 1
    version: str
    settings: Setting
    learned: dict[str, float]


class Histogram(msgspec.Struct):
    """How many values fell into each bucket (see `carpool.measures.Distribution`), and their sum."""

    counts: tuple[_Whole, ...]
    sum: float


class Measured(msgspec.Struct, kw_only=True):
    """What was counted while a block was written, as in `ring.Measures`."""

    wait: Histogram
    predictor: Histogram
    request: Histogram
    batch_size: Histogram


class Batches(msgspec.Struct, kw_only=True):
    """Batches that the predictor answered: when each was sent, its rows, and the microseconds until the answer."""

    sent: list[int]
    rows: list[_Rows]
    took: list[_Whole]


class Block(msgspec.Struct, tag_field="line", tag="arrivals", kw_only=True):
    """Arrivals, and what was measured until `ended`. `refused` of them never left for the predictor.

    Times are as the module says.
    """

    began: float
    ended: float
    at: list[int]
    rows: list[_Rows]
    bytes: list[_Whole]
    keys: list[int]
    refused: _Whole
    batches: Batches
    measured: Measured

    @property
    def is_whole(self) -> bool:
        """Whether the lists that belong together have the same length, and histograms the buckets they should."""
        batches, found = self.batches, self.measured
        return (
            len(self.at) == len(self.rows) == len(self.bytes) == len(self.keys)
            and len(batches.sent) == len(batches.rows) == len(batches.took)
            and self.refused <= len(self.at)
            and all(len(each.counts) == len(measures.SECONDS) + 1 for each in (found.wait, found.predictor))
            and len(found.request.counts) == len(measures.SECONDS) + 1
            and len(found.batch_size.counts) == len(measures.SIZES) + 1
        )


class Recording(msgspec.Struct):
    """Blocks with the settings each came under, oldest first; `head` is the last one. `damaged` lines are left out."""

    head: Head
    blocks: list[tuple[Setting, Block]]
    damaged: int

    @property
    def present(self) -> list[Block]:
        """The blocks since the settings that are in force came into force."""
        settings = self.head.settings
        latest = itertools.takewhile(lambda pair: pair[0] == settings, reversed(self.blocks))
        return [block for _, block in latest][::-1]


class NotARecording(ValueError):
    """There is no arrival in it."""


def block(kept: ring.Block, offset: float) -> Block:
    """A sealed block to be written. `offset` is the seconds since 1970 when the sidecar's clock was at 0."""
    began = kept.began
    return Block(
        began=began + offset,
        ended=kept.ended + offset,
        at=_microseconds(kept.times, began),
        rows=kept.rows.tolist(),
        bytes=kept.sizes.tolist(),
        keys=kept.keys.tolist(),
        refused=kept.refused,
        batches=Batches(
            sent=_microseconds(kept.sent, began),
            rows=kept.batch_rows.tolist(),
            took=_microseconds(kept.batch_seconds, 0.0),
        ),
        measured=_measured(kept.before, kept.after or kept.before),
    )


def lines(
    blocks: Iterable[ring.Block], settings: Setting, make_head: Callable[[Setting], Head], offset: float
) -> Iterator[Head | Block]:
    """Blocks, each `about` its settings, with the heads they need. The last head has `settings`, those in force."""
    told: Setting | None = None
    for kept in blocks:
        if kept.about != told:
            told = kept.about
            yield make_head(kept.about)
        yield block(kept, offset)
    if told != settings:
        yield make_head(settings)


def encode(lines: Iterable[Head | Block]) -> bytes:
    """The lines, each with its end."""
    return msgspec.json.Encoder().encode_lines(lines)


def decode(text: bytes) -> Recording:
    """What `encode` wrote, once or several times. Raises `NotARecording` if there is no arrival in it."""
    head: Head | None = None
    blocks: list[tuple[Setting, Block]] = []
    damaged = 0
    reader = msgspec.json.Decoder(Head | Block)
    for line in text.splitlines():
        try:
            found = reader.decode(line) if line.strip() else None
        except (msgspec.MsgspecError, ValueError, RecursionError):  # a line that is no UTF-8 is a ValueError
            damaged += 1
            continue
        if isinstance(found, Head):
            head = found
        elif found is not None and head is not None and found.is_whole:
            blocks.append((head.settings, found))
        elif found is not None:
            damaged += 1
    if head is None:
        raise NotARecording(
            "these are no recorded arrivals: allowed is what /arrivals on the admin port answers, or --record writes"
        )
    if not any(found.at for _, found in blocks):
        raise NotARecording("nothing was recorded: there is no arrival in it")
    return Recording(head, blocks, damaged)


def distribution(found: Sequence[Histogram], bounds: Sequence[float]) -> measures.Distribution:
    """Histograms of several blocks as one."""
    added = measures.Distribution.empty(bounds)
    for each in found:
        added += measures.Distribution(tuple(bounds), each.counts, each.sum)
    return added


def _microseconds(moments: Iterable[float], since: float) -> list[int]:
    return [round((moment - since) * 1e6) for moment in moments]


def _measured(before: ring.Measures, after: ring.Measures) -> Measured:
    return Measured(**{
        name: Histogram(
            tuple(max(0, late - early) for early, late in zip(old.counts, new.counts, strict=True)), new.sum - old.sum
        )
        for name, old, new in zip(ring.Measures._fields, before, after, strict=True)
    })  # fmt: skip
