"""Restrict connections to the server of a job's bucket: the client chose it, and it may be hostile.

boto3 trusts its server: it resolves the host name itself and reads responses of any length into
memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
    AWSPreparedRequest,
    AWSResponse,
)
from botocore.exceptions import BotoCoreError, HTTPClientError, ResponseStreamingError
from botocore.httpsession import URLLib3Session
from botocore.utils import get_environ_proxies
from urllib3.exceptions import HTTPError, NewConnectionError
from urllib3.util.connection import create_connection

from handler.delivery.outbound_targets import OutboundPolicy, TargetRefused

# RunPod's maximum for a result is 20 MB; all other responses of a bucket are short.
MAX_RESPONSE_BYTES = 32_000_000
MAX_RESPONSE_S = 60.0


class ResponseTooLong(BotoCoreError):  # type: ignore[misc]
    """A response is too large or takes too long."""

    fmt = "the server's answer {problem}"


class PrivateTarget(BotoCoreError):  # type: ignore[misc]
    """The bucket's server is at a private address, and those are not allowed."""

    fmt = "{reason}"


def limit_client(client: Any, targets: OutboundPolicy) -> Any:
    """Restrict a boto3 client to `targets`, and limit what it reads; return the client."""
    config, url = client.meta.config, client.meta.endpoint_url
    # boto3 has no option for the HTTP session.
    client._endpoint.http_session = JobSession(
        targets,
        timeout=(config.connect_timeout, config.read_timeout),
        max_pool_connections=config.max_pool_connections,
        verify=os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE") or True,
        proxies=get_environ_proxies(url),
    )
    client.meta.events.register("before-call.s3.HeadBucket", _forbid_redirect)
    return client


def _forbid_redirect(context: dict[str, Any], **_: Any) -> None:
    """Mark the request for a bucket's region as already redirected.

    botocore sends that request when a server responds with 301 or 307 and no region. If the
    response is 301 or 307 again, botocore would repeat it, in a recursion of 80 requests.
    """
    context.setdefault("s3_redirect", {})["redirected"] = True


class JobSession(URLLib3Session):  # type: ignore[misc]
    """Sends boto3's requests only to `targets`, without redirects, and limits each response.

    Connects to the address that was checked. If private addresses are refused, it uses no proxy of
    the environment, because a proxy would resolve the host name a second time.
    """

    def __init__(self, targets: OutboundPolicy, **options: Any) -> None:
        if not targets.allows_private:
            options["proxies"] = {}
            options["proxies_config"] = None
        super().__init__(**options)
        pools = _UNRESTRICTED_POOLS if targets.allows_private else _public_pools(targets)
        self._pool_classes_by_scheme = self._manager.pool_classes_by_scheme = pools

    def send(self, request: AWSPreparedRequest) -> AWSResponse:
        """Send one request. Raises BotoCoreError."""
        is_streamed, request.stream_output = request.stream_output, True
        try:
            response = super().send(request)
        except HTTPClientError as error:
            # botocore wraps unknown exceptions in this error and would retry.
            reason = error.kwargs.get("error")
            if isinstance(reason, TargetRefused):
                raise PrivateTarget(reason=reason) from None
            raise
        finally:
            request.stream_output = is_streamed
        response.raw = _LimitedBody(response.raw)
        if not is_streamed:
            _ = response.content
        return response


class _LimitedBody:
    """A response body that raises ResponseTooLong beyond a size and a duration."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._remaining_bytes = MAX_RESPONSE_BYTES
        self._deadline_s = time.monotonic() + MAX_RESPONSE_S

    def read(self, amt: int | None = None) -> bytes:
        max_bytes = self._remaining_bytes + 1
        try:
            data: bytes = self._raw.read(max_bytes if amt is None else min(amt, max_bytes))
        except HTTPError as error:
            raise ResponseStreamingError(error=type(error).__name__) from None
        self._remaining_bytes -= len(data)
        if self._remaining_bytes < 0:
            self._fail(f"is longer than {MAX_RESPONSE_BYTES // 1_000_000} MB")
        if time.monotonic() > self._deadline_s:
            self._fail(f"took longer than {MAX_RESPONSE_S:g} s")
        return data

    def _fail(self, problem: str) -> NoReturn:
        # The connection cannot be reused, because the rest of the response is unread.
        self._raw.close()
        raise ResponseTooLong(problem=problem)

    def stream(self, amt: int = 65_536, decode_content: bool | None = None) -> Iterator[bytes]:
        while data := self.read(amt):
            yield data

    def close(self) -> None:
        self._raw.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class _NoRedirects:
    """Returns redirects as responses.

    boto3 does not follow redirects either, but urllib3 prepares to: for a 303 it fails with a
    TypeError, because the headers of boto3 are bytes, and the connection stays open.
    """

    def urlopen(self, *arguments: Any, **options: Any) -> Any:
        return super().urlopen(*arguments, **options | {"redirect": False})  # type: ignore[misc]


class _HTTPPool(_NoRedirects, AWSHTTPConnectionPool):  # type: ignore[misc]
    pass


class _HTTPSPool(_NoRedirects, AWSHTTPSConnectionPool):  # type: ignore[misc]
    pass


_UNRESTRICTED_POOLS: dict[str, type] = {"http": _HTTPPool, "https": _HTTPSPool}


def _public_pools(targets: OutboundPolicy) -> dict[str, type]:
    """Return urllib3 connection pools that connect to public addresses only."""

    class PublicOnly:
        def _new_conn(self: Any) -> Any:
            reason: OSError | None = None
            # The connection's host name stays that of the URL, for TLS and the Host header.
            for address in targets.resolve(self._dns_host, self.port):
                try:
                    return create_connection(
                        (address, self.port),
                        self.timeout,
                        source_address=self.source_address,
                        socket_options=self.socket_options,
                    )
                except OSError as error:
                    reason = error
            raise NewConnectionError(self, f"Failed to establish a new connection: {reason}")

    class PublicHTTPConnection(PublicOnly, AWSHTTPConnection):  # type: ignore[misc]
        pass

    class PublicHTTPSConnection(PublicOnly, AWSHTTPSConnection):  # type: ignore[misc]
        pass

    class PublicHTTPPool(_HTTPPool):
        ConnectionCls = PublicHTTPConnection

    class PublicHTTPSPool(_HTTPSPool):
        ConnectionCls = PublicHTTPSConnection

    return {"http": PublicHTTPPool, "https": PublicHTTPSPool}
