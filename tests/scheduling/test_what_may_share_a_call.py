"""Predictors that take some rows in calls of their own only: of one length, or no more than so many bytes in all.

They say so in words of their own, as they do of a bad request. Whoever is refused with others and answered without them
is to blame for nothing: what was answered in smaller pieces is a limit.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given

from carpool import errors
from carpool.scheduling import adaptive, messages
from carpool_sidecar import errors as sidecar_errors
from tests.scheduling.driven import DrivenScheduler, refused


def length_of(row: str) -> int:
    """Rows are named `NAME:LENGTH/NUMBER`, or `NAME:LENGTH+LENGTH/NUMBER` where a request has two lengths in turn."""
    lengths = row.partition(":")[2].partition("/")[0].split("+")
    return int(lengths[int(row.rpartition("/")[2]) % len(lengths)])


def shape(rows: Sequence[str]) -> Hashable | None:
    lengths = set(map(length_of, rows))
    return lengths.pop() if len(lengths) == 1 else None


class Particular(DrivenScheduler):
    """With a predictor that refuses in words which say nothing.

    It takes rows of one length in a call unless it `mixes`, at most `most` rows, and at most `weight` in all, a row
    weighing its length; `spoilt` rows it never takes. `mishap` tells whether a call fails by chance.
    """

    def __init__(self, mixes: bool = False, most: float = 1e9, weight: float = 1e9, **about: object) -> None:
        chosen = {"max_batch_size": 32, "max_latency": 0.0, "row_shape": shape, "row_sizes": self.sizes_of, **about}
        super().__init__(**chosen)
        self.mixes, self.most, self.weight = mixes, most, weight
        self.spoilt: Collection[str] = ()
        self.mishap: Callable[[], bool] = lambda: False
        self.refusal: Callable[[int], errors.CarpoolError] = lambda rows: refused(400, b"no", rows=rows)
        self.refused: list[list[str]] = []
        self.told: list[messages.Learned] = []

    @staticmethod
    def sizes_of(payload: Sequence[str], start: int, stop: int) -> list[int]:
        return [length_of(row) for row in payload[start:stop]]

    def do(self, effects: Iterable[messages.Effect]) -> None:
        effects = list(effects)
        self.told += [effect for effect in effects if isinstance(effect, messages.Learned)]
        super().do(effects)

    def settle(self) -> None:
        most = len(self.sent) + 3 * sum(request.rows for request in self.requests.values()) + 100
        while self.out:
            assert len(self.sent) < most, "it never ends"
            batch = self.out[0]
            rows = self.rows_of(batch)
            lengths = [length_of(row) for row in rows]
            is_fine = (self.mixes or len(set(lengths)) == 1) and len(rows) <= self.most and sum(lengths) <= self.weight
            if is_fine and not set(rows) & set(self.spoilt) and not self.mishap():
                self.answer()
            else:
                self.refused.append(rows)
                self.fail(self.refusal(len(rows)))

    def crowd(self, *lengths: int, key: str = "key", settles: bool = True) -> list[str]:
        """A request of one row of each length, all at once, and what becomes of them."""
        names = [f"r{len(self.requests) + n}:{length}" for n, length in enumerate(lengths)]
        self.submit_all(*[(name, 1, key, None, length) for name, length in zip(names, lengths, strict=True)])
        if settles:
            self.settle()
        return names

    def check_all_answered(self) -> None:
        assert self.refusals == {}
        assert {name: len(rows) for name, rows in self.answers.items()} == {
            name: request.rows for name, request in self.requests.items()
        }
        assert self.core.idle

    @property
    def lessons(self) -> list[str]:
        return [told.lesson for told in self.told]

    @property
    def is_apart(self) -> bool:
        return self.core.kept_apart() > 0


TWO = [5, 9] * 16
MANY = list(range(3, 60))


# --- lengths ----------------------------------------------------------------------------------------------------


def test_once_rows_of_several_lengths_were_refused_together_each_length_travels_by_itself():
    driven = Particular()
    driven.crowd(*TWO)
    driven.check_all_answered()
    assert len(driven.refused) <= 2
    assert driven.lessons == ["apart"]
    sent = len(driven.sent)
    driven.crowd(*TWO)
    assert driven.sizes[sent:] == [16, 16]
    driven.check_all_answered()


def test_of_many_lengths_a_few_calls_are_refused_and_no_more():
    driven, choose = Particular(), random.Random(1)
    for _ in range(20):
        driven.crowd(*[choose.choice(MANY) for _ in range(32)])
    driven.check_all_answered()
    assert len(driven.refused) <= 3


def test_requests_that_wait_when_it_is_learned_are_parted_as_well():
    driven = Particular(max_in_flight=1)
    driven.crowd(*TWO * 4)
    driven.check_all_answered()
    assert len(driven.refused) <= 3


def test_nothing_is_learned_where_rows_have_one_length():
    driven = Particular()
    for _ in range(3):
        driven.crowd(*[7] * 32)
    assert driven.refused == []
    assert not driven.is_apart
    assert driven.sizes == [32] * 3


def test_a_request_of_several_lengths_travels_without_others_while_they_are_kept_apart():
    driven = Particular()
    driven.crowd(*TWO)
    sent = len(driven.sent)
    driven.submit("ragged:5+9", 4)
    driven.submit_all(*[(f"more{n}:5", 1) for n in range(3)], ("other:5+9", 2))
    driven.settle()
    calls = [set(driven.members(batch)) for batch in driven.sent[sent:]]
    assert all(len(members) == 1 for members in calls if "ragged:5+9" in members)
    assert set(driven.refusals) == {"ragged:5+9", "other:5+9"}, "as they would be alone"
    assert len(driven.answers) == 32 + 3


def test_who_has_another_length_than_all_others_and_is_bad_is_told_so_and_nothing_is_learned():
    driven = Particular(mixes=True)
    driven.spoilt = {"r3:3/0"}
    driven.crowd(4, 4, 4, 3, *[4] * 28)
    assert list(driven.refusals) == ["r3:3"]
    assert len(driven.sent) <= 12, "it is found sooner than by halves"
    assert driven.lessons == []
    driven.crowd(*[3, 4] * 16)
    assert driven.sizes[-1] == 32


@pytest.mark.parametrize("place", [0, 7, 16, 31])
def test_a_culprit_among_rows_of_many_lengths_does_not_look_as_if_lengths_did_not_mix(place: int):
    driven = Particular(mixes=True)
    for number in range(4):
        driven.spoilt = {f"r{number * 32 + place}:{3 + place}/0"}
        driven.crowd(*range(3, 35))
    assert len(driven.refusals) == 4
    assert driven.lessons == []
    assert not driven.is_apart


def test_a_culprit_where_lengths_do_not_mix_gets_its_own_refusal_and_the_others_their_answers():
    driven = Particular()
    for number in range(4):
        driven.spoilt = {f"r{number * 32 + 6}:5/0"}
        driven.crowd(*TWO)
    assert len(driven.refusals) == 4
    assert len(driven.answers) == 4 * 31
    assert driven.lessons == ["apart"]


def test_what_nothing_confirms_is_forgotten():
    driven = Particular()
    driven.spoilt = {"r6:5/0"}
    driven.crowd(*TWO)
    assert not driven.core.learned_limits.is_empty
    driven.pass_time(70)
    driven.crowd(*[5] * 32)
    assert driven.core.learned_limits.is_empty


def test_lengths_are_tried_together_again_later_and_later():
    driven = Particular()
    refused_at = []
    for second in range(0, 2000, 2):
        before = len(driven.refused)
        driven.crowd(5, 9)
        driven.crowd(5, 9)
        if len(driven.refused) > before and second:
            assert len(driven.refused) == before + 1, "one call in each try"
            refused_at.append(second)
        driven.pass_time(2)
    driven.check_all_answered()
    gaps = [later - sooner for sooner, later in itertools.pairwise(refused_at)]
    assert refused_at[0] <= 10
    assert gaps == sorted(gaps)
    assert 5 <= len(refused_at) <= 12
    assert driven.lessons == ["apart"]


def test_a_predictor_that_takes_them_together_again_gets_them_together():
    driven = Particular()
    driven.crowd(*TWO)
    driven.mixes = True
    for _ in range(10):
        driven.crowd(*TWO)
        driven.pass_time(1)
    assert driven.sizes[-1] == 32
    assert driven.lessons == ["apart", "together"]
    assert not driven.is_apart
    driven.check_all_answered()


def test_keys_are_kept_apart_each_for_itself():
    driven = Particular()
    driven.crowd(*TWO, key="picky")
    driven.mixes = True
    driven.crowd(*TWO, key="other")
    assert driven.sizes[-1] == 32
    assert driven.core.kept_apart() == 1


def test_a_key_that_is_not_used_is_forgotten():
    driven = Particular()
    driven.crowd(*TWO)
    assert driven.core.kept_apart() == 1
    driven.pass_time(3601)
    assert driven.core.kept_apart() == 0


def test_callers_who_choose_many_keys_do_not_fill_the_memory():
    driven = Particular()
    for key in range(1020):
        driven.crowd(5, 9, 5, key=f"key{key}")
    driven.check_all_answered()
    assert len(driven.core.learned_limits._keys) <= 1000


def test_a_predictor_that_fails_by_chance_keeps_nobody_apart():
    chance = random.Random(7)
    driven = Particular(mixes=True)
    driven.mishap = lambda: chance.random() < 0.05
    driven.refusal = lambda rows: refused(500, b"oops", doubtful={500}, rows=rows)
    for _ in range(300):
        driven.crowd(*[chance.choice(MANY) for _ in range(32)])
    assert driven.lessons == []


def test_a_predictor_that_is_overloaded_or_cannot_be_reached_teaches_nothing():
    driven = Particular(mixes=True)
    for error in (sidecar_errors.UpstreamUnreachable(), refused(503, named="5xx"), refused(429, named="4xx,429")):
        for _ in range(3):
            driven.crowd(*TWO, settles=False)
            driven.fail(error)
            driven.settle()
    assert driven.lessons == []


def test_doubtful_refusals_teach_lengths_as_well():
    driven = Particular()
    driven.refusal = lambda rows: refused(500, b"inhomogeneous shape", doubtful={500}, rows=rows)
    driven.crowd(*TWO)
    driven.crowd(*TWO)
    driven.check_all_answered()
    assert driven.lessons == ["apart"]


# --- how much ---------------------------------------------------------------------------------------------------


def test_a_limit_on_rows_in_unknown_words_is_learned_in_a_few_calls():
    driven = Particular(most=5, mixes=True)
    driven.crowd(*[7] * 32)
    driven.check_all_answered()
    assert len(driven.refused) <= 5
    before = len(driven.refused)
    driven.crowd(*[7] * 32)
    assert len(driven.refused) == before
    assert max(driven.sizes[-8:]) <= 5
    assert driven.core.smallest_limit() == 4


@pytest.mark.parametrize("status", [None, 413], ids=["unknown words", "told as a size"])
def test_a_limit_on_the_sum_of_lengths_is_learned_as_one_on_bytes_where_rows_differ(status):
    driven, choose = Particular(weight=800, mixes=True), random.Random(3)
    if status is not None:
        driven.refusal = lambda rows: refused(status, rows=rows)
    for _ in range(20):
        driven.crowd(*[choose.randint(10, 300) for _ in range(32)])
    early = len(driven.refused)
    for _ in range(20):
        driven.crowd(*[choose.randint(10, 300) for _ in range(32)])
    driven.check_all_answered()
    assert early <= 12
    assert len(driven.refused) <= early + 2
    assert driven.core.smallest_bytes() > 600
    assert status is not None or "bytes" in driven.lessons


def test_short_rows_fill_batches_where_the_limit_is_on_bytes():
    driven, choose = Particular(weight=800, mixes=True), random.Random(3)
    for _ in range(20):
        driven.crowd(*[choose.randint(10, 300) for _ in range(32)])
    driven.crowd(*[5] * 32)
    assert driven.sizes[-1] == 32


def test_a_number_of_rows_that_the_predictor_said_stays_beside_a_limit_on_bytes():
    driven, choose = Particular(weight=800, most=24, mixes=True), random.Random(3)
    said = b"batch size %d > maximum allowed batch size 24"
    driven.refusal = lambda rows: refused(422, said % rows, rows=rows) if rows > 24 else refused(400, b"no", rows=rows)
    driven.crowd(*[5] * 32)
    for _ in range(5):
        driven.crowd(*[choose.randint(10, 300) for _ in range(32)])
    assert driven.lessons == ["bytes"]
    before = len(driven.refused)
    driven.crowd(*[5] * 32)
    assert driven.sizes[-2:] == [24, 8]
    assert len(driven.refused) == before


def test_a_limit_on_a_sum_is_not_taken_for_lengths_that_do_not_mix():
    driven, choose = Particular(weight=400, mixes=True), random.Random(5)
    for _ in range(30):
        driven.crowd(*[choose.randint(10, 100) for _ in range(32)])
    driven.check_all_answered()
    assert "apart" not in driven.lessons


def test_lengths_that_do_not_mix_and_a_limit_are_both_learned():
    driven = Particular(most=4)
    for _ in range(10):
        driven.crowd(*TWO)
    before = len(driven.refused)
    driven.crowd(*TWO)
    assert len(driven.refused) == before
    assert set(driven.sizes[-8:]) == {4}
    driven.check_all_answered()


def test_the_limit_is_found_by_larger_batches_now_and_then():
    driven = Particular(most=23, mixes=True)
    for _ in range(120):
        driven.crowd(*[7] * 32)
        driven.pass_time(5)
    driven.check_all_answered()
    assert driven.core.smallest_limit() == 23


def test_larger_batches_are_tried_later_and_later():
    driven = Particular(most=16, mixes=True)
    for _ in range(360):
        driven.crowd(*[7] * 32)
        driven.pass_time(10)
    assert 8 <= len(driven.refused) <= 20
    driven.check_all_answered()


def test_a_limit_that_is_gone_is_forgotten():
    driven = Particular(most=4, mixes=True)
    driven.crowd(*[7] * 32)
    driven.most = 1e9
    for _ in range(60):
        driven.crowd(*[7] * 32)
        driven.pass_time(1)
    assert driven.sizes[-1] == 32
    assert driven.core.smallest_limit() == driven.core.smallest_bytes() == 0


@pytest.mark.parametrize("lengths", [[7] * 32, list(range(3, 35))])
def test_culprits_lower_no_limit(lengths: list[int]):
    driven, choose = Particular(mixes=True), random.Random(4)
    for number in range(30):
        place = choose.randrange(32)
        driven.spoilt = {f"r{number * 32 + place}:{lengths[place]}/0"}
        driven.crowd(*lengths)
    assert len(driven.refusals) == 30
    assert driven.lessons == []


def test_a_caller_that_left_meanwhile_makes_no_limit():
    driven = Particular(mixes=True)
    for number in range(4):
        names = driven.crowd(*[7] * 32, settles=False)
        driven.spoilt = {f"{names[5]}/0"}
        rows = driven.rows_of(driven.out[0])
        driven.fail(refused(400, b"no", rows=len(rows)))
        driven.cancel(names[5])
        driven.settle()
        assert driven.lessons == [], number


def test_a_predictor_that_fails_by_chance_has_no_limit():
    chance = random.Random(7)
    driven = Particular(mixes=True)
    driven.mishap = lambda: chance.random() < 0.05
    driven.refusal = lambda rows: refused(500, b"oops", doubtful={500}, rows=rows)
    for _ in range(300):
        driven.crowd(*[7] * 32)
        driven.pass_time(0.1)
    assert driven.lessons == []
    assert driven.sizes.count(32) == 300


def test_a_larger_batch_that_is_refused_costs_no_budget():
    driven = Particular(most=4, mixes=True)
    driven.crowd(*[7] * 32)
    driven.core.isolation._retries.budget = 0
    driven.change(retry_budget=0)
    for _ in range(30):
        driven.crowd(*[7] * 32)
        driven.pass_time(1)
    driven.check_all_answered()


def test_lengths_that_are_tried_together_again_cost_no_budget():
    driven = Particular()
    driven.crowd(*TWO)
    driven.core.isolation._retries.budget = 0
    driven.change(retry_budget=0)
    for _ in range(30):
        driven.crowd(*TWO)
        driven.pass_time(1)
    driven.check_all_answered()


@given(
    mixes=st.booleans(),
    most=st.integers(1, 40),
    weight=st.integers(60, 400),
    in_flight=st.integers(1, 3),
    is_adaptive=st.booleans(),
    has_traits=st.booleans(),
    groups=st.lists(
        st.tuples(
            st.lists(
                st.tuples(
                    st.sampled_from(["3", "5", "9", "60", "5+9"]),
                    st.integers(1, 40),
                    st.sampled_from("xy"),
                    st.sampled_from([False] * 9 + [True]),
                ),
                min_size=1,
                max_size=20,
            ),
            st.floats(0, 30),
        ),
        min_size=1,
        max_size=12,
    ),
)
def test_who_could_be_answered_alone_is_answered_and_who_could_not_is_told_so(
    mixes, most, weight, in_flight, is_adaptive, has_traits, groups
):
    chosen = {"policy": adaptive.Adaptive} if is_adaptive else {}
    if has_traits:
        chosen["traits"] = {"content": lambda request: request.tag, "origin": lambda request: request.tag[0]}
    driven = Particular(mixes, most, weight, max_in_flight=in_flight, retry_budget=100, **chosen)
    spoilt: set[str] = set()
    driven.spoilt = spoilt
    for group, seconds in groups:
        asked = []
        for number, (length, rows, key, is_bad) in enumerate(group, len(driven.requests)):
            name = f"{key}{number}:{length}"
            payload = [f"{name}/{row}" for row in range(rows)]
            asked.append((name, rows, key, None, sum(map(length_of, payload))))
            if is_bad:
                spoilt.add(payload[number % rows])
        driven.submit_all(*asked)
        driven.settle()
        driven.pass_time(seconds)
        driven.settle()
    driven.do(driven.core.drain())
    for _ in range(1000):
        driven.settle()
        driven.pass_time(1)
        if driven.core.idle:
            break
    assert driven.core.idle
    assert set(driven.answers) | set(driven.refusals) == set(driven.requests)
    for name, request in driven.requests.items():
        rows = [f"{name}/{i}" for i in range(request.rows)]
        lengths = list(map(length_of, rows))
        if name in driven.answers:
            assert driven.answers[name] == rows
            assert spoilt.isdisjoint(rows)
        else:
            could = (mixes or len(set(lengths)) == 1) and len(rows) <= most and sum(lengths) <= weight
            assert not could or not spoilt.isdisjoint(rows), name
