"""The parts of the end-to-end tests' cluster that need no cluster: versions, cache keys, certificates, processes."""

from __future__ import annotations

import os
import signal
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.cluster import binaries, client, credentials, processes

FILES = {"go.mod": b"module cluster\n", "go.sum": b"", "main.go": b"package main\n"}


def test_the_release_of_kubernetes_is_read_from_go_mod() -> None:
    go_mod = (binaries.SOURCE / "go.mod").read_text()
    assert binaries.kubernetes_version(go_mod).startswith("v1.")
    assert binaries.wanted_go(go_mod) >= (1, 21)


def test_every_library_that_kubernetes_develops_in_its_tree_is_of_the_same_release() -> None:
    go_mod = (binaries.SOURCE / "go.mod").read_text()
    minor_and_patch = binaries.kubernetes_version(go_mod).removeprefix("v1.")
    replaced = [line.split()[-1] for line in go_mod.splitlines() if "=>" in line]
    assert len(replaced) > 20
    assert set(replaced) == {f"v0.{minor_and_patch}"}


@pytest.mark.parametrize("go_mod", ["", "module cluster\n\nrequire k8s.io/api v0.34.4\n"])
def test_a_go_mod_without_kubernetes_is_named(go_mod: str) -> None:
    with pytest.raises(binaries.BuildFailed, match=r"go\.mod requires no k8s\.io/kubernetes"):
        binaries.kubernetes_version(go_mod)


@pytest.mark.parametrize(
    ("words", "found"),
    [("go1.26.8", (1, 26, 8)), ("go1.26rc1", (1, 26)), ("1.24.0", (1, 24, 0)), ("devel +abc", ()), ("", ())],
)
def test_versions_of_go_can_be_compared(words: str, found: tuple[int, ...]) -> None:
    assert binaries.numbers(words) == found


def test_the_same_sources_have_the_same_key() -> None:
    assert binaries.key(FILES) == binaries.key(dict(reversed(FILES.items())))


@given(st.sampled_from(sorted(FILES)), st.binary(min_size=1))
def test_any_change_of_the_sources_changes_the_key(name: str, more: bytes) -> None:
    assert binaries.key({**FILES, name: FILES[name] + more}) != binaries.key(FILES)


def test_without_go_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(binaries.Unavailable, match=r"no `go` on PATH.*Go 1\.24 or newer"):
        binaries.find_go((1, 24))


def test_with_an_old_go_the_reason_names_both_versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_script(tmp_path / "go", "echo go1.19.4")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(binaries.Unavailable, match=r"go1\.19\.4.*Go 1\.24 or newer"):
        binaries.find_go((1, 24))


def test_a_build_that_fails_shows_what_the_compiler_said(tmp_path: Path) -> None:
    go = write_script(tmp_path / "go", "echo 'main.go:7: no such package'; exit 1")
    with pytest.raises(binaries.BuildFailed, match="no such package"):
        binaries.build_kubernetes(go, "v1.34.4", tmp_path / "cluster")
    assert not (tmp_path / "cluster").exists()


def test_the_executable_is_kept_outside_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert binaries.cache_folder() == tmp_path / "carpool" / "e2e"
    assert binaries.cache_folder().is_dir()


def test_what_the_authority_issues_is_trusted_for_its_names_alone(tmp_path: Path) -> None:
    signer = credentials.Authority(tmp_path)
    issued = signer.issue("server", "server", hosts=["127.0.0.1", "web.example.com"])
    assert handshake(signer, issued, "web.example.com") == "server"
    assert handshake(signer, issued, "127.0.0.1") == "server"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(signer, issued, "other.example.com")


def test_private_keys_are_their_owners_alone(tmp_path: Path) -> None:
    credentials.write_key(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def handshake(signer: credentials.Authority, issued: credentials.Issued, host: str) -> str:
    """Who a client finds at `host`, by a handshake in memory."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(issued.certificate, issued.key)
    asking = ssl.create_default_context(cafile=str(signer.bundle))
    asking.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(up, down, server_side=True)
    asked = asking.wrap_bio(down, up, server_hostname=host)
    for end in (asked, server, asked, server):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    names = dict(pair for part in (asked.getpeercert() or {})["subject"] for pair in part)
    return str(names["commonName"])


@pytest.mark.parametrize(
    ("headers", "texts"),
    [
        (['299 - "unknown field \\"spec.x\\""'], ('unknown field "spec.x"',)),
        (['299 - "one", 299 - "two"'], ("one", "two")),
        (['299 - "one"', '299 - "two"'], ("one", "two")),
        ([], ()),
    ],
)
def test_warnings_are_read_as_they_were_written(headers: list[str], texts: tuple[str, ...]) -> None:
    assert client.warnings_in(headers) == texts


@pytest.mark.parametrize("body", [b'{"message": "no"}', '{"message": "no"}', b"no", "no"])
def test_a_refusal_is_told_in_the_servers_words(body: bytes | str) -> None:
    assert client.message_in(body) == "no"


def test_paths_name_the_group_the_namespace_and_the_object() -> None:
    assert client.path_of("Pod", "models", "iris") == "/api/v1/namespaces/models/pods/iris"
    assert client.path_of("Namespace", None, "models") == "/api/v1/namespaces/models"
    assert client.path_of("Deployment", "models") == "/apis/apps/v1/namespaces/models/deployments"


def test_flags_are_written_as_the_components_read_them() -> None:
    assert processes.flags({"v": 1, "data-dir": Path("/data")}) == ["--v=1", "--data-dir=/data"]


def test_a_process_that_ends_early_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    process = processes.Process("etcd", ["sh", "-c", "echo no disk; exit 3"], tmp_path / "log")
    try:
        with pytest.raises(processes.ProcessFailed, match=r"(?s)etcd ended with status 3.*no disk"):
            process.wait_until_ready(lambda: False, 10)
    finally:
        process.stop()


def test_a_process_that_is_not_ready_in_time_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    process = processes.Process("etcd", ["sh", "-c", "echo waiting; sleep 60"], tmp_path / "log")
    try:
        processes.eventually(lambda: "waiting" in process.tail(), 10, "it writes its log")
        with pytest.raises(processes.ProcessFailed, match=r"(?s)etcd is ready: not within 0\.1 s.*waiting"):
            process.wait_until_ready(lambda: False, 0.1)
    finally:
        process.stop()


def test_stopping_a_process_stops_what_it_has_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    process = processes.Process("parent", ["sh", "-c", f"sleep 60 & echo $! $$ > {pids}; wait"], tmp_path / "log")
    processes.eventually(lambda: pids.exists() and pids.read_text().endswith("\n"), 10, "both run")
    process.stop()
    assert [pid for pid in pids.read_text().split() if is_alive(int(pid))] == []


def test_processes_end_with_the_program_that_started_them_even_when_it_is_killed(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    start = (
        "import sys; from pathlib import Path; from e2e.cluster import processes\n"
        f"processes.Process('child', ['sh', '-c', 'echo $$ > {pid}; exec sleep 60'], Path({str(tmp_path / 'log')!r}))\n"
        "sys.stdin.read()"
    )
    tests = subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.PIPE, cwd=binaries.SOURCE.parent.parent)
    with tests:
        processes.eventually(lambda: pid.exists() and pid.read_text().endswith("\n"), 10, "the child runs")
        os.kill(tests.pid, signal.SIGKILL)
    processes.eventually(lambda: not is_alive(int(pid.read_text())), 10, "the child is gone")
    assert not is_alive(int(pid.read_text()))


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and that nobody has waited for yet does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # a system without /proc, whose init waits for every orphan
        return not Path("/proc/self").exists()


def write_script(path: Path, words: str) -> str:
    path.write_text(f"#!/bin/sh\n{words}\n")
    path.chmod(0o755)
    return str(path)
