"""Reloads of handlers that need what exists once, and commands that take no jobs; the real SDK."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.acceptance.test_user_handler import HandlerServer, free_port, plain

WITH_PORT = """\
import socket
import runpod

port = socket.create_server(("127.0.0.1", {port}))

runpod.serverless.start({{"handler": lambda job: {version}}})
"""
# As in public images of ComfyUI and A1111: a script starts the backend, and then the handler.
START_SCRIPT = """\
#!/usr/bin/env bash
python -u -m http.server {port} --bind 127.0.0.1 &
python -u handler.py
"""
WITH_BACKEND = """\
import time, urllib.request
import runpod

def handler(job):
    for _ in range(100):
        try:
            return [VERSION, urllib.request.urlopen("http://127.0.0.1:PORT/").status]
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the backend does not answer")

runpod.serverless.start({"handler": handler})
"""


@pytest.mark.long
def test_handler_that_needs_a_port_of_its_own_is_reloaded(tmp_path: Path) -> None:
    port = free_port()
    server = HandlerServer(tmp_path, WITH_PORT.format(port=port, version=1), POLL_HOLD_S="0.5")
    try:
        assert server.run()["output"] == 1
        assert server.edit(WITH_PORT.format(port=port, version=2))["state"] == "ready"
        assert server.run()["output"] == 2
        assert "is started again when the worker with the code before the change has ended" in (
            server.log
        )
    finally:
        server.close()


@pytest.mark.long
def test_start_script_with_a_backend_is_reloaded(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "my project").mkdir()
    script = tmp_path / "my project" / "start.sh"
    script.write_text(START_SCRIPT.format(port=port))
    command = f"bash {shlex.quote(str(script))}"
    handler = WITH_BACKEND.replace("PORT", str(port))
    server = HandlerServer(
        tmp_path, handler.replace("VERSION", "0"), "--worker-command", command, POLL_HOLD_S="0.5"
    )
    try:
        assert server.run()["output"] == [0, 200]
        for version in (1, 2, 3):
            assert server.edit(handler.replace("VERSION", str(version)))["state"] == "ready"
            assert server.run()["output"] == [version, 200]
        assert "did not start" not in server.log
    finally:
        server.close()


@pytest.mark.long
def test_program_that_serves_the_test_api_fails_the_jobs(tmp_path: Path) -> None:
    server = HandlerServer(
        tmp_path, plain(1), "--worker-command", "python handler.py --rp_serve_api --rp_api_port 0"
    )
    try:
        job = server.run()
        assert job["status"] == "FAILED"
        assert "it serves the SDK's own test API and takes no jobs from a queue" in job["error"]
    finally:
        server.close()
