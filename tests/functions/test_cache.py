"""The cache of results: what it keeps, for how long, and in whose place."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.functions import cache


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Model:
    """The rules, without thought for time or memory: expired values are gone, and the one used longest ago goes."""

    def __init__(self, maxsize: int, ttl: float | None, clock: Clock) -> None:
        self.maxsize, self.ttl, self.clock = maxsize, ttl, clock
        self.values: list[tuple[int, int, float]] = []  # last used last

    def holding(self) -> list[tuple[int, int, float]]:
        self.values = [entry for entry in self.values if self.ttl is None or self.clock.now < entry[2] + self.ttl]
        return self.values

    def get(self, key: int) -> int | None:
        found = next((entry for entry in self.holding() if entry[0] == key), None)
        if found is not None:
            self.values.remove(found)
            self.values.append(found)
        return found and found[1]

    def set(self, key: int, value: int) -> None:
        kept = [entry for entry in self.holding() if entry[0] != key]
        self.values = [*kept, (key, value, self.clock.now)][-self.maxsize :]


OPERATIONS = st.lists(
    st.tuples(st.just("set"), st.integers(0, 7), st.integers(1, 9))
    | st.tuples(st.sampled_from(["get", "in", "len"]), st.integers(0, 7), st.just(0))
    | st.tuples(st.just("wait"), st.sampled_from([0, 1, 3, 10]), st.just(0))
    | st.tuples(st.just("clear"), st.just(0), st.just(0)),
    max_size=60,
)


@given(OPERATIONS, st.integers(1, 5), st.none() | st.sampled_from([1, 3.0, 10]))
def test_it_keeps_what_was_used_last_for_as_long_as_it_holds(operations, maxsize, ttl) -> None:
    clock = Clock()
    lru: cache.LRU[int, int] = cache.LRU(maxsize, ttl, clock)
    model = Model(maxsize, ttl, clock)
    for name, key, value in operations:
        if name == "set":
            lru.set(key, value)
            model.set(key, value)
        elif name == "get":
            assert lru.get(key) == model.get(key)
        elif name == "in":
            assert (key in lru) == any(entry[0] == key for entry in model.holding())
        elif name == "len":
            assert len(lru) == len(model.holding())
        elif name == "wait":
            clock.now += key
        else:
            lru.clear()
            model.values.clear()
    assert [lru.get(key) for key in range(8)] == [model.get(key) for key in range(8)]


def test_a_missing_value_is_the_default() -> None:
    lru: cache.LRU[str, int] = cache.LRU()
    assert lru.get("a") is None
    assert lru.get("a", "nothing") == "nothing"


def test_expired_values_are_freed_by_and_by_though_nobody_asks_for_them() -> None:
    class Value:
        pass

    clock = Clock()
    lru: cache.LRU[int, Value] = cache.LRU(1000, ttl=1, clock=clock)
    alive: weakref.WeakSet[Value] = weakref.WeakSet()
    for key in range(100):
        value = Value()
        alive.add(value)
        lru.set(key, value)
    del value
    clock.now += 1
    for key in range(100, 150):
        lru.set(key, Value())
        gc.collect()
        assert len(alive) == 100 - 2 * (key - 99)


def test_a_value_that_still_holds_does_not_make_room_while_there_are_expired_ones() -> None:
    clock = Clock()
    lru: cache.LRU[str, int] = cache.LRU(3, ttl=2, clock=clock)
    lru.set("old", 1)
    clock.now += 1
    lru.set("a", 2)
    lru.set("b", 3)
    lru.get("old")  # used last, but not for long
    clock.now += 1
    lru.set("c", 4)
    assert [key in lru for key in ("old", "a", "b", "c")] == [False, True, True, True]


def test_a_value_of_none_is_kept_although_it_reads_as_missing() -> None:
    lru: cache.LRU[str, None] = cache.LRU()
    lru.set("a", None)
    assert "a" in lru
    assert lru.get("a") is None


@pytest.mark.parametrize("call", [lambda lru: lru.get([]), lambda lru: lru.set([], 1), lambda lru: [] in lru])
def test_a_key_without_a_hash_is_an_error_as_with_a_dict(call: Callable[[Any], object]) -> None:
    lru: cache.LRU[Any, int] = cache.LRU(ttl=5)
    with pytest.raises(TypeError, match="unhashable"):
        call(lru)
    assert len(lru) == 0


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"maxsize": 0}, ValueError, "maxsize must be at least 1, not 0"),
        ({"maxsize": 1.5}, TypeError, "maxsize must be a whole number, not 1.5"),
        ({"maxsize": True}, TypeError, "maxsize must be a whole number, not True"),
        ({"maxsize": None}, TypeError, "maxsize must be a whole number, not None"),
        ({"ttl": 0}, ValueError, "ttl must be more than 0 seconds, or None for none, not 0"),
        ({"ttl": -1.0}, ValueError, "ttl must be more than 0 seconds, or None for none, not -1.0"),
        ({"ttl": float("nan")}, ValueError, "ttl must be more than 0 seconds, or None for none, not nan"),
        ({"ttl": float("inf")}, ValueError, "ttl must be more than 0 seconds, or None for none, not inf"),
        ({"ttl": "60"}, TypeError, "ttl must be a number, or None for none, not '60'"),
        ({"ttl": True}, TypeError, "ttl must be a number, or None for none, not True"),
    ],
)
def test_options_out_of_range_are_errors_that_name_them(options, error, words) -> None:
    with pytest.raises(error) as raised:
        cache.LRU(**options)
    assert str(raised.value) == words


def test_many_threads_leave_it_whole() -> None:
    lru: cache.LRU[int, int] = cache.LRU(50, ttl=0.001)
    wrong: list[object] = []

    def use(seed: int) -> None:
        try:
            for step in range(2000):
                key = (seed * step) % 97
                lru.set(key, key)
                if lru.get(key, key) != key:
                    wrong.append(key)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in (3, 5, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(lru) <= 50
    assert set(lru._expiring) == set(lru._values)


def test_freeing_a_value_may_use_the_cache() -> None:
    lru: cache.LRU[str, Any] = cache.LRU(1)

    class Value:
        def __del__(self) -> None:
            lru.get("a")

    lru.set("a", Value())
    lru.set("b", 1)
    gc.collect()
    assert lru.get("b") == 1


def test_a_fork_while_a_thread_is_at_work_leaves_the_child_a_cache_it_can_use() -> None:
    lru: cache.LRU[str, int] = cache.LRU()
    lru.set("a", 1)
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with lru._lock:
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    lru._after_fork()  # as in the child, which has no such thread
    leave.set()
    thread.join()
    lru.set("b", 2)
    assert (lru.get("a"), lru.get("b")) == (None, 2)


def test_a_fork_while_nobody_is_at_work_copies_it() -> None:
    lru: cache.LRU[str, int] = cache.LRU()
    lru.set("a", 1)
    lru._after_fork()
    assert lru.get("a") == 1
