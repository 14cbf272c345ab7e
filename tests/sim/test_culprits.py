"""What callers that keep sending bad requests cost the others, with the scheduler that ships."""

from __future__ import annotations

import functools

import pytest

from benchmarks.sim import culprits

run = functools.cache(lambda **scene: culprits.run(culprits.Scene(seconds=4.0, **scene)))


@pytest.mark.parametrize("policy", ["adaptive", "window"])
@pytest.mark.parametrize("same_content", [True, False])
@pytest.mark.parametrize("bad_share", [0.01, 0.03, 0.1, 0.5])
def test_whatever_their_share_good_requests_are_answered_and_culprits_get_their_own_error(
    bad_share, same_content, policy
):
    """Callers in closed loops with connections of their own; the predictor is asked at most twice as often."""
    scene = {"same_content": same_content, "policy": policy}
    found, without = run(bad_share=bad_share, **scene), run(bad_share=0.0, **scene)
    assert found.good["answered"] >= 0.99
    assert found.bad["own"] >= 0.95
    assert found.calls_per_good <= 2 * without.calls_per_good


@pytest.mark.parametrize("own_connection", [True, False])
@pytest.mark.parametrize("bad_share", [0.01, 0.03, 0.1, 0.5])
def test_the_same_bad_request_sent_at_any_rate_disturbs_nobody(bad_share, own_connection):
    """Callers that do not wait for each other, also over the shared connections of an ingress."""
    scene = {"is_open": True, "own_connection": own_connection, "own_shape": False}
    found, without = run(bad_share=bad_share, **scene), run(bad_share=0.0, **scene)
    assert found.good["answered"] >= 0.99
    assert found.bad["own"] >= 0.95
    assert found.calls_per_good <= 2 * without.calls_per_good


@pytest.mark.parametrize("bad_share", [0.01, 0.03, 0.1])
def test_good_requests_on_connections_they_share_with_culprits_are_answered(bad_share):
    """Only their form tells the bad ones, whose content is always new."""
    found = run(is_open=True, own_connection=False, same_content=False, bad_share=bad_share)
    assert found.good["answered"] >= 0.99


def test_many_culprits_told_only_by_their_connections_are_found_one_after_the_other():
    """Half of the callers send always new bad requests that look like good ones."""
    found = culprits.run(culprits.Scene(0.5, same_content=False, own_shape=False, seconds=10.0))
    assert found.good["answered"] >= 0.99
    assert found.bad["own"] >= 0.95
    assert found.good_count > 4 * sum(found.bad.values()) * found.bad_count
