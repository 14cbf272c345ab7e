"""Sockets at one address or at all, of both families."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterator

import pytest

from carpool.program import addresses
from tests import loopback


@pytest.fixture
def opened() -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for each in made:
        each.close()


def without_ipv6(family: socket.AddressFamily, address: tuple[str, int], both: bool) -> socket.socket:
    if family == socket.AF_INET6:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
    return addresses._bound(family, address, both)


@pytest.mark.parametrize("host", ["::", "", "::0", "0:0:0:0:0:0:0:0"])
@pytest.mark.parametrize("caller", ["127.0.0.1", "::1"])
def test_everywhere_is_for_callers_of_both_families(opened: list[socket.socket], host: str, caller: str) -> None:
    if caller == "::1" and not loopback.has_ipv6():
        pytest.skip("this machine has no IPv6 loopback address")
    (listening,) = addresses.bind(host, 0)
    opened.append(listening)
    listening.listen()
    opened.append(socket.create_connection((caller, listening.getsockname()[1]), timeout=5))
    taken, address = listening.accept()
    opened.append(taken)
    assert addresses.plain(address[0]) == caller


def test_everywhere_is_ipv4_where_there_is_no_ipv6(opened: list[socket.socket]) -> None:
    opened += addresses.bind("::", 0, without_ipv6)
    assert [each.family for each in opened] == [socket.AF_INET]
    assert opened[0].getsockname()[0] == "0.0.0.0"


@pytest.mark.parametrize("host", ["[::1]", "no..name", "n" * 300])
def test_a_host_that_has_no_address_is_told(host: str) -> None:
    with pytest.raises(OSError, match=re.escape(f"{host} port 9081: ")):
        addresses.bind(host, 9081)


def test_one_address_is_that_address(opened: list[socket.socket]) -> None:
    opened += addresses.bind("127.0.0.1", 0)
    assert [each.getsockname()[0] for each in opened] == ["127.0.0.1"]


@pytest.mark.parametrize("host", ["::", "127.0.0.1"])
def test_a_port_that_is_taken_is_told_with_its_address_and_is_no_reason_for_another_one(
    opened: list[socket.socket], host: str
) -> None:
    opened += addresses.bind(host, 0)
    opened[0].listen()
    port = opened[0].getsockname()[1]
    with pytest.raises(OSError, match=f" {host} port {port}: address already in use") as found:
        addresses.bind(host, port)
    assert found.value.errno == errno.EADDRINUSE


def test_an_address_that_is_not_here_is_told() -> None:
    with pytest.raises(OSError, match=r" 192\.0\.2\.1 port 0: cannot assign requested address"):
        addresses.bind("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("address", "told"),
    [("::ffff:10.1.2.3", "10.1.2.3"), ("10.1.2.3", "10.1.2.3"), ("fd00::9", "fd00::9"), ("::1", "::1")],
)
def test_a_callers_address_is_told_as_the_caller_knows_it(address: str, told: str) -> None:
    assert addresses.plain(address) == told
