"""`curl`: the part of curl that the documents and the programs in the suite use, over http.client.

The suite runs it on a system without curl. Options, exit codes and output are those of curl 7.88.
Output is written as it arrives, so that a stream can be read while it runs; `-N` is accepted and
changes nothing. An unknown option ends it with exit code 2 and no request.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import time
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

_CANNOT_CONNECT, _HTTP_ERROR, _PARTIAL_BODY, _TIMED_OUT = 7, 22, 18, 28
_READ_BYTES = 1 << 16


def main() -> int:
    """Make the requests for all addresses in turn and return the last exit code."""
    options = _parser().parse_args()
    code = 0
    for url in options.url:
        code = _request_with_retries(url, options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="curl", allow_abbrev=False)
    parser.add_argument("url", nargs="+")
    parser.add_argument("-X", "--request")
    parser.add_argument("-H", "--header", action="append", default=[])
    parser.add_argument("-d", "--data", action="append", default=[])
    parser.add_argument("-o", "--output")
    parser.add_argument("-s", "--silent", action="store_true")
    parser.add_argument("-S", "--show-error", action="store_true")
    parser.add_argument("-i", "--include", action="store_true")
    parser.add_argument("-f", "--fail", action="store_true")
    parser.add_argument("-N", "--no-buffer", action="store_true")
    parser.add_argument("-m", "--max-time", type=float)
    parser.add_argument("--retry", type=int, default=0)
    parser.add_argument("--retry-delay", type=float, default=1)
    parser.add_argument("--retry-connrefused", action="store_true")
    return parser


def _request_with_retries(url: str, options: argparse.Namespace) -> int:
    retries = 0
    while True:
        try:
            return _request(url, options)
        except ConnectionRefusedError as error:
            code, text = _CANNOT_CONNECT, f"Failed to connect to {urlsplit(url).netloc}: {error}"
            if options.retry_connrefused and retries < options.retry:
                retries += 1
                time.sleep(options.retry_delay)
                continue
        except TimeoutError:
            code, text = _TIMED_OUT, "Operation timed out"
        except (http.client.HTTPException, ConnectionError) as error:
            code, text = _PARTIAL_BODY, f"transfer closed: {error}"
        except OSError as error:
            code, text = _CANNOT_CONNECT, str(error)
        if options.show_error or not options.silent:
            sys.stderr.write(f"curl: ({code}) {text}\n")
        return code


def _request(url: str, options: argparse.Namespace) -> int:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    body = b"&".join(_data(each) for each in options.data) if options.data else None
    headers = {"Accept": "*/*", "User-Agent": "curl/7.88.1"}
    if body is not None:
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    for line in options.header:
        name, _, value = line.partition(":")
        headers = {k: v for k, v in headers.items() if k.lower() != name.lower()}
        headers[name] = value.strip()
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connect(parts.netloc, timeout=options.max_time)
    try:
        method = options.request or ("GET" if body is None else "POST")
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        if options.fail and response.status >= 400:
            if options.show_error or not options.silent:
                sys.stderr.write(f"curl: (22) The requested URL returned {response.status}\n")
            return _HTTP_ERROR
        if options.output:
            with open(options.output, "wb") as file:
                _write(response, file, include_head=options.include)
        else:
            _write(response, sys.stdout.buffer, include_head=options.include)
    finally:
        connection.close()
    return 0


def _write(response: http.client.HTTPResponse, output: BinaryIO, *, include_head: bool) -> None:
    if include_head:
        output.write(f"HTTP/1.1 {response.status} {response.reason}\r\n".encode())
        for name, value in response.getheaders():
            output.write(f"{name}: {value}\r\n".encode("latin-1"))
        output.write(b"\r\n")
    while chunk := response.read1(_READ_BYTES):
        output.write(chunk)
        output.flush()


def _data(text: str) -> bytes:
    """Return the bytes of a `-d` argument; `@FILE` stands for a file, `@-` for stdin."""
    if not text.startswith("@"):
        return text.encode()
    data = sys.stdin.buffer.read() if text == "@-" else Path(text[1:]).read_bytes()
    return data.replace(b"\r", b"").replace(b"\n", b"")


if __name__ == "__main__":
    sys.exit(main())
