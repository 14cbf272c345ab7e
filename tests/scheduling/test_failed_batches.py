"""What a failure at the predictor means for each member of the batch."""

import pytest

from carpool_sidecar import errors
from tests.scheduling.desk import refused


def status(code, **rules):
    return refused(code, b'{"error":"bad instance"}', **rules)


def run_with_poison(desk, poison, error):
    """Answer every batch, except that those with a poisonous row fail."""
    calls = 0
    while desk.out:
        calls += 1
        batch = desk.out[0]
        if any(row.partition("/")[0] in poison for row in desk.rows_of(batch)):
            desk.fail(error, batch)
        else:
            desk.answer(batch)
    return calls


def test_one_poisonous_request_gets_its_own_error_and_its_mates_their_answers(desk_of):
    desk = desk_of(max_batch_size=32)
    names = [f"r{i}" for i in range(32)]
    for name in names:
        desk.submit(name)
    calls = run_with_poison(desk, {"r13"}, status(400))
    assert set(desk.refusals) == {"r13"}
    assert desk.refusals["r13"].body == b'{"error":"bad instance"}'
    assert desk.answers == {name: [f"{name}/0"] for name in names if name != "r13"}
    assert calls == 1 + 2 * 5  # halves of 32, 16, 8, 4, 2


@pytest.mark.parametrize(("named", "served"), [(None, 3), ("4xx", 0)])
def test_a_status_that_may_be_one_members_fault_is_isolated_where_that_is_wanted(desk_of, named, served):
    desk = desk_of(max_batch_size=4)
    for name in "abcd":
        desk.submit(name)
    run_with_poison(desk, {"b"}, status(500, named=named, doubtful={500}))
    assert len(desk.answers) == served
    assert desk.refusals["b"].status == 500


@pytest.mark.parametrize("culprits", [0, 1, 2, 5, 16])
def test_every_culprit_is_found_while_the_budget_lasts(desk_of, culprits):
    desk = desk_of(max_batch_size=16)
    for i in range(16):
        desk.submit(f"r{i}")
    run_with_poison(desk, {f"r{i}" for i in range(culprits)}, status(422))
    assert set(desk.refusals) == {f"r{i}" for i in range(culprits)}
    assert len(desk.answers) == 16 - culprits


def test_retries_stop_when_the_budget_is_spent_and_everybody_still_gets_an_answer(desk_of):
    desk = desk_of(max_batch_size=8, retry_budget=0.0)
    calls = 0
    for batch in range(40):
        for i in range(8):
            desk.submit(f"{batch}-{i}")
        calls += run_with_poison(desk, {f"{batch}-{i}" for i in range(8)}, status(400))
    assert len(desk.refusals) == 320
    assert calls == 40 + 100


def test_with_the_budget_spent_nobody_is_given_the_culprits_error(desk_of):
    """Its words may quote another caller's data, and the mates did nothing wrong: they may send again."""
    desk = desk_of(max_batch_size=4, retry_budget=0.0)
    desk.core.isolation._retries.budget.tokens = 0
    for name in "abcd":
        desk.submit(name)
    desk.fail(status(422))
    assert {type(error) for error in desk.refusals.values()} == {errors.NotIsolated}
    assert {errors.status_of(error) for error in desk.refusals.values()} == {503}


def test_the_mates_of_a_culprit_who_left_are_not_given_its_error(desk):
    for name in ("bad", "good"):
        desk.submit(name)
    desk.pass_time(0.5)
    desk.cancel("bad")
    desk.fail(status(400))
    assert desk.refusals == {}
    assert desk.members(desk.out[0]) == ["good"]
    desk.answer()
    assert desk.answers == {"good": ["good/0"]}


def test_regular_batches_earn_retries_up_to_the_burst(desk_of):
    desk = desk_of(max_batch_size=1, max_latency=0.0, retry_budget=2.0)
    desk.core.isolation._retries.budget.tokens = 0
    desk.submit("a")
    assert desk.core.isolation._retries.budget.tokens == 2
    for number in range(100):
        desk.answer()
        desk.submit(str(number))
    assert desk.core.isolation._retries.budget.tokens == 100


def test_a_half_whose_connection_closed_is_sent_once_more(desk):
    for name in "abcd":
        desk.submit(name)
    desk.fail(status(400))
    desk.fail(errors.UpstreamClosed())
    assert desk.reasons == ["full", "isolate", "closed"]
    assert desk.members(desk.out[0]) == ["a", "b"]


def test_server_errors_are_not_retried_unless_the_setting_says_so(desk, desk_of):
    for name in "abcd":
        desk.submit(name)
    desk.fail(status(500))
    assert set(desk.refusals) == set("abcd")
    other = desk_of(max_batch_size=4)
    for name in "abcd":
        other.submit(name)
    run_with_poison(other, {"c"}, status(500, named="5xx"))
    assert set(other.refusals) == {"c"}


@pytest.mark.parametrize("code", [401, 403, 404, 408, 429])
def test_refusals_that_concern_all_members_alike_are_not_isolated(desk, code):
    for name in "abcd":
        desk.submit(name)
    desk.fail(status(code))
    assert desk.sizes == [4]
    assert {error.status for error in desk.refusals.values()} == {code}


def test_a_connection_closed_before_the_answer_is_retried_once_with_the_same_members(desk):
    for name in "abcd":
        desk.submit(name)
    desk.fail(errors.UpstreamClosed())
    assert desk.reasons == ["full", "closed"]
    desk.answer()
    assert set(desk.answers) == set("abcd")


def test_a_connection_closed_twice_fails_the_batch_with_502(desk):
    desk.submit("a")
    desk.pass_time(0.5)
    desk.fail(errors.UpstreamClosed())
    desk.fail(errors.UpstreamClosed())
    assert errors.status_of(desk.refusals["a"]) == 502
    assert desk.core.idle


def test_upstream_with_wrong_row_count_fails_that_batch_only(desk_of):
    desk = desk_of(max_batch_size=2, max_in_flight=2)
    for name in "abcd":
        desk.submit(name)
    first, second = desk.out
    desk.out.remove(first)
    desk.do(desk.core.done(first, ["only one"]))
    desk.answer(second)
    assert set(desk.answers) == set("cd")
    assert "1 predictions for 2 instances" in str(first.error)
    run_with_miscount(desk, "b")
    assert {name: type(error) for name, error in desk.refusals.items()} == {"b": errors.UpstreamBroken}
    assert set(desk.answers) == set("acd")


def run_with_miscount(desk, culprit):
    """The predictor leaves one caller's rows out of its answers."""
    while desk.out:
        batch = desk.out.pop(0)
        rows = [row for row in desk.rows_of(batch) if row.partition("/")[0] != culprit]
        desk.do(desk.core.done(batch, rows))


def test_an_answer_that_cannot_be_read_spoils_only_its_own_request(desk):
    for name in "abcd":
        desk.submit(name)
    run_with_poison(desk, {"c"}, errors.UpstreamBroken())
    assert set(desk.refusals) == {"c"}
    assert set(desk.answers) == set("abd")


def test_members_who_left_are_not_sent_again(desk):
    for name in "abcd":
        desk.submit(name)
    desk.cancel("a")
    desk.fail(status(400))
    assert [desk.members(batch) for batch in desk.sent[1:]] == [["b", "c"]]
    desk.cancel("d")
    desk.answer()
    assert desk.core.idle
    assert set(desk.answers) == {"b", "c"}


def test_retried_halves_go_before_requests_that_came_later(desk):
    for name in "abcdefgh":
        desk.submit(name)
    desk.fail(status(400))
    assert desk.members(desk.out[0]) == ["a", "b"]
    desk.answer()
    assert desk.members(desk.out[0]) == ["c", "d"]


def test_a_failure_frees_its_slot(desk):
    desk.submit("a")
    desk.pass_time(0.5)
    desk.submit("b")
    desk.pass_time(0.5)
    desk.fail(errors.UpstreamTimeout())
    assert desk.members(desk.out[0]) == ["b"]


def test_members_of_an_answer_that_cannot_be_shared_out_travel_alone_whatever_the_budget(desk_of):
    desk = desk_of(max_batch_size=32, retry_budget=0.0)
    for number in range(320):
        desk.submit(f"r{number}")
        while desk.out:
            batch = desk.out[0]
            if len(batch.parts) > 1:
                desk.fail(errors.Uneven(), batch)
            else:
                desk.answer(batch)
    assert desk.refusals == {}
    assert len(desk.answers) == 320


class Treacherous(list):
    """Predictions that cannot be handed out from the third row on."""

    def __getitem__(self, which):
        if isinstance(which, slice) and which.start >= 2:
            raise ZeroDivisionError("bug")
        return super().__getitem__(which)


def test_a_bug_in_handing_out_predictions_costs_only_those_who_have_none_yet(desk_of):
    desk = desk_of(max_batch_size=4)
    for name in "abcd":
        desk.submit(name)
    [batch] = desk.out
    desk.out.remove(batch)
    desk.do(desk.core.done(batch, Treacherous(desk.rows_of(batch))))
    assert desk.answers == {"a": ["a/0"], "b": ["b/0"]}
    assert {name: type(error) for name, error in desk.refusals.items()} == dict.fromkeys("cd", errors.CarpoolError)
    assert isinstance(batch.error.__cause__, ZeroDivisionError)
    assert desk.core.idle
    assert desk.core.ledger.held == 0
    desk.submit("e")
    desk.pass_time(1)
    desk.answer()
    assert desk.answers["e"] == ["e/0"]


def test_retries_that_the_budget_cannot_pay_wait_until_no_regular_batch_wants_the_slot(desk_of):
    desk = desk_of(max_batch_size=4, max_latency=0.5, retry_budget=0.5)
    desk.core.isolation._retries.budget.tokens = 0
    for name in ("bad", "a", "b", "c"):
        desk.submit(name)
    for number in range(4):
        desk.submit(f"later{number}")
    desk.fail(status(400))
    assert desk.members(desk.out[0]) == ["later0", "later1", "later2", "later3"]
    desk.answer()
    run_with_poison(desk, {"bad"}, status(400))
    assert set(desk.refusals) == {"bad"}
    assert set(desk.answers) >= {"a", "b", "c"}


def test_more_culprits_than_can_be_looked_for_leave_their_mates_a_retriable_error(desk_of):
    desk = desk_of(max_batch_size=4, max_in_flight=100, retry_budget=0.5)
    desk.core.isolation._retries.budget.tokens = 0
    for number in range(4 * 60):
        desk.submit(f"r{number}")
    desk.limits.max_in_flight = 1
    for batch in list(desk.out)[:40]:
        desk.fail(status(400), batch)
    assert desk.core.isolation._retries.rows <= 4 * 9
    assert {type(error) for error in desk.refusals.values()} == {errors.NotIsolated}


def test_a_member_that_does_not_go_with_the_others_costs_no_budget_and_no_search(desk_of):
    desk = desk_of(max_batch_size=32, retry_budget=0.0)
    desk.core.isolation._retries.budget.tokens = 0
    for number in range(32):
        desk.submit(f"r{number}")
    for culprit in ("r13", "r20"):
        error = errors.NotMergeable()
        error.member = desk.members(desk.out[0]).index(culprit)
        desk.fail(error)
    assert "r20" not in desk.members(desk.out[0])
    desk.answer_all()
    assert len(desk.answers) == 32
    assert desk.sizes == [32, 31, 30, 1, 1]


def test_without_a_word_on_who_does_not_go_with_the_others_halves_do(desk):
    for name in "abcd":
        desk.submit(name)
    desk.fail(errors.NotMergeable())
    desk.answer_all()
    assert desk.sizes == [4, 2, 2]
