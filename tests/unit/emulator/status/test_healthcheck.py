"""The health check of a container for its own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from emulator.status.healthcheck import check_health, find_address, main
from tests.ports import free_port


@contextmanager
def answering(status: int, credentials: list[str | None] | None = None) -> Iterator[int]:
    """Serve one answer on a port, and append the request's Authorization to `credentials`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if credentials is not None:
                credentials.append(self.headers["authorization"])
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()
            self.wfile.write(b'{"status": "as it is"}')

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield server.server_port
        thread.join(10)


@pytest.mark.parametrize(
    ("arguments", "environment", "address"),
    [
        ([], {}, ("127.0.0.1", 8000)),
        ([], {"PORT": "81", "HOST": "10.0.0.1"}, ("10.0.0.1", 81)),
        ([], {"PORT": "", "HOST": ""}, ("127.0.0.1", 8000)),
        (["--port", "82"], {"PORT": "81", "HOST": "0.0.0.0"}, ("127.0.0.1", 82)),  # noqa: S104
        (["--host=::", "--db", "x", "--workers", "3", ""], {}, ("::1", 8000)),
    ],
)
def test_find_address_uses_the_arguments_and_environment(
    arguments: list[str], environment: dict[str, str], address: tuple[str, int]
) -> None:
    assert find_address(arguments, environment) == address


def test_server_that_answers_200_is_healthy() -> None:
    with answering(200) as port:
        assert check_health("127.0.0.1", port) is None


def test_key_of_the_server_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    credentials: list[str | None] = []
    with answering(200, credentials) as port:
        (tmp_path / "cmdline").write_bytes(f"python\0-m\0emulator\0--port\0{port}\0".encode())
        monkeypatch.setenv("API_KEYS", " one, two")
        assert main(tmp_path / "cmdline") == 0
    assert credentials == ["Bearer one"]


def test_server_that_answers_503_is_unhealthy_with_its_body() -> None:
    with answering(503) as port:
        assert check_health("127.0.0.1", port) == '{"status": "as it is"}'


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_address_of_the_server_is_read_from_the_command_line_of_the_container(
    status: int, code: int, tmp_path: Path
) -> None:
    with answering(status) as port:
        (tmp_path / "cmdline").write_bytes(f"python\0-m\0emulator\0--port\0{port}\0".encode())
        assert main(tmp_path / "cmdline") == code


def test_missing_server_is_unhealthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"docker-init\0--\0python\0-u\0-m\0emulator\0--port={free_port()}\0"
    (tmp_path / "cmdline").write_bytes(command.encode())
    assert main(tmp_path / "cmdline") == 1
    assert "/health does not answer: " in capsys.readouterr().err


def test_worker_is_healthy(tmp_path: Path) -> None:
    (tmp_path / "cmdline").write_bytes(b"python\0-u\0-m\0handler\0")
    assert main(tmp_path / "cmdline") == 0
