"""A predictor that refuses batches for their size: they go again in smaller ones, and later ones are no larger."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given

from carpool import errors
from carpool.scheduling import adaptive
from carpool_sidecar import errors as sidecar_errors
from tests.scheduling.driven import DrivenScheduler, refused

TOLD = b"batch size %d > maximum allowed batch size %d"


class Choosy(DrivenScheduler):
    """With a predictor that takes at most `takes` rows in a call, and says so if it `tells`; `spoilt` are rows that it
    never takes."""

    def __init__(self, takes: int, tells: bool = False, **about: object) -> None:
        super().__init__(**{"max_batch_size": 32, "max_latency": 0.0, **about})
        self.takes = takes
        self.tells = tells
        self.spoilt: set[str] = set()
        self.refused_sizes: list[int] = []
        self.refused_reasons: list[str] = []
        self.refusal: Callable[[int], errors.CarpoolError] = lambda rows: refused(413, rows=rows)

    def respond(self) -> None:
        """The predictor answers or refuses its oldest batch."""
        batch = self.out[0]
        if batch.rows <= self.takes and self.spoilt.isdisjoint(self.rows_of(batch)):
            self.answer()
            return
        self.refused_sizes.append(batch.rows)
        self.refused_reasons.append(batch.reason)
        body = TOLD % (batch.rows, self.takes)
        self.fail(refused(422, body, rows=batch.rows) if self.tells else self.refusal(batch.rows))

    def settle(self) -> None:
        while self.out:
            self.respond()

    def crowd(self, count: int = 32, key: str = "key", rows: int = 1) -> None:
        """Requests that share a batch, as far as they may, and what becomes of them."""
        start = len(self.requests)
        self.submit_all(*[(f"r{start + n}", rows, key) for n in range(count)])
        self.settle()

    @property
    def limit(self) -> float:
        return self.core.smallest_limit()

    def check_all_answered(self) -> None:
        assert self.refusals == {}
        for name, rows in self.answers.items():
            assert rows == [f"{name}/{i}" for i in range(self.requests[name].rows)]
        assert set(self.answers) == set(self.requests)
        assert self.core.idle


def test_a_batch_that_is_too_large_goes_again_at_once_in_halves():
    driven = Choosy(takes=16)
    driven.crowd()
    driven.check_all_answered()
    assert driven.sizes == [32, 16, 16]
    assert driven.reasons[1:] == ["smaller", "smaller"]


def test_later_batches_are_no_larger_than_what_was_taken():
    driven = Choosy(takes=16)
    driven.crowd()
    driven.crowd()
    assert driven.sizes[3:] == [16, 16]
    assert driven.limit == 16


def test_halves_that_are_too_large_as_well_teach_those_that_wait_behind_them():
    driven = Choosy(takes=6)
    driven.crowd()
    driven.check_all_answered()
    assert driven.refused_sizes == [32, 16, 8]
    assert set(driven.sizes[3:]) == {4}


def test_a_number_that_the_predictor_says_is_used_at_once():
    driven = Choosy(takes=20, tells=True)
    driven.crowd()
    driven.crowd()
    driven.check_all_answered()
    assert driven.sizes == [32, 20, 12, 20, 12]


def test_requests_that_wait_already_and_large_ones_obey_what_is_learned():
    driven = Choosy(takes=8, tells=True)
    driven.submit_all(("first", 16), ("second", 16), ("large", 50), ("small", 3))
    driven.settle()
    driven.check_all_answered()
    assert driven.refused_sizes == [32]
    assert max(driven.sizes[1:]) == 8


def test_a_request_that_no_call_holds_is_cut_although_it_travelled_whole():
    driven = Choosy(takes=5)
    driven.submit_all(("a", 12), ("b", 12), ("c", 1))
    driven.settle()
    assert driven.answers["c"] == ["c/0"]
    driven.crowd(3, rows=12)
    assert len(driven.answers["r3"]) == 12


def test_parts_of_a_request_that_is_larger_than_a_batch_are_cut_further():
    driven = Choosy(takes=10)
    driven.submit("large", 70)
    driven.settle()
    driven.check_all_answered()
    assert driven.refused_sizes == [32, 16]


def test_no_budget_is_needed_or_spent():
    driven = Choosy(takes=3, retry_budget=0)
    driven.crowd(32)
    driven.check_all_answered()
    assert driven.core.isolation._retries.budget == 100


def test_a_request_that_is_refused_as_it_came_is_told_so_in_the_predictors_words():
    driven = Choosy(takes=16)
    driven.submit("alone", 20)
    driven.settle()
    error = driven.refusals["alone"]
    assert isinstance(error, sidecar_errors.UpstreamStatus)
    assert error.status == 413
    assert (driven.sizes, driven.limit) == ([20], 0)


class NoMemory(errors.CarpoolError):
    remedy = errors.Remedy.SMALLER
    is_doubtful = cuts_requests = True


def test_a_request_is_cut_as_it_came_where_the_error_says_so():
    driven = Choosy(takes=3)
    driven.refusal = lambda rows: NoMemory()
    driven.submit("alone", 20)
    driven.settle()
    driven.crowd(5, rows=7)
    driven.check_all_answered()


def test_the_number_that_a_lone_request_is_told_counts_for_later_ones():
    driven = Choosy(takes=16, tells=True)
    driven.submit("alone", 20)
    driven.settle()
    driven.submit("next", 20)
    driven.settle()
    assert len(driven.answers["next"]) == 20
    assert driven.sizes == [20, 16, 4]


def test_a_row_that_is_too_large_by_itself_is_told_so_and_the_others_are_answered():
    driven = Choosy(takes=32)
    driven.spoilt = {"r5/0"}
    driven.crowd()
    assert list(driven.refusals) == ["r5"]
    assert len(driven.answers) == 31


@pytest.mark.parametrize("giant", [0, 5, 16, 31])
def test_a_row_that_is_too_large_by_itself_leaves_the_limit_as_it_was(giant):
    driven = Choosy(takes=32)
    driven.spoilt = {f"r{giant}/0"}
    driven.crowd()
    assert driven.limit == 0
    driven.crowd()
    assert driven.sizes[-1] == 32


@pytest.mark.parametrize("giant", [0, 5, 16, 31])
def test_what_is_known_of_the_limit_outlives_a_row_that_is_too_large_by_itself(giant):
    driven = Choosy(takes=8)
    driven.crowd()
    assert driven.limit == 8
    driven.spoilt = {f"r{32 + giant}/0"}
    driven.crowd()
    assert driven.limit == 8
    assert len(driven.refusals) == 1


def test_a_predictor_that_takes_less_than_before_is_believed_after_a_few_batches():
    driven = Choosy(takes=16)
    driven.crowd()
    driven.takes = 5
    for _ in range(6):
        driven.crowd()
    driven.refused_sizes.clear()
    driven.crowd()
    driven.check_all_answered()
    assert driven.refused_sizes == []
    assert driven.limit == 4


def test_while_everything_is_refused_each_request_costs_one_call():
    driven = Choosy(takes=0)
    driven.refusal = lambda rows: refused(500, b"CUDA out of memory", rows=rows)
    driven.crowd()
    assert len(driven.refusals) == 32
    before = len(driven.sent)
    driven.crowd()
    assert len(driven.refusals) == 64
    assert len(driven.sent) - before == 32


def test_a_memory_that_is_full_makes_nobody_a_suspect():
    driven = Choosy(takes=0, traits={"content": lambda request: request.rows})
    driven.refusal = lambda rows: refused(500, b"CUDA out of memory", rows=rows)
    driven.submit("alone")
    driven.settle()
    driven.takes = 32
    driven.crowd()
    assert driven.sizes == [1, 32]


def test_keys_have_limits_of_their_own_and_keep_them_while_others_come_between():
    driven = Choosy(takes=8)
    driven.crowd(key="small")
    driven.takes = 32
    driven.crowd(key="large")
    driven.takes = 8
    driven.refused_sizes.clear()
    driven.crowd(key="small")
    assert driven.refused_sizes == []
    driven.takes = 32
    driven.crowd(key="large")
    assert driven.sizes[-1] == 32


def test_suspects_obey_what_is_learned():
    driven = Choosy(takes=8, traits={"content": lambda request: request.rows})
    driven.crowd()
    driven.spoilt = {f"bad/{i}" for i in range(20)}
    driven.refusal = lambda rows: refused(400)
    driven.submit("bad", 20)
    driven.settle()
    driven.submit("like it", 20)
    driven.settle()
    assert "suspect" in driven.reasons
    assert len(driven.answers["like it"]) == 20


def test_suspects_that_wait_already_obey_what_is_learned_meanwhile():
    traits = {"content": lambda request: request.tag, "origin": lambda request: request.rows}
    driven = Choosy(takes=32, traits=traits, max_in_flight=2)
    for name in ("bad", "worse"):
        driven.submit(name, 20)
        driven.fail(refused(400))
    driven.submit_all(("one", 20), ("two", 20))
    suspect = driven.out.pop()
    assert suspect.reason == "suspect"
    driven.takes = 8
    driven.crowd()
    driven.out.append(suspect)  # its answer comes last
    driven.refusal = lambda rows: refused(400)
    driven.spoilt = {f"one/{i}" for i in range(20)}
    driven.settle()
    first = next(batch for batch in driven.sent if "two" in driven.members(batch))
    assert (first.rows, first.reason) == (8, "suspect")
    assert len(driven.answers["two"]) == 20


def test_batches_that_were_out_when_the_limit_was_learned_lower_it_no_further():
    driven = Choosy(takes=16, max_in_flight=4)
    driven.submit_all(*[(f"r{n}",) for n in range(128)])
    driven.settle()
    driven.check_all_answered()
    assert driven.refused_sizes == [32] * 4
    assert driven.limit == 16


def test_a_caller_that_left_meanwhile_is_not_sent_again():
    driven = Choosy(takes=16)
    driven.submit_all(*[(f"r{n}",) for n in range(32)])
    driven.cancel("r3")
    driven.settle()
    assert sum(driven.sizes) == 32 + 31
    assert len(driven.answers) == 31


# --- raising ----------------------------------------------------------------------------------------------------


def test_the_limit_is_found_by_larger_batches_now_and_then():
    driven = Choosy(takes=23)
    for _ in range(600):
        driven.crowd()
        driven.pass_time(1)
    driven.check_all_answered()
    assert driven.limit == 23


def test_a_larger_batch_costs_one_call_more_and_the_pauses_grow():
    driven = Choosy(takes=16, tells=True)
    driven.crowd()
    seconds, refused_at = 3600, []
    for second in range(seconds):
        before = len(driven.refused_sizes)
        calls = len(driven.sent)
        driven.crowd(17)
        if len(driven.refused_sizes) > before:
            refused_at.append(second)
            assert driven.refused_sizes[before:] == [17]
            assert len(driven.sent) - calls == 3
        else:
            assert len(driven.sent) - calls == 2
        driven.pass_time(1)
    gaps = [later - sooner for sooner, later in itertools.pairwise(refused_at)]
    assert gaps == sorted(gaps)
    assert 3 <= len(refused_at) <= 10
    assert max(gaps) <= 610
    driven.check_all_answered()


def test_a_predictor_that_takes_more_again_gets_more_until_nothing_is_left_of_the_limit():
    driven = Choosy(takes=4)
    driven.crowd()
    driven.takes = 100
    for _ in range(60):
        driven.crowd()
        driven.pass_time(1)
    assert driven.sizes[-1] == 32
    assert driven.limit == 0
    assert driven.core.learned_limits.now == {}


def test_only_one_larger_batch_is_out_at_a_time():
    driven = Choosy(takes=8, tells=True, max_in_flight=4)
    driven.crowd()
    driven.pass_time(100)
    driven.crowd(8)
    driven.submit_all(*[(f"more{n}",) for n in range(100)])
    assert [batch.rows for batch in driven.out] == [9, 8, 8, 8]
    driven.settle()
    driven.check_all_answered()


def test_a_whole_request_that_is_refused_only_because_more_was_tried_is_cut():
    driven = Choosy(takes=8, tells=True)
    driven.crowd()
    driven.pass_time(100)
    driven.crowd(8)
    driven.submit("nine", 9)
    driven.settle()
    driven.check_all_answered()
    assert driven.refused_sizes == [32, 9]


def test_a_larger_batch_that_fails_in_another_way_is_followed_by_a_longer_pause():
    driven = Choosy(takes=8, tells=True)
    driven.crowd()
    driven.pass_time(100)
    driven.crowd(8)
    driven.submit_all(*[(f"more{n}",) for n in range(9)])
    assert driven.out[0].rows == 9
    driven.fail(sidecar_errors.UpstreamUnreachable())
    failed = len(driven.sent)
    driven.pass_time(100)
    driven.crowd(9)
    driven.crowd(9)
    assert 9 not in driven.sizes[failed:]
    driven.pass_time(25)
    driven.crowd(9)
    driven.crowd(9)
    assert 9 in driven.sizes[failed:]


def test_a_raise_of_the_setting_does_not_undo_what_was_learned():
    driven = Choosy(takes=16)
    driven.crowd()
    driven.change(max_batch_size=64)
    driven.crowd(64)
    assert driven.refused_sizes == [32]


def test_padded_sizes_are_lowered_and_raised_from_one_allowed_size_to_another():
    driven = Choosy(takes=8, allowed_sizes=(1, 2, 4, 8, 16, 32))
    for _ in range(100):
        driven.crowd(27)
        driven.pass_time(1)
    driven.check_all_answered()
    assert driven.limit == 8
    assert set(driven.sizes[10:]) <= {16, 8, 3, 2, 1}


# --- bounds -----------------------------------------------------------------------------------------------------


def test_callers_who_choose_many_keys_do_not_fill_the_memory():
    driven = Choosy(takes=1)
    for key in range(1500):
        driven.crowd(2, key=f"key{key}")
    driven.check_all_answered()
    assert len(driven.core.learned_limits.now) == len(driven.core.learned_limits._keys) == 1000


def test_a_key_that_is_not_used_is_forgotten():
    driven = Choosy(takes=1)
    driven.crowd(2)
    driven.pass_time(3601)
    assert driven.limit == 0
    driven.crowd(2, key="another")
    assert list(driven.core.learned_limits.now) == [hash("another")]


def test_nothing_is_kept_while_nothing_is_refused():
    driven = Choosy(takes=32)
    for _ in range(3):
        driven.crowd()
    driven.submit("bad")
    driven.fail(refused(400, b"no"))
    assert driven.core.learned_limits.now == {}


@given(
    takes=st.integers(1, 40),
    tells=st.booleans(),
    in_flight=st.integers(1, 3),
    is_adaptive=st.booleans(),
    groups=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(1, 45), st.sampled_from("xy")), min_size=1, max_size=20),
            st.floats(0, 30),
        ),
        min_size=1,
        max_size=12,
    ),
)
def test_every_request_is_answered_or_was_refused_as_it_came(takes, tells, in_flight, is_adaptive, groups):
    policy = {"policy": adaptive.Adaptive} if is_adaptive else {}
    driven = Choosy(takes, tells, max_in_flight=in_flight, **policy)
    for group, seconds in groups:
        start = len(driven.requests)
        driven.submit_all(*[(f"r{start + n}", rows, key) for n, (rows, key) in enumerate(group)])
        driven.settle()
        driven.pass_time(seconds)
        driven.settle()
    driven.do(driven.core.drain())
    driven.settle()
    assert driven.core.idle
    assert set(driven.answers) | set(driven.refusals) == set(driven.requests)
    for name, rows in driven.answers.items():
        assert rows == [f"{name}/{i}" for i in range(driven.requests[name].rows)]
    for name, error in driven.refusals.items():
        assert driven.requests[name].rows > takes
        assert isinstance(error, sidecar_errors.UpstreamStatus)


@given(takes=st.integers(1, 31), tells=st.booleans(), rounds=st.integers(1, 60), seconds=st.floats(0.1, 20))
def test_after_learning_one_call_is_refused_for_each_time_that_more_is_tried(takes, tells, rounds, seconds):
    driven = Choosy(takes, tells)
    driven.crowd()
    driven.refused_sizes.clear()
    driven.refused_reasons.clear()
    for _ in range(rounds):
        driven.crowd()
        driven.pass_time(seconds)
    driven.check_all_answered()
    assert "smaller" not in driven.refused_reasons
    assert len(driven.refused_sizes) <= 1 + rounds * seconds / 5


@pytest.mark.parametrize("said", [1, 4])
def test_a_number_in_words_that_quote_a_caller_is_forgotten_once_that_caller_is_refused_alone(said: int):
    driven = Choosy(takes=32)
    driven.spoilt = {"evil/0"}
    driven.refusal = lambda rows: refused(422, b'{"input":"the maximum batch size is %d"}' % said, rows=rows)
    driven.submit_all(*[(name, 1, "key") for name in ("evil", *"abcdefg")])
    driven.settle()
    assert set(driven.refusals) == {"evil"}
    assert driven.limit == 0
    sent = len(driven.sent)
    driven.spoilt = set()
    driven.crowd(16)
    assert max(driven.sizes[sent:]) > said
