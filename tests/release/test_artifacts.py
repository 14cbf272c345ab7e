"""What a release is made of: the chart that needs no values, bills of materials, digests of everything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.charts import helm

Script = Callable[[str], ModuleType]

DIGEST = "sha256:" + "0" * 63
IMAGES = {
    "sidecar": f"ghcr.io/acme/carpool-sidecar:1.2.3@{DIGEST}1",
    "injector": f"ghcr.io/acme/carpool-injector:1.2.3@{DIGEST}2",
}
VALUES = (helm.CHART / "values.yaml").read_text()


@pytest.fixture(scope="module")
def artifacts(script: Script) -> ModuleType:
    return script("release_artifacts")


@pytest.fixture(scope="module")
def publishing(script: Script) -> ModuleType:
    return script("release_publishing")


def test_the_released_chart_differs_from_the_checkouts_in_the_images_alone(artifacts: ModuleType) -> None:
    before, after = VALUES.splitlines(), artifacts.with_images(VALUES, IMAGES).splitlines()
    assert len(before) == len(after)
    changed = [new.strip().replace('"', "") for old, new in zip(before, after, strict=True) if old != new]
    assert changed == [
        f"image: {IMAGES['sidecar']}",
        "registry: ghcr.io",
        "repository: acme/carpool-injector",
        "tag: 1.2.3",
        f"digest: {DIGEST}2",
    ]


def test_the_released_chart_installs_the_released_images_by_digest(
    artifacts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        program = helm.find()
    except helm.Unavailable as reason:
        pytest.skip(str(reason))
    monkeypatch.setenv("HOME", str(tmp_path))
    version = artifacts.release_versions.current()
    package = artifacts.chart(tmp_path, program, version, IMAGES, lambda words: None)
    assert package.name == f"carpool-{version}.tgz"
    assert package.is_file()
    rendered = (tmp_path / "install.yaml").read_text()
    assert rendered.count(f"ghcr.io/acme/carpool-injector@{DIGEST}2") >= 1
    assert rendered.count(f"image: {IMAGES['sidecar']}") == 1
    assert "kind: Namespace" in rendered


def test_a_reader_of_the_page_can_check_each_download_by_the_sums(artifacts: ModuleType, tmp_path: Path) -> None:
    for name in ("packages/a b.whl", "chart/carpool-1.tgz", "bills/one.json", "install.yaml", "images/large.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    sums = artifacts.page(tmp_path)
    offered = ["a b.whl", "carpool-1.tgz", "install.yaml", "one.json"]
    assert [line.split("  ")[1] for line in sums.read_text().splitlines()] == offered
    assert sorted(path.name for path in sums.parent.iterdir()) == [artifacts.SUMS, *offered]
    artifacts.check_sums(sums)
    (sums.parent / "one.json").write_bytes(b"another")
    with pytest.raises(artifacts.Problem, match=r"one\.json: FAILED"):
        artifacts.check_sums(sums)


def test_two_files_of_one_name_are_refused_since_the_page_has_no_folders(artifacts: ModuleType, tmp_path: Path) -> None:
    for folder in ("packages", "chart"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "carpool-1.tgz").write_bytes(folder.encode())
    with pytest.raises(artifacts.Problem, match=r"two files of the release are called carpool-1\.tgz"):
        artifacts.page(tmp_path)


def test_a_release_without_notes_is_refused(artifacts: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(artifacts.Problem, match=r"CHANGELOG\.md says nothing of 99\.0\.0"):
        artifacts.notes(tmp_path, "99.0.0")


def bill(folder: Path, part: str, names: list[str], *, of: str = "") -> None:
    (folder / "bills").mkdir(exist_ok=True)
    listed = {"name": of or f"carpool-{part}", "packages": [{"name": name} for name in names]}
    (folder / "bills" / f"carpool-{part}-amd64.spdx.json").write_text(json.dumps(listed))


def test_a_bill_of_materials_that_lacks_a_pinned_package_is_refused(publishing: ModuleType, tmp_path: Path) -> None:
    bill(tmp_path, "injector", ["python", "aiohttp"])
    with pytest.raises(publishing.Problem, match=r"(?s)carpool-injector-amd64.*lacks.*pydantic"):
        publishing.check_bills(tmp_path)


def test_a_bill_of_materials_that_calls_the_image_by_a_path_is_refused(publishing: ModuleType, tmp_path: Path) -> None:
    bill(tmp_path, "injector", ["python"], of="/somewhere/carpool-injector-amd64.tar")
    with pytest.raises(publishing.Problem, match=r"is a bill of '/somewhere/carpool-injector-amd64\.tar'"):
        publishing.check_bills(tmp_path)


def test_no_bills_at_all_are_refused(publishing: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(publishing.Problem, match=r"no bill of materials"):
        publishing.check_bills(tmp_path)


def test_a_key_signs_without_a_public_log_and_no_key_means_the_identity_is_checked(publishing: ModuleType) -> None:
    with_key = publishing.Signer(Path("cosign"), Path("x/rehearsal.key"))
    assert with_key.verifying()[:2] == ["--key", Path("x/rehearsal.pub")]
    keyless = publishing.Signer(Path("cosign"), identity="^https://example.org/")
    assert keyless.verifying()[:2] == ["--certificate-identity-regexp", "^https://example.org/"]
    assert keyless.signing() == []
