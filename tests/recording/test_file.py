"""The file of `--record`: it grows, turns over at its size, survives a cut line, and ends quietly on a full disk."""

from __future__ import annotations

import asyncio
import resource
import signal
import subprocess
import sys

import pytest

from carpool_sidecar.recording import document, file
from tests.recording.test_document import OFFSET, make_head
from tests.recording.test_ring import Site

pytestmark = pytest.mark.looptime


class Recording:
    """A recorder of a ring that is fed by hand."""

    def __init__(self, path, largest: int = file.LARGEST) -> None:
        self.site = Site()
        self.path = path
        self.recorder = file.Recorder(str(path), self.site.ring, make_head, OFFSET, largest)
        self.recorder.start()

    def come(self, count: int) -> None:
        for _ in range(count):
            self.site.now += 0.001
            self.site.send(self.site.request())

    async def end(self) -> list[int]:
        """How many arrivals the blocks of the file have."""
        await self.recorder.close()
        return counts(self.path)


def counts(path) -> list[int]:
    return [len(block.at) for _, block in document.decode(path.read_bytes()).blocks]


@pytest.fixture
async def record(tmp_path):
    """Starts recorders of one file, from within the test, whose time is virtual."""
    made = []

    def start(largest: int = file.LARGEST) -> Recording:
        made.append(Recording(tmp_path / "arrivals.jsonl", largest))
        return made[-1]

    yield start
    for recording in made:
        await recording.recorder.close()


async def test_what_came_is_in_the_file_at_the_end(record):
    recording = record()
    recording.come(5)
    assert await recording.end() == [5]


async def test_what_came_is_in_the_file_after_ten_seconds(record):
    recording = record()
    recording.come(5)
    await asyncio.sleep(file.EVERY + 0.1)
    recording.come(2)
    await asyncio.sleep(file.EVERY)
    assert await recording.end() == [5, 2]


async def test_the_head_is_written_again_only_where_settings_change(record):
    recording = record()
    for settings in ("window", "window", "adaptive"):
        recording.site.ring.changed(document.Setting(policy=settings))
        recording.come(3)
    assert await recording.end() == [3, 3, 3]
    lines = recording.path.read_bytes().splitlines()
    assert [b'"line":"head"' in line for line in lines] == [True, False, False, True, False]


async def test_a_file_that_was_cut_off_goes_on_behind_the_damage(record):
    recording = record()
    recording.come(3)
    await recording.end()
    recording.path.write_bytes(recording.path.read_bytes() + b'{"line":"arrivals","began":1')
    again = record()
    again.come(4)
    assert await again.end() == [3, 4]
    assert document.decode(recording.path.read_bytes()).damaged == 1


async def test_a_file_that_has_its_size_becomes_the_one_before(record, tmp_path):
    recording = record(largest=20_000)
    for _ in range(12):
        recording.come(100)
        recording.site.ring.seal()
    last = await recording.end()
    before = counts(tmp_path / "arrivals.jsonl.1")
    assert set(last) == set(before) == {100}
    assert len(last) + len(before) <= 12
    assert recording.path.stat().st_size <= 20_000
    assert {each.name for each in tmp_path.iterdir()} == {"arrivals.jsonl", "arrivals.jsonl.1"}


async def test_a_full_disk_is_told_once_and_ends_the_recording(record, caplog):
    recording = record()
    recording.come(3)
    recording.site.ring.seal()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limit[1]))
    try:
        for _ in range(6):
            recording.come(200)
            recording.site.ring.seal()
        await recording.recorder.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    told = [record for record in caplog.records if "not recorded any more" in record.getMessage()]
    assert len(told) == 1
    assert told[0].facts["reason"] == "File too large"
    found = document.decode(recording.path.read_bytes())
    assert [len(block.at) for _, block in found.blocks] == [3]
    assert found.damaged == 1


async def test_a_disk_that_is_too_slow_ends_the_recording_and_keeps_nothing_waiting(record, caplog):
    recording = record()
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    blocked = asyncio.run_coroutine_threadsafe
    stuck = recording.recorder._thread.submit(lambda: blocked(gate.wait(), loop).result(10))
    for _ in range(40):
        recording.come(1)
        recording.site.ring.seal()
    assert [record.facts["reason"] for record in caplog.records] == ["the disk is too slow"]
    gate.set()
    await asyncio.wrap_future(stuck)
    assert recording.site.ring.blocks()


HUNG = """
import asyncio, sys, threading
from tests.recording.test_file import Recording

async def main():
    recording = Recording(sys.argv[1])
    recording.recorder._thread.submit(threading.Event().wait)
    recording.come(3)
    await recording.recorder.close()
    print("closed", flush=True)

asyncio.run(main())
"""


def test_a_disk_that_hangs_does_not_hold_up_the_end_of_the_process(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", HUNG, str(tmp_path / "arrivals.jsonl")], capture_output=True, text=True, timeout=30
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "closed\n", "")
