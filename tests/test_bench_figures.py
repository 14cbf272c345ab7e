"""The benchmark's arithmetic: percentiles, wrk's output, metrics, bodies, answers and table rows."""

from __future__ import annotations

import json

import pytest

from benchmarks import answers, bodies, cells, client, demo_view, load, metrics, report, simulated, stand, wrk
from carpool_sidecar.planning import engine

WRK_OUTPUT = """\
Running 8s test @ http://127.0.0.1:9081/v1/models/echo:predict
  1 threads and 64 connections
Requests/sec:  15000.00
carpool-result {"requests":1200,"microseconds":8000000,"p50":4100,"p99":9000,\
"connect":0,"read":2,"write":0,"status":200,"timeout":0}
"""

METRICS_PAGE = """\
# HELP carpool_batch_size Instances in a batch.
# TYPE carpool_batch_size histogram
carpool_batch_size_bucket{le="32.0"} 4.0
carpool_batch_size_bucket{le="+Inf"} 4.0
carpool_batch_size_count 4.0
carpool_batch_size_sum 100.0
# HELP carpool_requests_total Requests by status code.
# TYPE carpool_requests_total counter
carpool_requests_total{code="200"} 90.0
carpool_requests_total{code="429"} 10.0
"""


ALL_CELLS = (*cells.BODY_CELLS, *cells.MIX_CELLS, *cells.SERIAL_CELLS, *cells.ADAPTIVE_CELLS)


def result(rate: float = 15_000.0, name: str = "37B", wrong: int = 0, **errors: int) -> stand.Result:
    cell = next(cell for cell in ALL_CELLS if cell.name == name)
    return stand.Result(cell, load.Measurement(int(rate * 8), 8.0, 0.0041, 0.009, errors), wrong)


SIMULATED = engine.Summary(
    requests=2000,
    offered=500.0,
    mean=0.011,
    p50=0.011,
    p99=0.012,
    throughput=500.0,
    goodput=500.0,
    refused=0.0,
    mean_batch=5.0,
    utilisation=0.5,
)


class TestPercentiles:
    def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(self) -> None:
        ordered = [float(value) for value in range(1, 101)]
        assert load.percentile(ordered, 0.50) == 50
        assert load.percentile(ordered, 0.99) == 99
        assert load.percentile(ordered, 1.0) == 100

    def test_a_single_value_is_every_percentile(self) -> None:
        assert [load.percentile([7.0], share) for share in (0.0, 0.5, 0.99)] == [7.0, 7.0, 7.0]

    def test_nothing_measured_gives_zero(self) -> None:
        assert load.percentile([], 0.99) == 0.0


class TestWrkOutput:
    def test_figures_come_in_seconds_and_without_the_failed_requests(self) -> None:
        measured = wrk.parse(WRK_OUTPUT)
        assert (measured.requests, measured.seconds) == (1000, 8.0)
        assert (measured.p50, measured.p99) == (0.0041, 0.009)
        assert measured.rate == 125

    def test_only_errors_that_happened_are_named(self) -> None:
        assert wrk.parse(WRK_OUTPUT).errors == {"read": 2, "status": 200}

    def test_output_without_figures_is_an_error_that_shows_it(self) -> None:
        with pytest.raises(wrk.WrkFailed, match="unable to connect"):
            wrk.parse("unable to connect to 127.0.0.1:9081 Connection refused\n")

    def test_the_script_reads_the_body_from_the_file(self) -> None:
        script = wrk.script("/somewhere/body.json")
        assert "io.open('/somewhere/body.json', \"rb\")" in script
        assert "{{" not in script


class TestBodies:
    @pytest.mark.parametrize("size", [*range(37, 90), 8_000, 100_000, 1_500_000])
    def test_a_body_has_exactly_the_size_asked_for_and_is_valid(self, size: int) -> None:
        body = bodies.exact(size, 7)
        assert len(body) == size
        assert len(json.loads(body)["instances"]) == 1

    def test_the_smallest_body_is_a_row_of_four_numbers(self) -> None:
        assert bodies.exact(37, 21234) == b'{"instances":[[5.1,3.5,1.4,0.21234]]}'
        with pytest.raises(ValueError, match="37"):
            bodies.exact(36)

    @pytest.mark.parametrize("answer", ["instance", "length"])
    def test_only_the_own_answer_counts_as_right(self, answer: str) -> None:
        sent = [bodies.distinct(37, number) for number in range(3)]
        texts = [body[len(b'{"instances":[') : -len(b"]}")] for body in sent]
        rows = texts if answer == "instance" else [b"%d" % len(text) for text in texts]
        check = bodies.Check(answer, sent)
        check.look_at(0, 200, b'{"message":"","batchId":"b","predictions":[%b]}' % rows[0])
        check.look_at(1, 200, b'{"predictions":[%b]}' % rows[2])
        check.look_at(2, 500, b'{"predictions":[%b]}' % rows[2])
        assert check.count == 2

    @pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"predictions":null}', b'{"predictions":[1,2]}'])
    def test_anything_but_one_prediction_is_refused(self, answer: bytes) -> None:
        with pytest.raises(ValueError):  # noqa: PT011 - the messages are json's and ours
            bodies.prediction_of(answer)


class TestMetrics:
    def test_samples_are_summed_over_their_labels(self) -> None:
        assert metrics.totals(METRICS_PAGE)["carpool_requests_total"] == 100

    def test_the_mean_batch_size_counts_only_what_came_in_between(self) -> None:
        after = metrics.totals(METRICS_PAGE)
        before = {"carpool_batch_size_count": 2.0, "carpool_batch_size_sum": 40.0}
        assert metrics.mean_batch_size(before, after) == 30
        assert metrics.mean_batch_size({}, after) == 25

    def test_without_a_batch_there_is_no_mean(self) -> None:
        assert metrics.mean_batch_size(metrics.totals(METRICS_PAGE), metrics.totals(METRICS_PAGE)) is None


class TestResponses:
    def test_a_response_is_complete_when_its_length_is_there(self) -> None:
        whole = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nX: y\r\n\r\nhello"
        assert client.parse_response(whole) == (200, b"hello")
        assert all(client.parse_response(whole[:end]) is None for end in range(len(whole)))

    def test_chunks_are_joined(self) -> None:
        whole = b"HTTP/1.1 429 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n"
        assert client.parse_response(whole) == (429, b"abcde")
        assert all(client.parse_response(whole[:end]) is None for end in range(len(whole)))

    def test_a_response_without_an_end_is_refused(self) -> None:
        with pytest.raises(ValueError, match="Content-Length"):
            client.parse_response(b"HTTP/1.1 200 OK\r\n\r\n")


class TestRows:
    def test_a_row_shows_the_rate_beside_its_target(self) -> None:
        row = report.load_row(result(rate=15_500))
        assert row[:5] == ["37 B", "15,500", "15,000", "4.1", "9.0"]
        assert row[-1] == "met"

    def test_a_missed_target_says_so(self) -> None:
        assert report.verdict(result(rate=14_999)) == "missed"

    def test_a_row_without_a_target_has_no_verdict(self) -> None:
        assert report.verdict(result(name="37B-direct")) == ""

    def test_errors_and_wrong_answers_fail_a_row_however_fast_it_was(self) -> None:
        assert report.verdict(result(rate=99_999, status=3)) == "FAILED: 3 status"
        assert report.verdict(result(rate=99_999, wrong=2)) == "FAILED: 2 wrong answers"
        assert report.verdict(result(rate=0)) == "FAILED: no answers"

    def test_a_row_with_a_limit_shows_how_near_it_came(self) -> None:
        row = report.load_row(result(rate=cells.SERIAL_LIMIT / 2, name="serial-window"))
        assert row[1:3] == ["1,212 (50.0%)", "2,400"]

    def test_a_run_disturbed_by_other_programs_is_named(self) -> None:
        quiet, loud = result(), result()
        quiet.others_busy, loud.others_busy = 0.05, 0.5
        assert report.disturbances([quiet, loud, result(name="37B-direct")]) == ["37 B (50%)"]

    def test_idling_is_judged_by_cpu_and_memory(self) -> None:
        rows = report.idle_rows(stand.Idle(10.0, 0.0021, 79.9))
        assert [row[-1] for row in rows] == ["missed", "met"]

    def test_the_json_of_a_run_survives_a_round_trip(self) -> None:
        content = report.as_json([result(read=1)], stand.Idle(10.0, 0.001, 60.0), {"command": "x"})
        assert json.loads(json.dumps(content))["cells"][0]["failed"] is True


class TestSpread:
    def test_a_cell_that_ran_several_times_shows_its_lowest_rate_and_its_longest_p99(self):
        (line,) = report.spread([result(rate=rate, name="scene") for rate in (450, 430, 440)])
        assert "3 runs: 430 req/s at least, 440 median" in line

    def test_a_cell_that_ran_once_shows_nothing(self):
        assert report.spread([result(rate=450, name="scene")]) == []


class TestAdaptive:
    def test_a_row_shows_the_measured_figures_beside_the_simulated_ones(self) -> None:
        one = result(rate=450, name="scene")
        one.simulated = SIMULATED
        one.mean_batch = 4.8
        row = report.adaptive_row(one)
        assert row[0] == "KServe's scene: 10 + 0.1 ms, 5 callers"
        assert row[1:] == ["450", "500", "0.90", "440", "4.1", "11.0", "9.0", "4.8", "5.0", "met"]

    def test_without_a_simulation_its_columns_are_empty(self) -> None:
        row = report.adaptive_row(result(rate=450, name="adaptive-10-8"))
        assert row[2:4] == ["", ""]

    def test_the_json_holds_both(self) -> None:
        one = result(rate=450, name="scene")
        one.simulated = SIMULATED
        (cell,) = json.loads(json.dumps(report.as_json([one], None, {})))["cells"]
        assert (cell["connections"], cell["of_simulated"], cell["simulated"]["throughput"]) == (5, 0.9, 500)

    @pytest.mark.parametrize("cell", cells.ADAPTIVE_CELLS, ids=lambda cell: cell.name)
    def test_no_simulated_cell_is_faster_than_its_predictor_and_callers_allow(self, cell: cells.Cell) -> None:
        assert cell.system is not None
        summary = simulated.summary(cell, 0.5, 1.0)
        together = min(cell.connections, cell.system.size)
        assert 0 < summary.throughput <= cell.connections / cell.system.seconds(1)
        assert summary.throughput <= together / cell.system.seconds(together) * 1.1
        assert 1 <= summary.mean_batch <= together
        assert summary.refused == 0

    def test_a_simulated_cell_gives_the_same_figures_every_time(self) -> None:
        scene = cells.ADAPTIVE_CELLS[-1]
        assert simulated.summary(scene, 0.5, 1.0) == simulated.summary(scene, 0.5, 1.0)


class TestCells:
    def test_names_choose_cells(self) -> None:
        chosen = cells.select(["8kB", "serial-window", "scene"])
        names = [[cell.name for cell in group] for group in (chosen.bodies, chosen.serial, chosen.adaptive)]
        assert names == [["8kB"], ["serial-window"], ["scene"]]
        assert not chosen.idle
        assert chosen.steps == 3

    def test_no_name_means_all(self) -> None:
        chosen = cells.select([])
        assert (*chosen.bodies, *chosen.serial, *chosen.adaptive) == ALL_CELLS
        assert chosen.idle

    def test_the_echo_predictor_and_the_simulated_one_take_the_same_time(self) -> None:
        for cell in cells.ADAPTIVE_CELLS:
            assert cell.system is not None
            assert cell.predictor[1::2] == (str(cell.system.fixed), str(cell.system.per_row))
            assert cell.sidecar == ("--policy", "adaptive", "--max-batch-size", str(cell.system.size))

    def test_an_unknown_name_is_answered_with_the_known_ones(self) -> None:
        with pytest.raises(ValueError, match="'9kB'; there are 37B"):
            cells.select(["9kB"])


class TestAnswers:
    @staticmethod
    def recorder(*rows: tuple[str, list[float]]) -> answers.Recorder:
        kept = answers.Recorder(len(rows))
        for number, (batch_id, embedding) in enumerate(rows):
            kept.keep(number, 200, json.dumps({"batchId": batch_id, "predictions": [embedding]}).encode())
        return kept

    def test_the_largest_difference_is_found_wherever_it_is(self) -> None:
        one = self.recorder(("", [0.0, 1.0]), ("", [2.0, 3.0]))
        other = self.recorder(("", [0.0, 1.25]), ("", [2.0, 2.5]))
        assert answers.largest_difference(one, other) == 0.5

    def test_a_missing_answer_is_an_error(self) -> None:
        missing = answers.Recorder(1)
        missing.keep(0, 503, b"{}")
        with pytest.raises(ValueError, match="request 0 was not answered"):
            answers.largest_difference(missing, self.recorder(("", [1.0])))

    def test_embeddings_of_different_lengths_are_an_error(self) -> None:
        with pytest.raises(ValueError, match=r"shorter|longer"):
            answers.largest_difference(self.recorder(("", [1.0])), self.recorder(("", [1.0, 2.0])))

    def test_two_different_sentences_of_one_batch_are_found(self) -> None:
        kept = self.recorder(("a", [1.0]), ("a", [1.0]), ("b", [1.0]), ("c", [1.0]), ("b", [1.0]), ("c", [1.0]))
        found = answers.find_shared(kept, ["s", "t", "same", "u", "same", "v"])
        assert found == answers.Shared("c", 3, 5)

    def test_answers_without_a_batch_share_nothing(self) -> None:
        assert answers.find_shared(self.recorder(("", [1.0]), ("", [1.0])), ["s", "t"]) is None

    def test_embeddings_that_a_client_decoded_are_compared_alike_and_their_tokens_added(self) -> None:
        decoded = answers.Vectors(2)
        decoded.keep(1, [[2.0, 3.0]], 7)
        decoded.keep(0, [[0.0, 1.5]], 4)
        assert answers.largest_difference(self.recorder(("", [0.0, 1.0]), ("", [2.0, 3.0])), decoded) == 0.5
        assert decoded.tokens == 11

    @pytest.mark.parametrize("embeddings", [[], [[1.0], [2.0]]])
    def test_anything_but_one_embedding_is_no_answer(self, embeddings: list[list[float]]) -> None:
        decoded = answers.Vectors(1)
        decoded.keep(0, embeddings, 7)
        assert decoded.tokens == 0
        with pytest.raises(ValueError, match="request 0 was not answered with exactly one embedding"):
            decoded.embedding(0)

    def test_a_long_sentence_is_cut_between_words(self) -> None:
        assert demo_view.shorten("one two three four", 12) == "one two …"
        assert demo_view.shorten("one two", 12) == "one two"
