"""What must hold for any history of a batched function: calls, departures, failures and changes in any order.

Time is set by hand, and a host that only keeps what it is given stands for the threads and loops.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

import carpool
from tests.functions.driven import DrivenFunction, Item


class Bad(Exception):
    """Belongs to the item it names."""


class Broken(Exception):
    """What the function raises."""


class Call:
    """One call and all that became of it."""

    def __init__(self, name: str, items: list[Item], is_map: bool, key: str, deadline: float) -> None:
        self.name, self.is_map, self.key, self.deadline = name, is_map, key, deadline
        self.texts = [item.text for item in items]
        self.items = [weakref.ref(item) for item in items]
        self.settled = 0
        self.was_cancelled = False
        self.future: Any = None

    def note(self, future: Any) -> None:
        self.settled += 1

    @property
    def expected(self) -> Any:
        return [text.upper() for text in self.texts] if self.is_map else self.texts[0].upper()


class AnyHistory(RuleBasedStateMachine):
    """Each call is settled exactly once: with its own results in order, an exception of its own, or by its caller."""

    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.driven = DrivenFunction(max_batch_size=4, max_latency=0.5, max_in_flight=2, max_queue=40, timeout=5.0)
        self.made: list[Call] = []
        self.caps = [4]
        self.in_flight = [2]
        self.closed = False
        self.looked_at = 0
        self.errors: set[int] = set()

    # --- what may happen -------------------------------------------------------------------------------------

    @rule(
        target=calls,
        count=st.integers(1, 11),
        is_map=st.booleans(),
        key=st.sampled_from("xyz"),
        timeout=st.none() | st.floats(0.01, 10),
        priority=st.integers(-1, 1),
    )
    def call(self, count: int, is_map: bool, key: str, timeout: float | None, priority: int) -> Call:
        name = f"c{len(self.made)}"
        items = [Item(f"{name}/{place}") for place in range(count if is_map else 1)]
        deadline = self.driven.now + (self.driven.timeout if timeout is None else timeout)
        call = Call(name, items, is_map, key, deadline)
        self.made.append(call)
        call.future = self.driven.call(items if is_map else items[0], is_map, key, timeout, priority)
        call.future.add_done_callback(call.note)
        if self.closed:
            assert type(call.future.exception()) is carpool.Closed
        return call

    @rule(
        target=calls,
        count=st.integers(1, 9),
        key=st.sampled_from("xyz"),
        timeout=st.none() | st.floats(0.01, 10),
        priority=st.integers(-1, 1),
    )
    def call_in_one_turn(self, count: int, key: str, timeout: float | None, priority: int) -> Any:
        deadline = self.driven.now + (self.driven.timeout if timeout is None else timeout)
        names = [f"c{len(self.made) + place}" for place in range(count)]
        items = [Item(f"{name}/0") for name in names]
        made = [Call(name, [item], False, key, deadline) for name, item in zip(names, items, strict=True)]
        self.made += made
        futures = self.driven.call_in_one_turn(items, key, timeout, priority)
        for call, future in zip(made, futures, strict=True):
            call.future = future
            future.add_done_callback(call.note)
            if self.closed:
                assert type(future.exception()) is carpool.Closed
        return multiple(*made)

    @rule(call=consumes(calls))
    def cancel(self, call: Call) -> None:
        was_done = call.future.done()
        call.was_cancelled = call.future.cancel()
        assert not (was_done and call.was_cancelled)
        assert was_done or call.was_cancelled, "who waits may always leave"

    @rule(seconds=st.floats(0, 3))
    def pass_time(self, seconds: float) -> None:
        self.driven.pass_time(seconds)

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        if self.driven.out:
            batch = data.draw(st.sampled_from(self.driven.out))
            self.driven.answer(batch, [text.upper() for text in batch.texts])

    @rule(data=st.data())
    def answer_with_exceptions(self, data: st.DataObject) -> None:
        """Some of the results are exceptions, which belong to their own items."""
        if self.driven.out:
            batch = data.draw(st.sampled_from(self.driven.out))
            which = data.draw(st.sets(st.integers(0, len(batch.texts) - 1)))
            self.driven.answer(
                batch,
                [Bad(text) if place in which else text.upper() for place, text in enumerate(batch.texts)],
            )

    @rule(data=st.data(), surplus=st.integers(-3, 3).filter(bool))
    def answer_with_wrong_count(self, data: st.DataObject, surplus: int) -> None:
        if self.driven.out:
            batch = data.draw(st.sampled_from(self.driven.out))
            waiting = self.waiting_for(batch)
            sent = len(self.driven.sent)
            self.driven.answer(batch, ["wrong"] * max(0, len(batch.texts) + surplus))
            for call in waiting:
                assert type(call.future.exception(0)) is carpool.WrongLength
            again = [text for later in self.driven.sent[sent:] for text in later.texts]
            assert not set(batch.texts) & set(again), "a wrong length is never isolated"

    @rule(data=st.data(), returned=st.sampled_from([None, 3, "text", {"a": 1}]))
    def answer_with_no_list(self, data: st.DataObject, returned: Any) -> None:
        if self.driven.out:
            batch = data.draw(st.sampled_from(self.driven.out))
            waiting = self.waiting_for(batch)
            self.driven.answer(batch, returned)
            for call in waiting:
                assert type(call.future.exception(0)) is carpool.WrongResult
                assert ("None" if returned is None else type(returned).__name__) in str(call.future.exception(0))

    @rule(data=st.data(), error=st.sampled_from([Broken, KeyboardInterrupt, SystemExit]))
    def fail(self, data: st.DataObject, error: type[BaseException]) -> None:
        if self.driven.out:
            self.driven.fail(data.draw(st.sampled_from(self.driven.out)), error("x"))

    @rule(
        size=st.integers(1, 8),
        latency=st.sampled_from([0.0, 0.1, 0.5, None]),
        in_flight=st.integers(1, 3),
        timeout=st.sampled_from([0.5, 5.0]),
    )
    def configure(self, size: int, latency: float | None, in_flight: int, timeout: float) -> None:
        self.driven.configure(max_batch_size=size, max_latency=latency, max_in_flight=in_flight, timeout=timeout)
        self.caps.append(size)
        self.in_flight.append(in_flight)

    @rule(timeout=st.none() | st.floats(0, 3), sure=st.integers(0, 9))
    def close(self, timeout: float | None, sure: int) -> None:
        if sure == 0:  # seldom, as nothing more happens afterwards
            self.closed = True
            self.driven.close(timeout)

    # --- what holds -----------------------------------------------------------------------------------------

    def waiting_for(self, batch: Any) -> list[Call]:
        names = {text.partition("/")[0] for text in batch.texts}
        return [call for call in self.made if call.name in names and not call.future.done()]

    @invariant()
    def batches_keep_the_limits_and_mix_no_keys(self) -> None:
        keys = {call.name: call.key for call in self.made}
        for batch in self.driven.sent[self.looked_at :]:
            assert 0 < len(batch.texts) == batch.rows <= max(self.caps)
            assert {keys[text.partition("/")[0]] for text in batch.texts} == {batch.key}
        self.looked_at = len(self.driven.sent)
        assert len(self.driven.out) <= max(self.in_flight)

    @invariant()
    def everybody_is_settled_once_and_has_what_is_their_own(self) -> None:
        for call in self.made:
            future = call.future
            assert call.settled == future.done()
            if not future.done():
                assert not call.was_cancelled
            elif future.cancelled():
                assert call.was_cancelled
            elif (error := future.exception()) is not None:
                if type(error) is Bad:
                    assert error.args[0] in call.texts
                else:
                    assert isinstance(error, Broken | carpool.CarpoolError), error
                    assert type(error) is not carpool.CarpoolError, "a bug"
            else:
                assert future.result() == call.expected

    @invariant()
    def every_exception_object_belongs_to_one_call(self) -> None:
        errors = [
            id(call.future.exception())
            for call in self.made
            if call.future.done() and not call.future.cancelled() and call.future.exception() is not None
        ]
        assert len(errors) == len(set(errors))

    @invariant()
    def nobody_waits_beyond_the_deadline(self) -> None:
        for call in self.made:
            assert call.future.done() or call.deadline >= self.driven.now

    def teardown(self) -> None:
        self.driven.close(None)
        for _ in range(1000):
            if not self.driven.out:
                break
            batch = self.driven.out[0]
            self.driven.answer(batch, [text.upper() for text in batch.texts])
            del batch
        assert all(call.future.done() for call in self.made), "nothing is lost"
        self.everybody_is_settled_once_and_has_what_is_their_own()
        assert self.driven.is_closed
        for call in self.made:
            call.future = None  # an exception keeps the frame that raised it
        watched = [item for call in self.made for item in call.items]
        if any(item() is not None for item in watched):
            gc.collect()
        assert [item() for item in watched if item() is not None] == [], "no item is kept"


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(stateful_step_count=40)
