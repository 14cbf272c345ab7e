"""The event loop's time, shared between connections.

What is little is dealt with when it comes. Who sends much, or has many streams to be cleared away, gets turns of
limited work, one connection after another, and between rounds of them the loop does everything else. So a client that
asks for little waits for the length of a round, whatever the others send, and on however many connections.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Protocol

_WORK_A_ROUND = 512
"""See `connection.Connection.work`; about 2 ms. A batched call takes half a dozen rounds from arrival to answer."""


class Client(Protocol):
    """A connection with more to do than a turn's work."""

    def take_turn(self) -> None:
        """Work for one turn, `spend` it, and `wait` again if there is more."""
        ...


class Turns:
    """Of one server. `call_soon` is the event loop's."""

    # State: clients that wait, in order; what is left of this round's work; whether the next round is due.
    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._waiting: collections.deque[Client] = collections.deque()
        self._left = _WORK_A_ROUND
        self._is_due = False

    @property
    def has_room(self) -> bool:
        """Whether there is time for more in this round."""
        return self._left > 0

    def spend(self, work: int) -> None:
        """A client has used so much of this round."""
        self._left -= work
        if self._left <= 0:
            self._make_due()

    def wait(self, client: Client) -> None:
        """Call `take_turn` when it is this client's turn."""
        self._waiting.append(client)
        self._make_due()

    def _make_due(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._go_round)

    def _go_round(self) -> None:
        self._is_due = False
        self._left = _WORK_A_ROUND
        waiting = self._waiting
        for _ in range(len(waiting)):
            waiting.popleft().take_turn()
            if self._left <= 0:
                break
        if waiting:
            self._make_due()
