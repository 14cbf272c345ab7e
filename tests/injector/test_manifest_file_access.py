"""Files are found, read and replaced so that no byte is lost and nobody sees half of one."""

from __future__ import annotations

import io
import stat
from pathlib import Path

import pytest

from carpool_injector.commands import inputs

NOTHING = io.BytesIO()


def test_a_directory_gives_its_manifests_below_it_in_order_and_nothing_hidden(tmp_path: Path) -> None:
    for name in ("b.yaml", "a/c.yml", "a/d.json", "README.md", ".git/x.yaml", "a/.e.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [Path(name).relative_to(tmp_path).as_posix() for name in inputs.find([str(tmp_path)])]
    assert found == ["a/c.yml", "a/d.json", "b.yaml"]


def test_files_that_are_named_are_read_whatever_they_are_called(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a: 1\n")
    assert list(inputs.find([str(tmp_path / "x.txt"), "-"])) == [str(tmp_path / "x.txt"), "-"]


def test_a_directory_without_manifests_is_told(tmp_path: Path) -> None:
    with pytest.raises(inputs.Unusable, match=r"no manifest in this directory \(\.yaml, \.yml, \.json\)"):
        list(inputs.find([str(tmp_path)]))


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(inputs.Unusable, match="cannot be read: No such file or directory"):
        inputs.read_file(str(tmp_path / "none.yaml"), NOTHING)


def test_what_is_not_utf_8_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(inputs.Unusable, match=r"^stdin:2: is not UTF-8; save it as UTF-8$"):
        inputs.read_file("-", io.BytesIO(b"a: 1\nb: \xff\n"))


def test_a_byte_order_mark_and_line_ends_stay(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\n")
    file = inputs.read_file(str(path), NOTHING)
    assert (file.text, file.marked) == ("a: 1\r\n", {0})
    inputs.write_file(file, "a: 2\r\n")
    assert path.read_bytes() == b"\xef\xbb\xbfa: 2\r\n"


@pytest.mark.parametrize(
    ("content", "marked"),
    [
        ("---\n\ufeffa: 1\n--- # two\r\n\ufeff{}\n---\nb: |\n  \ufeff---\n", {1, 2}),
        ("\ufeff---\na: 1\n---\n\ufeffb: 2", {0, 2}),
        ("\ufeffa: 1\n", {0}),
        ("a: 1\n", set()),
    ],
)
def test_the_byte_order_mark_of_each_document_stays(content: str, marked: set[int]) -> None:
    file = inputs.read_file("-", io.BytesIO(content.encode()))
    assert file.marked == marked
    assert "\ufeffa" not in file.text
    assert inputs.encoded(file, file.text) == content.encode()


def test_a_replaced_file_keeps_its_mode_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\n")
    path.chmod(0o640)
    inputs.write_file(inputs.read_file(str(path), NOTHING), "a: 2\n")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("a: 2\n", 0o640)
    assert list(tmp_path.iterdir()) == [path]


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    target, link = tmp_path / "target.yaml", tmp_path / "link.yaml"
    target.write_text("a: 1\n")
    link.symlink_to(target)
    inputs.write_file(inputs.read_file(str(link), NOTHING), "a: 2\n")
    assert link.is_symlink()
    assert target.read_text() == "a: 2\n"


def test_a_file_that_cannot_be_replaced_stays_and_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\n")
    file = inputs.read_file(str(path), NOTHING)
    path.unlink()
    with pytest.raises(inputs.Unusable, match="cannot be written"):
        inputs.write_file(file, "a: 2\n")
    assert list(tmp_path.iterdir()) == []


def test_what_is_piped_in_cannot_be_replaced() -> None:
    with pytest.raises(inputs.Unusable, match="leave --in-place out"):
        inputs.write_file(inputs.read_file("-", io.BytesIO(b"a: 1\n")), "a: 2\n")


@pytest.mark.parametrize(
    ("texts", "stream"),
    [
        ([], ""),
        (["a: 1"], "a: 1"),
        (["a: 1", "b: 2\n"], "a: 1\n---\nb: 2\n"),
        (["a: 1\n", "---\nb: 2\n", '{"c": 3}'], 'a: 1\n---\nb: 2\n---\n{"c": 3}'),
    ],
)
def test_several_files_make_one_stream_of_documents(texts: list[str], stream: str) -> None:
    assert inputs.joined(texts) == stream
