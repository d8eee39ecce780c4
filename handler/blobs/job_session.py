"""Connections to the server of a job's bucket, which a client has chosen and which may be hostile.

boto3 trusts its server: it resolves the name by itself and reads answers of any length into memory.
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

from handler.outbound_targets import OutboundPolicy, TargetRefused

# The longest result that RunPod takes is 20 MB, and everything else that a bucket answers is short.
MAX_ANSWER_BYTES = 32_000_000
MAX_ANSWER_S = 60.0


class AnswerTooLong(BotoCoreError):  # type: ignore[misc]
    """A server sent more than any answer has, or sent it for too long."""

    fmt = "the server's answer {problem}"


class PrivateTarget(BotoCoreError):  # type: ignore[misc]
    """The bucket's server is at a private address, and those are not allowed."""

    fmt = "{reason}"


def limit_client(client: Any, targets: OutboundPolicy) -> Any:
    """Have a boto3 client connect to `targets` alone and bound what it reads; return it."""
    config, url = client.meta.config, client.meta.endpoint_url
    # boto3 has no option for it.
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
    """Mark a question for a bucket's region as redirected already.

    botocore asks it when a server answers 301 or 307 without a region. Where the answer to that
    question is again 301 or 307, it would ask again, in a recursion of 80 requests.
    """
    context.setdefault("s3_redirect", {})["redirected"] = True


class JobSession(URLLib3Session):  # type: ignore[misc]
    """Sends boto3's requests: to `targets` alone, without redirects, with bounds for each answer.

    Connects to the address that was checked. Where private addresses are refused it uses no proxy
    of the environment, which would resolve the name once more.
    """

    def __init__(self, targets: OutboundPolicy, **options: Any) -> None:
        if not targets.allows_private:
            options["proxies"] = {}
            options["proxies_config"] = None
        super().__init__(**options)
        pools = _UNCHECKED_POOLS if targets.allows_private else _public_pools(targets)
        self._pool_classes_by_scheme = self._manager.pool_classes_by_scheme = pools

    def send(self, request: AWSPreparedRequest) -> AWSResponse:
        """Send one request. Raises BotoCoreError."""
        is_streamed, request.stream_output = request.stream_output, True
        try:
            response = super().send(request)
        except HTTPClientError as error:
            # The library wraps what it does not know, and would try again.
            reason = error.kwargs.get("error")
            if isinstance(reason, TargetRefused):
                raise PrivateTarget(reason=reason) from None
            raise
        finally:
            request.stream_output = is_streamed
        response.raw = _BoundedBody(response.raw)
        if not is_streamed:
            _ = response.content
        return response


class _BoundedBody:
    """A response's body that ends with an error where it is too long, in bytes or in time."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._left_bytes = MAX_ANSWER_BYTES
        self._deadline_s = time.monotonic() + MAX_ANSWER_S

    def read(self, amt: int | None = None) -> bytes:
        most = self._left_bytes + 1
        try:
            data: bytes = self._raw.read(most if amt is None else min(amt, most))
        except HTTPError as error:
            raise ResponseStreamingError(error=type(error).__name__) from None
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            self._refuse(f"is longer than {MAX_ANSWER_BYTES // 1_000_000} MB")
        if time.monotonic() > self._deadline_s:
            self._refuse(f"took longer than {MAX_ANSWER_S:g} s")
        return data

    def _refuse(self, problem: str) -> NoReturn:
        # Its connection cannot be used again: there is more to come.
        self._raw.close()
        raise AnswerTooLong(problem=problem)

    def stream(self, amt: int = 65_536, decode_content: bool | None = None) -> Iterator[bytes]:
        while data := self.read(amt):
            yield data

    def close(self) -> None:
        self._raw.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class _NoRedirects:
    """Returns a redirect as it is.

    boto3 does not follow redirects either, but urllib3 prepares to: for a 303 it fails with a
    TypeError, because the headers of boto3 are bytes, and the connection stays open.
    """

    def urlopen(self, *arguments: Any, **options: Any) -> Any:
        return super().urlopen(*arguments, **options | {"redirect": False})  # type: ignore[misc]


class _HTTPPool(_NoRedirects, AWSHTTPConnectionPool):  # type: ignore[misc]
    pass


class _HTTPSPool(_NoRedirects, AWSHTTPSConnectionPool):  # type: ignore[misc]
    pass


_UNCHECKED_POOLS: dict[str, type] = {"http": _HTTPPool, "https": _HTTPSPool}


def _public_pools(targets: OutboundPolicy) -> dict[str, type]:
    """Return urllib3's connection pools, with connections to public addresses alone."""

    class Checked:
        def _new_conn(self: Any) -> Any:
            reason: OSError | None = None
            # The host stays the one of the URL, for TLS and the Host header.
            for address in targets.addresses(self._dns_host, self.port):
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

    class CheckedHTTPConnection(Checked, AWSHTTPConnection):  # type: ignore[misc]
        pass

    class CheckedHTTPSConnection(Checked, AWSHTTPSConnection):  # type: ignore[misc]
        pass

    class CheckedHTTPPool(_HTTPPool):
        ConnectionCls = CheckedHTTPConnection

    class CheckedHTTPSPool(_HTTPSPool):
        ConnectionCls = CheckedHTTPSConnection

    return {"http": CheckedHTTPPool, "https": CheckedHTTPSPool}
