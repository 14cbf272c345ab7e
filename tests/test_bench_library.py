"""The comparison of batching libraries: who takes part, how settings are chosen, what is said of the targets."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import pathlib
import re
import sys
import textwrap
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.library import __main__ as program
from benchmarks.library import cells, chart, comparison, runs, systems, tables, targets
from benchmarks.library.inside import arrivals, bare_batching, usage
from benchmarks.peers import environments

ZERO = next(cell for cell in cells.CELLS if cell.name == "zero-asyncio-64")
HALF = next(cell for cell in cells.CELLS if cell.name == "load-50")
OVERLOAD = next(cell for cell in cells.CELLS if cell.name == "overload")
OURS = next(system for system in systems.SYSTEMS if system.slug == "carpool-def")
PEER = next(system for system in systems.SYSTEMS if system.slug == "batched-aio-def")
OTHER = next(system for system in systems.SYSTEMS if system.slug == "async-batcher-async")


def outcome(system: systems.System, cell: cells.Cell, **figures: float) -> comparison.Outcome:
    return comparison.Outcome(system, cell, {"0 ms": [dict(figures)]})


# --- arrivals and percentiles -----------------------------------------------------------------------------------


def test_arrivals_are_the_same_for_everybody_and_come_at_the_rate_that_was_asked_for() -> None:
    times = arrivals.poisson(1000, 20, seed=1)
    assert times == arrivals.poisson(1000, 20, seed=1) != arrivals.poisson(1000, 20, seed=2)
    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] < 20
    assert len(times) == pytest.approx(20_000, rel=0.03)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    # Of an exponential distribution, 1/e of the gaps are longer than the mean.
    assert sum(gap > 0.001 for gap in gaps) / len(gaps) == pytest.approx(1 / math.e, rel=0.05)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_one_of_the_values_and_that_share_is_not_above_it(values: list[float], share: float) -> None:
    found = arrivals.percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6
    assert sum(value < found for value in values) < share * len(values)


def test_no_values_have_no_percentile() -> None:
    assert math.isnan(arrivals.percentile([], 0.5))


# --- who takes part, in what --------------------------------------------------------------------------------------


def test_every_peer_is_pinned_to_the_version_that_is_shown() -> None:
    peers = [system for system in systems.SYSTEMS if system.is_peer]
    assert {system.peer for system in peers} == {
        "batched", "async_batcher", "fast_dynamic_batcher", "service_streamer", "ray_serve", "bentoml",
    }  # fmt: skip
    for system in peers:
        assert environments.requirements(system.peer).is_file()
        assert re.fullmatch(r"\d+(\.\d+)+", systems.version(system))


def test_every_system_has_an_adapter() -> None:
    source = pathlib.Path(systems.__file__).with_name("inside") / "adapters.py"
    for system in systems.SYSTEMS:
        assert f"\ndef {system.adapter}(settings: Settings" in source.read_text()


def test_programs_that_run_in_the_environments_of_peers_need_nothing_but_the_standard_library() -> None:
    allowed = {"adapters", "arrivals", "bare_batching", "closed", "faults", "functions", "methods", "paced", "usage"}
    for file in pathlib.Path(systems.__file__).with_name("inside").glob("*.py"):
        if file.name == "worker_model.py":  # a class for a library that imports it
            continue
        for line in file.read_text().splitlines():
            if found := re.match(r"(?:from|import) ([a-zA-Z_]+)", line):
                assert found[1] in allowed | sys.stdlib_module_names, f"{file.name}: {line}"


def test_systems_are_chosen_by_their_own_name_or_their_peers() -> None:
    assert [system.slug for system in systems.select(["batched"])] == [
        "batched-sync", "batched-aio-def", "batched-aio-async",
    ]  # fmt: skip
    assert systems.select(["ray-serve"])[0].name == "Ray Serve (async def)"
    assert systems.select([]) == list(systems.SYSTEMS)
    with pytest.raises(ValueError, match="unknown system 'mosec'; there are async-batcher"):
        systems.select(["mosec"])


def test_cells_are_chosen_by_name_or_group() -> None:
    assert {cell.group for cell in cells.select(["zero"])} == {"zero"}
    assert [cell.name for cell in cells.select(["idle", "load-95"])] == ["load-95", "idle"]
    with pytest.raises(ValueError, match="unknown cell 'speed'"):
        cells.select(["speed"])
    assert len({cell.name for cell in cells.CELLS}) == len(cells.CELLS)


def test_what_has_no_coroutines_takes_part_where_its_futures_will_do() -> None:
    streamer = systems.select(["service-streamer"])[0]
    taken = {cell.name for cell in cells.CELLS if cell.takes(streamer)}
    assert {"zero-threads-64", "load-threads-64", "load-50", "overload", "idle", "fault-shutdown"} <= taken
    assert not taken & {"zero-asyncio-64", "load-asyncio-64", "minilm"}


def test_peers_may_choose_their_settings_and_the_adaptive_policy_has_none() -> None:
    assert [variant["wait"] for variant in ZERO.variants(PEER)] == [0.0, 0.001, 0.005]
    assert len(ZERO.variants(OURS)) == 1
    assert {variant["queue"] for variant in OVERLOAD.variants(OTHER)} == set(systems.QUEUES)
    assert {variant["queue"] for variant in ZERO.variants(OTHER)} == {None}


# --- the order of measuring ---------------------------------------------------------------------------------------


class Bench:
    """Measures nothing: `rates` by system and wait."""

    def __init__(self, **rates: dict[float, float]) -> None:
        self.rates = rates
        self.calls: list[tuple[str, float, int]] = []

    def __call__(self, system: systems.System, job: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((system.adapter, job["wait"], job["seed"]))
        rate = self.rates[system.adapter].get(job["wait"])
        if rate is None:
            raise runs.Failed("it does not start")
        return {"rate": rate, "cpu": 1e-6, "wakeups": 0.5, "errors": {}, "hung": 0}


def compare(bench: Bench, rounds: int = 2) -> list[comparison.Outcome]:
    run = comparison.Comparison(bench, seconds=1, rounds=rounds, trial_seconds=0.1, say=lambda _: None)
    (found,) = run.run([ZERO], [system for system in (OURS, PEER, OTHER) if system.adapter in bench.rates])
    return found


def test_each_system_is_measured_with_the_setting_that_is_best_in_a_trial() -> None:
    bench = Bench(carpool_def={0.0: 300.0}, batched_aio_def={0.0: 10.0, 0.001: 30.0, 0.005: 20.0})
    ours, theirs = compare(bench)
    assert theirs.median(cells.RATE) == 30.0
    assert list(theirs.rounds) == ["1 ms"]
    assert ours.median(cells.RATE) == 300.0


def test_systems_take_turns_and_nobody_is_always_first() -> None:
    bench = Bench(carpool_def={0.0: 1.0}, batched_aio_def={0.0: 1.0})
    compare(bench, rounds=3)
    order = [[name for name, _, seed in bench.calls if seed == 1000 + number] for number in range(3)]
    ours, theirs = "carpool_def", "batched_aio_def"
    assert order == [[ours, theirs], [theirs, ours], [ours, theirs]]


def test_the_same_arrivals_are_drawn_for_all_systems_of_a_round() -> None:
    bench = Bench(carpool_def={0.0: 1.0}, batched_aio_def={0.0: 1.0})
    compare(bench)
    assert {seed for _, _, seed in bench.calls} == {999, 1000, 1001}


def test_what_fails_is_told_and_does_not_end_the_run() -> None:
    bench = Bench(carpool_def={0.0: 2.0}, batched_aio_def={})
    found = compare(bench)
    table = tables.failures(found, {"ray_serve": "no wheel"})
    assert table.rows == [
        ["ray_serve", "everything", "no wheel"],
        ["batched.aio (def)", "zero-asyncio-64", "it does not start"],
    ]


def test_a_figure_is_the_median_of_the_setting_that_is_best_in_it() -> None:
    rounds = {
        "0 ms": [{"p50": 0.01, "p99": 0.08}, {"p50": 0.02, "p99": 0.09}, {"p50": 0.01, "p99": 0.09}],
        "1 ms": [{"p50": 0.03, "p99": 0.04}, {"p50": 0.03, "p99": math.nan}],
    }
    found = comparison.Outcome(PEER, HALF, rounds)
    assert found.median(cells.P50) == 0.01
    assert found.median(cells.P99) == 0.04
    assert found.spread(cells.P50) == pytest.approx(1.0)
    assert comparison.Outcome(PEER, HALF).median(cells.P50) is None


# --- targets, tables, chart ---------------------------------------------------------------------------------------


def test_the_best_peer_is_what_a_target_is_held_against() -> None:
    times = targets.TIMES[ZERO.name].here
    mine = 100 * times - 10
    found = [outcome(OURS, ZERO, rate=mine), outcome(PEER, ZERO, rate=100.0), outcome(OTHER, ZERO, rate=90.0)]
    (verdict,) = targets.verdicts(found)
    assert not verdict.is_met
    assert verdict.target == f"zero cost, 64 asyncio callers: {times:g} times the best peer's items/s"
    assert verdict.ours == f"{mine / 100:.2f} times: {mine:.0f}/s (Carpool (def))"
    assert verdict.peer == "100/s (batched.aio (def))"
    (verdict,) = targets.verdicts([outcome(OURS, ZERO, rate=100 * times), *found[1:]])
    assert verdict.is_met


def test_a_wheel_that_is_compiled_is_asked_for_more_than_plain_python() -> None:
    asked = {name: (each.pure, each.compiled) for name, each in targets.TIMES.items()}
    assert asked == {"zero-asyncio-64": (1.5, 2), "zero-asyncio-1000": (1.5, 2), "zero-threads-64": (1.2, 1.2)}


def test_what_the_loop_alone_does_is_no_peer() -> None:
    floor = next(system for system in systems.SYSTEMS if system.is_floor)
    found = [outcome(OURS, ZERO, rate=300.0), outcome(PEER, ZERO, rate=100.0), outcome(floor, ZERO, rate=900.0)]
    assert targets.verdicts(found)[0].is_met
    assert [row[0] for row in tables.zero(found).rows] == [OURS.name, PEER.name, floor.name]


def test_latency_has_to_be_at_or_below_the_best_peers_figure_by_figure() -> None:
    found = [outcome(OURS, HALF, p50=0.01, p99=0.05), outcome(PEER, HALF, p50=0.01, p99=0.06)]
    found.append(outcome(OTHER, HALF, p50=0.02, p99=0.04))
    assert [(each.target, each.is_met) for each in targets.verdicts(found)] == [
        ("50% load: p50 at or below the best peer's", True),
        ("50% load: p99 at or below the best peer's", False),
    ]


def test_goodput_is_held_against_what_the_function_can_do() -> None:
    (verdict,) = targets.verdicts([outcome(OURS, OVERLOAD, goodput=0.98 * cells.LIMIT)])
    assert verdict.is_met
    assert verdict.ours.startswith("98.0%")


@pytest.mark.parametrize(("cpu", "wakeups", "threads", "is_met"), [(0.0002, 0, 0, True), (0.1, 2000, 1, False)])
def test_at_rest_nothing_may_be_used(cpu: float, wakeups: int, threads: int, is_met: bool) -> None:
    idle = next(cell for cell in cells.CELLS if cell.name == "idle")
    (verdict,) = targets.verdicts([outcome(OURS, idle, cpu_seconds=cpu, wakeups=wakeups, threads=threads)])
    assert verdict.is_met is is_met


def test_faults_are_told_by_what_happened_and_to_whom() -> None:
    cell = next(cell for cell in cells.CELLS if cell.name == "fault-shutdown")
    found = [
        comparison.Outcome(OURS, cell, {"": [{"fine": True, "what": "80 answered"}]}),
        comparison.Outcome(PEER, cell, {"": [{"fine": None, "what": "cannot be shut down"}]}),
        comparison.Outcome(OTHER, cell, {"": [{"fine": False, "what": "48 waiting"}]}),
    ]
    (row,) = tables.faults(found).rows
    assert row[1:] == ["yes: 80 answered", "-", f"{OTHER.title}: 48 waiting", PEER.title]


def test_a_peer_is_named_without_its_form_where_all_forms_behave_alike() -> None:
    cell = next(cell for cell in cells.CELLS if cell.name == "fault-second_loop")
    field = systems.select(["batched", "async-batcher"])
    found = [
        comparison.Outcome(system, cell, {"": [{"fine": system.slug == "batched-aio-def", "what": "4 waiting"}]})
        for system in field
    ]
    (row,) = tables.faults(found).rows
    assert row[2:4] == ["batched.aio (def)", "batched, batched.aio (async def), async-batcher: 4 waiting"]


def test_tables_json_and_chart_hold_what_was_measured(tmp_path: pathlib.Path) -> None:
    found = [
        comparison.Outcome(
            OURS, ZERO, {"0 ms": [{"rate": 300_000.0, "cpu": 3e-6, "wakeups": 0.1, "errors": {"X": 2}}]}
        ),
        outcome(PEER, ZERO, rate=100_000.0, cpu=9e-6, wakeups=0.0),
        outcome(OURS, HALF, p50=0.0101, p99=0.02, lag_p99=0.0001),
        outcome(PEER, HALF, p50=0.0301, p99=0.04, lag_p99=0.01),
    ]
    shown = {table.title: table for table in tables.all_tables(found, {}, {"def": 2400.0})}
    zero = next(table for title, table in shown.items() if "items/s, and how far" in title)
    assert zero.rows == [["Carpool (def)", "300,000 ±0%"], ["batched.aio (def)", "100,000 ±0%"]]
    load = next(table for title, table in shown.items() if title.startswith("10 ms"))
    assert load.rows[0] == ["Carpool (def)", "10.1 / 20.0"]
    assert load.rows[1] == ["batched.aio (def)", "30.1 / 40.0 (callers late)"]
    assert load.rows[2] == ["the function alone, def", "99.0%"]
    assert shown["Not measured, or with errors"].rows == [["Carpool (def)", "zero-asyncio-64", "2 x X"]]
    written = json.loads(json.dumps(tables.as_json(found, {}, {}, {"date": "today"})))
    assert written["date"] == "today"
    assert written["cells"][0]["medians"] == {"rate": 300_000.0}
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    assert chart.draw(found, first)
    assert chart.draw(found, second)
    assert first.read_bytes() == second.read_bytes()
    assert not chart.draw([], tmp_path / "none.svg")


# --- a measurement ------------------------------------------------------------------------------------------------


def child(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, source: str) -> None:
    file = tmp_path / "child.py"
    file.write_text(textwrap.dedent(source))
    monkeypatch.setattr(runs, "CHILD", file)


def test_figures_are_the_last_line_that_a_child_prints(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    child(monkeypatch, tmp_path, "import sys\nprint('noise')\nprint(sys.argv[1])")
    found = runs.measure(OURS, {"cell": "closed", "seconds": 1}, tmp_path, None)
    assert found == {"system": "carpool_def", "callers": 64, "cell": "closed", "seconds": 1}


def test_a_child_without_figures_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    child(monkeypatch, tmp_path, "raise SystemExit('no such thing')")
    with pytest.raises(runs.Failed, match=r"ended with 1: no such thing"):
        runs.measure(OURS, {"cell": "closed"}, tmp_path, None)


def test_what_a_child_leaves_running_ends_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    child(
        monkeypatch,
        tmp_path,
        """
        import json, subprocess, sys
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print(json.dumps({"pid": left.pid}))
        """,
    )
    pid = runs.measure(OURS, {"cell": "closed"}, tmp_path, None)["pid"]
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(10)


async def test_the_least_that_batches_answers_each_caller_with_its_own() -> None:
    sizes: list[int] = []

    async def function(items: list[int]) -> list[int]:
        sizes.append(len(items))
        return items

    batching = bare_batching.Tasks(function, 32)
    assert await asyncio.gather(*(batching.call(item) for item in range(40))) == list(range(40))
    assert sizes == [32, 8]


def test_what_is_used_is_counted() -> None:
    assert usage.cpu_seconds() > 0
    assert usage.wakeups() >= 0
    assert usage.threads() >= 0


def test_the_command_line_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["--only", "speed"])
    assert "unknown cell 'speed'; there are" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        program.main(["--help"])
    assert "zero-asyncio-64" in capsys.readouterr().out
