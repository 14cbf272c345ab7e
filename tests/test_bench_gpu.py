"""The benchmark on a GPU: who runs where, what clients see together, what is made of the figures. None is needed."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pathlib
import re
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import load, wrk
from benchmarks.gpu import __main__ as program
from benchmarks.gpu import buys, callers, chart, gauges, measuring, policy, results, stub, systems, tables

FACTS = {
    "command": "python -m benchmarks.gpu",
    "date": "2026-11-23T03:00:00+00:00",
    "commit": "0123456789abcdef",
    "uncommitted_changes": False,
    "machine": {"cpu": "a CPU", "usable_cores": 16, "python": "3.12.3", "packages": {"torch": "2.11.0"}},
    "device": "cuda",
    "gpu": {"name": "a GPU", "driver": "580", "cuda": "13.0"},
    "pinned": True,
    "load": "wrk, 8 threads",
}


def row(system: str, **more: Any) -> measuring.Row:
    """A row as `measuring.Bench` makes them."""
    figures = {
        "system": system, "requests": 1000, "rate": 1000.0, "seconds": 4.0, "p50": 0.010, "p99": 0.020, "errors": {},
        "gpu_busy": 0.5, "gpu_watts": 300.0, "gpu_memory_mb": 4000.0, "gpu_mhz": 1980.0, "cpu": {"predictor": 0.5},
        "mean_batch": None, "joules_per_1000": 12.0, "cpu_per_1000": {"predictor": 0.5},
    }  # fmt: skip
    return figures | more


def open_row(system: str, load: float, turn: int = 0, **more: Any) -> measuring.Row:
    return row(system, load=load, turn=turn, offered=load * 1000, lag_p99=0.0001, is_saturated=False, **more)


BATCHING = {
    "model": "minilm",
    "precision": "float16",
    "max_batch": 128,
    "rows": [
        row("without", callers=buys.AT, rate=1000.0),
        row("with", callers=buys.AT, rate=12_500.0, gpu_busy=0.93, mean_batch=64.0, cpu={"sidecar": 0.6}),
    ],
}
LEARNED = {"load": 0.8, "turn": 0, "service_fixed_seconds": 0.001, "service_instance_seconds": 0.0001}
POLICY = {
    "model": "minilm",
    "precision": "float16",
    "max_batch": 128,
    "capacity": 1000.0,
    "service": [{"size": 1, "median": 0.001, "calls": 9}, {"size": 128, "median": 0.0138, "calls": 9}],
    "in_flight": [row("learned in flight", callers=512, in_flight="learned", limit=2.0)],
    "rows": [
        open_row("adaptive", 0.8, p99=0.020),
        open_row("window 1 ms, 128", 0.8, 1, p99=0.030),
        open_row("window 9 ms, 128", 0.8, 2, p99=0.025),
        open_row("adaptive", 0.8, 3, p99=0.024),
    ],
    "learned": [LEARNED],
    "forecasts": [
        open_row("adaptive, slo", 0.8, mean_batch=10.0)
        | {"plan": {"service": "1+0.1n", "pods": 1, "p50": 0.0105, "p99": 0.0215, "mean_batch": 10.5, "in_time": 1.0}}
    ],
}
AGREEMENT = {
    "model": "minilm",
    "rows": [
        row("float16, with", callers=128)
        | {"precision": "float16", "compared": 256, "least_cosine": 0.999, "single_difference": 1e-4,
           "single_cosine": 0.99999, "batch_difference": 2e-4, "batch_cosine": 0.99998}
    ],
}  # fmt: skip
CEILING = {
    "answer_bytes": 4686,
    "max_batch": 128,
    "rows": [
        row("the client alone", callers=512, rate=90_000.0, cpu={"stub 1": 0.9}),
        row("the sidecar", callers=128, rate=25_000.0, cpu={"sidecar": 0.99}, cpu_per_1000={"sidecar": 0.04}),
    ],
}
SECTIONS = [
    results.Section("batching-minilm", BATCHING, FACTS),
    results.Section("policy-minilm", POLICY, FACTS),
    results.Section("agreement-minilm", AGREEMENT, FACTS),
    results.Section("ceiling", CEILING, FACTS),
]


# --- who runs where ---------------------------------------------------------------------------------------------------


@given(count=st.integers(1, 128))
def test_no_core_is_given_to_two_of_those_that_are_pinned(count: int) -> None:
    cores = systems.share_out(range(count))
    if not cores.is_pinned:
        assert count < 8
        assert cores == systems.Cores(None, None, None, None, ())
        return
    given_out = [*(cores.own or ()), *(cores.sidecar or ()), *(cores.server or ()), *(cores.worker or ()), *cores.load]
    assert sorted(given_out) == list(range(count))
    assert cores.load
    assert cores.worker


def test_a_request_of_several_instances_has_the_first_ones_and_then_begins_again() -> None:
    model = systems.Model("m", "M", 8, lambda: [b"1", b"2"], (), ())
    assert systems.bodies(model) == [b'{"instances":[1]}', b'{"instances":[2]}']
    assert systems.batch(model, 3) == b'{"instances":[1,2,1]}'


def test_an_answer_without_predictions_of_the_model_is_told_as_such() -> None:
    model = systems.MODELS[systems.MINILM]
    assert model.first(b'{"predictions":[[1,2.5],[3,4]]}') == [1.0, 2.5]
    for answer in (b'{"error":"no"}', b'{"predictions":[1]}', b'{"predictions":[]}', b"[]"):
        with pytest.raises(ValueError, match="minilm"):
            model.first(answer)


def test_pictures_are_all_different_and_of_the_right_size() -> None:
    found = systems.MODELS["vit"].instances()
    assert len(set(found)) == systems.PICTURES
    assert len(json.loads(found[0])["b64"]) == systems.SIDE * systems.SIDE * 3 * 4 // 3


def test_a_predictor_is_told_device_and_precision_and_the_trial_flags_only_on_a_cpu() -> None:
    model = systems.Model("m", "M", 8, list, ("--models", "m"), (), trial_flags=("--small",))
    cores = systems.share_out(range(2))
    on_gpu = systems.predictor_flags(systems.Setup(model, "cuda", "float32", 8, cores))
    on_cpu = systems.predictor_flags(systems.Setup(model, "cpu", "float32", 8, cores))
    assert on_gpu[:4] == ["--models", "m", "--device", "cuda"]
    assert on_cpu[:5] == ["--models", "m", "--small", "--device", "cpu"]


# --- load -------------------------------------------------------------------------------------------------------------


@given(total=st.integers(0, 1000), parts=st.integers(1, 64))
def test_callers_are_split_evenly_and_none_is_lost(total: int, parts: int) -> None:
    shares = callers.split(total, parts)
    assert sum(shares) == total
    assert all(share > 0 for share in shares)
    assert not shares or max(shares) - min(shares) <= 1


def test_what_several_clients_saw_has_the_percentiles_of_all_of_them() -> None:
    first = callers.Seen([0.001] * 90, 2.0, {"status 503": 1})
    second = callers.Seen([0.5] * 10, 2.5, {"status 503": 2})
    seen = callers.merge([first, second])
    assert (seen.requests, seen.seconds, seen.p50, seen.p99) == (100, 2.5, 0.001, 0.5)
    assert seen.errors == {"status 503": 3}
    assert callers.merge([]).requests == 0


async def test_the_latencies_of_a_closed_loop_are_those_of_its_good_answers(aiohttp_server: Any) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=500 if await request.text() == "bad" else 200)

    app = web.Application()
    app.router.add_post("/", answer)
    server = await aiohttp_server(app)
    requests = [b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(t), t) for t in (b"good", b"bad")]
    latencies: list[float] = []
    measured = await load.closed_loop((server.host, server.port), requests * 3, 2, latencies=latencies)
    assert len(latencies) == measured.requests == 3
    assert sorted(latencies)[-1] == measured.p99


@contextlib.contextmanager
def stubs() -> Iterator[systems.Running]:
    from benchmarks.gpu import ceiling

    with ceiling._stubs([None, None], [b'{"instances":["a"]}', b'{"instances":["b","c"]}']) as running:
        yield running


def test_callers_of_both_kinds_get_their_answers_from_stubs_that_share_a_port() -> None:
    with stubs() as running, callers.Callers([], has_wrk=False) as sending:
        closed = sending.closed(running, 4, 0.2)
        stream = sending.poisson(running, 200, 0.3, seed=1)
    assert closed.requests > 0
    assert closed.errors == {}
    assert (stream.requests, stream.errors) == (stream.sent, {})
    assert stream.sent > 10


@pytest.mark.skipif(not wrk.is_available(), reason="wrk is not installed")
def test_wrk_sends_every_one_of_several_bodies() -> None:
    with stubs() as running:
        measured = wrk.measure(running.url, running.bodies, 4, 1, None, threads=2)
    assert measured.requests > 10
    assert measured.errors == {}


def test_the_script_of_several_bodies_cuts_them_where_they_end() -> None:
    script = wrk.script("/file", sizes=[3, 5])
    assert "ipairs({3, 5})" in script
    assert "_IN_TURN" not in script
    assert "ipairs" not in wrk.script("/file")


def test_the_stub_answers_each_instance_with_an_embedding_that_float32_has() -> None:
    answer = stub.answer(3)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert int(re.findall(rb"Content-Length: (\d+)", head)[0]) == len(body)
    predictions = json.loads(body)["predictions"]
    assert len(predictions) == 3
    assert len(predictions[0]) == stub.SIZE
    assert [struct.unpack("<f", struct.pack("<f", value))[0] for value in predictions[0]] == pytest.approx(
        stub.embedding(), rel=1e-7
    )
    assert sum(value * value for value in predictions[0]) == pytest.approx(1.0)


# --- watching ---------------------------------------------------------------------------------------------------------


class FakeGpu:
    """Busy for a given share, and takes a given number of joules a reading."""

    def __init__(self, busy: float | None, joules: float | None) -> None:
        self._busy, self._step, self._joules = busy, joules, 0.0

    def facts(self) -> dict[str, Any]:
        return FACTS["gpu"]  # type: ignore[return-value]

    def busy(self) -> float | None:
        return self._busy

    def joules(self) -> float | None:
        if self._step is None:
            return None
        self._joules += self._step
        return self._joules

    def watts(self) -> float | None:
        return 300.0

    def memory(self) -> float | None:
        return 1234.0

    def clock(self) -> float | None:
        return 1980.0


def test_a_watch_tells_energy_and_the_cpu_of_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "_STALE", 0.0)
    monkeypatch.setattr(gauges, "PERIOD", 0.02)
    with gauges.watching(FakeGpu(0.75, 5.0), {"me": os.getpid()}) as watch:
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            pass
    assert (watch.busy, watch.joules, watch.memory, watch.clock) == (0.75, 5.0, 1234.0, 1980.0)
    assert watch.watts == pytest.approx(5.0 / watch.seconds)
    assert watch.cpu["me"] > 0
    figures = measuring.per_thousand(watch, 500)
    assert figures["joules_per_1000"] == pytest.approx(10.0)
    assert figures["cpu_per_1000"]["me"] == pytest.approx(watch.cpu["me"] * watch.seconds * 2)


def test_what_a_gpu_does_not_tell_is_left_open() -> None:
    with gauges.watching(FakeGpu(None, None), {}) as watch:
        pass
    assert (watch.busy, watch.joules, watch.watts) == (None, None, None)
    assert measuring.per_thousand(watch, 10) == {"joules_per_1000": None, "cpu_per_1000": {}}
    with gauges.watching(gauges.NoneThere(), {}) as watch:
        pass
    assert (watch.busy, watch.joules, watch.memory) == (None, None, None)


def test_without_a_gpu_the_program_says_what_is_missing_and_how_to_try_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Absent:
        def __init__(self) -> None:
            raise gauges.NoGpu("no NVIDIA GPU is found: Driver Not Loaded")

    monkeypatch.setattr(gauges, "NvidiaGpu", Absent)
    assert program.main([]) == 1
    told = capsys.readouterr().out
    assert "no NVIDIA GPU is found" in told
    assert "--device cpu --quick" in told


# --- figures ----------------------------------------------------------------------------------------------------------


def test_equal_answers_agree_and_others_tell_by_how_much() -> None:
    assert measuring.agreement([[0.6, 0.8]], [[0.6, 0.8]]) == (0.0, pytest.approx(1.0))
    difference, cosine = measuring.agreement([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]])
    assert (difference, cosine) == (1.0, 0.0)
    with pytest.raises(ValueError, match="zip"):
        measuring.agreement([[1.0]], [[1.0], [1.0]])


def test_of_a_plan_the_figures_of_one_pod_are_taken_wherever_they_stand() -> None:
    one = {"pods": 1, "p50_ms": 5.0, "p99_ms": 9.0, "mean_batch": 3.0, "in_time": 0.97}
    two = one | {"pods": 2, "p50_ms": 1.0}
    found = policy.of_one_pod({"pods": 2, "service": "1+1n", "chosen": two, "fewer": one})
    assert (found["p50"], found["p99"], found["pods"]) == (0.005, 0.009, 2)
    assert policy.of_one_pod({"pods": 1, "service": "1+1n", "chosen": one, "fewer": None})["p50"] == 0.005
    assert "3 pods" in policy.of_one_pod({"pods": 3, "service": "", "chosen": two, "fewer": two})["failed"]


def test_targets_are_met_or_missed_as_the_rows_say() -> None:
    found = {verdict.target: verdict for verdict in tables.verdicts(SECTIONS)}
    assert found["minilm, float16: 10 times the req/s at 128 callers"].measured == "12.5 times"
    assert all(verdict.is_met for verdict in found.values()), [v for v in found.values() if not v.is_met]
    worse = copy.deepcopy(POLICY)
    worse["rows"][3]["p99"] = 0.036  # the second run counts as well as the first
    worse["forecasts"][0]["plan"]["p99"] = 0.0221
    missed = [v.target for v in tables.verdicts([results.Section("policy-minilm", worse, FACTS)]) if not v.is_met]
    assert missed == [
        "minilm, float16, 80%: adaptive's p99 as good as the best window's (window 9 ms, 128)",
        "minilm, float16, 80%: plan within 10%",
    ]


def test_a_row_that_failed_or_whose_client_was_late_says_so_and_meets_no_target() -> None:
    assert tables.state(row("with", errors={"timeout": 3})) == "FAILED: 3 timeout"
    assert tables.state(row("with", requests=0)) == "FAILED: no answers"
    assert tables.state(open_row("with", 0.5) | {"is_saturated": True}) == "saturated"
    assert tables.state(open_row("with", 0.5) | {"lag_p99": 0.005}) == "client late 5.0 ms"
    failed = copy.deepcopy(BATCHING)
    failed["rows"][1]["errors"] = {"timeout": 3}
    assert tables.verdicts([results.Section("batching-minilm", failed, FACTS)]) == []


def test_the_page_has_every_table_and_names_each_run_once() -> None:
    page = program.markdown(SECTIONS)
    assert page.count("`python -m benchmarks.gpu`") == 1
    for title in ("Targets", "Without and with the sidecar", "S(n)", "Precisions", "80% of 1,000 req/s"):
        assert f"**{title}" in page
    assert "| 128, with | 12,500 | 12.5x |" in page
    widths = {line.count("|") for line in page.split("**Targets**")[1].split("**")[0].splitlines() if line}
    assert len(widths) <= 2  # the table's, and the line that names the run


def test_the_page_for_readers_has_what_batching_buys_without_verdicts_and_what_is_for_who_works_on_it() -> None:
    page = program.markdown(SECTIONS, is_for_readers=True)
    assert "| 128, with | 12,500 | 12.5x |" in page
    assert not [word for word in ("Targets", "cores busy", "lag", "S(n)", "Precisions", "80% of") if word in page]
    assert page.count("`python -m benchmarks.gpu`") == 1


def test_a_run_is_named_by_its_command_without_places_and_by_a_commit_that_has_no_changes() -> None:
    run = FACTS | {"command": "python -m benchmarks.gpu --only a --json /x/a.json --out /x"}
    assert results.heading(run).startswith(
        "`python -m benchmarks.gpu --only a`, 2026-11-23T03:00:00+00:00, 0123456789ab;"
    )
    assert "0123456789ab" not in results.heading(run | {"uncommitted_changes": True})
    assert "no GPU" in results.heading(run | {"gpu": {}, "commit": None})


def test_sections_of_several_files_are_one_set_and_the_last_one_read_counts(tmp_path: pathlib.Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    results.write(first, SECTIONS[:2], FACTS)
    later = FACTS | {"date": "2026-11-23T04:00:00+00:00"}
    results.write(second, [results.Section("batching-minilm", BATCHING | {"max_batch": 64}, later)], later)
    found = {section.name: section for section in results.read([first, second])}
    assert list(found) == ["batching-minilm", "policy-minilm"]
    assert found["batching-minilm"].content["max_batch"] == 64
    assert found["batching-minilm"].facts == later
    assert found["policy-minilm"].facts == FACTS


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"facts": {}, "sections": 3}'])
def test_a_file_without_figures_is_named(tmp_path: pathlib.Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(results.NotResults, match=r"other\.json has no figures"):
        results.read([file])
    with pytest.raises(results.NotResults, match="cannot be read"):
        results.read([tmp_path / "none.json"])


def test_figures_from_a_file_are_shown_and_drawn_without_a_gpu(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.json"
    results.write(file, SECTIONS, FACTS)
    assert program.main(["--from", str(file), "--out", str(tmp_path / "out"), "--markdown"]) == 0
    assert "| 128, with | 12,500 | 12.5x |" in capsys.readouterr().out
    assert (tmp_path / "out/gpu.md").read_text() == program.markdown(SECTIONS)
    assert (tmp_path / "out/gpu.svg").read_text().startswith("<?xml")
    assert program.main(["--from", str(tmp_path / "none.json"), "--out", str(tmp_path)]) == 1


def test_sections_that_have_nothing_to_draw_leave_no_picture(tmp_path: pathlib.Path) -> None:
    assert not chart.draw(SECTIONS[3:], tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


# --- the command line -------------------------------------------------------------------------------------------------


def test_sections_are_chosen_by_name_by_kind_and_by_model() -> None:
    names = [job.name for job in program.select([])]
    assert {"ceiling", "batching-minilm", "agreement-vit", "policy-vit"} <= set(names)
    assert [job.name for job in program.select(["policy-vit", "ceiling"])] == ["ceiling", "policy-vit"]
    assert [job.name for job in program.select(["policy"])] == ["policy-minilm", "policy-vit"]
    assert {job.name.partition("-")[2] for job in program.select(["vit"])} == {"vit"}
    with pytest.raises(ValueError, match="there is no section speed; allowed: ceiling"):
        program.select(["speed"])


def test_what_does_not_fit_into_the_budget_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def job(name: str, seconds: float, missing: str | None = None) -> program.Job:
        return program.Job(name, lambda bench: seconds, lambda: missing, lambda bench: {})

    found = [job("a", 300), job("b", 300), job("c", 100), job("d", 10, "this Python has no torch")]
    monkeypatch.setattr(program, "select", lambda names, precision="float16": found)
    assert program.main(["--device", "cpu", "--plan", "--load", "python"]) == 0
    told = capsys.readouterr().out
    assert "plan: a, about 300 s" in told
    assert "plan: b is left out: about 300 s, and 240 s of --budget are left" in told
    assert "plan: c, about 100 s" in told
    assert "plan: d is left out: this Python has no torch" in told
    assert "plan: about 400 s in all" in told
