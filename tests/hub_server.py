"""A Hugging Face Hub on loopback: the three routes that huggingface_hub uses for models."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

MAIN = "a" * 40
OLDER = "b" * 40


@dataclass
class Repository:
    """Files by commit, and the commits of branches; a file is its bytes or a path to them."""

    commits: dict[str, dict[str, bytes | Path]]
    branches: dict[str, str] = field(default_factory=lambda: {"main": MAIN})
    token: str = ""

    def at(self, revision: str) -> tuple[str, dict[str, bytes | Path]] | None:
        commit = self.branches.get(revision, revision)
        return (commit, self.commits[commit]) if commit in self.commits else None


def _open_gate() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


@dataclass
class HubServer:
    """The running server: its address, its repositories, and the requests that it received."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    # The Range header of each download that has one.
    ranges: list[str] = field(default_factory=list)
    # The digest that is announced instead of that of a file, by the file's name.
    announced: dict[str, str] = field(default_factory=dict)
    # Downloads and look-ups wait for it.
    gate: threading.Event = field(default_factory=_open_gate)

    def add(self, repository: str, files: dict[str, bytes | Path], token: str = "") -> Repository:
        self.repositories[repository] = Repository({MAIN: files}, token=token)
        return self.repositories[repository]

    @property
    def downloads(self) -> list[str]:
        """The names of the files that were downloaded, in order."""
        return [
            each.rpartition("/resolve/")[2].partition("/")[2]
            for each in self.requests
            if each.startswith("GET ") and "/resolve/" in each
        ]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: HubServer, *args: object) -> None:
        self.hub = hub
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0]).strip("/")
        self.hub.requests.append(f"{self.command} {path}")
        self.hub.gate.wait(60)
        if path.startswith("api/models/"):
            name, _, revision = path.removeprefix("api/models/").partition("/revision/")
            self._answer(name, revision or "main", None)
        else:
            name, _, rest = path.partition("/resolve/")
            revision, _, file = rest.partition("/")
            if rest.startswith("refs/pr/"):
                number, _, file = rest.removeprefix("refs/pr/").partition("/")
                revision = f"refs/pr/{number}"
            self._answer(name, revision, file)

    do_HEAD = do_GET

    def _answer(self, name: str, revision: str, file: str | None) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            return self._fail(401, "RepoNotFound")
        if repository.token and self.headers["Authorization"] != f"Bearer {repository.token}":
            return self._fail(403, "GatedRepo")
        if (snapshot := repository.at(revision)) is None:
            return self._fail(404, "RevisionNotFound")
        commit, files = snapshot
        if file is None:
            siblings = [{"rfilename": each} for each in files]
            body = json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode()
            return self._send(200, {"Content-Type": "application/json"}, body)
        if file not in files:
            return self._fail(404, "EntryNotFound")
        content = files[file]
        body = content.read_bytes() if isinstance(content, Path) else content
        headers = {
            "ETag": f'"{self.hub.announced.get(file) or hashlib.sha256(body).hexdigest()}"',
            "X-Repo-Commit": commit,
            "Content-Disposition": f'inline; filename="{file.rpartition("/")[2]}";',
        }
        if self.command == "GET" and (requested := self.headers["Range"]):
            self.hub.ranges.append(requested)
            start = int(requested.removeprefix("bytes=").removesuffix("-"))
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            return self._send(206, headers, body[start:])
        return self._send(200, headers, body)

    def _fail(self, status: int, code: str) -> None:
        self._send(status, {"X-Error-Code": code, "X-Error-Message": code}, b"")

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep the server's log out of what the tests read from stderr."""


@contextmanager
def hub_server() -> Iterator[HubServer]:
    hub = HubServer()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, hub)) as server:
        server.daemon_threads = True
        server.block_on_close = False
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield hub
        server.shutdown()
        thread.join()


def cache_repository(
    cache: Path, repository: str, files: dict[str, bytes], branch: str = "main"
) -> Path:
    """Write files into a cache in the layout of the Hub's library; return the snapshot's folder."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / MAIN
    for name, content in files.items():
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(content)
    (folder / "refs").mkdir()
    (folder / "refs" / branch).write_text(MAIN)
    return snapshot
