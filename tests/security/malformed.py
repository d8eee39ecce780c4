"""Requests that break HTTP's grammar in one or more places, from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

# ruff: noqa: E501 - tables are easier to read in long lines
# The last request of each case. The server answers it and closes, or has refused what came before.
LAST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"

_METHODS = [b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"DELETE", b"TRACE", b"CONNECT", b"PRI"]
_ODD_METHODS = [b"get", b"G ET", b"", b"\x00", b"GET\t", b"M-SEARCH", b"SOURCE", b"X" * 5_000]
_TARGETS = [
    b"/health", b"/run", b"/runsync", b"/v1/completions", b"/v1/models", b"/metrics", b"/docs",
    b"/v2/default/run", b"/v2/e/job-take/w", b"/v2/e/job-done/w/j", b"/v1/files", b"/status/x",
    b"/stream/x", b"/v2/e/ping/w?status=unhealthy&reason=%0a%1b[31m",
]  # fmt: skip
_ODD_TARGETS = [
    b"*", b"//", b"//x//y", b"/%", b"/%zz", b"/%00", b"/%ff%fe", b"/%f", b"/a?b=%", b"http://127.0.0.1/health",
    b"http://u:p@x/health", b"http:///health", b"https://x", b"x:80", b"?", b"", b"#", b"/#a", b"/\x01",
    b"/\xff", "/\u00e9".encode(), b"/" + b"a" * 20_000, b"/../../etc/passwd", b"/a b", b"/\x7f",
    b"ftp://x/y", b"/health\x00", b"/v2//run", b"/v2/%2e%2e/run", b"/status/" + b"%F0%9F%98%80" * 90,
]  # fmt: skip
_VERSIONS = [b"HTTP/1.1"] * 8 + [
    b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/3", b"HTTP/1.2", b"http/1.1", b"", b"RTSP/1.0",
]  # fmt: skip
_HEADERS = [
    b"Host: 127.0.0.1", b"Accept: */*", b"Content-Type: application/json", b"Connection: keep-alive",
    b"Expect: 100-continue", b"X-Request-Id: a", b"Authorization: Bearer x", b"Origin: http://127.0.0.1",
    b"Content-Type: multipart/form-data; boundary=b",
]  # fmt: skip
_ODD_HEADERS = [
    b"Host: y", b"Host: a b", b"Host: u@x", b"Host:", b"Host : x", b" folded: x", b"\tfolded", b"nocolon",
    b": empty", b"X: \x00", b"X: \x01", b"X: \x80\xff", b"X\xff: a", b"X: a\rb", b"X: a\nb",
    b"Content-Length: 5", b"Content-Length: 05", b"Content-Length: -1", b"Content-Length: +5",
    b"Content-Length: 5, 5", b"Content-Length: 0x5", b"Content-Length: 99999999999999999999",
    b"Content-Length:", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: xchunked", b"Transfer-Encoding:",
    b"Transfer-Encoding: identity", b"Transfer-Encoding\t: chunked", b"Upgrade: h2c",
    b"Connection: Upgrade, HTTP2-Settings", b"Connection: close", b"Trailer: Authorization",
    b"X: " + b"x" * 70_000, b"Content-Type: multipart/form-data", b"Content-Type: \xff;;;=",
    b"Origin: http://x", b"Origin: \xff", b"Expect: the worst", b"Range: bytes=9-1",
]  # fmt: skip
_BODIES = [
    b'{"input": {"prompt": "x"}}', b'{"prompt": "x"}', b"{}", b"[", b"\xff", b"[" * 2_000, b'{"a":1e999}',
    b'{"input":"\\ud800"}', b"--b\r\n\r\n--b--\r\n",
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n--b--\r\n',
]  # fmt: skip
_CHUNKINGS = [
    b"%x\r\n%s\r\n0\r\n\r\n", b"%x;a=b\r\n%s\r\n0\r\nAuthorization: x\r\n\r\n", b"%X \r\n%s\r\n00\r\n\r\n",
    b"%x\n%s\n0\n\n", b"0x%x\r\n%s\r\n0\r\n\r\n", b"-%x\r\n%s\r\n0\r\n\r\n", b"%x\r\n%sX\r\n0\r\n\r\n",
    b"fffffffffffffffff%x\r\n%s\r\n", b"%x;" + b"e" * 2_000 + b"\r\n%s\r\n0\r\n\r\n",
    b"%x\r\n%s\r\n0\r\nbad trailer\r\n\r\n", b"%x\r\n%s\r\n0\r\n" + b"t: u\r\n" * 3_000 + b"\r\n",
]  # fmt: skip


def malformed_requests(seed: int, count: int) -> Iterator[bytes]:
    """Yield `count` cases, each the bytes of one connection."""
    generator = random.Random(seed)
    for _ in range(count):
        requests = [_request(generator) for _ in range(generator.choice((1, 1, 1, 2, 3)))]
        case = b"".join(requests)
        if generator.random() < 0.3:
            case = _mutated(generator, case)
        yield case + LAST


def _request(random_: random.Random) -> bytes:
    odds = random_.choice((0.05, 0.2, 0.5))

    def pick(good: list[bytes], odd: list[bytes]) -> bytes:
        return random_.choice(odd if random_.random() < odds else good)

    headers = [b"Host: 127.0.0.1"] if random_.random() > odds / 2 else []
    headers += [pick(_HEADERS[1:], _ODD_HEADERS) for _ in range(random_.randrange(6))]
    body = b""
    if random_.random() < 0.6:
        content = random_.choice(_BODIES)
        if random_.random() < 0.4:
            headers.append(b"Transfer-Encoding: chunked")
            template = pick(_CHUNKINGS[:2], _CHUNKINGS[2:])
            size, _, rest = template.partition(b"%s")
            body = size.replace(b"%x", b"%x" % len(content)).replace(b"%X", b"%X" % len(content))
            body += content + rest if b"%s" in template else b""
        else:
            wrong = random_.choice((-1, 1, 1_000)) if random_.random() < odds else 0
            headers.append(b"Content-Length: %d" % max(0, len(content) + wrong))
            body = content
    random_.shuffle(headers)
    end = pick([b"\r\n"], [b"\n", b"\r", b"\r\r\n", b" \r\n", b"\r\n\r\n"])
    start = b" ".join(
        (pick(_METHODS[:6], _ODD_METHODS + _METHODS), pick(_TARGETS, _ODD_TARGETS),
         random_.choice(_VERSIONS) if random_.random() < odds else b"HTTP/1.1")
    )  # fmt: skip
    return b"".join((start, end, *(header + end for header in headers), end, body))


def _mutated(random_: random.Random, case: bytes) -> bytes:
    """Return a case with some bytes changed, removed, added or repeated."""
    data = bytearray(case)
    for _ in range(random_.randrange(1, 6)):
        at = random_.randrange(len(data) + 1)
        kind = random_.randrange(4)
        if kind == 0 and at < len(data):
            data[at] = random_.randrange(256)
        elif kind == 1:
            del data[at : at + random_.randrange(1, 20)]
        elif kind == 2:
            data[at:at] = random_.randbytes(random_.randrange(1, 8))
        else:
            data[at:at] = data[at : at + random_.randrange(1, 60)]
    return bytes(data)
