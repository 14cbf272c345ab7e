"""What was learned, in words."""

from __future__ import annotations

from carpool_sidecar.live import sentences

LEARNED = {
    "service_fixed_seconds": 0.0102, "service_instance_seconds": 0.00011, "overhead_seconds": 0.0, "workers": 1,
    "in_flight_limit": 2, "capacity": 2300.0, "utilisation": 0.81, "predicted_wait_seconds": 0.0,
    "returning_share": 0.0, "spacing_share": 0.0,
}  # fmt: skip


def test_what_was_learned_reads_as_sentences():
    assert sentences.adaptive(LEARNED) == [
        "A call takes 10.2 ms and 0.11 ms for each instance.",
        "The predictor works on one batch at a time.",
        "81 % of what full batches could do: 1,863 of 2,300 instances a second come.",
    ]


def test_what_is_worth_telling_is_told():
    told = sentences.adaptive(
        {
            **LEARNED,
            "overhead_seconds": 0.0021,
            "workers": 3,
            "predicted_wait_seconds": 0.125,
            "returning_share": 0.57,
            "spacing_share": 0.55,
        }
    )
    assert told == [
        "A call takes 10.2 ms and 0.11 ms for each instance.",
        "2.10 ms of a round trip are free for other work.",
        "The predictor works on 3 batches at a time.",
        "Batches leave apart, by 55 % of what a call takes.",
        "81 % of what full batches could do: 1,863 of 2,300 instances a second come.",
        "A request that came at this moment would wait 125 ms.",
        "57 % of the callers send again as soon as they are answered.",
    ]


def test_too_much_load_is_said():
    assert sentences.adaptive({**LEARNED, "utilisation": 0.95})[-1].endswith("come. There is little room for more.")
    assert sentences.adaptive({**LEARNED, "utilisation": 1.2})[-1].endswith("come. More come than can be answered.")


def test_before_the_first_batch_nothing_is_known_and_that_is_said():
    nothing = dict.fromkeys(LEARNED, 0.0)
    assert sentences.adaptive(nothing) == ["Nothing is known of the predictor yet: no batch has come back."]


def test_what_an_instance_costs_by_the_size_of_its_batch_and_where_that_ends_is_told():
    assert sentences.sizes(LEARNED, 32) == [
        "An instance takes 10.3 ms alone, and 0.43 ms in a batch of 32; from 29 instances on it is hardly cheaper."
    ]
    one_by_one = {**LEARNED, "service_fixed_seconds": 0.00001, "service_instance_seconds": 0.01}
    assert sentences.sizes(one_by_one, 32)[0].endswith("in a batch of 32: batches buy next to nothing here.")
    assert sentences.sizes(dict.fromkeys(LEARNED, 0.0), 32) == []
    assert sentences.sizes(LEARNED, 1) == []


def test_the_window_policy_says_what_it_does():
    assert sentences.window(32, 500.0, 1) == [
        "The window policy learns nothing.",
        "A batch leaves when it holds 32 instances or its oldest request is 500 ms old.",
        "At most one batch is at the predictor.",
    ]
    assert "the predictor has a free place" in sentences.window(32, 0.0, 2)[1]
    assert sentences.window(32, 0.0, 2)[2] == "At most 2 batches are at the predictor."


def test_the_size_from_which_on_batches_save_little_is_that_of_the_sentence():
    assert f"from {sentences.knee(LEARNED, 32)} instances on" in sentences.sizes(LEARNED, 32)[0]
    assert sentences.knee({**LEARNED, "service_fixed_seconds": 0.0}, 32) == 1
    assert sentences.knee({}, 32) == sentences.knee(dict.fromkeys(LEARNED, 0.0), 32) == 0


def test_what_settings_keep_apart_is_told_with_the_reason():
    assert list(sentences.apart(mix_forms=True, group_by_length=False)) == []
    [forms] = sentences.apart(mix_forms=False, group_by_length=False)
    assert "one table of a batch" in forms
    [lengths] = sentences.apart(mix_forms=True, group_by_length=True)
    assert "pads all to the longest" in lengths


def test_what_refusals_taught_reads_as_sentences():
    assert sentences.refusals(0, 0, 0) == []
    assert sentences.refusals(4, 3100, 1) == [
        "The predictor refused more than 4 instances in one call.",
        "The predictor refused more than 3,100 bytes of instances in one call.",
        "The predictor refused instances of several lengths in one call: those of one batch key travel apart.",
    ]
    assert sentences.refusals(0, 0, 2)[0].endswith("those of 2 batch keys travel apart.")
