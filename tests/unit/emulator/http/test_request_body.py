"""Request bodies (R53): read up to the limit, refused with the right error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from emulator.http.request_body import read_json
from handler.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType

Connect = Callable[..., Any]


async def read(connect: Connect, body: bytes, max_bytes: int = 1000, **headers: str) -> Any:
    return await read_json(connect((body,)).request(**headers), max_bytes)


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/vnd.api+json",
        " application/json ;x=y",
    ],
)
async def test_read_json_accepts_json_content_types(connection: Connect, content_type: str) -> None:
    assert await read(connection, b'{"a": [1, "\xc3\xa9"]}', content_type=content_type) == {
        "a": [1, "é"]
    }


FOREIGN_LABELS = [
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "json",
    "",
]


async def test_read_json_accepts_a_body_without_a_content_type(connection: Connect) -> None:
    assert await read(connection, b"{}") == {}


@pytest.mark.parametrize("content_type", FOREIGN_LABELS)
async def test_read_json_accepts_any_content_type_from_other_clients(
    connection: Connect, content_type: str
) -> None:  # R70
    assert await read(connection, b'{"a": 1}', content_type=content_type) == {"a": 1}


@pytest.mark.parametrize(
    "browser",
    [
        {"origin": "https://example.com"},
        {"origin": "null"},
        {"sec_fetch_site": "none"},
        {"sec_fetch_mode": "cors"},
    ],
)
async def test_read_json_rejects_other_content_types_of_browsers_unread(
    connection: Connect, browser: dict[str, str]
) -> None:  # R70
    for label in FOREIGN_LABELS:
        peer = connection((b"{}",))
        with pytest.raises(UnsupportedMediaType, match="application/json"):
            await read_json(peer.request(content_type=label, **browser), 1000)
        assert peer.received == 0
    with pytest.raises(UnsupportedMediaType, match="got none"):
        await read_json(connection((b"{}",)).request(**browser), 1000)
    labelled = connection((b"{}",)).request(content_type="application/json", **browser)
    assert await read_json(labelled, 1000) == {}


async def test_body_in_parts_is_joined(connection: Connect) -> None:
    parts = (b'{"a"', b":", b"", b'"\xf0\x9f', b'\x98\x80"}')
    assert await read_json(connection(parts).request(), 1000) == {"a": "😀"}


async def test_body_of_exactly_the_limit_is_accepted(connection: Connect) -> None:
    body = b'{"a":"' + b"x" * 92 + b'"}'
    assert len(body) == 100
    length = str(len(body))
    assert await read(connection, body, max_bytes=100, content_length=length) == {"a": "x" * 92}
    with pytest.raises(PayloadTooLarge):
        await read(connection, body, max_bytes=99)


async def test_declared_size_above_the_limit_is_rejected_unread(connection: Connect) -> None:
    peer = connection((b"{}",))
    with pytest.raises(PayloadTooLarge, match=r"larger than 0\.001 MB"):
        await read_json(peer.request(content_length="1001"), 1000)
    assert peer.received == 0


async def test_undeclared_size_is_rejected_above_the_limit(connection: Connect) -> None:
    peer = connection((b"x" * 400,) * 1000)
    with pytest.raises(PayloadTooLarge):
        await read_json(peer.request(), 1000)
    assert peer.received == 3


@pytest.mark.parametrize("length", ["-1", "x", "", "1e3", "²", "٣٠٠٠", "9" * 5000])
async def test_invalid_content_length_is_ignored(connection: Connect, length: str) -> None:
    assert await read(connection, b"{}", content_length=length) == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'{"a": "\xff"}',
        b'{"a": "\\ud800"}',
        b'\xef\xbb\xbf{"a": 1}',
        b'{"a": 1} {"b": 2}',
        b'{"a": 1,}',
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=lambda body: repr(body[:20]),
)
async def test_malformed_json_is_an_invalid_request(connection: Connect, body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="the body is not JSON"):
        await read(connection, body, max_bytes=2_000_000)


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"1", b"null", b"true", b'[{"a": 1}]'])
async def test_json_other_than_an_object_is_an_invalid_request(
    connection: Connect, body: bytes
) -> None:
    with pytest.raises(InvalidRequest, match="must be a JSON object"):
        await read(connection, body)


async def test_disconnect_during_the_body_is_detected(connection: Connect) -> None:
    peer = connection((b'{"a":',), leaves_in_body=True)
    async with asyncio.timeout(30):
        with pytest.raises(ClientDisconnect):
            await read_json(peer.request(), 1000)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
async def test_nan_and_infinity_are_named_in_the_error(connection: Connect, number: bytes) -> None:
    with pytest.raises(InvalidRequest, match="; NaN and Infinity are no JSON"):
        await read(connection, b'{"a": %b}' % number)
