"""Where requests that a job asks for may go: its webhook and the server of its bucket.

A client must not use the server to reach addresses that only the server can reach: itself, its
network, the metadata service of a cloud. Addresses that an operator sets (models, BUCKET_*, OTEL_*)
are not limited.
"""

from __future__ import annotations

import ipaddress
import socket
import unicodedata
from dataclasses import dataclass
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Both hold an IPv4 address that a gateway connects to (RFC 6052, RFC 4291).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_IPV4_COMPATIBLE = ipaddress.ip_network("::/96")
_SETTING = "PRIVATE_TARGETS"


class TargetRefused(Exception):
    """A request would go to a private address; the message is one sentence without a subject."""


@dataclass(frozen=True, slots=True)
class OutboundPolicy:
    """Which addresses the requests that a job asks for may go to.

    With `allows_private`, any. Otherwise public ones: `check_url` refuses what can be decided from
    the URL alone, when a job is submitted; `addresses` decides about a name when it is connected
    to, and the connection goes to one of the addresses that it returns. A second look-up could
    have another answer (DNS rebinding).
    """

    allows_private: bool = True

    def check_url(self, url: str) -> None:
        """Refuse a URL whose host is a private address or `localhost`. Raises TargetRefused."""
        if self.allows_private:
            return
        host = urlsplit(url).hostname or ""
        address = _literal(host)
        if is_local_name(host) or (address is not None and not is_public(address)):
            raise TargetRefused(_sentence(host))

    def addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host that a connection may go to, in the resolver's order.

        Blocks while the name is looked up. Raises TargetRefused if all of them are private, and
        OSError if there are none.
        """
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        if self.allows_private:
            return addresses
        allowed = [each for each in addresses if is_public(ipaddress.ip_address(each))]
        if not allowed:
            raise TargetRefused(_sentence(host))
        return allowed


def is_public(address: Address) -> bool:
    """Return whether an address is one of the internet, and not of this machine or a network."""
    embedded = _embedded(address)
    if embedded is not None:
        return is_public(embedded)
    if isinstance(address, ipaddress.IPv6Address) and address.is_site_local:
        return False
    # Multicast counts as global, and reaches every machine of a network.
    return address.is_global and not address.is_multicast and not address.is_reserved


def is_loopback(host: str) -> bool:
    """Return whether a host, as a setting or a URL names it, is this machine and nothing else."""
    address = _literal(host)
    return is_local_name(host) if address is None else address.is_loopback


def is_local_name(host: str) -> bool:
    """Return whether a name is `localhost` or below it (RFC 6761)."""
    name = _normalized(host)
    return name == "localhost" or name.endswith(".localhost")


def _literal(host: str) -> Address | None:
    """Return the address that a host is, in every form that a resolver takes; None for a name."""
    text = _normalized(host)
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        pass
    try:
        # 127.1, 0x7f.0.0.1, 017700000001 and 2130706433 are all 127.0.0.1 to it.
        return ipaddress.IPv4Address(socket.inet_aton(text))
    except (OSError, UnicodeError):
        return None


def _normalized(host: str) -> str:
    """Return a host as a resolver reads it: `127。0。0。1` is 127.0.0.1 in Unicode's own dots."""
    text = unicodedata.normalize("NFKC", host.strip("[]")).replace("\u3002", ".")
    return text.rstrip(".").lower()


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that packets to an IPv6 address end up at, if there is one."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or (address in _IPV4_COMPATIBLE and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _sentence(host: str) -> str:
    return (
        f"{host} is not a public address, and {_SETTING} allows no others: set it to on if jobs "
        "may have requests sent into this network"
    )
