"""Checks of a request's head: ambiguous and malformed ones are refused with the reason."""

from __future__ import annotations

import pytest

from emulator.server.request_head import (
    MAX_HEADERS,
    MAX_TARGET_BYTES,
    BadRequest,
    Headers,
    check_headers,
    check_length,
    split_target,
)

HOST = (b"host", b"x")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/health", (None, b"/health")),
        (b"/a?b=%20", (None, b"/a?b=%20")),
        (b"//a", (None, b"//a")),
        (b"http://x:80/a?b", (b"x:80", b"/a?b")),
        (b"HTTPS://[::1]", (b"[::1]", b"/")),
        (b"http://x?a", (b"x", b"/?a")),
    ],
)
def test_split_target_returns_host_and_path(
    target: bytes, expected: tuple[bytes | None, bytes]
) -> None:
    assert split_target("GET", target) == expected


@pytest.mark.parametrize(
    ("method", "target", "words"),
    [
        ("OPTIONS", b"*", "must be a path"),
        ("CONNECT", b"x:80", "must be a path"),
        ("CONNECT", b"/health", "must be a path"),
        ("GET", b"", "must be a path"),
        ("GET", b"http://", "must be a path"),
        ("GET", b"http://u@x/", "host in the request target"),
        ("GET", b"/a#b", "fragment"),
        ("GET", b"/a%2", "hexadecimal"),
        ("GET", b"/?a=%zz", "hexadecimal"),
    ],
)
def test_split_target_rejects_a_malformed_target(method: str, target: bytes, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        split_target(method, target)


def test_check_length_rejects_a_long_target() -> None:
    check_length(b"/" * MAX_TARGET_BYTES)
    with pytest.raises(BadRequest, match="longer than") as raised:
        check_length(b"/" * (MAX_TARGET_BYTES + 1))
    assert raised.value.status == 414


@pytest.mark.parametrize(
    ("version", "headers", "expected"),
    [
        ("1.1", [HOST, (b"content-length", b"007")], (b"x", 7)),
        ("1.1", [(b"transfer-encoding", b"Chunked"), HOST], (b"x", None)),
        ("1.1", [(b"host", b"[::1]:8000")], (b"[::1]:8000", 0)),
        ("1.1", [(b"host", b"")], (b"", 0)),
        ("1.0", [], (None, 0)),
    ],
)
def test_check_headers_returns_the_host_and_the_length(
    version: str, headers: Headers, expected: tuple[bytes | None, int | None]
) -> None:
    assert check_headers(version, headers) == expected


@pytest.mark.parametrize(
    ("version", "headers", "words", "status"),
    [
        ("1.1", [], "no Host", 400),
        ("1.1", [HOST, HOST], "more than one Host", 400),
        ("1.1", [(b"host", b"a, b")], "host name", 400),
        ("1.1", [HOST, (b"content-length", b"-1")], "whole number", 400),
        ("1.1", [HOST, (b"content-length", b"1" * 19)], "whole number", 400),
        ("1.1", [HOST, *[(b"content-length", b"1")] * 2], "more than one Content-Length", 400),
        ("1.1", [HOST, (b"transfer-encoding", b"gzip")], "chunked, given once", 400),
        ("1.1", [HOST, *[(b"transfer-encoding", b"chunked")] * 2], "given once", 400),
        (
            "1.1",
            [HOST, (b"transfer-encoding", b"chunked"), (b"content-length", b"1")],
            "both",
            400,
        ),
        ("1.0", [(b"transfer-encoding", b"chunked")], "HTTP/1.0", 400),
        ("2.0", [HOST], "HTTP/2.0", 505),
        ("0.9", [], "HTTP/0.9", 505),
        ("1.1", [HOST, *[(b"a", b"b")] * MAX_HEADERS], "headers", 431),
    ],
)
def test_check_headers_rejects_ambiguous_requests(
    version: str, headers: Headers, words: str, status: int
) -> None:
    with pytest.raises(BadRequest, match=words) as raised:
        check_headers(version, headers)
    assert raised.value.status == status
