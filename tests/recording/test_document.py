"""The form of recorded arrivals: what is written can be read, and damage costs no more than its own line."""

from __future__ import annotations

import msgspec
import pytest

from carpool import measures
from carpool_sidecar.recording import document
from tests.recording.test_ring import Site

OFFSET = 1_700_000_000.0


def make_head(settings: document.Setting) -> document.Head:
    return document.Head(version="1", settings=settings, learned={"workers": 1.0})


def written(*counts: int, settings=("window",)) -> bytes:
    """Blocks with so many arrivals each."""
    site = Site()
    sealed = []
    for count in counts:
        site.ring.changed(document.Setting(policy=settings[len(sealed) % len(settings)]))
        for _ in range(count):
            site.now += 0.001
            site.counted[0].observe(0.002)
            batch = site.send(site.request(rows=2, size=5, arrived=site.now - 0.5))
            site.ring.answered(batch, 0.004)
        site.ring.seal()
        sealed = site.ring.blocks()
    return document.encode(document.lines(sealed, sealed[-1].about, make_head, OFFSET))


def test_what_is_written_is_read():
    found = document.decode(written(3, 2))
    assert (found.head.version, found.head.learned, found.damaged) == ("1", {"workers": 1.0}, 0)
    assert [len(block.at) for block in found.present] == [3, 2]
    block = found.present[0]
    assert block.began == OFFSET + 100
    assert block.at == [-499_000, -498_000, -497_000]
    assert (block.rows, block.bytes) == ([2] * 3, [5] * 3)
    assert (block.batches.sent, block.batches.rows, block.batches.took) == ([1000, 2000, 3000], [2] * 3, [4000] * 3)
    wait = document.distribution([block.measured.wait for block in found.present], measures.SECONDS)
    assert (wait.count, wait.mean) == (5, pytest.approx(0.002))


def test_only_the_blocks_since_the_last_change_of_settings_are_present():
    found = document.decode(written(3, 2, 4, settings=("window", "adaptive", "adaptive")))
    assert [settings.policy for settings, _ in found.blocks] == ["window", "adaptive", "adaptive"]
    assert [len(block.at) for block in found.present] == [2, 4]


def test_recordings_can_stand_behind_each_other():
    found = document.decode(written(3) + written(2))
    assert [len(block.at) for block in found.present] == [3, 2]


def test_a_last_line_that_was_cut_off_is_left_out_wherever_it_was_cut():
    whole, last = written(3, 2), written(3, 2).splitlines(keepends=True)[-1]
    for cut in range(1, len(last) - 1, 7):
        found = document.decode(whole[: -cut - 1])
        assert ([len(block.at) for block in found.present], found.damaged) == ([3], 1)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [1]},
        {"rows": [0, 1, 1]},
        {"bytes": [-1, 1, 1]},
        {"refused": 4},
        {"at": ["soon", 1, 1]},
        {"measured": {name: {"counts": [1], "sum": 0.0} for name in ("wait", "predictor", "request", "batch_size")}},
    ],
)
def test_a_line_that_makes_no_sense_is_left_out(change):
    head, line, *rest = written(3, 2).splitlines()
    bad = msgspec.json.encode({**msgspec.json.decode(line), **change})
    found = document.decode(b"\n".join([head, bad, b"\xff\xfe", b"[" * 5000, *rest]))
    assert ([len(block.at) for block in found.present], found.damaged) == ([2], 3)


@pytest.mark.parametrize("text", [b"", b"hello", b"{}", b"\x00" * 100, b"[" * 100_000])
def test_what_is_no_recording_is_told(text):
    with pytest.raises(document.NotARecording, match=r"no recorded arrivals: allowed is what /arrivals"):
        document.decode(text)


def test_a_recording_of_nothing_is_told():
    empty = document.encode([make_head(document.Setting(policy="window"))])
    with pytest.raises(document.NotARecording, match="nothing was recorded"):
        document.decode(empty)
