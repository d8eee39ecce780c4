"""Two handlers of one server, of which one calls the other with RunPod's client; the real SDK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_user_handler import HandlerServer

CALLS_OTHER = """\
import os
import runpod

runpod.api_key = os.environ["RUNPOD_API_KEY"]

def handler(job):
    answer = runpod.Endpoint("loud").run_sync({"input": job["input"]}, timeout=30)
    return {"answer": answer}

runpod.serverless.start({"handler": handler})
"""
LOUD = """\
import runpod

runpod.serverless.start({"handler": lambda job: job["input"]["text"].upper()})
"""
KEY = "a-key"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HandlerServer]:
    other = tmp_path / "other"
    other.mkdir()
    (other / "handler.py").write_text(LOUD)
    options = ("--handler", "loud=../other")
    server = HandlerServer(tmp_path, CALLS_OTHER, *options, API_KEYS=KEY, POLL_HOLD_S="0.5")
    server.client.headers["Authorization"] = f"Bearer {KEY}"
    try:
        yield server
    finally:
        server.close()


def test_handler_calls_another_handler_of_the_same_server(server: HandlerServer) -> None:
    assert server.run(text="hello")["output"] == {"answer": "HELLO"}
    handlers = server.health()["handlers"]
    assert [(each["endpoint"], each["state"]) for each in handlers] == [
        ("my-project", "ready"),
        ("loud", "ready"),
    ]
    workers = {
        endpoint: server.client.get(f"/v2/serverless/{endpoint}/workers").json()["workers"]
        for endpoint in ("my-project", "loud")
    }
    assert {each: len(found) for each, found in workers.items()} == {"my-project": 1, "loud": 1}
    assert workers["loud"][0]["id"].startswith("launched-loud-")
    for path in ("run", "runsync", "openai/v1/chat/completions"):
        response = server.client.post(f"/v2/louder/{path}", json={"input": {}})
        assert response.status_code == 404
        assert "there is no endpoint louder, there is: my-project, loud; " in response.text
    assert server.client.get("/v2/louder/health").status_code == 404
    assert not [*server.project.glob("*.sqlite3*")]


@pytest.mark.long
def test_change_reloads_the_handler_of_its_folder_only(server: HandlerServer) -> None:
    assert server.run(text="hello")["output"] == {"answer": "HELLO"}
    server.edit(CALLS_OTHER.replace('"answer": answer', '"reply": answer'))
    assert server.run(text="hello")["output"] == {"reply": "HELLO"}
    versions = {
        endpoint: server.client.get(f"/v2/serverless/{endpoint}/workers").json()["endpointVersion"]
        for endpoint in ("my-project", "loud")
    }
    assert versions == {"my-project": 2, "loud": 1}
