"""Ports for tests: servers that get theirs from here do not fall over each other."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from tests import loopback

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_ports_of_one_question_differ() -> None:
    assert len(set(loopback.free_ports(200))) == 200


def test_a_port_that_somebody_listens_on_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(socket.create_server((loopback.HOST, 0))) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(loopback, "_PORTS", [port, loopback.free_port()])
        assert loopback.free_port() != port


def test_no_two_workers_are_ever_given_the_same_port() -> None:
    workers = [{"PYTEST_XDIST_WORKER": f"gw{number}", "PYTEST_XDIST_WORKER_COUNT": "16"} for number in range(16)]
    given = [port for worker in workers for port in loopback.share(worker)]
    assert len(given) == len(set(given))
    assert len(loopback.share(workers[0])) > 500
    assert set(given) <= set(loopback.share({}))


@pytest.mark.skipif(not _OUTGOING.exists(), reason="this system does not tell which ports connections get")
def test_no_outgoing_connection_can_take_a_port_before_its_server_does() -> None:
    lowest = int(_OUTGOING.read_text().split()[0])
    assert max(loopback.share({})) < lowest
