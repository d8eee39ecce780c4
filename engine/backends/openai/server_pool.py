"""Several servers with the same models: each request goes to the one with the fewest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from common.url_credentials import hide_credentials

FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0


@dataclass(slots=True)
class RemoteServer:
    """A server: its base URL without `/v1`, its requests in progress, and until when it is paused.

    `failures` counts those since its last answer, and `last_failure` describes the last one.
    `paused_until_s` is of the monotonic clock.
    """

    url: str
    in_progress: int = 0
    failures: int = 0
    paused_until_s: float = 0.0
    last_failure: str = ""
    # The models that it had at the start, the first one for requests that name none.
    models: Sequence[str] = field(default_factory=tuple)

    @property
    def name(self) -> str:
        """The URL for messages, without a password."""
        return hide_credentials(self.url)


class ServerPool:
    """Chooses the server for each request, and pauses a server that does not answer or is busy.

    A server is paused for twice as long after each failure, up to `max_pause_s`, or for as long as
    it asks for. Owned by the event loop.
    """

    def __init__(self, urls: Sequence[str], max_pause_s: float = MAX_PAUSE_S) -> None:
        self.servers = [RemoteServer(base_url(url)) for url in urls]
        self._max_pause_s = max_pause_s

    async def acquire(self) -> RemoteServer:
        """Return the server with the fewest requests in progress, and count one more on it.

        Waits while all servers are paused. The caller releases the server in any case.
        """
        while (server := self._choose()) is None:
            resumes_at = min(each.paused_until_s for each in self.servers)
            await asyncio.sleep(max(resumes_at - time.monotonic(), 0.001))
        server.in_progress += 1
        return server

    def release(self, server: RemoteServer) -> None:
        """Count one request less on a server."""
        server.in_progress -= 1

    def record_answer(self, server: RemoteServer) -> None:
        """Record that a server answers."""
        server.failures = 0

    def pause(self, server: RemoteServer, seconds: float | None = None) -> float:
        """Send no requests to a server for some time, and return how long.

        Without `seconds`, the time follows from its failures so far.
        """
        now = time.monotonic()
        if seconds is None:
            if now < server.paused_until_s:
                # Requests that were in progress at the failure: it is the same one.
                return server.paused_until_s - now
            seconds = min(FIRST_PAUSE_S * 2.0**server.failures, self._max_pause_s)
            server.failures += 1
        server.paused_until_s = max(server.paused_until_s, now + seconds)
        return seconds

    def _choose(self) -> RemoteServer | None:
        now = time.monotonic()
        usable = [each for each in self.servers if each.paused_until_s <= now]
        return min(usable, key=lambda each: each.in_progress, default=None)


def base_url(url: str) -> str:
    """Return a server's address without a slash at its end and without `/v1`."""
    return url.rstrip("/").removesuffix("/v1")
