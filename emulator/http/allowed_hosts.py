"""The host names that a request may be sent to: protection from DNS rebinding.

A page of `http://evil.example` can make its own name resolve to 127.0.0.1 after it was loaded. For
the browser, page and server are then one origin. The `Host` header still has the page's name, and a
page cannot change it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

_HOST = re.compile(r"(\[[0-9a-f:.%]+\]|[a-z0-9._-]+)(?::\d{0,5})?")
_ENTRY = re.compile(r"\*|(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[?[0-9a-f:.]+\]?")
# A name is at most 253 characters; longer values are refused without being kept in the cache.
_MAX_HOST_BYTES = 300
_CACHED_HOSTS = 256
# Endings that cannot be registered in public DNS: mDNS, private networks, home networks.
_PRIVATE_ENDINGS = (".local", ".internal", ".home.arpa")


class AllowedHosts:
    """Decides which values of the `Host` header are accepted.

    `localhost`, names under it and loopback addresses are always accepted, and so are the `bound`
    address and the entries of ALLOWED_HOSTS. A server that listens on all addresses cannot know
    which of them its clients use (a container sees only its own network), so it accepts every IP
    address: a browser connects to exactly that address, and no DNS response can change that.

    With `has_keys`, such a server also accepts names that cannot be registered in public DNS:
    `worker`, `board.local`, `worker.default.svc.cluster.local`. Containers use such names to call
    each other. Only a machine in the same network can resolve them to an address of its choice, and
    an attacker's page would have no key.
    """

    def __init__(
        self, bound: str = "127.0.0.1", entries: Sequence[str] = (), *, has_keys: bool = False
    ) -> None:
        """Prepare for the address in HOST and the entries of ALLOWED_HOSTS."""
        own_address = parse_address(bound)
        is_open = not is_loopback(bound) and (own_address is None or own_address.is_unspecified)
        self._bound = bound
        self._allows_all = "*" in entries
        self._allows_addresses = is_open
        self._allows_private_names = is_open and has_keys
        self._entries = tuple(entries)
        self._addresses = {parse_address(each) for each in (bound, *entries)} - {None}
        self._names = {_normalized(each) for each in (bound, *entries)}
        self._endings = tuple(each[1:] for each in entries if each.startswith("*."))
        self._cached = lru_cache(maxsize=_CACHED_HOSTS)(self._allows)

    def allows(self, host: bytes) -> bool:
        """Return whether a request with this `Host` header is accepted."""
        return self._cached(host) if len(host) <= _MAX_HOST_BYTES else self._allows_all

    def describe(self) -> str:
        """Return a description of the accepted hosts, for the log at the start."""
        if self._allows_all:
            return "all names (ALLOWED_HOSTS)"
        parts = ["localhost"]
        if self._allows_addresses:
            parts.append("any IP address")
        elif not is_loopback(self._bound):
            parts.append(self._bound)
        if self._allows_private_names:
            parts.append("names outside public DNS")
        return ", ".join([*parts, *self._entries])

    def _allows(self, host: bytes) -> bool:
        if self._allows_all:
            return True
        match = _HOST.fullmatch(host.decode("latin-1").lower())
        if match is None:
            return False
        name = match[1].removesuffix(".")
        address = parse_address(name)
        if address is not None:
            return self._allows_addresses or address.is_loopback or address in self._addresses
        if is_loopback(name) or name in self._names or name.endswith(self._endings):
            return True
        return self._allows_private_names and ("." not in name or name.endswith(_PRIVATE_ENDINGS))


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return an IP address, with or without brackets; None if the text is a name.

    An IPv4 address in IPv6 form (`::ffff:127.0.0.1`) is returned as the IPv4 address.
    """
    try:
        address = ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_loopback(host: str) -> bool:
    """Return whether a name or an address always means the machine itself.

    Browsers and resolvers do not ask DNS for `localhost` and the names under it.
    """
    address = parse_address(host)
    if address is not None:
        return address.is_loopback
    name = _normalized(host)
    return name == "localhost" or name.endswith(".localhost")


def is_entry(text: str) -> bool:
    """Return whether a text may be an entry of ALLOWED_HOSTS."""
    lowered = text.lower()
    if ":" in text or text.startswith("["):
        return parse_address(text) is not None
    return _ENTRY.fullmatch(lowered) is not None


def _normalized(name: str) -> str:
    return name.lower().removesuffix(".")
