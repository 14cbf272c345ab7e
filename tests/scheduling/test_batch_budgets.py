"""What a batch may carry beside instances: bytes, and a cost per instance."""

from __future__ import annotations

import pytest

from carpool.scheduling import limits as core_limits


def weights(payload, start, stop):
    """Rows are `name/number`; requests named `w5` have rows that weigh 5."""
    return [int(row.partition("/")[0].lstrip("abcdefghijklmnopqrstuvw")) for row in payload[start:stop]]


@pytest.fixture(params=["bytes", "cost"])
def scale(request, driven_of):
    """A driven with room for ten in each batch, bytes or cost, and a way to put requests on it."""

    class Scale:
        def __init__(self):
            self.driven = self.of(10)

        def of(self, room, **others):
            self.driven = driven_of(**{"max_latency": 0.5, f"max_batch_{request.param}": room, **others})
            self.driven.change(row_costs=weights if request.param == "cost" else None, row_sizes=weights)
            return self.driven

        def submit(self, name, rows=1, key="key"):
            return self.driven.submit(name, rows, key, size=rows * weights([name], 0, 1)[0])

        def sent(self):
            return [self.driven.rows_of(batch) for batch in self.driven.sent]

        def finish(self):
            while self.driven.out or self.driven.core.backlog:
                self.driven.answer_all()
                self.driven.pass_time(0.5)

    return Scale()


def test_a_batch_leaves_as_soon_as_its_budget_is_used_up(scale):
    scale.submit("a4")
    scale.submit("b5")
    assert scale.driven.sent == []
    scale.submit("c1")
    assert scale.sent() == [["a4/0", "b5/0", "c1/0"]]
    assert scale.driven.reasons == ["full"]


def test_a_batch_leaves_as_soon_as_the_next_request_would_not_fit(scale):
    scale.submit("a4")
    scale.submit("b5")
    scale.submit("c4")
    assert scale.sent() == [["a4/0", "b5/0"]]
    assert scale.driven.reasons == ["full"]
    scale.driven.answer()
    assert len(scale.sent()) == 1, "what is left is young and small: it waits"
    scale.finish()
    assert scale.sent()[1:] == [["c4/0"]]


def test_a_request_that_fits_a_batch_is_not_cut(scale):
    scale.submit("a4")
    scale.submit("b3", rows=3)
    scale.finish()
    assert scale.sent() == [["a4/0"], ["b3/0", "b3/1", "b3/2"]]


def test_a_request_that_fits_no_batch_is_cut_at_its_rows_and_fills_what_room_there_is(scale):
    scale.submit("a4")
    scale.submit("b3", rows=5)
    scale.submit("c1")
    scale.finish()
    assert scale.sent() == [["a4/0", "b3/0", "b3/1"], ["b3/2", "b3/3", "b3/4", "c1/0"]]
    assert scale.driven.answers["b3"] == [f"b3/{i}" for i in range(5)]


def test_an_instance_over_the_limit_travels_alone(scale):
    scale.submit("a1")
    scale.submit("b99")
    scale.submit("c1")
    scale.submit("d0")
    scale.finish()
    assert scale.sent() == [["a1/0"], ["b99/0"], ["c1/0", "d0/0"]]


def test_each_row_of_a_request_travels_alone_if_each_is_over_the_limit(scale):
    scale.submit("a50", rows=3)
    scale.finish()
    assert scale.sent() == [["a50/0"], ["a50/1"], ["a50/2"]]
    assert scale.driven.answers["a50"] == ["a50/0", "a50/1", "a50/2"]


def test_the_number_of_instances_still_counts(scale):
    driven = scale.of(10, max_batch_size=2)
    for name in ("a1", "b1", "c1"):
        scale.submit(name)
    assert driven.sizes == [2]


def test_other_keys_have_budgets_of_their_own(scale):
    scale.submit("a6", key="one")
    scale.submit("b6", key="two")
    assert scale.driven.sent == []
    scale.submit("c4", key="two")
    assert scale.sent() == [["b6/0", "c4/0"]]


def test_those_who_leave_give_back_what_they_took(scale):
    scale.submit("a6")
    scale.driven.cancel("a6")
    scale.submit("b6")
    assert scale.driven.sent == []


def test_the_rest_of_a_request_that_leaves_is_given_back(scale):
    scale.submit("a9", rows=3)
    scale.driven.cancel("a9")
    scale.submit("b9")
    assert scale.sent() == [["a9/0"]]
    assert scale.driven.core.backlog.size == 9


def test_changed_budgets_apply_to_what_already_waits(scale):
    driven = scale.of(float("inf"))
    for name in ("a4", "b4", "c4"):
        scale.submit(name)
    driven.change(max_batch_bytes=10)
    assert scale.sent() == [["a4/0", "b4/0"]]


def test_a_cost_that_is_told_later_counts_for_those_who_already_wait(driven):
    driven.change(max_batch_size=32)
    for name in ("a4", "b4", "c4"):
        driven.submit(name)
    driven.change(max_batch_cost=10, row_costs=weights)
    assert driven.sizes == [2]


def test_rows_are_not_measured_while_they_need_not_be_cut(driven_of):
    def never(payload, start, stop):
        raise AssertionError("measured in vain")

    driven = driven_of(max_batch_size=4, max_batch_bytes=1000, row_sizes=never)
    for i in range(6):
        driven.submit(str(i), rows=2)
        driven.answer_all()
    assert driven.sizes == [4, 4, 4]


def test_only_rows_that_could_fit_are_measured(driven_of):
    asked = []

    def measure(payload, start, stop):
        asked.append((start, stop))
        return core_limits.lengths(payload, start, stop)

    driven = driven_of(max_batch_size=4, max_batch_bytes=100, row_sizes=measure)
    driven.submit("a", rows=1000, size=5000)
    assert driven.sizes == [4]
    assert set(asked) == {(0, 4)}


def test_what_the_next_batch_would_carry_is_known_before_it_is_cut(scale):
    driven = scale.of(10, max_in_flight=0)
    waiting = driven.core.backlog
    for name, rows, expected in [("a4", 1, 1), ("b3", 1, 2), ("c2", 4, 2), ("d1", 1, 2)]:
        scale.submit(name, rows)
        assert waiting.oldest().next_rows == expected
    queue = waiting.oldest()
    assert queue.is_full
    assert sum(stop - start for _, start, stop in waiting.take(queue)) == 2
    assert not waiting.oldest().is_full
    assert waiting.oldest().next_rows == 5


def test_what_was_cut_already_may_be_cut_again_if_fewer_rows_are_asked_for(scale):
    driven = scale.of(10, max_in_flight=0)
    scale.submit("a4", rows=4)
    queue = driven.core.backlog.oldest()
    cuts = [driven.core.backlog.take(queue, rows)[0] for rows in (None, 1, None)]
    assert [(start, stop) for _, start, stop in cuts] == [(0, 2), (2, 3), (3, 4)]
    assert not driven.core.backlog
