"""The suite's own `curl`, against a real server: the features that the documents use."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.ports import free_port

CURL = Path(__file__).resolve().parents[2] / "commands" / "curl.py"


class EchoHandler(BaseHTTPRequestHandler):
    """Echoes the request; /stream sends its second half when the test sets `may_finish`."""

    protocol_version = "HTTP/1.1"
    may_finish = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/missing":
            self.send_error(404)
        elif self.path == "/stream":
            self._stream()
        else:
            self._echo()

    do_POST = do_GET
    do_PUT = do_GET

    def _echo(self) -> None:
        size = int(self.headers.get("Content-Length", "0"))
        head = f"{self.command} {self.path} {self.headers.get('Content-Type')} "
        body = head.encode() + self.rfile.read(size)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Mark", "here")
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"6\r\nfirst\n\r\n")
        self.wfile.flush()
        self.may_finish.wait(30)
        self.wfile.write(b"5\r\nlast\n\r\n0\r\n\r\n")

    def log_message(self, format: str, *arguments: object) -> None:
        return


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), EchoHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    EchoHandler.may_finish.clear()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        EchoHandler.may_finish.set()
        server.shutdown()
        thread.join()
        server.server_close()


def curl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CURL), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_curl_gets_a_page(address: str) -> None:
    assert curl("-s", f"{address}/a?b=c").stdout == "GET /a?b=c None "


def test_curl_posts_data_with_a_header(address: str) -> None:
    json = ("-H", "Content-Type: application/json", "-d", '{"a": "ü"}')
    assert curl("-s", f"{address}/a", *json).stdout == 'POST /a application/json {"a": "ü"}'


def test_curl_posts_a_file_without_its_line_ends_as_a_form(address: str, tmp_path: Path) -> None:
    (tmp_path / "body").write_text("one\ntwo\n")
    output = curl("-s", "-X", "PUT", address, "-d", f"@{tmp_path}/body").stdout
    assert output == "PUT / application/x-www-form-urlencoded onetwo"


def test_curl_includes_the_head_with_option_i(address: str) -> None:
    head, _, body = curl("-si", f"{address}/a").stdout.partition("\n\n")
    assert head.startswith("HTTP/1.1 200 OK\n")
    assert "\nX-Mark: here" in head
    assert body == "GET /a None "


def test_curl_fails_with_22_for_an_http_error(address: str) -> None:
    done = curl("-sf", f"{address}/missing")
    assert (done.returncode, done.stdout) == (22, "")


def test_curl_writes_a_stream_as_it_arrives(address: str) -> None:
    command = [sys.executable, str(CURL), "-N", f"{address}/stream"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        EchoHandler.may_finish.set()
        assert process.stdout.read() == b"last\n"
    assert process.returncode == 0


def test_curl_retries_a_refused_connection_and_then_fails_with_7() -> None:
    retries = ("--retry", "1", "--retry-connrefused", "--retry-delay", "0")
    done = curl(f"http://127.0.0.1:{free_port()}/", *retries)
    assert done.returncode == 7
    assert "curl: (7)" in done.stderr


def test_curl_refuses_an_option_that_it_lacks(address: str) -> None:
    assert curl("--proxy-ntlm", address).returncode == 2
