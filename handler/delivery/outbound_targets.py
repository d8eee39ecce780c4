"""Restrict the addresses of requests that a job causes: its webhook and its bucket's server.

A client must not use this server to reach addresses that only the server can reach: the machine
itself, its network, a cloud's metadata service (server-side request forgery). Addresses in settings
(models, BUCKET_*, OTEL_*) are not restricted.
"""

from __future__ import annotations

import ipaddress
import socket
import unicodedata
from dataclasses import dataclass
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Both contain an IPv4 address that a gateway connects to (RFC 6052, RFC 4291).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_IPV4_COMPATIBLE = ipaddress.ip_network("::/96")
_SETTING = "PRIVATE_TARGETS"


class TargetRefused(Exception):
    """A request would go to a private address; the message starts with the host."""


@dataclass(frozen=True, slots=True)
class OutboundPolicy:
    """The addresses that requests caused by a job may go to.

    With `allows_private` all addresses are allowed, otherwise only public ones. `check_url` refuses
    private addresses that the URL itself contains, when a job is submitted. `resolve` checks a name
    when a connection is made, and the connection must use one of the returned addresses: a second
    DNS query could return other addresses (DNS rebinding).
    """

    allows_private: bool = True

    def check_url(self, url: str) -> None:
        """Refuse a URL whose host is a private address or `localhost`. Raises TargetRefused."""
        if self.allows_private:
            return
        host = urlsplit(url).hostname or ""
        address = _parse_address(host)
        if is_local_name(host) or (address is not None and not is_public(address)):
            raise TargetRefused(_format_refusal(host))

    def resolve(self, host: str, port: int) -> list[str]:
        """Return the allowed addresses of a host, in the resolver's order.

        Blocks during the DNS query. Raises TargetRefused if all addresses are private, and OSError
        if the host has no address.
        """
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        if self.allows_private:
            return addresses
        allowed = [each for each in addresses if is_public(ipaddress.ip_address(each))]
        if not allowed:
            raise TargetRefused(_format_refusal(host))
        return allowed


def is_public(address: Address) -> bool:
    """Return whether an address is on the public internet, not on this machine or its network."""
    embedded = _extract_ipv4(address)
    if embedded is not None:
        return is_public(embedded)
    if isinstance(address, ipaddress.IPv6Address) and address.is_site_local:
        return False
    # `is_global` includes multicast, which reaches every machine of a network.
    return address.is_global and not address.is_multicast and not address.is_reserved


def is_loopback(host: str) -> bool:
    """Return whether a host from a setting or URL is a loopback address or `localhost`."""
    address = _parse_address(host)
    return is_local_name(host) if address is None else address.is_loopback


def is_local_name(host: str) -> bool:
    """Return whether a name is `localhost` or a subdomain of it (RFC 6761)."""
    name = _normalize_host(host)
    return name == "localhost" or name.endswith(".localhost")


def _parse_address(host: str) -> Address | None:
    """Parse a host as an address, in every form that resolvers accept; None for a name."""
    text = _normalize_host(host)
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        pass
    try:
        # Accepts 127.1, 0x7f.0.0.1, 017700000001 and 2130706433 as 127.0.0.1.
        return ipaddress.IPv4Address(socket.inet_aton(text))
    except (OSError, UnicodeError):
        return None


def _normalize_host(host: str) -> str:
    """Return a host as resolvers normalize it: `127。0。0。1` has Unicode dots for 127.0.0.1."""
    text = unicodedata.normalize("NFKC", host.strip("[]")).replace("\u3002", ".")
    return text.rstrip(".").lower()


def _extract_ipv4(address: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address contains and routes to, or None."""
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


def _format_refusal(host: str) -> str:
    return (
        f"{host} is not a public address, and {_SETTING} allows no others: set it to on if jobs "
        "may have requests sent into this network"
    )
