"""Count the open connections, in total and per address."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv6Address, ip_address

# Extra connections from loopback addresses, for health checks and the machine's administrator
# while other clients use all regular connections.
_RESERVED_CONNECTIONS = 16
_RESERVED_PER_ADDRESS = 4


class ConnectionCounts:
    """Decides whether one more connection may be opened. Owned by the event loop."""

    def __init__(self, maximum: int, per_address: int) -> None:
        self.maximum = maximum
        self.per_address = per_address
        self.total = 0
        self._by_address: Counter[str] = Counter()

    def open(self, address: str) -> bool:
        """Count a connection from an address; return False if there are too many already."""
        count = self._by_address[address]
        is_allowed = count < self.per_address and (
            self.total < self.maximum
            or (
                _is_loopback(address)
                and count < _RESERVED_PER_ADDRESS
                and self.total < self.maximum + _RESERVED_CONNECTIONS
            )
        )
        if is_allowed:
            self.total += 1
            self._by_address[address] = count + 1
        elif not count:
            del self._by_address[address]
        return is_allowed

    def close(self, address: str) -> None:
        """Stop counting a connection that `open` has counted."""
        self.total -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def counted_address(host: str) -> str:
    """Return the key to count connections by: an IPv4 address, or the /64 network of an IPv6 one.

    One machine usually has 2**64 IPv6 addresses.
    """
    if ":" not in host:
        return host
    address = ip_address(host)
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return str(IPv6Address(int(address) >> 64 << 64))
