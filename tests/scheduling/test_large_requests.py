"""Requests beside the size of a batch: splitting and rejoining, and packing without splitting."""

from carpool_sidecar import errors


def rows(name, count):
    return [f"{name}/{i}" for i in range(count)]


def test_a_request_larger_than_a_batch_is_split_and_rejoined_in_order(desk):
    desk.submit("big", rows=10)
    while desk.out:
        desk.answer()
    assert desk.sizes == [4, 4, 2]
    assert desk.answers["big"] == rows("big", 10)
    assert desk.answer_ids["big"] == ["batch-1", "batch-2", "batch-3"]


def test_parts_that_come_back_in_another_order_are_rejoined_in_order(desk_of):
    desk = desk_of(max_batch_size=4, max_in_flight=3)
    desk.submit("big", rows=12)
    for batch in reversed(list(desk.out)):
        desk.answer(batch)
    assert desk.answers["big"] == rows("big", 12)
    assert desk.answer_ids["big"] == ["batch-1", "batch-2", "batch-3"]


def test_a_batch_is_no_larger_than_the_predictor_takes_of_its_key(desk_of):
    desk = desk_of(max_batch_size=8, max_in_flight=9)
    for name in "abcde":
        desk.submit(name, max_batch_size=2)
    desk.submit("big", rows=7, max_batch_size=2)
    for name in "vwxyz":
        desk.submit(name, key="another")
    desk.pass_time(1)
    desk.answer_all()
    assert sorted(desk.sizes) == [2, 2, 2, 2, 2, 2, 5]
    assert desk.answers["big"] == rows("big", 7)


def test_a_predictor_that_takes_more_than_the_limit_gets_no_more_than_the_limit(desk_of):
    desk = desk_of(max_batch_size=4, max_in_flight=3)
    desk.submit("big", rows=10, max_batch_size=64)
    desk.answer_all()
    assert desk.sizes == [4, 4, 2]


def test_the_end_of_a_split_request_shares_its_batch_with_others(desk):
    desk.submit("big", rows=6)
    desk.submit("small", rows=2)
    desk.answer()
    assert desk.sizes == [4, 4]
    desk.answer()
    assert desk.answers == {"big": rows("big", 6), "small": rows("small", 2)}


def test_the_end_of_a_split_request_waits_for_a_free_predictor_and_for_nothing_else(desk_of):
    desk = desk_of(max_batch_size=4, max_latency=0.5, max_in_flight=3)
    desk.submit("big", rows=10)
    assert desk.sizes == [4, 4, 2]
    assert desk.reasons == ["full", "full", "rest"]


def test_the_end_of_a_split_request_leaves_as_soon_as_the_predictor_is_free(desk):
    desk.submit("big", rows=6)
    desk.pass_time(0.1)
    desk.answer()
    assert desk.sizes == [4, 2]
    desk.answer()
    assert desk.answers["big"] == rows("big", 6)


def test_a_queue_whose_split_request_is_gone_waits_for_company_again(desk):
    desk.submit("big", rows=6)
    desk.submit("next", rows=1)
    desk.cancel("big")
    desk.pass_time(0.49)
    assert desk.sizes == [4]
    desk.pass_time(0.01)
    assert desk.sizes == [4, 1]
    assert desk.reasons == ["full", "due"]


def test_full_batches_of_others_go_before_the_end_of_a_split_request(desk):
    desk.submit("big", rows=6)
    desk.submit("other", rows=4, key="other")
    desk.answer()
    desk.answer()
    assert [desk.members(batch) for batch in desk.sent] == [["big"], ["other"], ["big"]]


def test_a_request_that_fits_a_batch_is_never_split(desk):
    desk.submit("a", rows=3)
    desk.submit("b", rows=3)
    assert desk.sizes == [3]
    assert desk.reasons == ["full"]
    desk.pass_time(0.5)
    desk.answer()
    assert desk.sizes == [3, 3]


def test_batch_size_is_a_hard_cap(desk):
    for name, count in [("a", 3), ("b", 2), ("c", 9), ("d", 1), ("e", 4)]:
        desk.submit(name, rows=count)
    desk.pass_time(1)
    while desk.out:
        desk.answer()
        desk.pass_time(1)
    assert max(desk.sizes) <= 4
    assert sum(desk.sizes) == 19
    assert set(desk.answers) == set("abcde")


def test_cancelling_a_split_request_drops_the_rest_of_it(desk):
    desk.submit("big", rows=10)
    desk.cancel("big")
    desk.pass_time(5)
    assert desk.sizes == [4]
    assert desk.core.idle


def test_when_one_part_fails_the_request_fails_once_and_the_rest_is_not_sent(desk):
    desk.submit("big", rows=10)
    desk.submit("other", key="other")
    desk.fail(errors.UpstreamUnreachable())
    desk.pass_time(0.5)
    assert isinstance(desk.refusals["big"], errors.UpstreamUnreachable)
    assert [desk.members(batch) for batch in desk.sent] == [["big"], ["other"]]
    assert desk.core.ledger.held == 10
