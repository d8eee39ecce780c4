"""The HTTP client for webhooks, which connects only to allowed targets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import httpcore2
import httpx2

from emulator.http.library_internals import set_network_backend
from handler.delivery.outbound_targets import OutboundPolicy

SocketOption = (
    tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]
)


def webhook_client(targets: OutboundPolicy, timeout_s: float) -> httpx2.AsyncClient:
    """Return a client that follows no redirects.

    If private addresses are refused, the client ignores the proxies of the environment: a proxy
    would resolve the name again and could connect to an address that was not checked.
    """
    if targets.allows_private:
        return httpx2.AsyncClient(timeout=timeout_s, follow_redirects=False)
    transport = httpx2.AsyncHTTPTransport()
    set_network_backend(transport, _CheckedBackend(targets))
    return httpx2.AsyncClient(timeout=timeout_s, follow_redirects=False, transport=transport)


class _CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Resolves a name once and connects to one of the addresses that were checked."""

    def __init__(self, targets: OutboundPolicy) -> None:
        self._targets = targets
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the name of httpcore
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first allowed address that accepts.

        Raises:
            TargetRefused: the host has only private addresses.
            ConnectError, ConnectTimeout: the host has no address, or none accepted the connection.
        """
        options = list(socket_options or ())
        try:
            addresses = await asyncio.to_thread(self._targets.resolve, host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(str(error)) from error
        # TLS and the Host header still name the host of the URL.
        for address in addresses[:-1]:
            try:
                return await self._backend.connect_tcp(
                    address, port, timeout, local_address, options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._backend.connect_tcp(addresses[-1], port, timeout, local_address, options)
