"""The program as its users run it: settings, signals, exit statuses."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from carpool_predictor import config, process, served_model


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--models", "gpt"], "'gpt' is not built in; allowed: echo, minilm, vit-random or name=package.module:Class"),
        (["--models", "a=module"], "'module' is no import path; write a=package.module:Class"),
        (["--models", "a/b=echo"], "'a/b' is no model name"),
        (["--models", "echo,echo"], "two models are named 'echo'"),
        (["--models", ""], "--models"),
        (["--echo-fixed-ms", "-1"], "--echo-fixed-ms"),
        (["--port", "http"], "--port"),
        (["--max-waiting-bytes", "1"], "--max-waiting-bytes (1) must be at least --max-body-bytes"),
        (["--max-latency", "5"], "--max-latency (5) needs --max-batch-size"),
        (["--max-batch-size", "-1"], "--max-batch-size"),
        (["--device", "gpu"], "'gpu' is no device; allowed: auto, cpu, cuda, cuda:0"),
        (["--device", ""], "--device"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_settings_get_one_clear_line_and_exit_2(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        process.main(arguments)
    assert exit_info.value.code == 2
    output = capsys.readouterr()
    assert problem in output.err
    assert (output.err.count("\n"), output.out) == (1, "")


def test_help_explains_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        process.main(["--help"])
    assert exit_info.value.code == 0
    page = capsys.readouterr().out
    for name, field in config.Settings.model_fields.items():
        assert "--" + name.replace("_", "-") in page
        assert config.PREFIX + name.upper() in page
        assert field.description


def test_the_link_variable_of_a_service_named_carpool_predictor_is_not_taken_for_a_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CARPOOL_PREDICTOR_PORT", "tcp://10.0.0.7:80")
    assert config.Settings().port == 8080


def test_batching_is_off_by_default_and_adaptive_without_a_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.Settings().batching() is None
    assert config.Settings(max_batch_size=32).batching() == served_model.Batching(32, None)
    assert config.Settings(max_batch_size=32, max_latency=5).batching() == served_model.Batching(32, 0.005)


def test_settings_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARPOOL_PREDICTOR_MODELS", "echo,words=package.words:Count")
    monkeypatch.setenv("CARPOOL_PREDICTOR_ECHO_FIXED_MS", "2.5")
    settings = config.Settings()
    assert [spec.target for spec in settings.specs()] == ["echo", "package.words:Count"]
    assert settings.options().echo_fixed_ms == 2.5


class Program:
    """A running `carpool-predictor` and its log."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self.other: list[bytes] = []

    async def log(self, message: str) -> dict[str, Any]:
        """Read the log until a line says `message`."""
        assert self.process.stderr
        async for line in self.process.stderr:
            if not line.startswith(b"{"):
                self.other.append(line)
                continue
            self.lines.append(msgspec.json.decode(line))
            if self.lines[-1]["message"] == message:
                return self.lines[-1]
        raise AssertionError(f"the log ended without {message!r}: {self.lines} {self.other}")

    async def end(self) -> int:
        """Read the rest of the log and return the exit status."""
        assert self.process.stderr
        self.other += [line async for line in self.process.stderr if not line.startswith(b"{")]
        return await self.process.wait()


@asynccontextmanager
async def program(*arguments: str) -> AsyncIterator[Program]:
    """The program with flags, at a port of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "carpool_predictor", "--host", "127.0.0.1", "--port", "0", "--log-format", "json"),
        *arguments,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.fixture
def pipe(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    monkeypatch.setenv("SAMPLE_PIPE", str(path))
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("batching", [[], ["--max-batch-size", "8"]])
async def test_a_signal_answers_what_was_accepted_and_exits_0(
    number: signal.Signals, batching: list[str], pipe: pathlib.Path
) -> None:
    async with program("--models", "m=sample_models:Mortal", *batching) as running, aiohttp.ClientSession() as client:
        port = (await running.log("listening"))["port"]
        await running.log("worker ready")
        url = f"http://127.0.0.1:{port}/v1/models/m:predict"
        request = asyncio.create_task(client.post(url, json={"instances": [f"READ {pipe}"]}))
        holding = await asyncio.to_thread(pipe.open, "wb")  # returns once the model reads, so the call has arrived
        running.process.send_signal(number)
        await running.log("stopping")
        holding.close()
        async with await request as response:
            assert response.status == 200
        assert await running.end() == 0
        assert running.other == []  # no traceback


@pytest.mark.parametrize("batching", [[], ["--max-batch-size", "8"]])
async def test_a_second_signal_ends_the_waiting(batching: list[str], pipe: pathlib.Path) -> None:
    async with program("--models", "m=sample_models:Mortal", *batching) as running, aiohttp.ClientSession() as client:
        port = (await running.log("listening"))["port"]
        await running.log("worker ready")
        url = f"http://127.0.0.1:{port}/v1/models/m:predict"
        request = asyncio.create_task(client.post(url, json={"instances": [f"READ {pipe}"]}))
        holding = await asyncio.to_thread(pipe.open, "wb")
        running.process.terminate()
        await running.log("stopping")
        running.process.terminate()
        async with await request as response:
            assert response.status == 503
        holding.close()
        assert await running.end() == 0


async def test_readiness_fails_during_the_quiet_period_while_requests_are_served() -> None:
    async with program("--quiet-period", "3600") as running, aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{(await running.log('listening'))['port']}"
        await running.log("worker ready")
        running.process.terminate()
        await running.log("draining")
        async with client.get(f"{url}/readyz") as response:
            assert response.status == 503
        async with client.post(f"{url}/v1/models/echo:predict", data=b'{"instances":[1]}') as response:
            assert response.status == 200
        running.process.terminate()
        assert await running.end() == 0


async def test_no_worker_outlives_a_killed_server(pipe: pathlib.Path) -> None:
    async with program("--models", "m=sample_models:HoldingPipe") as running:
        held = await asyncio.to_thread(pipe.open, "rb")  # returns once the worker has the other end
        with held:
            await running.log("worker ready")
            running.process.kill()
            assert await asyncio.to_thread(held.read) == b""  # the worker's end is closed: it is gone


async def test_a_model_that_cannot_be_imported_exits_2_with_one_line() -> None:
    async with program("--models", "m=no_such_module:Model") as running:
        assert await running.end() == 2
        assert b"".join(running.other) == (
            b"carpool-predictor: error: cannot import no_such_module:Model: No module named 'no_such_module'"
            b" (see carpool-predictor --help)\n"
        )


async def test_a_taken_port_exits_1(unused_tcp_port: int) -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", unused_tcp_port)
    async with server, program("--port", str(unused_tcp_port)) as running:
        assert (await running.log("cannot listen"))["port"] == unused_tcp_port
        assert await running.end() == 1


@pytest.mark.parametrize(
    ("text", "limit"),
    [("", None), ("0.5", 0.5), ("1", 1.0), ("50%", 0.5), ("100 %", 1.0), ("8GiB", 8 * 2**30), ("500MB", 5e8)],
)
def test_gpu_memory_is_a_share_or_an_amount(text: str, limit: float | None) -> None:
    assert config.Settings(gpu_memory=text).options().gpu_memory == limit
