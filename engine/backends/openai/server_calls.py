"""Send requests to the servers of the openai backend."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import orjson

from common.url_credentials import hide_credentials
from engine.backends.openai.server_errors import (
    BUSY,
    ServerBusy,
    build_error,
    describe_failure,
    read_retry_after,
)
from engine.backends.openai.server_pool import RemoteServer, ServerPool
from engine.errors import EngineCrashed, EngineError, EngineRestarting

# How long a request waits for a server that takes it: a client's own tries follow.
PATIENCE_S = 10.0
_CONNECT_TIMEOUT_S = 5.0
_MAX_ERROR_BYTES = 65_536
# Errors of a connection on which nothing of the request has arrived.
_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class ServerCalls:
    """Sends each request to the server with the fewest, and to another one if that is not there.

    A server that refuses connections or is busy (429, 503, 529) gets no requests for a while. A
    request that no server has taken after PATIENCE_S fails. One that a server has taken is not sent
    again, but for a connection that the server had closed before: it may have been computed, and it
    may be the reason for the failure. Owned by the event loop of the backend.
    """

    def __init__(self, http: httpx2.AsyncClient, servers: ServerPool) -> None:
        self._http = http
        self._servers = servers
        # The value of the header, and the key in it.
        authorization = http.headers.get("authorization", "")
        self._secrets = [each for each in (authorization, authorization[7:]) if each]

    @asynccontextmanager
    async def open(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[httpx2.Response]:
        """Yield a successful response, whose body is still arriving; the end closes it.

        Raises:
            EngineRestarting: no server takes requests at the moment.
            RequestRejected: the server refuses the request.
            GenerationFailed: the server failed.
        """
        server, response = await self._find_taker(path, orjson.dumps(body))
        try:
            yield response
        except httpx2.HTTPError as error:
            raise EngineCrashed(
                f"the answer of {server.name} broke off: {describe_failure(error)}"
            ) from None
        except EngineError as error:
            raise self._without_key(error) from None
        finally:
            self._servers.release(server)
            await response.aclose()

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON that a request is answered with. Raises like `open`."""
        async with self.open(path, body) as response:
            content = await response.aread()
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError:
            url = hide_credentials(str(response.url))
            raise EngineCrashed(f"{url} answered without JSON") from None

    async def _find_taker(self, path: str, content: bytes) -> tuple[RemoteServer, httpx2.Response]:
        """Return the server that has taken a request, which the caller releases, and the answer."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            server = await self._acquire(deadline)
            try:
                response = await self._send(server, path, content)
            except ServerBusy as error:
                self._servers.release(server)
                self._servers.pause(server, error.retry_after_s)
                server.last_failure = str(error)
            except BaseException:
                self._servers.release(server)
                raise
            else:
                self._servers.record_answer(server)
                return server, response

    async def _acquire(self, deadline: float) -> RemoteServer:
        """Return a server; raise EngineRestarting if all of them are paused until the deadline."""
        resumes_at = min(each.paused_until_s for each in self._servers.servers)
        if resumes_at <= deadline:
            return await self._servers.acquire()
        reason = "; ".join(each.last_failure for each in self._servers.servers)
        raise EngineRestarting(
            f"no server of UPSTREAM_URL takes requests: {reason}",
            retry_after_s=math.ceil(resumes_at - time.monotonic()),
        )

    async def _send(self, server: RemoteServer, path: str, content: bytes) -> httpx2.Response:
        """Return a response with status 200. Raises ServerBusy or EngineError."""
        url = f"{server.name}{path}"
        try:
            response = await self._retry_closed_connection(f"{server.url}{path}", content)
        except _UNSENT as error:
            raise ServerBusy(f"{url}: {describe_failure(error)}") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise EngineCrashed(f"{url} did not answer: {describe_failure(error)}") from None
        if response.status_code == httpx2.codes.OK:
            return response
        try:
            body = await _read_beginning(response)
        finally:
            await response.aclose()
        if response.status_code in BUSY:
            reason = f"{url} answered with status {response.status_code}"
            raise ServerBusy(reason, read_retry_after(response.headers))
        raise self._without_key(build_error(url, response.status_code, body))

    def _without_key(self, error: EngineError) -> EngineError:
        """Return an error without the key, which some servers quote when they refuse a request."""
        message = error.message
        for secret in self._secrets:
            message = message.replace(secret, "***")
        return error if message == error.message else type(error)(message, **error.details)

    async def _retry_closed_connection(self, url: str, content: bytes) -> httpx2.Response:
        """Send a request, and once more if the server had closed its old connection meanwhile."""
        is_new = False

        async def trace(event: str, _: Mapping[str, Any]) -> None:
            nonlocal is_new
            is_new = is_new or event.startswith("connection.connect")

        extensions = {"trace": trace}
        request = self._http.build_request("POST", url, content=content, extensions=extensions)
        try:
            return await self._http.send(request, stream=True)
        except httpx2.RemoteProtocolError:
            if is_new:
                raise
            return await self._http.send(
                self._http.build_request("POST", url, content=content), stream=True
            )


async def _read_beginning(response: httpx2.Response) -> bytes:
    """Return the first 64 kB of an error's body, or less if the connection is lost before that."""
    content = b""
    with suppress(httpx2.HTTPError):
        async for part in response.aiter_bytes():
            content += part
            if len(content) > _MAX_ERROR_BYTES:
                break
    return content


def open_client(key: str | None, connections: int) -> httpx2.AsyncClient:
    """Return the HTTP client of a backend; the engine has time limits of its own for answers."""
    headers = {"content-type": "application/json"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    return httpx2.AsyncClient(
        headers=headers,
        timeout=httpx2.Timeout(None, connect=_CONNECT_TIMEOUT_S),
        limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
    )
