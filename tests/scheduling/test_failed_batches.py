"""What a failure at the predictor means for each member of the batch."""

import pytest

from carpool_sidecar import errors
from tests.scheduling.driven import refused


def status(code, **rules):
    return refused(code, b'{"error":"bad instance"}', **rules)


def run_with_poison(driven, poison, error):
    """Answer every batch, except that those with a poisonous row fail."""
    calls = 0
    while driven.out:
        calls += 1
        batch = driven.out[0]
        if any(row.partition("/")[0] in poison for row in driven.rows_of(batch)):
            driven.fail(error, batch)
        else:
            driven.answer(batch)
    return calls


def test_one_poisonous_request_gets_its_own_error_and_its_mates_their_answers(driven_of):
    driven = driven_of(max_batch_size=32)
    names = [f"r{i}" for i in range(32)]
    for name in names:
        driven.submit(name)
    calls = run_with_poison(driven, {"r13"}, status(400))
    assert set(driven.refusals) == {"r13"}
    assert driven.refusals["r13"].body == b'{"error":"bad instance"}'
    assert driven.answers == {name: [f"{name}/0"] for name in names if name != "r13"}
    assert calls == 1 + 2 * 5  # halves of 32, 16, 8, 4, 2


@pytest.mark.parametrize(("named", "served"), [(None, 3), ("4xx", 0)])
def test_a_status_that_may_be_one_members_fault_is_isolated_where_that_is_wanted(driven_of, named, served):
    driven = driven_of(max_batch_size=4)
    for name in "abcd":
        driven.submit(name)
    run_with_poison(driven, {"b"}, status(500, named=named, doubtful={500}))
    assert len(driven.answers) == served
    assert driven.refusals["b"].status == 500


@pytest.mark.parametrize("culprits", [0, 1, 2, 5, 16])
def test_every_culprit_is_found_while_the_budget_lasts(driven_of, culprits):
    driven = driven_of(max_batch_size=16)
    for i in range(16):
        driven.submit(f"r{i}")
    run_with_poison(driven, {f"r{i}" for i in range(culprits)}, status(422))
    assert set(driven.refusals) == {f"r{i}" for i in range(culprits)}
    assert len(driven.answers) == 16 - culprits


def test_retries_stop_when_the_budget_is_spent_and_everybody_still_gets_an_answer(driven_of):
    driven = driven_of(max_batch_size=8, retry_budget=0.0)
    calls = 0
    for batch in range(40):
        for i in range(8):
            driven.submit(f"{batch}-{i}")
        calls += run_with_poison(driven, {f"{batch}-{i}" for i in range(8)}, status(400))
    assert len(driven.refusals) == 320
    assert calls == 40 + 100


def test_with_the_budget_spent_nobody_is_given_the_culprits_error(driven_of):
    """Its words may quote another caller's data, and the mates did nothing wrong: they may send again."""
    driven = driven_of(max_batch_size=4, retry_budget=0.0)
    driven.core.isolation._retries.budget = 0
    for name in "abcd":
        driven.submit(name)
    driven.fail(status(422))
    assert {type(error) for error in driven.refusals.values()} == {errors.NotIsolated}
    assert {errors.status_of(error) for error in driven.refusals.values()} == {503}


def test_the_mates_of_a_culprit_who_left_are_not_given_its_error(driven):
    for name in ("bad", "good"):
        driven.submit(name)
    driven.pass_time(0.5)
    driven.cancel("bad")
    driven.fail(status(400))
    assert driven.refusals == {}
    assert driven.members(driven.out[0]) == ["good"]
    driven.answer()
    assert driven.answers == {"good": ["good/0"]}


def test_regular_batches_earn_retries_up_to_the_burst(driven_of):
    driven = driven_of(max_batch_size=1, max_latency=0.0, retry_budget=2.0)
    driven.core.isolation._retries.budget = 0
    driven.submit("a")
    assert driven.core.isolation._retries.budget == 2
    for number in range(100):
        driven.answer()
        driven.submit(str(number))
    assert driven.core.isolation._retries.budget == 100


def test_a_half_whose_connection_closed_is_sent_once_more(driven):
    for name in "abcd":
        driven.submit(name)
    driven.fail(status(400))
    driven.fail(errors.UpstreamClosed())
    assert driven.reasons == ["full", "isolate", "closed"]
    assert driven.members(driven.out[0]) == ["a", "b"]


def test_server_errors_are_not_retried_unless_the_setting_says_so(driven, driven_of):
    for name in "abcd":
        driven.submit(name)
    driven.fail(status(500))
    assert set(driven.refusals) == set("abcd")
    other = driven_of(max_batch_size=4)
    for name in "abcd":
        other.submit(name)
    run_with_poison(other, {"c"}, status(500, named="5xx"))
    assert set(other.refusals) == {"c"}


@pytest.mark.parametrize("code", [401, 403, 404, 408, 429])
def test_refusals_that_concern_all_members_alike_are_not_isolated(driven, code):
    for name in "abcd":
        driven.submit(name)
    driven.fail(status(code))
    assert driven.sizes == [4]
    assert {error.status for error in driven.refusals.values()} == {code}


def test_a_connection_closed_before_the_answer_is_retried_once_with_the_same_members(driven):
    for name in "abcd":
        driven.submit(name)
    driven.fail(errors.UpstreamClosed())
    assert driven.reasons == ["full", "closed"]
    driven.answer()
    assert set(driven.answers) == set("abcd")


def test_a_connection_closed_twice_fails_the_batch_with_502(driven):
    driven.submit("a")
    driven.pass_time(0.5)
    driven.fail(errors.UpstreamClosed())
    driven.fail(errors.UpstreamClosed())
    assert errors.status_of(driven.refusals["a"]) == 502
    assert driven.core.idle


def test_upstream_with_wrong_row_count_fails_that_batch_only(driven_of):
    driven = driven_of(max_batch_size=2, max_in_flight=2)
    for name in "abcd":
        driven.submit(name)
    first, second = driven.out
    driven.out.remove(first)
    driven.do(driven.core.done(first, ["only one"]))
    driven.answer(second)
    assert set(driven.answers) == set("cd")
    assert "1 predictions for 2 instances" in str(first.error)
    run_with_miscount(driven, "b")
    assert {name: type(error) for name, error in driven.refusals.items()} == {"b": errors.UpstreamBroken}
    assert set(driven.answers) == set("acd")


def run_with_miscount(driven, culprit):
    """The predictor leaves one caller's rows out of its answers."""
    while driven.out:
        batch = driven.out.pop(0)
        rows = [row for row in driven.rows_of(batch) if row.partition("/")[0] != culprit]
        driven.do(driven.core.done(batch, rows))


def test_an_answer_that_cannot_be_read_spoils_only_its_own_request(driven):
    for name in "abcd":
        driven.submit(name)
    run_with_poison(driven, {"c"}, errors.UpstreamBroken())
    assert set(driven.refusals) == {"c"}
    assert set(driven.answers) == set("abd")


def test_members_who_left_are_not_sent_again(driven):
    for name in "abcd":
        driven.submit(name)
    driven.cancel("a")
    driven.fail(status(400))
    assert [driven.members(batch) for batch in driven.sent[1:]] == [["b", "c"]]
    driven.cancel("d")
    driven.answer()
    assert driven.core.idle
    assert set(driven.answers) == {"b", "c"}


def test_retried_halves_go_before_requests_that_came_later(driven):
    for name in "abcdefgh":
        driven.submit(name)
    driven.fail(status(400))
    assert driven.members(driven.out[0]) == ["a", "b"]
    driven.answer()
    assert driven.members(driven.out[0]) == ["c", "d"]


def test_a_failure_frees_its_slot(driven):
    driven.submit("a")
    driven.pass_time(0.5)
    driven.submit("b")
    driven.pass_time(0.5)
    driven.fail(errors.UpstreamTimeout())
    assert driven.members(driven.out[0]) == ["b"]


def test_members_of_an_answer_that_cannot_be_shared_out_travel_alone_whatever_the_budget(driven_of):
    driven = driven_of(max_batch_size=32, retry_budget=0.0)
    for number in range(320):
        driven.submit(f"r{number}")
        while driven.out:
            batch = driven.out[0]
            if len(batch.parts) > 1:
                driven.fail(errors.Uneven(), batch)
            else:
                driven.answer(batch)
    assert driven.refusals == {}
    assert len(driven.answers) == 320


def test_a_request_that_was_cut_goes_whole_where_no_part_of_it_can_be_answered(driven_of):
    driven = driven_of(max_batch_size=4, max_in_flight=2)
    driven.submit("large", rows=11)
    assert driven.sizes == [4, 4]
    driven.fail(errors.Uneven())
    assert driven.sizes == [4, 4, 11], "and the rest of it does not go"
    driven.fail(errors.Uneven(), driven.out[0])
    assert driven.sizes == [4, 4, 11]
    driven.answer_all()
    assert driven.answers["large"] == [f"large/{number}" for number in range(11)]
    assert driven.core.idle


def test_a_part_that_is_answered_late_changes_nothing_for_a_request_that_goes_whole(driven_of):
    driven = driven_of(max_batch_size=4, max_in_flight=2)
    driven.submit("large", rows=7)
    driven.fail(errors.Uneven())
    driven.answer(driven.out[0])
    assert "large" not in driven.answers
    driven.answer_all()
    assert driven.answers["large"] == [f"large/{number}" for number in range(7)]


def test_who_shares_a_batch_with_a_part_that_cannot_be_answered_goes_alone(driven_of):
    driven = driven_of(max_batch_size=4, max_in_flight=1)
    driven.submit("large", rows=6)
    driven.submit("small", rows=1)
    driven.answer(driven.out[0])
    assert driven.members(driven.out[0]) == ["large", "small"]
    driven.fail(errors.Uneven())
    driven.answer_all()
    assert driven.sizes == [4, 3, 6, 1]
    assert (driven.answers["small"], len(driven.answers["large"])) == (["small/0"], 6)


def test_of_a_request_that_goes_whole_no_part_is_sent_again(driven_of):
    driven = driven_of(max_batch_size=4, max_in_flight=2)
    driven.submit_all(("small", 1), ("large", 5))
    driven.fail(refused(400, b"bad"))  # of "small" and the beginning of "large", whose halves are to go again
    driven.fail(errors.Uneven())  # of the end of "large", which goes whole
    driven.answer(driven.out[1])
    driven.answer_all()
    assert [driven.members(batch) for batch in driven.sent[2:]] == [["small"], ["large"]]
    assert driven.answers["large"] == [f"large/{row}" for row in range(5)]


def test_a_request_that_goes_whole_and_is_too_large_is_told_so(driven_of):
    driven = driven_of(max_batch_size=4, max_in_flight=2)
    driven.submit("large", rows=6)
    driven.fail(errors.Uneven())
    driven.answer(driven.out[0])
    driven.fail(refused(413, b"too large", rows=6))
    assert driven.refusals["large"].status == 413
    assert driven.core.idle


class Treacherous(list):
    """Predictions that cannot be handed out from the third row on."""

    def __getitem__(self, which):
        if isinstance(which, slice) and which.start >= 2:
            raise ZeroDivisionError("bug")
        return super().__getitem__(which)


def test_a_bug_in_handing_out_predictions_costs_only_those_who_have_none_yet(driven_of):
    driven = driven_of(max_batch_size=4)
    for name in "abcd":
        driven.submit(name)
    [batch] = driven.out
    driven.out.remove(batch)
    driven.do(driven.core.done(batch, Treacherous(driven.rows_of(batch))))
    assert driven.answers == {"a": ["a/0"], "b": ["b/0"]}
    assert {name: type(error) for name, error in driven.refusals.items()} == dict.fromkeys("cd", errors.CarpoolError)
    assert isinstance(batch.error.__cause__, ZeroDivisionError)
    assert driven.core.idle
    assert driven.core.ledger.held == 0
    driven.submit("e")
    driven.pass_time(1)
    driven.answer()
    assert driven.answers["e"] == ["e/0"]


def test_retries_that_the_budget_cannot_pay_wait_until_no_regular_batch_wants_the_slot(driven_of):
    driven = driven_of(max_batch_size=4, max_latency=0.5, retry_budget=0.5)
    driven.core.isolation._retries.budget = 0
    for name in ("bad", "a", "b", "c"):
        driven.submit(name)
    for number in range(4):
        driven.submit(f"later{number}")
    driven.fail(status(400))
    assert driven.members(driven.out[0]) == ["later0", "later1", "later2", "later3"]
    driven.answer()
    run_with_poison(driven, {"bad"}, status(400))
    assert set(driven.refusals) == {"bad"}
    assert set(driven.answers) >= {"a", "b", "c"}


def test_more_culprits_than_can_be_looked_for_leave_their_mates_a_retriable_error(driven_of):
    driven = driven_of(max_batch_size=4, max_in_flight=100, retry_budget=0.5)
    driven.core.isolation._retries.budget = 0
    for number in range(4 * 60):
        driven.submit(f"r{number}")
    driven.change(max_in_flight=1)
    for batch in list(driven.out)[:40]:
        driven.fail(status(400), batch)
    assert driven.core.isolation._retries.rows <= 4 * 9
    assert {type(error) for error in driven.refusals.values()} == {errors.NotIsolated}


def test_a_member_that_does_not_go_with_the_others_costs_no_budget_and_no_search(driven_of):
    driven = driven_of(max_batch_size=32, retry_budget=0.0)
    driven.core.isolation._retries.budget = 0
    for number in range(32):
        driven.submit(f"r{number}")
    for culprit in ("r13", "r20"):
        error = errors.NotMergeable()
        error.member = driven.members(driven.out[0]).index(culprit)
        driven.fail(error)
    assert "r20" not in driven.members(driven.out[0])
    driven.answer_all()
    assert len(driven.answers) == 32
    assert driven.sizes == [32, 31, 30, 1, 1]


def test_without_a_word_on_who_does_not_go_with_the_others_halves_do(driven):
    for name in "abcd":
        driven.submit(name)
    driven.fail(errors.NotMergeable())
    driven.answer_all()
    assert driven.sizes == [4, 2, 2]
