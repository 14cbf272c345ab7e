"""Requests beside the size of a batch: splitting and rejoining, and packing without splitting."""

from carpool_sidecar import errors


def rows(name, count):
    return [f"{name}/{i}" for i in range(count)]


def test_a_request_larger_than_a_batch_is_split_and_rejoined_in_order(driven):
    driven.submit("big", rows=10)
    while driven.out:
        driven.answer()
    assert driven.sizes == [4, 4, 2]
    assert driven.answers["big"] == rows("big", 10)
    assert driven.answer_ids["big"] == ["batch-1", "batch-2", "batch-3"]


def test_parts_that_come_back_in_another_order_are_rejoined_in_order(driven_of):
    driven = driven_of(max_batch_size=4, max_in_flight=3)
    driven.submit("big", rows=12)
    for batch in reversed(list(driven.out)):
        driven.answer(batch)
    assert driven.answers["big"] == rows("big", 12)
    assert driven.answer_ids["big"] == ["batch-1", "batch-2", "batch-3"]


def test_a_batch_is_no_larger_than_the_predictor_takes_of_its_key(driven_of):
    driven = driven_of(max_batch_size=8, max_in_flight=9)
    for name in "abcde":
        driven.submit(name, max_batch_size=2)
    driven.submit("big", rows=7, max_batch_size=2)
    for name in "vwxyz":
        driven.submit(name, key="another")
    driven.pass_time(1)
    driven.answer_all()
    assert sorted(driven.sizes) == [2, 2, 2, 2, 2, 2, 5]
    assert driven.answers["big"] == rows("big", 7)


def test_a_predictor_that_takes_more_than_the_limit_gets_no_more_than_the_limit(driven_of):
    driven = driven_of(max_batch_size=4, max_in_flight=3)
    driven.submit("big", rows=10, max_batch_size=64)
    driven.answer_all()
    assert driven.sizes == [4, 4, 2]


def test_the_end_of_a_split_request_shares_its_batch_with_others(driven):
    driven.submit("big", rows=6)
    driven.submit("small", rows=2)
    driven.answer()
    assert driven.sizes == [4, 4]
    driven.answer()
    assert driven.answers == {"big": rows("big", 6), "small": rows("small", 2)}


def test_the_end_of_a_split_request_waits_for_a_free_predictor_and_for_nothing_else(driven_of):
    driven = driven_of(max_batch_size=4, max_latency=0.5, max_in_flight=3)
    driven.submit("big", rows=10)
    assert driven.sizes == [4, 4, 2]
    assert driven.reasons == ["full", "full", "rest"]


def test_the_end_of_a_split_request_leaves_as_soon_as_the_predictor_is_free(driven):
    driven.submit("big", rows=6)
    driven.pass_time(0.1)
    driven.answer()
    assert driven.sizes == [4, 2]
    driven.answer()
    assert driven.answers["big"] == rows("big", 6)


def test_a_queue_whose_split_request_is_gone_waits_for_company_again(driven):
    driven.submit("big", rows=6)
    driven.submit("next", rows=1)
    driven.cancel("big")
    driven.pass_time(0.49)
    assert driven.sizes == [4]
    driven.pass_time(0.01)
    assert driven.sizes == [4, 1]
    assert driven.reasons == ["full", "due"]


def test_full_batches_of_others_go_before_the_end_of_a_split_request(driven):
    driven.submit("big", rows=6)
    driven.submit("other", rows=4, key="other")
    driven.answer()
    driven.answer()
    assert [driven.members(batch) for batch in driven.sent] == [["big"], ["other"], ["big"]]


def test_a_request_that_fits_a_batch_is_never_split(driven):
    driven.submit("a", rows=3)
    driven.submit("b", rows=3)
    assert driven.sizes == [3]
    assert driven.reasons == ["full"]
    driven.pass_time(0.5)
    driven.answer()
    assert driven.sizes == [3, 3]


def test_batch_size_is_a_hard_cap(driven):
    for name, count in [("a", 3), ("b", 2), ("c", 9), ("d", 1), ("e", 4)]:
        driven.submit(name, rows=count)
    driven.pass_time(1)
    while driven.out:
        driven.answer()
        driven.pass_time(1)
    assert max(driven.sizes) <= 4
    assert sum(driven.sizes) == 19
    assert set(driven.answers) == set("abcde")


def test_cancelling_a_split_request_drops_the_rest_of_it(driven):
    driven.submit("big", rows=10)
    driven.cancel("big")
    driven.pass_time(5)
    assert driven.sizes == [4]
    assert driven.core.idle


def test_when_one_part_fails_the_request_fails_once_and_the_rest_is_not_sent(driven):
    driven.submit("big", rows=10)
    driven.submit("other", key="other")
    driven.fail(errors.UpstreamUnreachable())
    driven.pass_time(0.5)
    assert isinstance(driven.refusals["big"], errors.UpstreamUnreachable)
    assert [driven.members(batch) for batch in driven.sent] == [["big"], ["other"]]
    assert driven.core.ledger.held == 10
