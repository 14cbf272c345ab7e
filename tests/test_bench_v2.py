"""The v2 benchmark: bodies, the stub's answers, the Go program's figures, who is compared with whom, the tables."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import client, golang, load, wrk
from benchmarks.peers import peer, samples, triton
from benchmarks.v2 import before_triton, cells, rpc, run, stand, stub, tables, traffic

# --- what is sent


@pytest.mark.parametrize("kind", [traffic.V1, traffic.V2])
@given(size=st.integers(90, 3_000), number=st.integers(0, traffic.MARKS - 1))
def test_a_body_in_json_is_as_large_as_asked_and_ends_in_its_mark(
    kind: type[traffic.Traffic], size: int, number: int
) -> None:
    body = kind(size).body(number)
    decoded = json.loads(body)
    row = decoded["instances"][0] if kind is traffic.V1 else decoded["inputs"][0]["data"]
    assert len(body) == size
    assert row[-1] == -number / traffic.MARKS
    assert all(0 < value < 1 for value in row[:-1])


@given(size=st.integers(90, 3_000))
def test_a_v2_body_says_how_many_numbers_are_in_it(size: int) -> None:
    (tensor,) = json.loads(traffic.V2(size).body(7))["inputs"]
    assert tensor["shape"] == [1, len(tensor["data"])]


def test_the_bodies_of_one_size_have_rows_of_one_width_so_that_they_can_share_a_batch() -> None:
    shapes = {tuple(json.loads(traffic.V2(500).body(number))["inputs"][0]["shape"]) for number in (0, 7, 99_999)}
    assert len(shapes) == 1


def test_a_row_too_short_for_its_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="8 bytes at least"):
        traffic.row(7, 1)


def test_the_tensor_in_binary_and_in_json_is_the_same() -> None:
    binary, text = traffic.V2Binary(4_000), traffic.V1OfTensor(4_000)
    body = binary.body(42)
    start = int(binary.headers[traffic.JSON_SIZE])
    (asked,) = json.loads(body[:start])["inputs"]
    sent = struct.unpack("<1000f", body[start:])
    (row,) = json.loads(text.body(42))["instances"]
    assert asked["shape"] == [1, 1000]
    assert asked["parameters"] == {"binary_data_size": 4_000}
    assert sent == struct.unpack("<1000f", struct.pack("<1000f", *row))


# --- what the stub answers


def _answer(reader: stub.Reader, body: bytes, step: int) -> stub.Answer:
    for at in range(0, len(body), step):
        reader.feed(body[at : at + step])
    return reader.answer()


def _merged(count: int, said: int | None = None) -> bytes:
    """A batch of v2 JSON as the sidecar sends it."""
    rows = [traffic.row(40, number)[0] for number in range(count)]
    width = rows[0].count(b",") + 1
    head = b'{"inputs":[{"name":"rows","datatype":"FP32","shape":[%d,%d],"data":[' % (said or count, width)
    return head + b",".join(rows) + b"]}]}"


@given(step=st.integers(1, 500))
def test_each_row_in_v1_json_is_answered_with_its_mark_however_the_body_is_cut(step: int) -> None:
    rows = b",".join(b"[%b]" % traffic.row(40, number)[0] for number in (3, 1, 2))
    answer = _answer(stub.Marks(is_v1=True), b'{"instances":[%b]}' % rows, step)
    assert json.loads(answer.body) == {"predictions": [-0.00003, -0.00001, -0.00002]}


@given(step=st.integers(1, 500))
def test_each_row_in_v2_json_is_answered_with_its_mark_however_the_body_is_cut(step: int) -> None:
    answer = _answer(stub.Marks(is_v1=False), _merged(3), step)
    (output,) = json.loads(answer.body)["outputs"]
    assert output == {"name": "marks", "datatype": "FP32", "shape": [3, 1], "data": [0.0, -0.00001, -0.00002]}


@pytest.mark.parametrize("step", [1, 7, 100, 1_000_000])
def test_the_hyphens_of_a_batchs_id_are_no_marks(step: int) -> None:
    body = _merged(3).replace(b"{", b'{"id":"7f3c2b1a-9d0e-4c1b-8a52-0123456789ab",', 1)
    answer = _answer(stub.Marks(is_v1=False), body, step)
    assert json.loads(answer.body)["outputs"][0]["shape"] == [3, 1]


def test_a_batch_that_says_another_number_of_rows_than_came_is_refused() -> None:
    with pytest.raises(stub.WrongShape, match="3 rows came"):
        _answer(stub.Marks(is_v1=False), _merged(3, said=4), 1_000)


def _binary_batch(count: int, width: int = 5, size: int | None = None) -> tuple[int, bytes]:
    rows = b"".join(struct.pack("<f", 0.5) * (width - 1) + traffic.mark(number) for number in range(count))
    parameters = {"binary_data_size": len(rows) if size is None else size}
    tensor = {"name": "rows", "shape": [count, width], "datatype": "FP32", "parameters": parameters}
    head = json.dumps({"inputs": [tensor]}).encode()
    return len(head), head + rows


@given(step=st.integers(1, 300), width=st.integers(1, 9))
def test_each_row_in_binary_is_answered_with_its_mark_however_the_body_is_cut(step: int, width: int) -> None:
    json_size, body = _binary_batch(4, width)
    answer = _answer(stub.Ends(json_size), body, step)
    assert answer.json_size is not None
    (output,) = json.loads(answer.body[: answer.json_size])["outputs"]
    assert (output["shape"], output["parameters"]) == ([4, 1], {"binary_data_size": 16})
    assert answer.body[answer.json_size :] == b"".join(map(traffic.mark, range(4)))


def test_a_batch_in_binary_of_another_size_than_its_shape_is_refused() -> None:
    json_size, body = _binary_batch(4, size=12)
    with pytest.raises(stub.WrongShape, match="12 bytes for the shape"):
        _answer(stub.Ends(json_size), body, 1_000)
    json_size, body = _binary_batch(4)
    with pytest.raises(stub.WrongShape, match="79 bytes came, not 80"):
        _answer(stub.Ends(json_size), body[:-1], 1_000)


@pytest.mark.parametrize(
    "kind",
    [traffic.V1(200), traffic.V2(200), traffic.V2Binary(200), traffic.V1OfTensor(200)],
    ids=lambda each: each.name,
)
def test_the_stubs_answer_to_a_request_is_its_own_and_nobody_elses(kind: traffic.Traffic) -> None:
    size = kind.headers.get(traffic.JSON_SIZE)
    reader = stub.Marks(kind.path.startswith("/v1")) if size is None else stub.Ends(int(size))
    answer = _answer(reader, kind.body(42), 64).message()
    parsed = client.parse_response(answer)
    assert parsed is not None
    status, body = parsed
    assert status == 200
    assert kind.is_own(42, body)
    assert not kind.is_own(43, body)
    assert not kind.is_own(42, b"")
    assert not kind.is_own(42, b"[]")


async def test_callers_of_all_formats_get_their_own_answers_from_the_stub_over_one_port() -> None:
    server = await asyncio.get_running_loop().create_server(stub.Connection, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    for sent in (traffic.V1(200), traffic.V2(200), traffic.V2Binary(70_000), traffic.V1OfTensor(400)):
        right: list[bool] = []
        requests = (client.post("h", sent.path, sent.body(number), sent.headers) for number in range(20))
        await load.closed_loop(
            address, requests, 4, on_answer=lambda *answer, sent=sent, right=right: right.append(_is_own(sent, *answer))
        )
        assert right == [True] * 20
    server.close()
    await server.wait_closed()


def _is_own(sent: traffic.Traffic, number: int, status: int, body: bytes) -> bool:
    return status == 200 and sent.is_own(number, body)


def test_the_stub_tells_of_its_model_what_the_sidecar_asks() -> None:
    metadata = json.loads(stub.PAGES[b"/v2/models/echo"])
    assert metadata["inputs"] == [{"name": "rows", "datatype": "FP32", "shape": [-1, -1]}]
    assert json.loads(stub.PAGES[b"/v2/models/echo/config"]) == {"max_batch_size": stub.MOST_ROWS}


def test_wrk_sends_the_headers_of_a_format() -> None:
    script = wrk.script("/body", traffic.V2Binary(400).headers)
    assert 'wrk.headers["Content-Type"] = "application/octet-stream"' in script
    assert 'wrk.headers["Inference-Header-Content-Length"] = "' in script


# --- gRPC


def test_the_callers_figures_are_read_back() -> None:
    line = '{"requests":10,"seconds":2.0,"p50":0.001,"p99":0.002,"cpu":0.5,"errors":{"wrong answer":1}}\n'
    measured, cpu = rpc.parse(line)
    assert (measured.rate, measured.p50, measured.p99, cpu) == (5.0, 0.001, 0.002, 0.5)
    assert measured.errors == {"wrong answer": 1}


@pytest.mark.parametrize("output", ["", "rpc: connection refused\n", "[]", '{"requests":1}'])
def test_callers_without_figures_have_failed_with_what_they_printed(output: str) -> None:
    with pytest.raises(rpc.LoadFailed, match=output.strip().replace("[", r"\[").replace("{", r"\{") or "nothing"):
        rpc.parse(output)


def test_without_go_grpc_is_left_out_for_that_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = run.Run(tmp_path, 1.0, 1, print).all({cells.RPC})
    assert not found.rpc
    assert found.absent[cells.RPC].startswith("no Go toolchain on PATH")


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go toolchain on PATH")
def test_the_go_program_is_pinned() -> None:
    pinned = (rpc.SOURCE / "go.mod").read_text()
    assert "google.golang.org/grpc v" in pinned
    assert (rpc.SOURCE / "go.sum").read_text().count("google.golang.org/grpc v") == 2
    assert golang.missing() is None


# --- Triton


def test_triton_has_no_batcher_behind_the_sidecar_and_one_without_it(tmp_path: Path) -> None:
    model = peer.Model(10, 0.1, 32, 5)
    triton.write_repository(tmp_path / "with", model)
    triton.write_repository(tmp_path / "without", model, batches=False)
    configs = [(tmp_path / each / "echo" / "config.pbtxt").read_text() for each in ("with", "without")]
    assert ["dynamic_batching" in each for each in configs] == [True, False]
    assert configs[0].replace("dynamic_batching { max_queue_delay_microseconds: 5000 }", "") == configs[1]


def test_both_sides_are_asked_the_same(tmp_path: Path) -> None:
    system = next(each for each in before_triton.systems() if each.policy is not None)
    fronted = before_triton.Sidecar(system.name, system.policy or ()).launch(tmp_path, system.model, 9001, 9002)
    alone = triton.PEER.launch(tmp_path, system.model, 9001, 9002)
    assert (fronted.predict_url, fronted.body) == (alone.predict_url, alone.body)
    assert fronted.argv[fronted.argv.index("--component-port") + 1] == "9002"


def test_the_slower_side_decides_the_load_each_at_its_best() -> None:
    names = [each.name for each in before_triton.systems()]
    rates = dict.fromkeys(names, 10.0) | {"Triton, delay 1 ms": 20.0, "Carpool adaptive + Triton": 30.0}
    assert before_triton.lower(rates) == 20.0
    assert before_triton.lower(rates | {"Triton, delay 0 ms": 40.0}) == 30.0


# --- cells and tables


def test_a_cell_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="unknown cell 'nothing'; there are json-100B"):
        cells.select(["grpc", "nothing"])
    assert cells.select([]) == set(cells.NAMES)
    assert cells.select(["grpc"]) == {"grpc"}


def _side(title: str, *rates: float, errors: dict[str, int] | None = None) -> run.Side:
    found = [
        stand.Sample(100, rate, 0.001, 0.002, errors or {}, 0.00005, 0.9, behind_busy=0.1, batch=32.0, others_busy=0.0)
        for rate in rates
    ]
    return run.Side(title, samples.Rounds(list(found)))


def test_a_duel_is_decided_by_the_medians_of_its_rounds() -> None:
    found = run.DuelOutcome(cells.DUELS[0], _side("v1 JSON", 100, 200, 1_000), _side("v2 JSON", 10, 190, 200))
    first, second = tables.duel_rows(found)
    assert found.ratio == pytest.approx(0.95)
    assert first == ["100 B", "v1 JSON", "200", "", "", "1.0", "2.0", "0.050", "", "90%", "10%", "32.0", ""]
    assert second == [
        "100 B",
        "v2 JSON",
        "190",
        "0.95",
        "0.9",
        "1.0",
        "2.0",
        "0.050",
        "1.00",
        "90%",
        "10%",
        "32.0",
        "met",
    ]


def test_a_side_with_errors_has_failed_however_fast_it_was() -> None:
    found = run.DuelOutcome(cells.DUELS[0], _side("v1 JSON", 1), _side("v2 JSON", 9, errors={"status": 3}))
    assert tables.duel_rows(found)[1][-1] == "FAILED: 3 status"


def test_the_grpc_row_has_the_target_and_the_one_without_a_sidecar_none() -> None:
    assert tables.rpc_row(_side("through", 6_000), is_sidecar=True)[-1] == "met"
    assert tables.rpc_row(_side("through", 4_000), is_sidecar=True)[-1] == "missed"
    assert tables.rpc_row(_side("direct", 4_000), is_sidecar=False)[2] == ""
    assert tables.rpc_row(_side("direct", 4_000), is_sidecar=False)[-1] == ""


def _outcome(system: before_triton.System, rate: float, p99: float, saturated: bool = False) -> before_triton.Outcome:
    closed = samples.Rounds([samples.Sample(1, rate, 0.0, 0.0)])
    open_ = samples.Rounds([samples.Sample(1, 1.0, 0.01, p99, lag_p99=0.0001, is_saturated=saturated)])
    return before_triton.Outcome(system, closed, open_, 1_000.0)


def test_each_sidecar_is_held_against_the_best_of_tritons_settings_in_each_figure() -> None:
    rates, tails = (100.0, 120.0, 90.0, 126.0, 60.0), (0.030, 0.050, 0.060, 0.024, 0.036)
    found = [_outcome(*each) for each in zip(before_triton.systems(), rates, tails, strict=True)]
    assert tables.triton_verdicts(found) == [
        "Carpool adaptive + Triton: 1.05 of Triton's best throughput (met), 0.80 of its best p99 (met)",
        "Carpool window + Triton: 0.50 of Triton's best throughput (missed), 1.20 of its best p99 (missed)",
    ]


def test_a_saturated_system_has_no_percentiles() -> None:
    row = tables.triton_row(_outcome(before_triton.systems()[0], 100.0, 9.9, saturated=True))
    assert row[4:7] == ["saturated", "", ""]


def test_where_others_had_much_of_the_sidecars_core_is_said() -> None:
    quiet, loud = _side("v1 JSON", 1, 2, 3), _side("v2 JSON", 1, 2, 3)
    for sample in loud.rounds.samples[:2]:
        sample.others_busy = 0.3  # type: ignore[attr-defined]
    assert tables.disturbances(run.Outcome([run.DuelOutcome(cells.DUELS[0], quiet, loud)])) == ["100 B, v2 JSON (30%)"]


def test_the_figures_of_every_round_are_kept() -> None:
    duel = run.DuelOutcome(cells.DUELS[0], _side("v1 JSON", 1, 2), _side("v2 JSON", 3, 4))
    kept = tables.as_json(run.Outcome([duel], absent={"grpc": "no Go"}), {"command": "x"})
    assert [each["rate"] for each in kept["duels"][0]["rounds"]["v2 JSON"]] == [3, 4]
    assert (kept["command"], kept["absent"]) == ("x", {"grpc": "no Go"})
    json.dumps(kept)
