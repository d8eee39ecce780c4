"""Answers one line of a batch by a request to an OpenAI-compatible server."""

from __future__ import annotations

import time

import httpx2
import orjson

from batch.input.line import Line
from batch.line_executor import ExecutorLost, LineOutcome, encode_call_answer
from batch.output.token_totals import find_usage
from batch.remote.concurrency_limit import ConcurrencyLimit
from batch.remote.line_check import check_remote_line
from engine.backends.openai.server_errors import BUSY, describe_failure, read_retry_after
from engine.backends.openai.server_pool import RemoteServer, ServerPool
from handler.apis.calls import find_format
from handler.errors import ErrorInfo, ErrorMapping

# Statuses after which another try may succeed.
_RETRYABLE = frozenset({408, 409, 425, 500, 502, 504})
_MAX_EXCERPT_CHARS = 300


class NoServer(ExecutorLost):
    """No server has answered for too long; the message is one sentence."""


class _Unavailable(Exception):
    """The server did not take the request, which can be sent again without any loss."""

    def __init__(self, reason: str, retry_after_s: float | None, *, is_busy: bool) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.is_busy = is_busy


class RemoteExecutor:
    """Sends each line's body, unchanged, to the server of a pool with the fewest lines.

    A line is sent again, as often as needed, while servers refuse connections or are busy (429,
    503, 529): that is no attempt of the line. If no server has answered for `patience_s`, the batch
    ends, so that it can be resumed. Other failures (500, 502, 504, broken answers) are attempts,
    which the runner bounds. Owned by the event loop.
    """

    def __init__(
        self,
        http: httpx2.AsyncClient,
        pool: ServerPool,
        limit: ConcurrencyLimit,
        *,
        patience_s: float,
    ) -> None:
        self._http = http
        self._servers = pool
        self._limit = limit
        self._patience_s = patience_s
        self._answered_at_s = time.monotonic()

    def check(self, line: Line) -> None:
        """Check what needs no model. Raises BadLine."""
        check_remote_line(line)

    async def answer(self, line: Line, *, exclusive: bool = False) -> LineOutcome:
        """Make one attempt at a line and return its outcome. Raises NoServer.

        `exclusive` has no effect: a crash of the server is one of its own.
        """
        while True:
            await self._limit.acquire()
            try:
                server = await self._servers.acquire()
                try:
                    return await self._attempt(line, server)
                except _Unavailable as error:
                    self._record_failure(server, error)
                finally:
                    self._servers.release(server)
            finally:
                self._limit.release()

    def _record_failure(self, server: RemoteServer, error: _Unavailable) -> None:
        if error.is_busy:
            self._limit.record_refusal()
        self._servers.pause(server, error.retry_after_s)
        if time.monotonic() - self._answered_at_s > self._patience_s:
            raise NoServer(f"no server has answered for {self._patience_s:g} s: {error}")

    async def _attempt(self, line: Line, server: RemoteServer) -> LineOutcome:
        """Send the line once. Raises _Unavailable if the server did not take it."""
        route = line.route or ""
        body = dict(line.body)
        if body.get("model") is None and server.models:
            body["model"] = server.models[0]
        url = f"{server.name}{route}"
        began_at_s = time.monotonic()
        try:
            response = await self._http.post(f"{server.url}{route}", content=orjson.dumps(body))
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise _Unavailable(f"{url}: {describe_failure(error)}", None, is_busy=False) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            # The server may have begun the answer, which counts as an attempt.
            self._servers.pause(server)
            return _fail(line, f"the server's answer broke off: {describe_failure(error)}", 502)
        if response.status_code in BUSY:
            raise _Unavailable(
                f"{url} answered with {response.status_code}",
                read_retry_after(response.headers),
                is_busy=True,
            )
        self._answered_at_s = time.monotonic()
        self._servers.record_answer(server)
        outcome = _read_outcome(line, response)
        if outcome.ok:
            # A server that sends no token counts sends no sizes but that of the answer.
            size = outcome.tokens or max(len(response.content), 1)
            self._limit.record_answer(self._answered_at_s - began_at_s, size)
        return outcome


def _read_outcome(line: Line, response: httpx2.Response) -> LineOutcome:
    """Return the outcome of a server's answer."""
    status = response.status_code
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        excerpt = response.text[:_MAX_EXCERPT_CHARS]
        return _fail(line, f"the server answered with {status} and no JSON: {excerpt!r}", 502)
    if status == 200 and "error" in body and body["error"]:
        return _fail(line, f"the server answered with 200 and an error: {body['error']}", 502)
    is_retryable = status in _RETRYABLE
    request_id = response.headers.get("x-request-id")
    encoded = encode_call_answer(line, body, status, request_id)
    usage = find_usage(body)
    tokens = 0 if usage is None else usage.completion_tokens
    return LineOutcome(encoded, status == 200, tokens, is_retryable)


def _fail(line: Line, message: str, status: int) -> LineOutcome:
    """Return the outcome of an attempt that has no answer of the server's to keep."""
    error = ErrorInfo(message, ErrorMapping(status, "server_error", retryable=True))
    body = find_format(line.route or "").encode_error(error)
    return LineOutcome(encode_call_answer(line, body, status), ok=False, retryable=True)


def open_client(key: str | None, timeout_s: float, connections: int) -> httpx2.AsyncClient:
    """Return the HTTP client for all servers, with as many connections as lines in progress."""
    headers = {"content-type": "application/json"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    return httpx2.AsyncClient(
        headers=headers,
        timeout=httpx2.Timeout(timeout_s, connect=10.0),
        limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
    )
