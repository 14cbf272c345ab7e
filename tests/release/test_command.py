"""The command of releases ends with a word about what is wrong, before it does what takes minutes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def release(script: Script) -> ModuleType:
    return script("release")


def test_a_folder_that_cannot_be_made_is_told(
    release: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    assert release.main(["--folder", str(tmp_path / "taken"), "images"]) == 1
    assert "taken" in capsys.readouterr().err


def test_asking_whether_a_tag_fits_leaves_no_folder_behind(release: ModuleType, tmp_path: Path) -> None:
    assert release.main(["--folder", str(tmp_path / "none"), "check", "v0.0.0"]) == 1
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("published", [None, "", "{"], ids=["nothing", "empty", "half"])
def test_what_was_not_published_is_told_before_tools_are_built(
    release: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], published: str | None
) -> None:
    if published is not None:
        (tmp_path / "digests.json").write_text(published)
    tools = tmp_path / "tools"
    words = ["--folder", str(tmp_path), "--tools", str(tools), "verify", "ghcr.io/acme", "--identity", "^x$"]
    assert release.main(words) == 1
    assert "`release.py publish` writes it" in capsys.readouterr().err
    assert not tools.exists()


def test_a_relative_folder_is_where_the_command_was_started(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert release.main(["--folder", "here", "verify", "ghcr.io/acme", "--identity", "^x$"]) == 1
    assert f"{tmp_path}/here/digests.json" in capsys.readouterr().err
