"""Carpool beside others on a GPU: everybody told the same, tuned by the same sweep, and no wrong answer measured."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterator

import pytest

from benchmarks import load, processes, wrk
from benchmarks.gpu import gauges, measuring, systems
from benchmarks.gpu.peers import __main__ as program
from benchmarks.gpu.peers import comparison, contenders, tables
from benchmarks.peers import environments
from tests import loopback

# Answers each sentence with numbers of its own; started with "mixed", it gives everybody those of one sentence.
SERVE = """
import http.server, json, sys
class Embed(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.answer(b"{}")
    def do_POST(self):
        (text,) = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["instances"]
        text = "bbbb" if sys.argv[2] == "mixed" else text
        if sys.argv[2] == "refusing" and "b" in text:
            return self.answer(b"{}", 503)
        self.answer(json.dumps({"predictions": [[float(letter in text) for letter in "abc"]]}).encode())
    def answer(self, body, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer.request_queue_size = 128
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Embed).serve_forever()
"""

MODEL = dataclasses.replace(systems.MODELS[systems.MINILM], instances=lambda: [b'"aaaa"', b'"bbbb"', b'"cccc"'])
RIGHT = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
CORES = systems.Cores(None, None, None, None, ())


@dataclasses.dataclass(frozen=True)
class FakeSystem:
    """Serves as `manner` says, or does not become ready."""

    name: str = "fake"
    manner: str = "right"

    def missing(self, setup: systems.Setup) -> str | None:
        return None

    @contextlib.contextmanager
    def running(self, setup: systems.Setup) -> Iterator[systems.Running]:
        if self.manner == "broken":
            raise processes.ChildFailed("the fake ended with exit code 1", "first\nno such device")
        (port,) = loopback.free_ports(1)
        with processes.running("fake", [sys.executable, "-c", SERVE, str(port), self.manner]) as child:
            url = f"http://{processes.HOST}:{port}/"
            child.wait_until_ready(url, 10)
            yield systems.Running(url, systems.bodies(setup.model), setup.model.first, {"server": child.pid})


class FakeCallers:
    """Finds the rates that it was told, one after the other; a warm-up takes none. A rate of 0 is no measurement."""

    def __init__(self, *rates: float) -> None:
        self._rates = list(rates)

    def closed(self, running: systems.Running, callers: int, seconds: float) -> load.Measurement:
        rate = 1.0 if seconds == 0 else self._rates.pop(0)
        if not rate:
            raise wrk.WrkFailed("connection refused")
        return load.Measurement(requests=int(rate), seconds=1.0, p50=0.001, p99=0.002)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def bench(said: list[str]) -> Callable[..., measuring.Bench]:
    def made(*rates: float) -> measuring.Bench:
        callers: object = FakeCallers(*rates)
        return measuring.Bench(gauges.NoneThere(), callers, CORES, "cpu", 1.0, 0.0, True, said.append)  # type: ignore[arg-type]

    return made


@pytest.fixture
def place(tmp_path: pathlib.Path) -> contenders.Place:
    return contenders.Place(tmp_path / "cache", print, tmp_path / "packages", tmp_path / "triton")


def setup() -> systems.Setup:
    return systems.Setup(MODEL, "cpu", "float32", 32, CORES)


def entrant(name: str, *manners: str) -> comparison.Entrant:
    candidates = [
        comparison.Candidate(FakeSystem(name, each), setup(), f"{each} {at}") for at, each in enumerate(manners)
    ]
    return comparison.Entrant(name, "1.0", candidates)


class TestAnswers:
    def test_right_answers_pass(self) -> None:
        with FakeSystem().running(setup()) as running:
            comparison.check(running, RIGHT)

    def test_answers_of_another_caller_are_found(self) -> None:
        with (
            FakeSystem(manner="mixed").running(setup()) as running,
            pytest.raises(comparison.AnsweredWrong, match="alone"),
        ):
            comparison.check(running, RIGHT)

    def test_missing_answers_are_counted(self) -> None:
        refused = pytest.raises(comparison.AnsweredWrong, match="1 of 3 requests got no answer")
        with FakeSystem(manner="refusing").running(setup()) as running, refused:
            comparison.check(running, RIGHT)


class TestSweep:
    def test_the_setting_with_the_most_requests_is_chosen(self, bench: Callable[..., measuring.Bench]) -> None:
        fake = entrant("fake", "right", "right", "right")
        comparison._sweep(bench(10.0, 30.0, 20.0), fake, RIGHT)
        assert fake.chosen.words == "right 1"
        assert not fake.absence

    def test_a_setting_that_fails_does_not_end_the_others(self, bench: Callable[..., measuring.Bench]) -> None:
        fake = entrant("fake", "broken", "right", "mixed")
        comparison._sweep(bench(10.0), fake, RIGHT)
        assert fake.chosen.words == "right 1"

    def test_without_a_setting_that_works_it_is_left_out_with_the_reason(
        self, bench: Callable[..., measuring.Bench], said: list[str]
    ) -> None:
        fake = entrant("fake", "broken", "broken")
        comparison._sweep(bench(), fake, RIGHT)
        assert fake.absence == "the fake ended with exit code 1 (no such device)"
        assert fake.absence in said[-1]

    def test_settings_are_of_sizes_and_waits_and_front_ends(
        self, bench: Callable[..., measuring.Bench], place: contenders.Place
    ) -> None:
        whole = dataclasses.replace(bench(), quick=False)
        found = {each.name: each for each in comparison.entrants(whole, MODEL, "float32", place)}
        words = {name: [candidate.words for candidate in each.candidates] for name, each in found.items()}
        assert words["mosec"] == ["32, 1 ms", "64, 1 ms", "128, 1 ms", "128, 5 ms"]
        assert words["BentoML"] == [f"{size}, learned wait" for size in (32, 64, 128)]
        assert words["Carpool sidecar"] == words["carpool-predictor alone"] == ["128, learned wait"]
        assert words["LitServe"][-1] == "128, 1 ms, 4 front ends"
        assert [candidate.setup.max_batch for candidate in found["mosec"].candidates] == [32, 64, 128, 128]
        assert comparison.seconds(whole, list(found.values()), 2) > comparison.seconds(bench(), list(found.values()), 1)


class TestRounds:
    def test_those_that_work_take_turns_and_the_others_are_named(self, bench: Callable[..., measuring.Bench]) -> None:
        field = [entrant("one", "right"), entrant("out", "mixed"), entrant("two", "right")]
        content = comparison.measure(bench(*map(float, range(1, 9))), MODEL, "float32", field, 2, FakeSystem())
        assert [(row["system"], row["callers"]) for row in content["rows"]] == [
            (name, count) for count in comparison.QUICK_CALLERS for _ in range(2) for name in ("one", "two")
        ]
        assert comparison.medians(content["rows"], "one", 1)["rate"] == 2.0  # of 1 and 3
        made = {table.title.partition(":")[0]: table for table in tables.of(content)}
        assert [row[0] for row in made["Requests/s by number of callers"].rows] == ["one", "two"]
        ((name, why),) = made["Left out"].rows
        assert name == "out"
        assert "differs" in why

    def test_one_that_breaks_off_is_named_and_the_others_go_on(self, bench: Callable[..., measuring.Bench]) -> None:
        field = [entrant("one", "right"), entrant("two", "right")]
        content = comparison.measure(bench(0.0, 5.0, 6.0), MODEL, "float32", field, 1, FakeSystem())
        assert [row["system"] for row in content["rows"]] == ["two", "two"]
        assert [each["absence"] for each in content["systems"]] == ["connection refused", ""]
        alone = entrant("fake", "right", "right")
        comparison._sweep(bench(0.0, 7.0), alone, RIGHT)
        assert alone.chosen.words == "right 1"

    def test_rounds_for_which_no_time_is_left_are_left_out(
        self, bench: Callable[..., measuring.Bench], said: list[str]
    ) -> None:
        content = comparison.measure(bench(), MODEL, "float32", [entrant("one", "right")], 1, FakeSystem(), until=0.0)
        assert content["rows"] == []
        assert said[-1] == f"time is up: {comparison.QUICK_CALLERS[-1]} callers are left out"

    def test_an_unknown_system_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(ValueError, match=r"unknown system 'moses'; there are one, two"):
            program._selected([entrant("one", "right"), entrant("two", "right")], ["moses"])


class TestPeers:
    def test_every_peer_is_pinned_and_says_its_version(self, place: contenders.Place) -> None:
        for peer in contenders.all_of(place):
            assert peer.version[0].isdigit()
        assert not [peer.name for peer in contenders.all_of(place) if peer.missing(setup()) and MODEL.missing() is None]

    def test_servers_are_told_the_same_model_as_the_predictor(self) -> None:
        told = contenders._told(setup(), contenders.Tuning(64, None, fronts=4), 1234)
        assert told["PEER_PREDICTOR"].split() == systems.predictor_flags(setup())
        assert (told["PEER_MAX_BATCH"], told["PEER_WAIT_MS"], told["PEER_FRONTS"]) == ("64", "0.0", "4")
        assert told["PEER_PORT"] == "1234"

    def test_a_server_with_a_python_of_its_own_finds_packages_but_no_other_standard_library(
        self, tmp_path: pathlib.Path
    ) -> None:
        found = contenders._path(tmp_path).split(":")
        assert found[0] == str(tmp_path)
        assert sysconfig.get_path("purelib") in found
        assert sysconfig.get_path("stdlib") not in found

    def test_packages_that_were_brought_along_are_not_installed(
        self, place: contenders.Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(environments, "_run", lambda command: pytest.fail("nothing is to be installed"))
        for peer in contenders.all_of(place):
            peer.prepare()
        assert not place.cache.exists()

    def test_triton_is_told_sizes_and_delay_and_gets_the_embedder(self, tmp_path: pathlib.Path) -> None:
        contenders._write_repository(tmp_path, contenders.Tuning(64, 1.5))
        config = (tmp_path / "minilm" / "config.pbtxt").read_text()
        assert "max_batch_size: 64" in config
        assert "max_queue_delay_microseconds: 1500" in config
        assert sorted(file.name for file in (tmp_path / "minilm" / "1").iterdir()) == ["embedder.py", "model.py"]

    def test_triton_is_asked_in_v2_and_answers_as_text_or_bytes(self) -> None:
        body = json.loads(contenders._infer_body(b'"caf\\u00e9"', binary=True))
        assert body["inputs"][0]["data"] == ["café"]
        assert body["outputs"][0]["parameters"] == {"binary_data": True}
        assert "outputs" not in json.loads(contenders._infer_body(b'"a"', binary=False))
        numbers = [float(at) for at in range(contenders.SIZE)]
        assert contenders._last_floats(b'{"head": 1}' + struct.pack(f"<{contenders.SIZE}f", *numbers)) == numbers
        assert contenders._outputs(json.dumps({"outputs": [{"data": numbers}]}).encode()) == numbers

    @pytest.mark.parametrize("answer", [b"", b"{}", b'{"outputs": []}', b'{"error": "no"}', b"[]", b"[3]"])
    def test_what_is_no_answer_is_told_apart(self, answer: bytes) -> None:
        for read in (contenders._outputs, contenders._last_floats, contenders._bare):
            with pytest.raises(ValueError, match=r"no |has no|Expecting|unpack"):
                read(answer)
