"""Check a request's first line and headers, as far as the HTTP parser does not."""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_HEADERS = 256
MAX_TARGET_BYTES = 16_384
# Without userinfo, which has no place in it (RFC 9110, section 7.2).
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*;=+%-]*)(:[0-9]{0,5})?")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ABSOLUTE = re.compile(rb"[hH][tT][tT][pP][sS]?://([^/?#]+)(.*)", re.DOTALL)

Headers = Sequence[tuple[bytes, bytes]]


class BadRequest(ValueError):
    """The request cannot be served as it is; the message is a sentence for the client."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def check_length(target: bytes) -> None:
    """Check the length of a request target, or of its beginning. Raises BadRequest."""
    if len(target) > MAX_TARGET_BYTES:
        raise BadRequest(f"the request target is longer than {MAX_TARGET_BYTES} bytes", 414)


def split_target(method: str, target: bytes) -> tuple[bytes | None, bytes]:
    """Split a request target into its host, or None, and its path with the query.

    Raises:
        BadRequest: the target is malformed, or has a form that this server does not support.
    """
    host = None
    # The target of CONNECT is only a host and a port, and that of OPTIONS may be an asterisk.
    if method == "CONNECT" or not target.startswith(b"/"):
        absolute = None if method == "CONNECT" else _ABSOLUTE.fullmatch(target)
        if absolute is None:
            raise BadRequest("the request target must be a path, such as /health")
        host, target = absolute[1], absolute[2]
        if not target.startswith(b"/"):
            target = b"/" + target
        if not _HOST.fullmatch(host):
            raise BadRequest("the host in the request target is malformed")
    if b"#" in target:
        raise BadRequest("the request target must not have a fragment (#)")
    if b"%" in target and _BAD_ESCAPE.search(target):
        raise BadRequest("the request target has a % that two hexadecimal digits do not follow")
    return host, target


def check_headers(version: str, headers: Headers) -> tuple[bytes | None, int | None]:
    """Check the Host header and the headers that define the end of the request.

    If two servers disagree about the end of a request, it can contain a second request that only
    one of them checks (request smuggling), so everything ambiguous is rejected. Returns the host,
    and the length of the body; None if the body is chunked.

    Raises:
        BadRequest: RFC 9112 requires the request to be refused, or lets it be refused.
    """
    if version not in ("1.1", "1.0"):
        raise BadRequest(f"HTTP/{version} is not served; use HTTP/1.1", 505)
    if len(headers) > MAX_HEADERS:
        raise BadRequest(f"the request has more than {MAX_HEADERS} headers", 431)
    host: bytes | None = None
    length: int | None = None
    has_coding = False
    for name, value in headers:
        if name == b"host":
            host = _read_host(value, host)
        elif name == b"content-length":
            length = _read_length(value, length)
        elif name == b"transfer-encoding":
            has_coding = _read_coding(value, has_coding)
    if has_coding and length is not None:
        raise BadRequest("the request has both Content-Length and Transfer-Encoding")
    if version == "1.1" and host is None:
        raise BadRequest("the request has no Host header")
    if version == "1.0" and has_coding:
        raise BadRequest("Transfer-Encoding is not part of HTTP/1.0")
    return host, None if has_coding else length or 0


def _read_host(value: bytes, earlier: bytes | None) -> bytes:
    if earlier is not None:
        raise BadRequest("the request has more than one Host header")
    if not _HOST.fullmatch(value):
        raise BadRequest("the Host header must be a host name with an optional port")
    return value


def _read_length(value: bytes, earlier: int | None) -> int:
    if earlier is not None:
        raise BadRequest("the request has more than one Content-Length header")
    if not value.isdigit() or len(value) > 18:
        raise BadRequest("Content-Length must be a whole number of bytes")
    return int(value)


def _read_coding(value: bytes, has_coding: bool) -> bool:
    if has_coding or value.lower() != b"chunked":
        raise BadRequest("Transfer-Encoding must be chunked, given once")
    return True
