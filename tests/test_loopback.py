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


def test_a_port_is_not_given_out_twice_while_there_are_others_though_nobody_listens_yet() -> None:
    given = [loopback.free_port() for _ in range(400)]
    assert len(set(given)) == 400


def test_a_port_that_somebody_listens_on_is_not_given_out() -> None:
    with contextlib.closing(socket.create_server((loopback.HOST, 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="1 free ports are wanted, and 0 are free"):
            loopback.free_among(range(port, port + 1), 1)


def test_no_two_leases_have_the_same_port(tmp_path: Path) -> None:
    leases = [loopback.Lease(tmp_path) for _ in range(16)]
    given = [port for lease in leases for port in lease.ports]
    assert len(given) == len(set(given))
    assert all(len(lease.ports) > 500 for lease in leases)
    assert set(given) <= set(loopback.ALL)
    for lease in leases:
        lease.close()


def test_what_was_leased_can_be_leased_again_and_where_nothing_is_left_all_ports_are_given(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        held = []
        while not held or held[-1].ports != loopback.ALL:
            held.append(loopback.Lease(tmp_path))
            stack.callback(held[-1].close)
        held[3].close()
        again = loopback.Lease(tmp_path)
        stack.callback(again.close)
        assert again.ports == held[3].ports


@pytest.mark.skipif(not _OUTGOING.exists(), reason="this system does not tell which ports connections get")
def test_no_outgoing_connection_can_take_a_port_before_its_server_does() -> None:
    lowest = int(_OUTGOING.read_text().split()[0])
    assert max(loopback.ALL) < lowest
