"""Priorities across keys and allowed sizes under the window policy."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from tests.scheduling.driven import DrivenScheduler


def test_a_small_request_goes_before_a_larger_one_of_another_key(driven_of):
    driven = driven_of(max_batch_size=4, max_latency=0.0, small_batch_threshold=1)
    driven.submit("busy", rows=4)
    driven.submit("large", rows=3, key="x")
    driven.submit("small", key="y")
    driven.answer_all()
    assert [driven.members(batch) for batch in driven.sent] == [["busy"], ["small"], ["large"]]


def test_a_due_batch_leaves_at_an_allowed_size_and_the_rest_follows(driven_of):
    driven = driven_of(max_batch_size=8, max_latency=0.5, allowed_sizes=(1, 2, 4, 8))
    for i in range(7):
        driven.submit(str(i))
    driven.pass_time(0.5)
    driven.answer_all()
    assert driven.sizes == [4, 2, 1]
    assert driven.reasons == ["due"] * 3


STEPS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.4]), st.sampled_from("xyz"), st.integers(1, 9), st.booleans()), max_size=40
)


@given(steps=STEPS, allowed=st.sampled_from([(), (1, 2, 4, 6), (3, 6)]))
def test_each_batch_is_that_of_the_request_which_goes_first_among_all_keys(steps, allowed):
    driven = DrivenScheduler(
        max_batch_size=6, max_latency=0.0, small_batch_threshold=2, priority_ageing=0.5, allowed_sizes=allowed
    )

    def rank(request):
        return request.arrived + (0.0 if request.rows <= 2 else 0.5), request.sequence

    def answer():
        waiting = [request for request in driven.requests.values() if request.open and request.rows_queued]
        driven.answer()
        assert not waiting or driven.out[0].key == min(waiting, key=rank).key

    for number, (gap, key, rows, is_answered) in enumerate(steps):
        driven.pass_time(gap)
        driven.submit(str(number), rows, key)
        if is_answered:
            answer()
    while driven.out:
        answer()
    assert set(driven.answers) == set(driven.requests)
    assert max(driven.sizes, default=0) <= 6
