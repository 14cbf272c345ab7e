"""What a sidecar keeps of its arrivals, and what a replay makes of them: known traffic, in virtual time."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from carpool_sidecar.app import advise_command
from carpool_sidecar.planning import advice, replay
from carpool_sidecar.recording import document

pytestmark = pytest.mark.looptime

TOLERANCE = 0.1  # of mean batch and mean time; the sidecar had to learn first, and the replay has other noise

SERVICE = (0.010, 0.001)  # seconds of a call, and of an instance


def serve(rows: int) -> float:
    return SERVICE[0] + SERVICE[1] * rows


async def arrivals_of(bench) -> document.Recording:
    async with bench.client.get(bench.admin + "/arrivals") as response:
        assert response.status == 200
        return document.decode(await response.read())


async def drive(bench, rate: float, seconds: float, rows: int = 1) -> list[int]:
    """Poisson callers, whose number is known; the statuses that they got."""
    source = random.Random(7)
    body = json.dumps({"instances": [1] * rows})
    tasks = []
    now = asyncio.get_running_loop().time
    end = now() + seconds
    while now() < end:
        await asyncio.sleep(source.expovariate(rate))
        tasks.append(asyncio.ensure_future(bench.post(body)))
    return [status for status, _, _ in await asyncio.gather(*tasks)]


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({"policy": "window", "max_latency": 20, "max_batch_size": 8}, 150),
        ({"policy": "window", "max_latency": 5, "max_batch_size": 4, "max_in_flight": 2}, 200),
        ({"policy": "adaptive", "max_batch_size": 16}, 300),
    ],
)
async def test_the_replay_of_the_present_setting_agrees_with_what_was_measured(sidecar_of, settings, rate):
    bench = await sidecar_of(**settings)
    bench.predictor.service = serve
    statuses = await drive(bench, rate, 5)
    recording = await arrivals_of(bench)
    found = advice.advise(recording)
    assert len(found.arrivals.times) == len(statuses)
    assert found.off < TOLERANCE
    assert found.differences[4] == ("refused", 0.0, 0.0)


async def test_overload_is_replayed_with_those_who_were_refused(sidecar_of):
    bench = await sidecar_of(policy="adaptive", max_batch_size=4, slo=60)
    bench.predictor.service = serve
    statuses = await drive(bench, 500, 8)
    recording = await arrivals_of(bench)
    kept = sum(len(block.at) for block in recording.present)
    refused = sum(block.refused for block in recording.present)
    assert kept == len(statuses)
    assert refused == statuses.count(429) > 500
    found = advice.advise(recording, 0.06)
    assert found.off < TOLERANCE
    assert found.differences[4].replayed == pytest.approx(refused / kept, abs=0.05)
    assert found.best.changes["max_batch_size"] > 4
    assert found.best.figures.in_time > found.cases[0].figures.in_time + 0.2


async def test_what_left_the_queue_in_time_and_what_did_not_is_written_down_once(sidecar_of):
    bench = await sidecar_of(policy="window", max_latency=50, max_batch_size=2, max_in_flight=1, timeout=1)
    bench.predictor.gate.clear()
    body = json.dumps({"instances": [1]})
    tasks = [asyncio.ensure_future(bench.post(body)) for _ in range(5)]
    statuses = [status for status, _, _ in await asyncio.gather(*tasks)]
    assert statuses == [504] * 5
    [block] = (await arrivals_of(bench)).present
    sent = sum(map(len, bench.predictor.batches))
    assert 0 < sent < 5
    assert (len(block.at), block.refused) == (5, 5 - sent)


async def test_a_caller_that_leaves_the_queue_counts_as_an_arrival(sidecar_of):
    bench = await sidecar_of(policy="window", max_latency=500, max_batch_size=8)
    leaving = asyncio.ensure_future(bench.post(json.dumps({"instances": [1, 2, 3]})))
    await bench.queued(1)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await asyncio.sleep(1)
    [block] = (await arrivals_of(bench)).present
    assert (block.rows, block.refused) == ([3], 1)


async def test_arrivals_have_rows_bytes_and_keys_but_nothing_that_was_in_them(sidecar_of):
    bench = await sidecar_of(policy="window", max_latency=10, max_batch_size=4)
    bodies = [json.dumps({"instances": ["secret"] * rows}) for rows in (1, 2, 6)]
    for body in bodies:
        await bench.post(body)
    await bench.post(bodies[0], path="/v1/models/hidden:predict")
    async with bench.client.get(bench.admin + "/arrivals") as response:
        assert response.content_type == "application/jsonl"
        text = await response.text()
    assert "secret" not in text
    assert "hidden" not in text
    [block] = document.decode(text.encode()).present
    assert block.rows == [1, 2, 6, 1]
    assert block.bytes == [len(bodies[0]), len(bodies[1]), len(bodies[2]), len(bodies[0])]
    assert len(set(block.keys[:3])) == 1
    assert block.keys[3] != block.keys[0]
    assert sum(block.batches.rows) == 10
    assert sum(block.measured.request.counts) == 4
    assert sum(block.measured.wait.counts) == 4


async def test_what_came_under_other_settings_is_told_apart(sidecar_of):
    bench = await sidecar_of(policy="window", max_latency=10)
    body = json.dumps({"instances": [1]})
    await bench.post(body)
    async with bench.client.patch(bench.admin + "/config", data='{"max_latency": 20}') as response:
        assert response.status == 200
    await bench.post(body)
    await bench.post(body)
    recording = await arrivals_of(bench)
    assert [settings.max_latency for settings, _ in recording.blocks] == [10, 20]
    assert [len(block.at) for block in recording.present] == [2]
    with pytest.raises(replay.Nothing, match="2 requests were recorded under the settings in force"):
        advice.advise(recording)


async def test_a_file_has_what_came_and_goes_on_after_a_restart(sidecar_of, tmp_path):
    path = tmp_path / "arrivals.jsonl"
    for _ in range(2):
        bench = await sidecar_of(policy="window", max_latency=10, record=str(path))
        for _ in range(3):
            await bench.post(json.dumps({"instances": [1, 2]}))
        await bench.sidecar.recorder.close()
    recording = document.decode(path.read_bytes())
    assert [block.rows for _, block in recording.blocks] == [[2, 2, 2]] * 2
    assert recording.damaged == 0
    assert len(recording.present) == 2


async def test_a_file_that_cannot_be_written_costs_the_recording_and_no_request(sidecar_of, tmp_path, caplog):
    bench = await sidecar_of(policy="window", max_latency=10, record=str(tmp_path / "missing" / "arrivals.jsonl"))
    for _ in range(3):
        assert (await bench.post(json.dumps({"instances": [1]})))[0] == 200
        bench.sidecar.arrivals.seal()
    await bench.sidecar.recorder.close()
    told = [record for record in caplog.records if "not recorded any more" in record.getMessage()]
    assert len(told) == 1
    assert told[0].facts["reason"] == "No such file or directory"


async def test_the_command_asks_the_sidecar(sidecar_of, capsys):
    bench = await sidecar_of(policy="window", max_latency=20, max_batch_size=8)
    bench.predictor.service = serve
    await drive(bench, 150, 3)
    port = str(bench.sidecar.settings.admin_port)
    code = await asyncio.to_thread(advise_command.main, ["--admin-port", port, "--json"], {})
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert told["flags"].startswith("--max-latency 0")
    assert told["off"] < TOLERANCE


@pytest.mark.looptime
async def test_a_page_of_another_site_does_not_get_the_arrivals(sidecar_of):
    bench = await sidecar_of(max_latency=0)
    for headers in ({"Host": "evil.com"}, {"Sec-Fetch-Site": "cross-site"}):
        status, told, _ = await bench.get(bench.admin + "/arrivals", headers=headers)
        assert (status, "schedul" in told) == (403, False)
    assert (await bench.get(bench.admin + "/arrivals"))[0] == 200
