"""The sidecar does with each stream what it did when that was kept: `python -m tests.http1.freeze` shows what differs.

Who changes what is done on purpose keeps it anew, and says in tests/http1/README.md what differs from before, and why.
"""

from __future__ import annotations

import pytest

from tests.http1 import corpus, exchange, freeze

_SHOWN = 5


@pytest.fixture(scope="module")
def kept() -> freeze.Outcomes:
    return freeze.kept()


@pytest.mark.parametrize("group", corpus.GROUPS)
def test_each_stream_leads_to_what_it_led_to(kept: freeze.Outcomes, group: str) -> None:
    now, complaints = freeze.run([group])
    found = list(freeze.differences(kept, now))
    assert not found, "\n\n".join([f"{len(found)} of {len(now)} streams", *found[:_SHOWN]])
    assert not complaints


def test_there_are_some_thousands_of_streams_and_nothing_is_kept_of_others(kept: freeze.Outcomes) -> None:
    streams = {stream.key for group in corpus.GROUPS for stream in corpus.streams(group)}
    assert len(streams) > 3000
    assert streams == kept.keys()
    assert freeze.KEPT.stat().st_size < 1_000_000


def test_what_differs_is_told_by_stream() -> None:
    was = {"a: b": "= closed", "a: c": "= open"}
    now = {"a: b": "= reset", "a: c": "= open", "a: d": ""}
    older, newer = ({"a: e": f"< HTTP/1.1 413 {words}"} for words in ("Request Entity Too Large", "Content Too Large"))
    assert not list(freeze.differences(older, newer))
    assert list(freeze.differences(was, now)) == ["a: b\n--- was\n= closed\n+++ is\n= reset", "a: d: new"]


@pytest.mark.parametrize("name", ['"batchId":"', "carpool-batch-id: "])
def test_a_batch_id_with_the_digits_of_a_stream_is_masked_as_any_other(name: str) -> None:
    told = [
        exchange.masked(f'{name}{digits}-0000-4000-8000-000000000000"', 500_123) for digits in ("50012312", "a" * 8)
    ]
    assert told == [f'{name}?"'] * 2
