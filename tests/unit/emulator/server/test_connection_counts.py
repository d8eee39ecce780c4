"""Limits of connections: in all, per address, and what stays free for this machine."""

from __future__ import annotations

import pytest

from emulator.server.connection_counts import ConnectionCounts, counted_address


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1:2:3:4", "2001:db8::"),
        ("2001:db8:0:1:ffff::1", "2001:db8:0:1::"),
        ("::1", "::1"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
    ],
)
def test_counted_address_is_an_ipv4_address_or_an_ipv6_network(host: str, address: str) -> None:
    assert counted_address(host) == address


def test_open_limits_the_connections_of_one_address() -> None:
    counts = ConnectionCounts(10, 2)
    assert [counts.open("192.0.2.1") for _ in range(3)] == [True, True, False]
    assert counts.open("192.0.2.2")
    counts.close("192.0.2.1")
    assert counts.open("192.0.2.1")


def test_open_keeps_a_few_connections_for_this_machine() -> None:
    counts = ConnectionCounts(2, 10)
    assert counts.open("192.0.2.1")
    assert counts.open("192.0.2.2")
    assert not counts.open("192.0.2.3")
    assert [counts.open("127.0.0.1") for _ in range(5)] == [True] * 4 + [False]
    assert counts.open("::1")


def test_counts_are_empty_when_all_connections_are_closed() -> None:
    counts = ConnectionCounts(2, 1)
    counts.open("192.0.2.1")
    assert not counts.open("192.0.2.1")
    counts.close("192.0.2.1")
    assert counts.total == 0
    assert not counts._by_address
