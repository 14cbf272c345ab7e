"""The comparison with others: who takes part, pinned how, measured in turns, shown honestly."""

from __future__ import annotations

import http.client
import json
import pathlib
import re
import sys
from collections.abc import Callable

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

import carpool_sidecar
from benchmarks import bodies, processes
from benchmarks.peers import (
    carpool,
    cells,
    chart,
    comparison,
    contender,
    environments,
    ground,
    peer,
    python_servers,
    registry,
    samples,
    stub,
    tables,
)
from tests import loopback

SERVE = """
import http.server, sys
class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.answer(b"{}")
    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer.request_queue_size = 128  # all callers connect at once
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
"""


def _post(port: int, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(processes.HOST, port, timeout=30)
    try:
        connection.request("POST", carpool.PATH, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class FakePeer:
    """Answers with the body it was sent; `right` is what it takes for a right answer."""

    def __init__(self, name: str = "fake", right: bytes = b"[1]", absence: str | None = None) -> None:
        self.name, self.role = name, peer.SERVER
        self._right, self._absence = right, absence

    def missing(self) -> str | None:
        return self._absence

    def prepare(self, cache: pathlib.Path, say: Callable[[str], None]) -> None:
        say(f"preparing {self.name}")

    def version(self, cache: pathlib.Path) -> str:
        return "1.0"

    def launch(self, cache: pathlib.Path, model: peer.Model, port: int, component_port: int) -> peer.Launch:
        url = f"http://127.0.0.1:{port}/"
        argv = [sys.executable, "-c", SERVE, str(port)]
        return peer.Launch(argv, {"PEER": "fake"}, url, url, b"[1]", lambda answer: answer == self._right)


def outcome(name: str, **rates: float) -> samples.Outcome:
    found = samples.Outcome(name, peer.SERVER, version="1.2")
    for cell, rate in rates.items():
        sample = samples.Sample(100, rate, 0.02, 0.04, cpu_per_request=0.0001, lag_p99=0.0001)
        found.rounds(cell.replace("_", "-")).samples.append(sample)
    return found


class TestWhoTakesPart:
    def test_names_are_told_apart_on_the_command_line(self) -> None:
        peers = registry.find().peers
        slugs = [registry.slug(each.name) for each in peers]
        assert len(set(slugs)) == len(slugs)
        assert [each.name for each in registry.select(peers, ["Ray-Serve", "mosec"])] == ["mosec", "Ray Serve"]
        assert registry.select(peers, []) == peers

    def test_an_unknown_name_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(ValueError, match=r"unknown peer 'moses'; there are .*mosec"):
            registry.select(registry.find().peers, ["moses"])

    def test_a_module_that_cannot_be_used_is_named_and_the_others_still_run(self) -> None:
        field = registry.find(["benchmarks.peers.nobody", "benchmarks.peers.peer"])
        assert set(field.absent) == {"nobody", "peer"}
        assert {each.name for each in field.peers} >= {"mosec", "Carpool window"}

    @pytest.mark.parametrize("server", python_servers.PEERS, ids=lambda server: server.key)
    def test_every_python_peer_is_pinned_with_all_it_needs_and_nowhere_to_fetch_it_from(
        self, server: python_servers.PythonServer
    ) -> None:
        text = environments.requirements(server.key).read_text()
        lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
        assert all(re.match(r"[a-z0-9._-]+(\[[a-z,]+\])?==[^ ]+( ;.*)?$", line) for line in lines)
        assert "://" not in text
        assert server.version(pathlib.Path("unused")) in text

    def test_a_version_that_is_not_pinned_is_an_error(self) -> None:
        with pytest.raises(LookupError, match=r"mosec\.txt does not pin numpy"):
            environments.pinned_version("mosec", "numpy")

    def test_what_is_installed_is_not_installed_again(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ran: list[list[str]] = []
        monkeypatch.setattr(environments, "_run", ran.append)
        monkeypatch.setattr(environments, "_uv", lambda: "uv")
        for _ in range(2):
            environments.prepare(tmp_path, "mosec", print)
        assert [command[1:3] for command in ran] == [["venv", "--quiet"], ["pip", "install"]]

    @pytest.mark.parametrize("server", python_servers.PEERS, ids=lambda server: server.key)
    def test_a_server_is_told_the_model_and_the_port(
        self, server: python_servers.PythonServer, tmp_path: pathlib.Path
    ) -> None:
        launch = server.launch(tmp_path, cells.SERIAL, 1234, 1235)
        told = " ".join([*launch.argv, *launch.env.values()])
        assert "1234" in told
        assert (launch.env["PEER_FIXED_MS"], launch.env["PEER_MAX_BATCH"]) == ("10.0", "32")
        right = {"predictions": [python_servers.ROW]} if not server.bare else [python_servers.ROW]
        assert launch.check(json.dumps(right).encode())
        assert not launch.check(b'{"predictions":[[1]]}')
        assert not launch.check(b"oops")

    def test_carpool_checks_that_the_row_came_back(self, tmp_path: pathlib.Path) -> None:
        launch = carpool.ADAPTIVE.launch(tmp_path, cells.SERIAL, 1234, 1235)
        assert launch.needs_predictor
        assert launch.check(json.dumps({"predictions": json.loads(launch.body)["instances"]}).encode())
        assert not launch.check(b'{"predictions":[[5.1]]}')
        assert not launch.check(b"")

    def test_carpool_as_a_server_serves_the_model_that_all_servers_have(self) -> None:
        (port,) = loopback.free_ports(1)
        command, env = carpool.server_predictor(peer.Model(1.0, 0.1, 2, 5.0), port)
        with processes.running("predictor", command, env=env) as predictor:
            predictor.wait_until_ready(processes.ready_url(port), 60.0)
            asked = [(b'{"instances":[1,[2]]}', 200), (b'{"instances":[1,2,3]}', 500)]
            answers = [_post(port, body) for body, _ in asked]
        assert [status for status, _ in answers] == [status for _, status in asked]
        assert answers[0][1] == b'{"predictions":[1,[2]]}'
        assert b"3 rows, though 2 is the most" in answers[1][1]

    @pytest.mark.parametrize("build", ["compiled", "python"])
    def test_a_sidecar_that_is_compiled_takes_part_as_python_too(
        self, build: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
    ) -> None:
        monkeypatch.setattr(carpool_sidecar, "build", lambda: build)
        launched = [each.launch(tmp_path, cells.FREE, 1, 2).env for each in (carpool.SIDECAR, carpool.AS_PYTHON)]
        assert launched == [{}, {"CARPOOL_PURE_PYTHON": "1"}]
        assert carpool.SIDECAR.missing() is None
        assert (carpool.AS_PYTHON.missing() is None) == (build == "compiled")
        assert carpool.SIDECAR.version(tmp_path).endswith(f"({build})")
        assert carpool.AS_PYTHON.version(tmp_path).endswith("(python)")


class TestStub:
    @given(
        numbers=st.lists(st.lists(st.integers(0, 10**9), min_size=1, max_size=30), min_size=1, max_size=9),
        cut=st.integers(1, 60),
        indent=st.sampled_from([None, 1]),
    )
    def test_rows_are_answered_with_their_last_number_however_the_body_is_cut(
        self, numbers: list[list[int]], cut: int, indent: int | None
    ) -> None:
        body = json.dumps({"instances": numbers}, indent=indent).encode()
        rows = stub.LastNumbers()
        for at in range(0, len(body), cut):
            rows.feed(body[at : at + cut])
        assert json.loads(rows.answer()) == {"predictions": [row[-1] for row in numbers]}

    def test_requests_on_one_connection_are_answered_one_by_one(self) -> None:
        written: list[bytes] = []
        connection = stub.Connection()
        connection.connection_made(_Transport(written))  # type: ignore[arg-type]
        request = b"POST /v1/models/m:predict HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(carpool.BODY)
        connection.data_received(request + carpool.BODY + b"GET /readyz HTTP/1.1\r\n\r\n" + request[:20])
        answers = [each.partition(b"\r\n\r\n")[2] for each in written]
        assert [json.loads(each) for each in answers] == [{"predictions": [0.04321]}, {"predictions": []}]

    def test_what_is_not_http_ends_the_connection(self) -> None:
        transport = _Transport([])
        connection = stub.Connection()
        connection.connection_made(transport)  # type: ignore[arg-type]
        connection.data_received(b"nonsense\r\n\r\n")
        assert transport.is_closed
        assert issubclass(httptools.HttpParserError, Exception)

    def test_a_mark_can_be_told_from_its_answer(self) -> None:
        rows = stub.LastNumbers()
        rows.feed(bodies.exact(8000, 77))
        assert bodies.prediction_of(rows.answer()) == 0.00077


class _Transport:
    def __init__(self, written: list[bytes]) -> None:
        self._written, self.is_closed = written, False

    def write(self, data: bytes) -> None:
        self._written.append(data)

    def close(self) -> None:
        self.is_closed = True


class TestRounds:
    def test_a_disturbed_round_does_not_move_the_figure(self) -> None:
        rounds = samples.Rounds([samples.Sample(1, rate, 0.1, 0.2) for rate in (100.0, 3.0, 102.0)])
        assert rounds.median(lambda sample: sample.rate) == 100

    def test_saturated_rounds_have_no_figures_and_most_of_them_decide(self) -> None:
        saturated = samples.Sample(1, 5.0, 9.0, 9.0, is_saturated=True)
        fine = samples.Sample(1, 7.0, 0.1, 0.2)
        assert samples.Rounds([saturated, saturated, fine]).is_saturated
        assert not samples.Rounds([saturated, fine, fine]).is_saturated
        assert samples.Rounds([saturated, fine]).median(lambda sample: sample.p50) == 0.1
        assert samples.Rounds([saturated]).median(lambda sample: sample.p50) is None

    def test_a_load_above_one_that_was_too_much_is_not_tried(self) -> None:
        found = outcome("slow", open_50=100.0)
        found.cells["open-50"].samples[0].is_saturated = True
        by_name = {cell.name: cell for cell in cells.SERVER_CELLS}
        assert comparison.is_hopeless(by_name["open-80"], found)
        assert not comparison.is_hopeless(by_name["open-50"], found)
        assert not comparison.is_hopeless(by_name["free"], found)

    def test_each_model_is_started_once(self) -> None:
        groups = cells.by_model(cells.SERVER_CELLS)
        assert [model for model, _ in groups] == [cells.FREE, cells.SERIAL]
        assert sum(len(group) for _, group in groups) == len(cells.SERVER_CELLS)
        assert round(cells.SERIAL.limit) == 2424


class TestContender:
    def test_a_peer_is_started_asked_and_put_to_sleep(self, tmp_path: pathlib.Path) -> None:
        running = contender.Contender(FakePeer(), tmp_path, cells.FREE, ground.Cores(None, None))
        with running:
            with running.awake():
                assert running.ask(0.05) > 0
                before = running.cpu_seconds()
            assert running.cpu_seconds() - before < 5

    def test_a_wrong_answer_is_told(self, tmp_path: pathlib.Path) -> None:
        running = contender.Contender(FakePeer(right=b"[2]"), tmp_path, cells.FREE, ground.Cores(None, None))
        with running, running.awake(), pytest.raises(contender.PeerFailed, match=r"\d+ wrong answers"):
            running.ask(0.02)

    def test_who_is_missing_or_wrong_costs_the_others_nothing(self, tmp_path: pathlib.Path) -> None:
        said: list[str] = []
        steps: list[int] = []
        run = comparison.Comparison(tmp_path, 0.02, 1, ground.Cores(None, None), said.append, lambda: steps.append(1))
        peers = [FakePeer("absent", absence="no compiler"), FakePeer("wrong", right=b"[2]"), FakePeer("good")]
        outcomes = run.prepare(peers)
        run.servers([peers[0], peers[1]], outcomes)
        assert outcomes["absent"].absence == "no compiler"
        assert re.search(r"did not start: \d+ wrong answers", outcomes["wrong"].absence)
        assert (outcomes["good"].absence, outcomes["good"].version) == ("", "1.0")
        assert "preparing good" in said


class TestTables:
    def test_rates_latencies_and_shares_of_the_limit_are_shown(self) -> None:
        found = tables.all_tables([outcome("Carpool window", free=30_000.0, serial=2400.0, open_50=1200.0)])
        closed, opened = found
        assert closed.rows == [["Carpool window", "1.2", "30,000", "0.100", "2,400", "99.0%", "0.100"]]
        assert opened.rows[0] == ["Carpool window", "-", "20.0 / 40.0", "-", "-"]
        assert opened.rows[1] == ["client's own lag, p99", "-", "0.10", "-", "-"]

    def test_a_saturated_load_and_those_above_say_so(self) -> None:
        slow = outcome("slow", open_5=100.0, open_50=100.0)
        slow.cells["open-50"].samples[0].is_saturated = True
        assert tables.open_loop([slow]).rows[0] == ["slow", "20.0 / 40.0", "saturated", "saturated", "saturated"]

    def test_a_late_client_is_not_hidden(self) -> None:
        late = outcome("late", open_5=100.0)
        late.cells["open-5"].samples[0].lag_p99 = 0.005
        assert tables.open_loop([late]).rows[0][1] == "20.0 / 40.0 (client late)"

    def test_sidecars_are_compared_with_the_slowest(self) -> None:
        one, other = outcome("one", sidecar_37B=100.0), outcome("other", sidecar_37B=250.0)
        rows = tables.sidecar([one, other], cells.SIDECAR_CELLS[0]).rows
        assert [row[3] for row in rows] == ["1.0x", "2.5x"]

    def test_who_is_missing_and_what_went_wrong_is_listed(self) -> None:
        gone = samples.Outcome("gone", peer.SERVER, absence="no compiler")
        broken = outcome("broken", free=1.0)
        broken.cells["free"].failures, broken.trouble = ["it\nended"], "slow to start"
        broken.cells["free"].samples[0].errors = {"status": 3}
        assert tables.absences([gone, broken]).rows == [
            ["gone", "everything", "no compiler"],
            ["broken", "warm-up", "slow to start"],
            ["broken", "free", "it ended"],
            ["broken", "free", "errors: 3 x status"],
        ]

    def test_the_json_holds_every_round_and_the_medians(self) -> None:
        written = json.loads(json.dumps(tables.as_json([outcome("one", free=5.0)], {"date": "today"})))
        (only,) = written["peers"]
        assert only["cells"]["free"]["samples"][0]["rate"] == 5.0
        assert only["medians"]["free"]["rate"] == 5.0
        assert written["limit_rate"] == cells.SERIAL.limit


class TestChart:
    def test_the_same_figures_give_the_same_picture(self, tmp_path: pathlib.Path) -> None:
        found = [outcome("Carpool window", free=9.0, open_5=1.0, open_50=2.0), outcome("mosec", free=4.0, open_5=2.0)]
        found += [samples.Outcome("gone", peer.SERVER, absence="no compiler")]
        for name in ("a.png", "b.png"):
            chart.draw(found, tmp_path / name)
        assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()

    def test_no_two_lines_look_alike_without_their_colour(self) -> None:
        looks = chart.lines([each.name for each in registry.find().peers])
        assert len({(line["linestyle"], line["marker"]) for line in looks.values()}) == len(looks)
