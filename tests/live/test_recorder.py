"""What is told of batches: enough to see what happened, nothing of what was in them, and never too much."""

from __future__ import annotations

import gc
import weakref

import msgspec

from carpool.scheduling import limits, messages
from carpool_sidecar import errors
from carpool_sidecar.batching import calls
from carpool_sidecar.live import recorder

EPOCH = 1000.0
BOUNDS = limits.Limits(max_batch_size=32)


class Stand:
    """A recorder at a time that the test sets."""

    def __init__(self):
        self.now = 0.0
        self.recorder = recorder.Recorder(BOUNDS, lambda: self.now, EPOCH, recorder.Keys())

    def batch(self, *arrived, rows=1, target="/v1/models/m:predict", headers=(), name="b", ids=True, most=1000):
        """A batch that leaves now, of requests that came then; not told to the recorder yet."""
        parts = []
        for index, moment in enumerate(arrived):
            head = calls.Head(None, target, headers, request_id=f"r{index}" if ids else None)
            request = messages.Request((target, headers, b"k"), rows, 10, None, head, max_batch_size=most)
            request.arrived = moment
            parts.append(messages.Part(request, 0, rows))
        batch = messages.Batch(name, parts[0].request.key, parts, messages.Reason.FULL)
        batch.dispatched = self.now
        return batch

    def round_trip(self, batch, seconds=0.01, error=None):
        self.recorder.sent(batch, None)
        self.now += seconds
        if error is None:
            self.recorder.answered(batch, seconds)
        else:
            self.recorder.failed(batch, error)


def test_a_batch_is_told_with_its_times_its_size_and_who_was_in_it():
    stand = Stand()
    stand.now = 2.0
    stand.round_trip(stand.batch(1.75, 1.875, rows=2), 0.0123)
    (told,) = stand.recorder.take().batches
    assert msgspec.to_builtins(told) == {
        "id": "b", "reason": "full", "path": "/v1/models/m:predict", "key": told.key, "first": 1001.75, "left": 1002.0,
        "took": 12.3, "rows": 4, "cap": 32, "requests": 2,
        "members": {"ids": ["r0", "r1"], "waited": [250000, 125000], "rows": [2, 2]},
    }  # fmt: skip


def test_rows_of_members_are_left_out_where_each_has_one():
    stand = Stand()
    stand.round_trip(stand.batch(0.0, 0.0, ids=False))
    (told,) = stand.recorder.take().batches
    assert msgspec.to_builtins(told.members) == {"ids": [None, None], "waited": [0, 0]}


def test_waits_that_are_known_already_are_not_computed_again():
    stand = Stand()
    batch = stand.batch(0.0, 0.0)
    stand.recorder.sent(batch, [0.5, 0.25])
    stand.recorder.answered(batch, 0.01)
    (told,) = stand.recorder.take().batches
    assert told.members.waited == [500_000, 250_000]
    assert told.left - told.first == 0.5


def test_waits_of_some_parts_alone_are_not_taken_for_those_of_all():
    stand = Stand()
    stand.now = 1.0
    batch = stand.batch(0.25, 0.5)
    stand.recorder.sent(batch, [0.5])  # the first part is the rest of a request that was counted before
    stand.recorder.answered(batch, 0.01)
    assert stand.recorder.take().batches[0].members.waited == [750_000, 500_000]


def test_a_failed_batch_has_its_reason_and_how_long_it_was_out():
    stand = Stand()
    stand.round_trip(stand.batch(0.0), 0.25, errors.UpstreamBroken("it broke"))
    (told,) = stand.recorder.take().batches
    assert (told.error, told.took) == (errors.UpstreamBroken.reason, 250.0)


def test_a_batch_that_left_before_somebody_looked_is_not_told():
    stand = Stand()
    stand.recorder.answered(stand.batch(0.0), 0.01)
    assert stand.recorder.take() == recorder.Batches(0, [])


def test_each_batch_is_told_once_and_the_latest_again_to_who_comes_later():
    stand = Stand()
    for name in "abc":
        stand.round_trip(stand.batch(0.0, name=name))
    assert [told.id for told in stand.recorder.take().batches] == ["a", "b", "c"]
    stand.round_trip(stand.batch(0.0, name="d"))
    assert [told.id for told in stand.recorder.latest().batches] == ["a", "b", "c"]
    assert stand.recorder.latest().seen == 3
    assert [told.id for told in stand.recorder.take().batches] == ["d"]
    assert stand.recorder.take().batches == []


def test_of_too_many_batches_the_latest_are_told_and_the_count_tells_of_the_others():
    stand = Stand()
    for number in range(recorder.LATEST + 50):
        stand.round_trip(stand.batch(0.0, name=str(number)))
    told = stand.recorder.take()
    assert told.seen == recorder.LATEST + 50
    assert [told.batches[0].id, told.batches[-1].id] == ["50", str(recorder.LATEST + 49)]


def test_members_are_bounded_for_each_batch_and_for_all_of_them_the_latest_first():
    stand = Stand()
    for _ in range(72):
        stand.round_trip(stand.batch(*[0.0] * 100))
    told = stand.recorder.take().batches
    assert {batch.requests for batch in told} == {100}
    counts = [len(batch.members.ids) if batch.members else 0 for batch in told]
    assert counts == [0] * 8 + [64] * 64
    assert [len(batch.members.ids) if batch.members else 0 for batch in stand.recorder.latest().batches] == counts


def test_long_ids_and_paths_are_cut():
    stand = Stand()
    batch = stand.batch(0.0, target="/" + "p" * 500)
    batch.parts[0].request.tag = batch.parts[0].request.tag._replace(request_id="i" * 60_000)
    stand.round_trip(batch)
    (told,) = stand.recorder.take().batches
    assert (len(told.path), len(told.members.ids[0])) == (200, 200)


def test_neither_queries_nor_headers_nor_what_else_is_in_the_key_are_told():
    stand = Stand()
    secret = (("authorization", "Bearer hush"),)
    stand.round_trip(stand.batch(0.0, target="/v1/models/m:predict?token=hush", headers=secret))
    text = msgspec.json.encode(stand.recorder.take())
    assert b"hush" not in text
    assert b"/v1/models/m:predict" in text


def test_digests_tell_keys_apart_in_one_process_and_nothing_in_another():
    here, there = recorder.Keys(), recorder.Keys()
    one, other = ("/p", (("authorization", "a"),), b""), ("/p", (("authorization", "b"),), b"")
    assert here.digest(one) == here.digest(one) != here.digest(other)
    assert here.digest(one) != there.digest(one)
    assert len(here.digest(one)) == 6


def test_the_cap_is_the_keys_own_where_that_is_smaller():
    stand = Stand()
    stand.round_trip(stand.batch(0.0, most=8))
    stand.round_trip(stand.batch(0.0))
    assert [told.cap for told in stand.recorder.take().batches] == [8, 32]


class _Weak(messages.Request):
    __slots__ = ("__weakref__",)


def test_no_request_is_kept():
    stand = Stand()
    request = _Weak("key", 1, 1, None, calls.Head(None, "/p"))
    request.arrived = 0.0
    batch = messages.Batch("b", "key", [messages.Part(request, 0, 1)], messages.Reason.IDLE)
    stand.round_trip(batch)
    gone = weakref.ref(request)
    del request, batch
    gc.collect()
    assert gone() is None
    assert stand.recorder.take().batches[0].id == "b"
