"""The count of bytes held and requests handled: what is reserved is given back, once."""

from __future__ import annotations

import random

import pytest

from carpool import errors
from carpool.scheduling import ledger


def test_a_reservation_counts_until_it_is_released() -> None:
    book = ledger.Ledger()
    mine, others = book.reserve(100, requests=1), book.reserve(20)
    assert (book.held, book.active) == (120, 1)
    mine.release()
    assert (book.held, book.active) == (20, 0)
    others.release()
    assert (book.held, book.active) == (0, 0)


def test_releasing_again_changes_nothing() -> None:
    book = ledger.Ledger()
    mine, _ = book.reserve(100, requests=1), book.reserve(20, requests=1)
    mine.release()
    mine.release()
    assert (book.held, book.active) == (20, 1)


def test_a_reservation_may_be_used_again_after_its_release() -> None:
    book = ledger.Ledger()
    mine = book.reserve(100)
    mine.release()
    mine.add(30, requests=2)
    assert (book.held, book.active) == (mine.size, mine.requests) == (30, 2)


def test_a_reservation_is_released_at_the_end_of_a_with_block_whatever_happens_in_it() -> None:
    book = ledger.Ledger()
    with book.reserve(100, requests=1) as mine:
        mine.add(5)
        assert (book.held, book.active) == (105, 1)
    assert (book.held, book.active) == (0, 0)
    with pytest.raises(ValueError, match="inside"), book.reserve(100, requests=1):
        raise ValueError("inside")
    assert (book.held, book.active) == (0, 0)


def test_there_is_room_up_to_the_limit_and_reservations_may_go_beyond_it() -> None:
    book = ledger.Ledger(100)
    mine = book.reserve(60)
    assert book.has_room(40)
    book.check_room(40)
    assert not book.has_room(41)
    with pytest.raises(errors.MemoryFull):
        book.check_room(41)
    mine.add(60)
    assert (book.held, book.has_room(0)) == (120, False)


def test_much_that_is_given_back_at_once_is_told_of() -> None:
    book, told = ledger.Ledger(), []
    book.large, book.on_large = 50, lambda: told.append(book.held)
    mine = book.reserve(200)
    mine.resize(150)
    assert told == []
    mine.resize(99)
    mine.release()
    assert told == [99, 0]


def test_the_last_request_is_told_of_each_time() -> None:
    book, told = ledger.Ledger(), []
    book.on_idle = lambda: told.append(book.active)
    first, second = book.reserve(requests=1), book.reserve(10, requests=2)
    first.release()
    book.reserve(5).release()
    assert told == []
    second.release()
    book.reserve(requests=1).release()
    assert told == [0, 0]


def test_the_counts_are_the_sums_of_all_reservations_after_any_changes() -> None:
    book, numbers = ledger.Ledger(), random.Random(7)
    kept = [book.reserve() for _ in range(5)]
    for _ in range(500):
        one = numbers.choice(kept)
        match numbers.randrange(4):
            case 0:
                one.add(numbers.randrange(100), numbers.randrange(3))
            case 1:
                one.resize(numbers.randrange(100))
            case 2:
                one.release()
            case _:
                kept.append(book.reserve(numbers.randrange(100), numbers.randrange(2)))
        assert book.held == sum(each.size for each in kept)
        assert book.active == sum(each.requests for each in kept)
