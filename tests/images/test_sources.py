"""Where packages and bases come from: the machine's index, the pinned requirements, and a base without a registry."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]
Program = Callable[[str, str], None]

SIDECAR = "aiohttp==3 \\\n    --hash=sha256:aa\ngrpcio==1 \\\n    --hash=sha256:bb\n"
PREDICTOR = "".join(
    f"{pin} \\\n    --hash=sha256:{digest}\n"
    for pin, digest in {"aiohttp==3": "aa", "nvidia-nccl==2": "cc", "torch==2.15.0": "dd"}.items()
)


class Engine:
    """An engine that has the images it was given, and can pull nothing."""

    def __init__(self) -> None:
        self.bases: list[str] = []

    def image(self, name: str) -> str | None:
        return name if name in self.bases else None

    def add_base(self, tar: Path, name: str, architecture: str = "") -> None:
        self.bases.append(name)


@pytest.fixture(scope="module")
def index(script: Script) -> ModuleType:
    return script("image_index")


@pytest.fixture
def base(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return script("image_base")


def test_the_environment_wins_over_files_and_later_files_over_earlier(index: ModuleType, tmp_path: Path) -> None:
    early, late = tmp_path / "early", tmp_path / "late"
    early.write_text("[global]\nindex-url = https://one.example/simple\ntimeout = 3\n")
    late.write_text("[global]\nindex-url = https://two.example/simple\n[install]\ntrusted-host = two.example\n")
    told = index.settings({"PIP_TIMEOUT": "9"}, [early, late, tmp_path / "missing"])
    assert told == {"index-url": "https://two.example/simple", "trusted-host": "two.example", "timeout": "9"}


def test_uvs_words_fill_what_pip_was_not_told(index: ModuleType) -> None:
    told = index.settings({"UV_INDEX_URL": "https://old.example", "UV_DEFAULT_INDEX": "https://new.example"}, [])
    assert told == {"index-url": "https://new.example"}
    assert index.settings({"PIP_INDEX_URL": "https://pip.example", "UV_INDEX_URL": "https://uv.example"}, []) == {
        "index-url": "https://pip.example"
    }


def test_secrets_are_their_owners_alone_and_name_certificates_by_their_place_in_the_build(
    index: ModuleType, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("CERTIFICATE")
    told = {"PIP_CONFIG_FILE": "/nowhere", "HOME": str(tmp_path), "PIP_CERT": str(bundle)}
    told["PIP_INDEX_URL"] = "https://user:word@index.example/simple"
    secrets = index.secrets(told, tmp_path)
    text = secrets["pip.conf"].read_text()
    assert secrets["ca.pem"] == bundle
    assert secrets["pip.conf"].stat().st_mode & 0o777 == 0o600
    assert "index-url = https://user:word@index.example/simple\n" in text
    assert "cert = /run/secrets/ca.pem\n" in text
    assert str(tmp_path) not in text


@pytest.mark.parametrize(
    ("torch", "files"),
    [
        ("none", {"requirements.txt": "aiohttp==3 \\\n    --hash=sha256:aa\n"}),
        ("cuda", {"requirements.txt": PREDICTOR}),
        ("cpu", {"requirements.txt": "aiohttp==3 \\\n    --hash=sha256:aa\n", "torch.txt": "torch==2.15.0\n"}),
    ],
)
def test_each_build_of_the_predictor_installs_its_own_packages(
    script: Script, torch: str, files: dict[str, str]
) -> None:
    assert script("requirements").files(torch, "", SIDECAR, PREDICTOR) == files


def test_a_hash_that_is_given_holds_torchs_cpu_build(script: Script) -> None:
    files = script("requirements").files("cpu", "ab12", SIDECAR, PREDICTOR)
    assert files["torch.txt"] == "torch==2.15.0 --hash=sha256:ab12\n"


def test_a_base_is_made_once_and_kept_outside_the_checkout(base: ModuleType, program: Program, tmp_path: Path) -> None:
    program(
        "mmdebstrap", f'echo run >> {tmp_path}/runs\nfor word; do case "$word" in /*) echo tar > "$word";; esac; done'
    )
    engine, said = Engine(), list[str]()
    name = base.make(engine, said.append)
    assert name == base.make(engine, said.append)
    assert engine.bases == [name]
    assert (tmp_path / "runs").read_text() == "run\n"
    assert [path.suffix for path in (tmp_path / "cache" / "carpool" / "images").iterdir()] == [".tar"]
    assert base.make(Engine(), said.append) == name  # another engine takes it from the file
    base.make(engine, said.append, again=True)
    assert (tmp_path / "runs").read_text() == "run\nrun\n"


def test_a_base_of_another_mirror_has_another_name(base: ModuleType) -> None:
    assert base.key(base.recipe("base.tar")) != base.key(base.recipe("base.tar", "http://mirror.example/debian"))


def test_naming_the_machines_own_architecture_asks_for_no_other_base(base: ModuleType) -> None:
    own = base.ARCHITECTURES[platform.machine()]
    other = next(each for each in base.ARCHITECTURES.values() if each != own)
    assert base.recipe("base.tar", architecture=own) == base.recipe("base.tar")
    assert base.recipe("base.tar", architecture=other) != base.recipe("base.tar")


def test_a_base_that_fails_leaves_nothing_behind(base: ModuleType, program: Program, tmp_path: Path) -> None:
    program("mmdebstrap", 'for word; do case "$word" in /*) echo half > "$word";; esac; done; echo no mirror; exit 1')
    with pytest.raises(base.Unavailable, match=r"(?s)could not make a base.*no mirror"):
        base.make(Engine(), print)
    assert list((tmp_path / "cache" / "carpool" / "images").iterdir()) == []


def test_without_mmdebstrap_the_other_way_is_told(base: ModuleType, program: Program) -> None:
    with pytest.raises(base.Unavailable, match=r"apt-get install mmdebstrap.*--base IMAGE"):
        base.make(Engine(), print)
