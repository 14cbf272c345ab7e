"""With --admin-token-file the admin port is read-only but for those who have the token, wherever they are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from carpool_sidecar.app import drain_command
from carpool_sidecar.server import admin_access

TOKEN = "s3cr3t-of-the-cluster"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


async def changed(bench: Any, headers: dict[str, str]) -> tuple[int, str]:
    async with bench.client.patch(bench.admin + "/config", data='{"max_batch_size": 2}', headers=headers) as response:
        return response.status, await response.text()


@pytest.mark.looptime
async def test_what_changes_something_takes_the_token_and_what_is_read_does_not(sidecar_of: Any, file: Path) -> None:
    bench = await sidecar_of(admin_token_file=str(file))
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
        status, text = await changed(bench, headers)
        assert (status, "Authorization: Bearer TOKEN" in text) == (401, True)
        async with bench.client.post(bench.admin + "/drain", headers=headers) as response:
            assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert bench.sidecar.settings.max_batch_size != 2
    for path in ("/config", "/metrics", "/livez", "/readyz", "/drain", "/arrivals"):
        assert (await bench.get(bench.admin + path))[0] == 200
    status, text = await changed(bench, RIGHT)
    assert (status, bench.sidecar.settings.max_batch_size, TOKEN in text) == (200, 2, False)


@pytest.mark.looptime
async def test_with_the_token_a_caller_need_not_be_in_the_pod(
    sidecar_of: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(admin_access, "_is_inside", lambda address: False)
    bench = await sidecar_of(admin_token_file=str(file))
    assert (await changed(bench, RIGHT))[0] == 200
    assert (await changed(bench, {**RIGHT, "Origin": "https://evil.example"}))[0] == 403


@pytest.mark.looptime
async def test_a_token_that_was_renewed_counts_at_once_and_one_that_is_not_there_lets_nobody_in(
    sidecar_of: Any, file: Path
) -> None:
    bench = await sidecar_of(admin_token_file=str(file))
    written = asyncio.to_thread
    await written(file.write_text, "another")
    assert (await changed(bench, RIGHT))[0] == 401
    assert (await changed(bench, {"Authorization": "Bearer another"}))[0] == 200
    await written(file.write_text, " \n")
    assert await changed(bench, {"Authorization": "Bearer "}) == (
        401,
        f"changes take the token in {file}, which is empty\n",
    )
    await written(file.unlink)
    status, text = await changed(bench, RIGHT)
    assert (status, text) == (
        401,
        f"changes take the token in {file}, which cannot be read: No such file or directory\n",
    )


@pytest.mark.parametrize("value", ["Bearer \udcff", "Bearer ü", "bearer s3cr3t-of-the-cluster", "Bearer", ""])
def test_a_header_that_is_anything_else_is_no_token(file: Path, value: str) -> None:
    assert admin_access.objection_to_token({"Authorization": value}, str(file))
    assert admin_access.objection_to_token(RIGHT, str(file)) == ""


@pytest.mark.parametrize("by", ["flag", "variable"])
async def test_the_drain_of_the_sidecars_own_container_shows_the_token(
    sidecar_of: Any, file: Path, by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = await sidecar_of(admin_token_file=str(file), quiet_period=0)
    words = [f"--admin-port={bench.sidecar.settings.admin_port}"]
    assert await asyncio.to_thread(drain_command.main, words) == 1
    assert "answered 401: changes take the token" in capsys.readouterr().err
    assert await asyncio.to_thread(drain_command.main, [*words, f"--admin-token-file={file}.none"]) == 1
    assert "which cannot be read: No such file or directory" in capsys.readouterr().err
    environment = {"CARPOOL_ADMIN_TOKEN_FILE": str(file)} if by == "variable" else {}
    words += [f"--admin-token-file={file}"] if by == "flag" else []
    assert await asyncio.to_thread(drain_command.main, words, environment) == 0
