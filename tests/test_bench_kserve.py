"""KServe's batcher as a peer of the benchmark: what it is built from, how it is started, which answers count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.peers import kserve, peer, python_servers

MODEL = peer.Model(fixed_ms=10, per_row_ms=0.1, max_batch=16, wait_ms=5)


def _launch(model: peer.Model = MODEL) -> peer.Launch:
    return kserve.PEER.launch(Path("/cache"), model, port=9001, component_port=9002)


def _option(launch: peer.Launch, name: str) -> str:
    return launch.argv[launch.argv.index(name) + 1]


def _answer(**changes: object) -> bytes:
    good = {"message": "", "batchId": "5c1d", "predictions": [python_servers.ROW]}
    return json.dumps({**good, **changes}).encode()


def test_a_release_of_kserve_is_pinned() -> None:
    assert kserve.pinned_version().startswith("v")
    assert f"github.com/kserve/kserve {kserve.pinned_version()} h1:" in (kserve.PROGRAM / "go.sum").read_text()


def test_the_batcher_gets_the_models_batch_size_and_wait() -> None:
    launch = _launch()
    assert (_option(launch, "--max-batchsize"), _option(launch, "--max-latency")) == ("16", "5")
    assert (_option(launch, "--port"), _option(launch, "--component-port")) == ("9001", "9002")
    assert launch.needs_predictor


def test_no_wait_becomes_the_smallest_that_the_agent_takes() -> None:
    assert _option(_launch(peer.Model(fixed_ms=10, per_row_ms=0.1, max_batch=16, wait_ms=0)), "--max-latency") == "1"


def test_only_the_row_without_a_message_is_a_right_answer() -> None:
    check = _launch().check
    assert check(_answer())
    assert not check(_answer(message="predictor unreachable", predictions=None))
    assert not check(_answer(predictions=[[1.0, 2.0, 3.0, 4.0]]))
    assert not check(b"[]")
    assert not check(b"no instances in the request\n")


def test_without_go_it_is_missing_for_that_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kserve.PEER.missing() == "no Go toolchain on PATH"
