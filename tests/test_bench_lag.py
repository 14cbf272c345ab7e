"""Large beside small: bodies of several instances, the client that sends them, the loop's lag, table rows and JSON."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from benchmarks import bodies, cells, client, heavy, lag, lag_traffic, load, metrics, report
from benchmarks.peers import poisson, stub

PAGE = """\
# HELP lag_seconds Lag.
# TYPE lag_seconds histogram
lag_seconds_bucket{le="0.001"} 90.0
lag_seconds_bucket{le="0.01"} 99.0
lag_seconds_bucket{le="+Inf"} 100.0
lag_seconds_count 100.0
lag_seconds_sum 1.0
"""
REQUEST = client.post("127.0.0.1", "/", b"x" * 3_000_000)


@contextlib.contextmanager
def serving(answer: Callable[[int], bytes | None]) -> Iterator[load.Address]:
    """A server for one connection: what to answer to which request, or None to hang up."""

    def talk() -> None:
        connected, _ = listener.accept()
        with connected:
            for number in range(1_000_000):
                received = 0
                while received < len(REQUEST):
                    size = len(connected.recv(1 << 20))
                    if not size:
                        return
                    received += size
                reply = answer(number)
                if reply is None:
                    return
                connected.sendall(b"HTTP/1.1 %b\r\nContent-Length: 2\r\n\r\nok" % reply)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=talk)
        thread.start()
        yield listener.getsockname()
        thread.join()


class TestBodies:
    @pytest.mark.parametrize(("size", "count"), [(37, 1), (1_000, 7), (100_000, 32)])
    def test_several_instances_have_exactly_the_size_asked_for_and_different_marks(self, size: int, count: int) -> None:
        body = bodies.several(size, count)
        assert len(body) == size
        instances = json.loads(body)["instances"]
        assert [instance[-1] for instance in instances] == [bodies.mark(number) for number in range(count)]

    def test_the_stub_answers_what_a_scene_expects(self) -> None:
        body, expected = lag_traffic.body(cells.Scene("", 100_000, 32))
        seen = stub.LastNumbers()
        seen.feed(body)
        assert json.loads(seen.answer()) == {"predictions": expected}


class TestSender:
    def test_it_sends_one_after_the_other_until_it_is_told_to_end(self) -> None:
        enough = threading.Event()

        def answer(number: int) -> bytes:
            if number == 3:
                enough.set()
            return b"200 OK"

        with serving(answer) as address, heavy.Sender(address, REQUEST, lambda answer: answer == b"ok") as sender:
            assert enough.wait(10)
        seen = sender.measurement()
        assert seen.requests >= 4
        assert seen.rate > 0
        assert seen.errors == {}

    def test_refusals_and_wrong_answers_are_errors_and_a_lost_connection_is_the_last(self) -> None:
        replies = [b"429 Too Many Requests", b"200 OK", None]
        with serving(replies.__getitem__) as address, heavy.Sender(address, REQUEST, lambda answer: False) as sender:
            sender._thread.join()
        seen = sender.measurement()
        assert seen.requests == 0
        assert {"large: status 429", "large: wrong answer"} < seen.errors.keys()
        assert sum(seen.errors.values()) == 3


class TestBuckets:
    def test_the_quantile_is_the_bound_that_so_many_do_not_exceed(self) -> None:
        seen = metrics.buckets(PAGE, "lag_seconds")
        assert metrics.count_between({}, seen) == 100
        assert [metrics.quantile_between({}, seen, share) for share in (0.5, 0.99, 1.0)] == [0.001, 0.01, math.inf]

    def test_only_what_came_in_between_counts(self) -> None:
        before, after = metrics.buckets(PAGE, "lag_seconds"), {0.001: 90.0, 0.01: 104.0, math.inf: 105.0}
        assert metrics.quantile_between(before, after, 0.99) == 0.01
        assert metrics.quantile_between(after, after, 0.99) is None

    def test_a_histogram_that_is_not_there_has_no_values(self) -> None:
        assert metrics.buckets(PAGE, "other") == {}
        assert metrics.quantile_between({}, {}, 0.99) is None


def result(lag_p99: float | None = 0.02, late: float = 0.0, **errors: int) -> lag.Result:
    small = poisson.OpenLoop(
        sent=800, requests=800, p50=0.001, p99=0.0155, longest=0.02, lag_p99=late, lag_max=late, connections=32,
        is_saturated=False, errors=errors,
    )  # fmt: skip
    large = heavy.Measurement(100, 5.0, dict(errors))
    return lag.Result("Carpool", cells.LAG_SCENES[2], small, large, 98.4, 66.2, lag_p99, 20)


class TestRows:
    def test_a_row_shows_small_large_lag_and_memory(self) -> None:
        row = report.lag_row(result())
        assert row == ["Carpool: 16 MB", "1.0", "15.5", "20.0", "20.0", "≤ 20", "98", "66", ""]

    def test_errors_of_both_clients_fail_a_row(self) -> None:
        assert report.lag_verdict(result(wrong=2)) == "FAILED: 4 wrong"

    def test_a_prober_that_was_late_says_so(self) -> None:
        assert report.lag_verdict(result(late=0.0042)) == "late 4.2 ms"

    def test_the_json_of_a_run_is_valid_though_the_lag_is_above_all_bounds(self) -> None:
        met = lag.Outcome([result(math.inf), result(None)], {"KServe batcher": "no Go toolchain on PATH"})
        content = json.loads(json.dumps(report.as_json([], None, {}, met), allow_nan=False))
        assert [scene["lag_p99"] for scene in content["lag"]] == ["above", None]
        assert content["lag"][0]["large"]["rate"] == 20
        assert content["lag_absent"] == {"KServe batcher": "no Go toolchain on PATH"}

    def test_all_scenes_have_one_name(self) -> None:
        chosen = cells.select([cells.LAG])
        assert chosen.lag == list(cells.LAG_SCENES)
        assert chosen.steps == 0
