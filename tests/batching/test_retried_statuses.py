"""What statuses of the predictor's mean: which are tried again, and which say that it has too much to do."""

from __future__ import annotations

import pytest

from carpool_sidecar import errors
from carpool_sidecar.batching import retried_statuses
from carpool_sidecar.errors import Remedy


def judged(status: int, named: str | None = None, doubtful: frozenset[int] = frozenset()) -> errors.UpstreamStatus:
    refusal = errors.UpstreamStatus(status, b"")
    retried_statuses.Rules(named).judge(refusal, doubtful, 32)
    return refusal


@pytest.mark.parametrize(
    ("named", "status", "remedy"),
    [
        (None, 400, Remedy.HALVES),
        (None, 404, Remedy.GIVE_UP),
        (None, 500, Remedy.HALVES_WHILE_WELL),
        (None, 503, Remedy.GIVE_UP),
        ("4xx", 500, Remedy.GIVE_UP),
        ("5xx", 500, Remedy.HALVES),
        ("5xx", 400, Remedy.GIVE_UP),
        ("404", 404, Remedy.HALVES),
        ("", 400, Remedy.GIVE_UP),
    ],
)
def test_a_status_is_retried_by_halves_if_it_is_named_or_nothing_is_and_the_route_doubts_it(
    named: str | None, status: int, remedy: Remedy
) -> None:
    assert judged(status, named, frozenset({500})).remedy is remedy


def test_a_status_that_the_route_does_not_doubt_tells_nothing_of_members() -> None:
    assert (judged(500).remedy, judged(500).is_doubtful) == (Remedy.GIVE_UP, False)


def test_the_route_may_doubt_a_status_that_is_named() -> None:
    assert judged(500, "5xx", frozenset({500})).is_doubtful


def test_too_many_requests_and_unavailable_mean_overload_and_nothing_else_does() -> None:
    assert [status for status in range(400, 600) if judged(status).is_overload] == [429, 503]


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("4xx", {400, 413, 422, 499}, {401, 404, 429, 500}),
        ("5xx,400", {400, 500, 503}, {422}),
        ("404", {404}, {400}),
        ("", set(), {400, 500}),
    ],
)
def test_statuses_are_read_as_written(text, inside, outside):
    statuses = retried_statuses.Statuses.parse(text)
    assert all(code in statuses for code in inside)
    assert not any(code in statuses for code in outside)


@pytest.mark.parametrize("text", ["3xx", "abc", "600", "399", "4xx;5xx", "-1"])
def test_statuses_that_make_no_sense_are_refused_with_what_is_allowed(text):
    with pytest.raises(ValueError, match="is not 4xx, 5xx or a status from 400 to 599"):
        retried_statuses.Statuses.parse(text)
