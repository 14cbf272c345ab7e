"""Rows of like length share a batch, where a batch takes as long as its rows times the longest."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from carpool.scheduling import limits, messages
from carpool.scheduling.lengths import Groups
from carpool.scheduling.window import Window
from tests.scheduling.driven import DrivenScheduler, refused

CALL, TOKEN = 0.010, 0.0001


def row_lengths(rows, start, stop):
    """A request `17-a` has rows of 17."""
    return [int(row.partition("-")[0]) for row in rows[start:stop]]


class Padding(DrivenScheduler):
    """Pads all of a batch to the longest, one batch after the other."""

    def pass_call(self) -> None:
        batch = self.out[0]
        self.pass_time(CALL + TOKEN * batch.rows * max(row_lengths(self.rows_of(batch), 0, batch.rows)))
        self.answer(batch)

    def names(self, batch):
        return sorted(self.members(batch))


def made(**more) -> Padding:
    return Padding(Window, max_batch_size=4, max_latency=0.0, max_in_flight=1, row_lengths=row_lengths, **more)


@pytest.fixture
def taught() -> Padding:
    """It knows what a call costs, and what padding does; the predictor is busy with one."""
    return teach(made(priority_ageing=1.0))


def teach(driven: Padding) -> Padding:
    for number, length in enumerate([10, 200, 50, 100, 10, 200, 400]):
        driven.submit(f"{length}-lesson{number}")
        driven.pass_call()
        driven.pass_time(1.0)
    driven.submit("100-busy", key="other")
    driven.sent.clear()
    return driven


def test_who_left_out_of_turn_and_is_cleared_waits_once():
    """It failed as a suspect, and one like it was answered while those before whom it left still wait."""
    traits = {"content": lambda request: request.tag.split("-")[1]}
    settings = {"max_batch_size": 3, "max_in_flight": 2, "max_latency": 10.0, "priority_ageing": 10.0}
    driven = Padding(row_lengths=row_lengths, traits=traits, **settings)
    driven.submit_all(("1-same-1",), ("1-x",), ("1-y",))
    driven.submit_all(("1-first",), ("100-a",), ("1-same-2",), ("1-same-3",))
    searched, mixed = driven.out
    assert driven.members(mixed) == ["1-first", "1-same-2", "1-same-3"]
    driven.fail(refused(400), searched)
    driven.fail(refused(400), driven.out[1])
    driven.fail(refused(400), driven.out[1])
    assert list(driven.refusals) == ["1-same-1"]
    driven.fail(refused(400), mixed)  # the second and the third are suspects by now
    while driven.reasons[-1] != "suspect":
        driven.answer()
    driven.answer(driven.out[-1])
    assert driven.answers["1-same-2"] == ["1-same-2/0"]
    waiting = driven.core.backlog.due(math.inf, 0.0)
    assert [request.tag for request in waiting] == ["100-a", "1-same-3"]
    driven.answer_all()
    driven.pass_time(10.0)
    driven.answer_all()
    assert driven.core.idle
    assert sum("1-same-3" in driven.members(batch) for batch in driven.sent) == 2


def test_rows_of_like_length_share_a_batch(taught):
    for name in ["200-a", "10-b", "200-c", "10-d", "200-e", "10-f"]:
        taught.submit(name)
    for _ in range(3):
        taught.pass_call()
    assert [taught.names(batch) for batch in taught.sent] == [["200-a", "200-c", "200-e"], ["10-b", "10-d", "10-f"]]


def test_padding_that_costs_less_than_a_call_is_taken(taught):
    for name in ["100-a", "90-b", "100-c", "80-d"]:
        taught.submit(name)
    taught.pass_call()
    assert taught.names(taught.sent[0]) == ["100-a", "100-c", "80-d", "90-b"]


def test_the_oldest_always_travels_with_those_most_like_it(taught):
    for name in ["100-oldest", *(f"10-{number}" for number in range(8)), "95-like"]:
        taught.submit(name)
    taught.pass_call()
    assert taught.names(taught.sent[0]) == ["100-oldest", "95-like"]


def test_nobody_is_overtaken_by_those_that_came_a_whole_ageing_later():
    taught = teach(made(priority_ageing=0.001))
    for name in ["400-a", "10-b", "10-c"]:
        taught.submit(name)
    taught.now += 0.001
    taught.submit("400-late")
    taught.pass_call()
    assert taught.names(taught.sent[0]) == ["400-a"]
    taught.pass_call()
    assert taught.names(taught.sent[1]) == ["10-b", "10-c"]


def test_no_stream_of_rows_of_another_length_keeps_one_waiting(taught):
    taught.submit("200-first")
    taught.submit("10-short")
    for number in itertools.count():
        for each in "wxyz":
            taught.submit(f"200-{number}{each}")
        taught.pass_call()
        if "10-short" in taught.answers:
            break
        assert number < 60
    waited = taught.now - taught.requests["10-short"].arrived
    assert waited < 1.0 + 10 * (CALL + TOKEN * 4 * 200)


def test_a_lower_level_fills_no_gap_for_its_length(taught):
    for name, priority in [("400-a", 1), ("10-b", 1), ("400-low", -1)]:
        taught.submit(name, priority=priority)
    taught.pass_call()
    assert taught.names(taught.sent[0]) == ["400-a"]


def test_while_nothing_is_known_a_call_is_taken_to_cost_as_much_as_a_row_of_the_usual_length():
    driven = made()
    driven.submit("100-busy", key="other")
    for name in ["200-a", "10-b", "150-c", "10-d", "140-e", "10-f"]:
        driven.submit(name)
    driven.pass_call()
    assert driven.names(driven.sent[1]) == ["140-e", "150-c", "200-a"]


def test_batches_that_were_all_alike_do_not_keep_rows_of_like_length_apart_for_ever():
    driven = made()
    for number in range(200):
        for length in (250, 3, 250, 3):
            driven.submit(f"{length}-{number}{len(driven.requests)}")
        while driven.out and driven.core.backlog.rows >= 8:
            driven.pass_call()
    driven.sent.clear()
    while driven.out:
        driven.pass_call()
    mixed = [batch for batch in driven.sent if len({name[:2] for name in driven.members(batch)}) > 1]
    assert len(mixed) <= 2


def test_requests_of_several_rows_count_by_their_longest_and_stay_whole(taught):
    taught.submit("100-a", rows=2)
    taught.submit("10-b", rows=3)
    taught.submit("90-c", rows=2)
    taught.pass_call()
    assert taught.names(taught.sent[0]) == ["100-a", "90-c"]
    assert taught.sizes == [4]


def test_what_is_too_large_for_a_batch_is_cut_as_ever(taught):
    taught.submit("100-large", rows=10)
    taught.submit("10-a")
    while taught.out:
        taught.pass_call()
    assert taught.sizes[:2] == [4, 4]
    assert len(taught.answers["100-large"]) == 10
    assert taught.answers["10-a"] == ["10-a/0"]


def test_who_leaves_from_the_middle_is_not_missed(taught):
    for name in ["200-a", "10-b", "200-c", "10-d"]:
        taught.submit(name)
    taught.cancel("200-c")
    taught.cancel("10-b")
    for _ in range(3):
        taught.pass_call()
    assert [taught.names(batch) for batch in taught.sent] == [["200-a"], ["10-d"]]
    assert not taught.core.backlog.rows


def test_a_choice_among_many_lengths_costs_hardly_more_than_the_best():
    random_lengths = random.Random(3)
    most = 400
    driven = Padding(
        Window, max_batch_size=most, max_latency=0.0, max_in_flight=1, row_lengths=row_lengths, priority_ageing=1.0
    )
    teach(driven)
    lengths = [random_lengths.randint(3, 500) for _ in range(900)]
    for number, length in enumerate(lengths):
        driven.submit(f"{length}-{number}")
    driven.pass_call()
    in_order, first = sorted(lengths), lengths[0]

    def a_row(stretch: list[int]) -> float:
        return (CALL + TOKEN * sum(stretch[-1] - length for length in stretch)) / len(stretch)

    stretches = (
        in_order[start:stop]
        for stop in range(1, len(lengths) + 1)
        for start in range(max(0, stop - most), stop)
        if in_order[start] <= first <= in_order[stop - 1]
    )
    chosen = sorted(row_lengths(driven.rows_of(driven.sent[0]), 0, driven.sent[0].rows))
    assert a_row(chosen) <= 1.05 * min(map(a_row, stretches))


LATER = 0.001


def with_followers(taught: Padding, first: list[tuple[str, int]], then: list[tuple[str, int]]) -> list[str]:
    """Who travels of some who may overtake each other, and of those that came a whole ageing later."""
    for name, rows in first:
        taught.submit(name, rows=rows)
    taught.now += LATER
    for name, rows in then:
        taught.submit(name, rows=rows)
    taught.pass_call()
    return taught.names(taught.sent[0])


# A call costs as much as 100 units of padding.
@pytest.mark.parametrize(
    ("first", "then", "travel"),
    [
        (["100-a", "100-b"], ["100-c", "100-d"], ["100-a", "100-b", "100-c", "100-d"]),
        (["100-a", "100-b"], ["100-c*3"], ["100-a", "100-b"]),
        (["100-a"], ["110-longer", "100-behind"], ["100-a"]),
        (["400-a"], ["200-costly", "400-behind"], ["400-a"]),
        (["400-a"], ["320-b", "320-c"], ["320-b", "320-c", "400-a"]),
        (["400-a"], ["320-b", "300-costly"], ["320-b", "400-a"]),
        (["400-a", "350-b"], ["330-c"], ["330-c", "350-b", "400-a"]),
        (["400-a*2"], ["340-costly"], ["400-a"]),
        (["400-a"], ["330-b*2", "330-c"], ["330-b", "330-c", "400-a"]),
        (["400-a"], ["330-b*2", "310-costly"], ["330-b", "400-a"]),
    ],
    ids=[
        "of one length", "too many rows", "longer", "costly", "cheaper together", "costly together", "padded already",
        "costly beside several rows", "several rows padded", "costly for each of several rows",
    ],
)  # fmt: skip
def test_those_that_follow_in_turn_fill_a_batch_while_that_makes_rows_cheaper(first, then, travel):
    def read(name: str) -> tuple[str, int]:
        name, _, rows = name.partition("*")
        return name, int(rows or 1)

    taught = teach(made(priority_ageing=LATER))
    assert with_followers(taught, list(map(read, first)), list(map(read, then))) == travel


def test_a_batch_that_is_padded_to_an_allowed_size_is_weighed_with_that():
    """Three rows would be computed as four, which costs as much as a call more."""
    driven = teach(made(priority_ageing=1.0, allowed_sizes=(1, 2, 4)))
    for name in ["100-a", "90-b", "100-c", "10-d"]:
        driven.submit(name)
    driven.pass_call()
    assert driven.names(driven.sent[0]) == ["100-a", "100-c"]


def test_who_follows_in_turn_fills_the_rows_that_are_padded_anyway():
    taught = teach(made(priority_ageing=LATER, allowed_sizes=(4,)))
    assert with_followers(taught, [("400-a", 1)], [("10-b", 1)]) == ["10-b", "400-a"]


@pytest.mark.parametrize(("between", "is_seen"), [(15, True), (16, False)])
def test_four_batches_worth_is_looked_at(taught, between, is_seen):
    for name in ["100-oldest", *(f"10-{number}" for number in range(between)), "95-like"]:
        taught.submit(name)
    taught.pass_call()
    assert ("95-like" in taught.names(taught.sent[0])) is is_seen


@pytest.mark.parametrize(("between", "is_seen"), [(1022, True), (1023, False)])
def test_no_more_than_1024_requests_are_looked_at(between, is_seen):
    driven = Padding(
        Window, max_batch_size=600, max_latency=0.0, max_in_flight=1, row_lengths=row_lengths, priority_ageing=1.0
    )
    teach(driven)
    for name in ["100-oldest", *(f"10-{number}" for number in range(between)), "100-like"]:
        driven.submit(name)
    driven.pass_call()
    assert ("100-like" in driven.names(driven.sent[0])) is is_seen


def test_nobody_overtakes_what_is_too_large_for_a_batch(taught):
    taught.submit("200-a")
    taught.submit("200-large", rows=10)
    taught.submit("200-behind")
    taught.pass_call()
    assert "200-behind" not in taught.names(taught.sent[0])


def test_a_batch_counts_as_so_many_rows_of_the_usual_length():
    groups = Groups(limits.Limits())

    def weigh(rows: int, length: int) -> int:
        request = messages.Request("key", rows)
        request.length = length
        return groups.weigh(messages.Batch("id", "key", [messages.Part(request, 0, rows)], messages.Reason.IDLE))

    assert weigh(3, 100) == 3  # no length is usual yet
    assert weigh(3, 200) == 6
    assert weigh(4, 60) == 2  # beside a usual length of 120 now
    assert weigh(5, 0) == 5
    assert weigh(1, 10) == 1
