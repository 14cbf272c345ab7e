"""Priorities across keys and allowed sizes under the window policy."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from tests.scheduling.desk import Desk


def test_a_small_request_goes_before_a_larger_one_of_another_key(desk_of):
    desk = desk_of(max_batch_size=4, max_latency=0.0, small_batch_threshold=1)
    desk.submit("busy", rows=4)
    desk.submit("large", rows=3, key="x")
    desk.submit("small", key="y")
    desk.answer_all()
    assert [desk.members(batch) for batch in desk.sent] == [["busy"], ["small"], ["large"]]


def test_a_due_batch_leaves_at_an_allowed_size_and_the_rest_follows(desk_of):
    desk = desk_of(max_batch_size=8, max_latency=0.5, allowed_sizes=(1, 2, 4, 8))
    for i in range(7):
        desk.submit(str(i))
    desk.pass_time(0.5)
    desk.answer_all()
    assert desk.sizes == [4, 2, 1]
    assert desk.reasons == ["due"] * 3


STEPS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.4]), st.sampled_from("xyz"), st.integers(1, 9), st.booleans()), max_size=40
)


@given(steps=STEPS, allowed=st.sampled_from([(), (1, 2, 4, 6), (3, 6)]))
def test_each_batch_is_that_of_the_request_which_goes_first_among_all_keys(steps, allowed):
    desk = Desk(max_batch_size=6, max_latency=0.0, small_batch_threshold=2, priority_ageing=0.5, allowed_sizes=allowed)

    def rank(request):
        return request.arrived + (0.0 if request.rows <= 2 else 0.5), request.sequence

    def answer():
        waiting = [request for request in desk.requests.values() if request.open and request.rows_queued]
        desk.answer()
        assert not waiting or desk.out[0].key == min(waiting, key=rank).key

    for number, (gap, key, rows, is_answered) in enumerate(steps):
        desk.pass_time(gap)
        desk.submit(str(number), rows, key)
        if is_answered:
            answer()
    while desk.out:
        answer()
    assert set(desk.answers) == set(desk.requests)
    assert max(desk.sizes, default=0) <= 6
