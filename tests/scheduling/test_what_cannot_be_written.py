"""What waits is summed up in one place, requests keep their key, and limits change by one event: nothing by hand."""

from __future__ import annotations

import dataclasses

import pytest

from carpool.scheduling import backlog, limits, messages, queues
from tests.scheduling.driven import DrivenScheduler, refused


@pytest.fixture
def waiting() -> backlog.Backlog:
    driven = DrivenScheduler(max_batch_size=8)
    driven.submit("a", 2)
    driven.submit("b", 3)
    return driven.core.backlog


@pytest.mark.parametrize("name", ["rows", "size"])
@pytest.mark.parametrize("is_of_queue", [True, False])
def test_no_sum_can_be_written(waiting: backlog.Backlog, name: str, is_of_queue: bool) -> None:
    owner: object = waiting.oldest() if is_of_queue else waiting
    before = getattr(owner, name)
    with pytest.raises(AttributeError):
        setattr(owner, name, before + 1)
    assert getattr(owner, name) == before > 0


@pytest.mark.parametrize("name", queues.Sums._fields)
def test_no_part_of_the_sums_can_be_written(waiting: backlog.Backlog, name: str) -> None:
    queue = waiting.oldest()
    assert queue is not None
    with pytest.raises(AttributeError):
        setattr(queue.sums, name, 0)
    assert queue.sums == (5, 20, 0.0)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(limits.Limits)])
def test_no_limit_can_be_written(name: str) -> None:
    driven = DrivenScheduler(max_batch_size=8)
    before = getattr(driven.limits, name)
    with pytest.raises(AttributeError):
        setattr(driven.limits, name, 3)
    assert getattr(driven.limits, name) == before


def test_other_limits_hold_for_every_part_once_the_scheduler_was_told() -> None:
    driven = DrivenScheduler(max_batch_size=8, max_latency=1.0)
    driven.submit("a", 3)
    driven.change(max_batch_size=2)
    assert driven.sizes == [2]
    assert driven.core.limits is driven.limits


def test_a_request_keeps_its_key() -> None:
    request = messages.Request("key", 1)
    with pytest.raises(AttributeError):
        request.key = "another"  # type: ignore[misc]
    assert request.key == request.queue_key == "key"


@pytest.mark.parametrize("name", ["place", "open", "is_queued", "rows_taken", "rows_queued", "goes_again", "was_sent"])
def test_where_a_request_is_can_only_be_changed_by_its_moves(name: str) -> None:
    request = messages.Request("key", 2)
    before = getattr(request, name)
    with pytest.raises(AttributeError):
        setattr(request, name, 1)
    assert getattr(request, name) == before


def test_a_request_is_at_one_place_at_a_time() -> None:
    driven = DrivenScheduler(traits={"content": lambda request: request.tag[0]}, max_batch_size=4, max_latency=0.0)
    request = driven.make("a", 6)
    assert (request.place, request.open) == (messages.OUTSIDE, False)
    driven.do(driven.core.submit(request))
    assert (request.place, request.rows_taken, request.was_sent) == (messages.WAITING, 4, True)
    driven.answer()
    assert (request.place, request.is_queued) == (messages.TRAVELLING, False)
    driven.fail(refused(400))
    assert (request.place, request.open, request.payload) == (messages.ENDED, False, None)
    driven.submit("b", 4)
    suspect = driven.submit("a again", 1)
    assert (suspect.place, suspect.is_queued) == (messages.QUARANTINED, True)
    driven.answer()
    assert suspect.place is messages.TRAVELLING
    driven.answer()
    assert (suspect.place, driven.answers["a again"]) == (messages.ENDED, ["a again/0"])


def test_all_that_came_and_left_sums_up_to_nothing() -> None:
    driven = DrivenScheduler(max_batch_size=8, max_latency=0.0)
    for number in range(20):
        driven.submit(str(number), 1 + number % 3, key=str(number % 4))
        if number % 5 == 4:
            driven.cancel(str(number))
    driven.answer_all()
    assert (driven.core.backlog.rows, driven.core.backlog.size) == (0, 0)
    assert not list(driven.core.backlog.queues())
