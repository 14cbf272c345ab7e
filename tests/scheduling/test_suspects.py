"""Requests that resemble rejected ones: who is suspected, how suspects travel, and how trust returns."""

from __future__ import annotations

import random

import pytest

from carpool.scheduling import window
from carpool_sidecar import errors
from tests.scheduling.driven import DrivenScheduler, refused

# A request is named CONTENT@ORIGIN or CONTENT@ORIGIN#NUMBER; content that begins with "bad" is rejected.
TRAITS = {
    "content": lambda request: request.tag.partition("@")[0],
    "origin": lambda request: request.tag.partition("@")[2].partition("#")[0],
}


def driven_with_traits(**limits):
    return DrivenScheduler(traits=TRAITS, **({"max_batch_size": 4, "max_latency": 0.5} | limits))


@pytest.fixture
def driven():
    return driven_with_traits()


def react(driven, status=400):
    """Answer every batch out, as a predictor that rejects whatever has a bad row; returns how many there were."""
    calls = 0
    while driven.out:
        calls += 1
        batch = driven.out[0]
        if any(row.startswith("bad") for row in driven.rows_of(batch)):
            driven.fail(refused(status, b"own words", doubtful={500}), batch)
        else:
            driven.answer(batch)
    return calls


def submit(driven, *names):
    for name in names:
        driven.submit(name)


def accuse_content(driven):
    """From here on whoever sends "bad" is suspected."""
    submit(driven, "bad@x", "a@1", "b@2", "c@3")
    react(driven)


def accuse_origin_x(driven):
    """From here on whatever comes from "x" is suspected."""
    submit(driven, "bad1@x", "a@1", "b@2", "c@3")
    react(driven)
    submit(driven, "bad2@x", "d@1", "e@2", "f@3")
    react(driven)


def has_own_error(driven, name):
    return isinstance(driven.refusals[name], errors.UpstreamStatus)


def test_the_same_content_travels_alone_from_then_on_whoever_sends_it(driven):
    accuse_content(driven)
    before = len(driven.sent)
    submit(driven, "bad@y", "d@1", "e@2", "f@3", "g@4")
    react(driven)
    assert [driven.members(batch) for batch in driven.sent[before:]] == [["bad@y"], ["d@1", "e@2", "f@3", "g@4"]]
    assert has_own_error(driven, "bad@y")


def test_a_suspect_and_its_batch_keep_the_key_that_it_came_with(driven):
    accuse_content(driven)
    submit(driven, "bad@y")
    assert driven.requests["bad@y"].key == driven.sent[-1].key == "key"
    assert driven.sent[-1].reason == "suspect"


def test_an_origin_is_suspected_after_two_culprits_of_different_content(driven):
    submit(driven, "bad1@x", "a@1", "b@2", "c@3")
    react(driven)
    submit(driven, "bad2@x", "d@1", "e@2", "f@3")
    assert driven.members(driven.out[0])[0] == "bad2@x"  # one culprit is not enough
    react(driven)
    before = len(driven.sent)
    submit(driven, "bad3@x", "g@1", "h@2", "i@3", "j@4")
    react(driven)
    assert [driven.members(batch) for batch in driven.sent[before:]] == [["bad3@x"], ["g@1", "h@2", "i@3", "j@4"]]


def test_one_culprit_that_repeats_itself_does_not_bring_its_origin_under_suspicion(driven):
    for number in range(5):
        submit(driven, f"bad@x#{number}", f"a{number}@x", f"b{number}@x", f"c{number}@x", f"d{number}@x")
        react(driven)
        driven.pass_time(1)
    submit(driven, "e@x", "f@x", "g@x", "h@x")
    assert driven.members(driven.out[0]) == ["e@x", "f@x", "g@x", "h@x"]


def test_an_origin_that_good_requests_share_is_cleared_by_their_answers(driven):
    accuse_origin_x(driven)
    for number in range(6):
        driven.pass_time(1)
        submit(driven, f"good{number}@x")
        assert driven.members(driven.out[0]) == [f"good{number}@x"]
        react(driven)
    submit(driven, "g@x", "h@1", "i@2", "j@3")
    assert driven.members(driven.out[0]) == ["g@x", "h@1", "i@2", "j@3"]


def test_content_that_is_answered_is_trusted_at_once(driven):
    accuse_content(driven)
    submit(driven, "bad@y")
    assert driven.sent[-1].reason == "suspect"
    driven.answer()  # the predictor was mended
    submit(driven, "bad@z", "d@1", "e@2", "f@3")
    assert driven.members(driven.out[0]) == ["bad@z", "d@1", "e@2", "f@3"]


def test_suspicion_ends_a_minute_after_the_last_rejection(driven):
    accuse_content(driven)
    driven.pass_time(59)
    submit(driven, "bad@y")
    assert driven.sent[-1].reason == "suspect"
    react(driven)
    driven.pass_time(61)
    submit(driven, "bad@z", "d@1", "e@2", "f@3")
    assert driven.members(driven.out[0]) == ["bad@z", "d@1", "e@2", "f@3"]


def test_suspects_of_equal_content_share_one_verdict(driven):
    accuse_content(driven)
    calls = len(driven.sent)
    submit(driven, "bad@1", "bad@2", "bad@3", "bad@4")
    react(driven)
    assert len(driven.sent) == calls + 1
    assert has_own_error(driven, "bad@1")
    for number in range(2, 5):  # the words may name the request id of the first
        error = driven.refusals[f"bad@{number}"]
        assert (type(error), error.status) == (errors.BatchStatus, 400)
        assert "an equal request" in str(error)
    assert driven.core.idle


def test_suspects_of_equal_content_but_another_key_have_verdicts_of_their_own(driven):
    accuse_content(driven)
    calls = len(driven.sent)
    driven.submit("bad@1", key="one")
    driven.submit("bad@2", key="other")
    react(driven)
    driven.pass_time(1)
    react(driven)
    assert len(driven.sent) == calls + 2


def test_an_answer_to_one_suspect_lets_its_equals_travel_with_the_others(driven):
    accuse_content(driven)
    submit(driven, "bad@1", "bad@2", "bad@3")
    assert driven.members(driven.out[0]) == ["bad@1"]
    driven.answer()
    driven.pass_time(0.5)
    assert [driven.members(batch) for batch in driven.out] == [["bad@2", "bad@3"]]
    driven.answer()
    assert set(driven.answers) >= {"bad@1", "bad@2", "bad@3"}


def test_a_trial_that_fails_for_another_reason_is_no_verdict_on_its_equals(driven):
    accuse_content(driven)
    submit(driven, "bad@1", "bad@2")
    driven.fail(errors.UpstreamUnreachable())
    assert set(driven.refusals) == {"bad@x", "bad@1"}
    driven.pass_time(1)
    assert driven.members(driven.out[0]) == ["bad@2"]


def test_members_known_to_be_bad_by_then_are_taken_out_and_their_mates_travel_together():
    """What came before the culprit was found may carry more of its kind."""
    driven = driven_with_traits(max_in_flight=2)
    submit(driven, "bad@1", "a@1", "b@2", "c@3")
    submit(driven, "d@1", "e@2", "bad@2", "f@3")
    first, second = driven.out
    driven.fail(refused(400, b"own"), first)
    while "bad@1" not in driven.refusals:
        batch = next(batch for batch in driven.out if batch is not second)
        if any(row.startswith("bad") for row in driven.rows_of(batch)):
            driven.fail(refused(400, b"own"), batch)
        else:
            driven.answer(batch)
    before = len(driven.sent)
    driven.fail(refused(400, b"own"), second)
    react(driven)
    later = [driven.members(batch) for batch in driven.sent[before:]]
    assert ["d@1", "e@2", "f@3"] in later
    assert ["bad@2"] in later
    assert has_own_error(driven, "bad@2")
    assert [name for name, request in driven.requests.items() if request.goes_again] == ["bad@2"]


def test_while_regular_batches_come_suspects_get_one_call_for_four_of_them():
    driven = driven_with_traits(max_batch_size=2, max_latency=0.0)
    submit(driven, "bad@x", "a@1")
    react(driven)
    for number in range(50):
        submit(driven, f"bad@{number}", f"bad{number}@x", f"good{number}@1", f"well{number}@2")
        react(driven)
    for number in range(100, 400):
        submit(driven, f"bad{number}@x", f"good{number}@1", f"well{number}@2")
        react(driven)
    reasons = driven.reasons[-200:]
    regular, suspects = reasons.count("idle") + reasons.count("full"), reasons.count("suspect")
    assert regular / 5 < suspects <= regular / 4 + 1


def test_suspects_go_at_once_where_nobody_else_asks(driven):
    accuse_content(driven)
    driven.pass_time(1)
    for number in range(50):
        submit(driven, f"bad@{number}")
        assert react(driven) == 1


def test_a_flood_of_suspects_is_refused_and_leaves_room_for_the_others():
    driven = driven_with_traits(max_batch_size=4, max_queue_instances=40)
    accuse_origin_x(driven)
    submit(driven, "g@1", "h@2", "i@3", "j@4")  # is out
    for number in range(30):
        submit(driven, f"flood{number}@x")
    refused = [error for name, error in driven.refusals.items() if name.startswith("flood")]
    assert {type(error) for error in refused} == {errors.TooManySuspects}
    assert len(refused) == 20
    for number in range(30):
        submit(driven, f"good{number}@{number + 10}")
    assert not any(name.startswith("good") for name in driven.refusals)


def test_a_suspect_that_leaves_or_waits_too_long_is_forgotten():
    driven = driven_with_traits(max_in_flight=1, timeout=5.0)
    accuse_content(driven)
    submit(driven, "d@1", "e@2", "f@3", "g@4")  # is out
    submit(driven, "bad@1", "bad@2")
    driven.cancel("bad@1")
    driven.pass_time(5)
    assert isinstance(driven.refusals["bad@2"], errors.DeadlineExceeded)
    assert driven.core.isolation.quarantine.rows == 0
    assert not driven.core.isolation._suspicion._awaited
    react(driven)
    assert driven.core.idle


def test_suspects_are_answered_before_a_drain_ends(driven):
    accuse_origin_x(driven)
    submit(driven, *(f"good{number}@x" for number in range(9)))
    driven.do(driven.core.drain())
    react(driven)
    assert {f"good{number}@x" for number in range(9)} <= set(driven.answers)
    assert driven.core.idle


def test_a_large_suspect_is_split_and_rejoined():
    driven = driven_with_traits(max_batch_size=4)
    accuse_origin_x(driven)
    driven.submit("good@x", rows=10)
    react(driven)
    driven.pass_time(1)
    react(driven)
    assert driven.answers["good@x"] == [f"good@x/{row}" for row in range(10)]


def test_a_predictor_that_fails_whatever_it_gets_is_asked_for_no_culprits(driven):
    """500 tells of bad requests and of bad predictors; ten lone requests in a row are no coincidence."""
    submitted = 0
    for number in range(30):
        submit(driven, *(f"bad{number}-{row}@{number}-{row}" for row in range(4)))
        submitted += 4
        react(driven, 500)
    assert len(driven.refusals) == submitted
    assert len(driven.sent) < 3 * 30 + 16  # seven for each, if culprits were looked for
    last = [driven.refusals[f"bad29-{row}@29-{row}"] for row in range(4)]
    assert {type(error) for error in last} == {errors.BatchStatus}
    submit(driven, "a@1", "b@2", "c@3", "d@4")
    react(driven)
    before = len(driven.sent)
    submit(driven, "bad@7", "e@2", "f@3", "g@4")
    react(driven, 500)
    assert len(driven.sent) > before + 1  # it works again, and culprits are looked for again


def test_without_traits_nobody_is_suspected():
    driven = DrivenScheduler(window.Window, max_batch_size=4)
    for number in range(3):
        submit(driven, f"bad{number}", "a@1" + str(number), "b@2" + str(number), "c@3" + str(number))
        react(driven)
    assert "suspect" not in driven.reasons


def test_memory_of_culprits_is_bounded():
    driven = driven_with_traits(max_latency=0.0)
    for number in range(3000):
        submit(driven, f"bad{number}@{number}")
        react(driven)
    suspicion = driven.core.isolation._suspicion
    assert len(suspicion._records) <= 4096
    assert len(suspicion._suspected) <= 4096


def test_a_caller_whose_lone_requests_failed_does_not_make_the_predictor_look_ill_to_others():
    """Ten failures in a row, each of another kind, and then one in a batch with others."""
    driven = driven_with_traits(max_batch_size=8)
    for number in range(12):
        submit(driven, f"bad{number}@{number}")
        driven.pass_time(0.5)
        react(driven, 500)
    submit(driven, "bad@50", *(f"good{number}@{number + 60}" for number in range(7)))
    react(driven, 500)
    assert has_own_error(driven, "bad@50") or isinstance(driven.refusals["bad@50"], errors.BatchStatus)
    answered = [name for name in driven.answers if name.startswith("good")]
    assert len(answered) >= 4
    submit(driven, "bad@51", *(f"fine{number}@{number + 60}" for number in range(7)))
    react(driven, 500)
    assert sum(name.startswith("fine") for name in driven.answers) == 7


def test_a_form_that_most_good_requests_have_is_not_suspected_however_often_bad_ones_have_it():
    driven = driven_with_traits(max_batch_size=4)
    submit(driven, "bad0@common", "a@1", "b@2", "c@3")
    react(driven)
    for number in range(30):
        submit(driven, *(f"good{number}-{row}@common" for row in range(4)))
        react(driven)
    for number in range(1, 6):
        submit(driven, f"bad{number}@common", *(f"well{number}-{row}@common" for row in range(3)))
        assert driven.members(driven.out[0])[0] == f"bad{number}@common"  # it shares a batch: its origin proves nothing
        react(driven)
        assert has_own_error(driven, f"bad{number}@common")
    assert "suspect" not in driven.reasons


@pytest.mark.parametrize("outcome", ["answered", "rejected", "left", "late"])
def test_a_suspect_that_is_cleared_while_it_travels_does_not_keep_others_from_travelling(driven, outcome):
    accuse_content(driven)
    driven.pass_time(59.9)
    submit(driven, "bad@y")
    driven.pass_time(0.2)  # the culprit is forgotten
    submit(driven, "d@1")
    trial = driven.out[0]
    assert trial.reason == "suspect"
    if outcome == "answered":
        driven.answer(trial)
    elif outcome == "rejected":
        driven.fail(refused(400, b"own words"), trial)
    elif outcome == "left":
        driven.cancel("bad@y")
    else:
        driven.pass_time(60)
    assert driven.core.isolation.quarantine.on_trial is None
    driven.pass_time(61)
    react(driven)
    submit(driven, "bad2@z", "e@1", "f@2", "g@3")
    react(driven)
    submit(driven, "bad2@y")
    driven.pass_time(2)
    react(driven)
    assert has_own_error(driven, "bad2@y")


def test_nothing_of_requests_of_all_kinds_is_kept_after_they_were_answered_rejected_or_left(driven):
    for number in range(200):
        names = [f"bad{number}@x", f"bad{number % 7}@{number % 5}", f"good{number}@x", f"good{number}@{number}"]
        submit(driven, *(f"{name}#{number}" for name in names))
        if number % 3 == 0:
            driven.cancel(f"{names[number % 4]}#{number}")
        if number % 4:
            react(driven, (400, 500, 503)[number % 3])
        if number % 50 == 49:
            driven.pass_time(61)
        driven.pass_time(0.01)
    for _ in range(1000):
        driven.pass_time(0.1)
        react(driven)
    core = driven.core
    assert core.idle
    assert (core.waiting_rows, core.isolation.quarantine.rows, core.ledger.held) == (0, 0, 0)
    assert core.isolation.quarantine.on_trial is None
    assert not core.isolation._suspicion.awaits_outcomes
    assert core.next_deadline() is None or core.next_deadline() == float("inf")
    assert not any(request.open for request in driven.requests.values())
    refused_at_once = {name for name in driven.refusals if isinstance(driven.refusals[name], errors.Overloaded)}
    assert all(request.payload is None for name, request in driven.requests.items() if name not in refused_at_once)


def reject_or_answer(driven, batch):
    if any(row.startswith("bad") for row in driven.rows_of(batch)):
        driven.fail(refused(400, b"own words"), batch)
    else:
        driven.answer(batch)


@pytest.mark.parametrize("max_in_flight", [1, 2, 4])
def test_in_any_history_everybody_is_told_and_no_suspect_holds_up_the_others(max_in_flight):
    """Contents and origins that many share, so that accusations come and go while requests wait and travel."""
    for seed in range(60):
        chance = random.Random(seed)
        sent: dict[str, tuple[str, str]] = {}
        traits = {"content": lambda request, sent=sent: sent[request.tag][0]}
        traits["origin"] = lambda request, sent=sent: sent[request.tag][1]
        driven = DrivenScheduler(
            traits=traits, max_latency=0.0, max_in_flight=max_in_flight, max_batch_size=8, timeout=5.0
        )
        for number in range(250):
            what = chance.random()
            if what < 0.6:
                name = f"{'bad' if chance.random() < 0.15 else 'ok'}{number}"
                sent[name] = (chance.choice(["A", "B", name]), chance.choice("12"))
                driven.submit(name)
            elif what < 0.9 and driven.out:
                reject_or_answer(driven, chance.choice(driven.out))
            else:
                driven.pass_time(chance.random() * 0.05)
            deadline = driven.core.next_deadline()
            assert deadline is None or deadline >= driven.now - 1e-9
            assert driven.core.isolation.quarantine.on_trial is None or driven.core.isolation.quarantine.on_trial.open
        for _ in range(5000):
            if driven.out:
                reject_or_answer(driven, driven.out[0])
            elif driven.core.idle:
                break
            else:
                driven.pass_time(0.1)
        assert driven.core.idle
        assert driven.answers.keys() | driven.refusals.keys() == driven.requests.keys()
        assert driven.core.ledger.held == 0
        assert not driven.core.isolation._suspicion.awaits_outcomes


def test_who_only_looks_like_a_culprit_waits_behind_none_of_its_known_requests():
    """A caller that is framed by a common form must not wait until all of a flood was tried."""
    traits = {"content": lambda request: request.tag, "shape": lambda request: "any"}
    traits["origin"] = lambda request: request.tag.partition("@")[2].partition("#")[0]
    driven = DrivenScheduler(traits=traits, max_batch_size=4, max_latency=0.5)
    submit(driven, "bad1@x", "bad2@y")
    driven.pass_time(0.5)
    react(driven)
    submit(driven, "bad3@x", "bad4@y")  # known culprits now
    driven.pass_time(2)
    react(driven)
    before = len(driven.sent)
    submit(driven, *(f"bad-{number}@{'xy'[number % 2]}" for number in range(40)))
    submit(driven, "victim@z")
    while "victim@z" not in driven.answers:
        driven.pass_time(0.1)
        react(driven)
    later = [driven.members(batch) for batch in driven.sent[before:]]
    assert later.index(["victim@z"]) <= 2
    submit(driven, "victim2@z", "victim3@z", "victim4@z", "victim5@z")
    driven.pass_time(0.5)
    assert driven.members(next(batch for batch in driven.out if batch.reason != "suspect"))[0] == "victim2@z"


def test_suspects_take_only_a_part_of_the_memory():
    driven = driven_with_traits(max_batch_size=4, max_queue_bytes=4000, max_in_flight=1)
    accuse_origin_x(driven)
    submit(driven, "g@1", "h@2", "i@3", "j@4")  # is out
    for number in range(20):
        driven.submit(f"bad-{number}@x", size=200)
    assert sum(type(error) is errors.TooManySuspects for error in driven.refusals.values()) == 15
    driven.submit("good@5", size=2000)
    assert "good@5" not in driven.refusals


def test_a_suspect_larger_than_the_part_of_memory_for_suspects_is_tried_all_the_same():
    driven = driven_with_traits(max_latency=0.0, max_queue_bytes=4000)
    driven.submit("bad@x", size=3000)
    react(driven)
    driven.submit("bad@y", size=3000)
    react(driven)
    assert has_own_error(driven, "bad@y")
