"""The book of deadlines: the earliest that is open is known, each one runs out once, and closed ones take no room."""

from __future__ import annotations

import itertools
import math
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from carpool.scheduling.messages import Request
from carpool.scheduling.queues import Deadlines


def request_of(deadline: float, sequence: int) -> Request:
    request = Request("key", 1)
    request.deadline = deadline
    request.accept(sequence)
    return request


def watched(book: Deadlines, deadline: float, sequence: int) -> Request:
    request = request_of(deadline, sequence)
    book.add_all([request])
    return request


def close(book: Deadlines, *requests: Request) -> None:
    """As the scheduler does for a batch: all of them at once."""
    for request in requests:
        request.finish()
    book.forget(requests)


# Deadlines that come in order wait in a queue, all others in a heap; neither may pile up.
ORDERS = {"as they come": lambda number: 10.0 + number, "the other way round": lambda number: 1e6 - number}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("at_once", [1, 32, 1000])
def test_answered_requests_take_no_more_room_than_open_ones_while_the_first_is_still_open(order, at_once):
    book = Deadlines()
    first = watched(book, 0.0, 0)
    number = 0
    for _ in range(5000 // at_once):
        batch = []
        for _ in range(at_once):
            number += 1
            batch.append(watched(book, order(number), number))
        close(book, *batch)
        assert len(book) <= 2 + 2 * 64
    assert list(book) == [first]
    assert book.next() == 0.0


def test_those_who_wait_on_run_out_in_order_after_a_cleaning():
    book, chance = Deadlines(), random.Random(1)
    watched(book, 1e6, 0)  # all others come out of order
    requests = [watched(book, float(chance.randrange(10**5)), number) for number in range(1, 1000)]
    chance.shuffle(requests)
    gone, left = requests[:700], requests[700:]
    for request in gone:
        close(book, request)
    assert len(book) < 900
    assert list(book.pop_expired(10**5)) == sorted(left, key=_age)


def test_cleaning_out_happens_seldom_enough_that_the_work_for_each_request_stays_the_same():
    """Every request is looked at a bounded number of times, however many are open."""
    book = Deadlines()
    still_open = [watched(book, number, number) for number in range(10_000)]
    lengths = []
    for number in range(10_000, 30_000):
        close(book, watched(book, number, number))
        lengths.append(len(book))
    cleanings = sum(after < before for before, after in itertools.pairwise(lengths))
    assert 1 <= cleanings <= 3
    assert max(lengths) <= 2 * len(still_open) + 2 * 64 + 2
    assert sum(1 for _ in book) == len(still_open)


def test_requests_without_a_deadline_leave_nothing_behind_and_never_run_out():
    book = Deadlines()
    endless = [watched(book, math.inf, number) for number in range(100)]
    assert book.next() is None
    assert list(book.pop_expired(1e9)) == []
    assert set(book) == set(endless)
    close(book, *endless)
    assert (len(book), book.next()) == (0, None)


def test_those_without_a_deadline_leave_the_others_in_order_of_arrival():
    """Were theirs the latest deadline, all that came afterwards would count as out of order."""
    book = Deadlines()
    for number in range(0, 100, 2):
        watched(book, math.inf, number)
        watched(book, number, number + 1)
    assert book._heap == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "add all", "close", "close all", "next", "pop"]),
            st.floats(0, 100) | st.just(math.inf),
            st.integers(0, 10**6),
        ),
        max_size=400,
    )
)
def test_it_tells_what_a_plain_list_of_open_requests_tells(steps):
    book, plain = Deadlines(), []
    numbers = itertools.count()
    for step, time, which in steps:
        if step == "add":
            plain.append(watched(book, time, next(numbers)))
        elif step == "add all":
            together = [request_of(time if which % 3 else 7.0 * which, next(numbers)) for which in range(which % 9 + 1)]
            book.add_all(together)
            plain += together
        elif step == "close" and plain:
            close(book, plain.pop(which % len(plain)))
        elif step == "close all":
            cut = which % (len(plain) + 1)
            close(book, *plain[cut:])
            plain = plain[:cut]
        elif step == "next":
            earliest = min((request.deadline for request in plain), default=math.inf)
            assert book.next() == (None if earliest == math.inf else earliest)
        elif step == "pop" and time < math.inf:
            late = sorted((request for request in plain if request.deadline <= time), key=_age)
            for request in book.pop_expired(time):
                assert request is late.pop(0)
                plain.remove(request)
                close(book, request)
            assert late == []
        assert set(book) == set(plain)
        assert len(book) <= 2 * len(plain) + 2 * 64 + 2


def _age(request: Request) -> tuple[float, int]:
    return request.deadline, request.sequence
