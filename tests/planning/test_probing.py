"""What is concluded from measured batches."""

from __future__ import annotations

import pytest

from carpool_sidecar.planning import probing, service_times


def sizes(times: dict[int, float], difference: float = 0.0) -> list[probing.Measured]:
    return [probing.Measured(rows, (seconds,) * 5, difference) for rows, seconds in times.items()]


def affine(fixed: float, per_row: float, largest: int = 64) -> dict[int, float]:
    return {2**power: fixed + per_row * 2**power for power in range(largest.bit_length())}


def test_the_line_is_found_again():
    line = probing.fit(sizes(affine(0.010, 0.0002)))
    assert line.fixed == pytest.approx(0.010)
    assert line.per_row == pytest.approx(0.0002)


def test_neither_part_of_the_line_is_negative():
    assert probing.fit(sizes({1: 0.001, 2: 0.004, 4: 0.016})).fixed == 0
    assert probing.fit(sizes({1: 0.004, 2: 0.003, 4: 0.002})).per_row == 0


def test_the_largest_batch_that_pays_is_chosen():
    assert probing.advise(sizes(affine(0.010, 0.0001))).largest == 64
    assert probing.advise(sizes(affine(0.001, 0.001))).largest == 16
    assert probing.advise(sizes(affine(0.0, 0.001))).largest == 1


def test_a_line_and_measured_sizes_agree_on_the_largest_batch_that_pays():
    for fixed, per_row in ((0.010, 0.001), (0.001, 0.001), (0.0, 0.001), (0.010, 0.0)):
        measured = probing.advise(sizes(affine(fixed, per_row))).largest
        assert measured / 2 < probing.pays_from(fixed, per_row, 64) <= measured


def test_the_gain_is_that_of_instances_a_second():
    assert probing.advise(sizes(affine(0.010, 0.0))).gain == pytest.approx(64)
    assert probing.advise(sizes(affine(0.0, 0.001))).gain == pytest.approx(1)


def test_a_bend_is_found_where_a_flat_curve_begins_to_rise():
    flat = {1: 0.010, 2: 0.010, 4: 0.010, 8: 0.010, 16: 0.010, 32: 0.020, 64: 0.040}
    assert probing.advise(sizes(flat)).bend == 32
    assert probing.advise(sizes(affine(0.010, 0.0005))).bend is None


@pytest.mark.parametrize(
    ("alone", "batched", "difference", "others"),
    [
        ([1, 2.5], [1, 2.25], 0.25, 0),
        ({"a": [1], "id": "x"}, {"a": [1], "id": "y"}, 0, 0),
        ({"a": "x"}, {"a": "y"}, 0, 1),
        ({"a": 1}, {"b": 1}, 0, 2),
        ([1, 2], [1], 0, 1),
        ([True], [1], 0, 0),
        (None, 0, 0, 1),
    ],
)
def test_answers_are_compared_number_by_number(alone, batched, difference, others):
    assert probing.compare(alone, batched, ("id",)) == (difference, others)


def test_the_report_ends_with_settings_that_plan_understands():
    text = probing.report(probing.Probed(sizes(affine(0.010, 0.0001))))
    settings = text.splitlines()[-2:]
    assert settings[0].strip() == "carpool-sidecar --max-batch-size 64"
    curve = settings[1].rpartition("--service ")[2]
    assert service_times.parse(curve).seconds(64, 0.0) == pytest.approx(0.0164)


def test_the_report_says_where_batching_buys_nothing_and_where_it_fails():
    assert "buys next to nothing" in probing.report(probing.Probed(sizes(affine(0.0, 0.001))))
    failed = probing.Probed(sizes({1: 0.1}), probing.Limit(9, "no"))
    assert "It fails from 9 instances on: no." in probing.report(failed)
    assert probing.report(probing.Probed([], probing.Limit(0, "no"))).endswith("alone was not answered: no.")


def test_differences_say_nothing_of_a_predictor_that_answers_differently_each_time():
    found = probing.Probed(sizes(affine(0.010, 0.0001), difference=0.5), is_steady=False)
    assert "another answer each time" in probing.report(found)
    assert "Numbers in a batch differ" not in probing.report(found)
    assert probing.values(found)["steady"] is False


def test_values_are_the_same_in_json():
    told = probing.values(probing.Probed(sizes(affine(0.010, 0.0001)), probing.Limit(65, "no")))
    assert told["max_batch_size"] == 64
    assert told["fails_from"] == 65
    assert told["fixed_ms"] == pytest.approx(10)
    assert [each["instances"] for each in told["sizes"]] == [1, 2, 4, 8, 16, 32, 64]
