"""Requests that make the server write a user's tests file: many at once, large, foreign."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

import emulator.console.routes
from emulator.app import create_app
from emulator.autoscaling.program.interpreter import Interpreter
from emulator.autoscaling.program.worker_program import handler_program
from emulator.startup.components import build_components
from emulator.tests_file.editor import FileLimits, add_test
from jobs.model import Job, JobStatus
from tests.error_bodies import read_reason
from tests.integration.emulator.conftest import build_settings
from tests.waiting import run_ready_tasks, wait_until

PATH = "/console/jobs/j/test"
KEY = {"authorization": "Bearer secret"}


def open_client(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> httpx2.AsyncClient:
    """Return a client of a server whose handler is in a folder, and which has one finished job."""
    file = folder / "handler.py"
    values = {"job_db": ":memory:"} | settings
    program = handler_program(file, Interpreter("/opt/python", "chosen"))
    components = build_components(build_settings(values), None, {"default": program})
    job = Job(
        id="j",
        endpoint="default",
        input=b'{"x":1}',
        created_at=0.0,
        status=JobStatus.COMPLETED,
        output=b"[2]",
    )

    async def get(job_id: str) -> Job:
        return job

    monkeypatch.setattr(components.store, "get", get)
    transport = httpx2.ASGITransport(app=create_app(components))
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost")


def names_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


def saved_names(folder: Path) -> list[str]:
    return [each["name"] for each in json.loads((folder / "tests.json").read_text())["tests"]]


async def test_parallel_saves_lose_no_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_client(tmp_path, monkeypatch) as client:
        saves = [client.post(PATH, json={"name": f"n{number}"}) for number in range(40)]
        assert {each.status_code for each in await asyncio.gather(*saves)} == {200}
    assert sorted(saved_names(tmp_path)) == sorted(f"n{number}" for number in range(40))
    assert names_in(tmp_path) == ["tests.json"]


async def test_save_of_a_client_that_left_ends_before_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    may_write = threading.Event()

    def write(path: Path, test: Mapping[str, Any], limits: FileLimits) -> None:
        begun.append(test["name"])
        assert may_write.wait(30)
        add_test(path, test, limits)

    monkeypatch.setattr(emulator.console.routes, "add_test", write)
    async with open_client(tmp_path, monkeypatch) as client:
        left = asyncio.ensure_future(client.post(PATH, json={"name": "left"}))
        await wait_until(lambda: begun == ["left"])
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        kept = asyncio.ensure_future(client.post(PATH, json={"name": "kept"}))
        await run_ready_tasks()
        assert begun == ["left"]
        may_write.set()
        assert (await kept).status_code == 200
    assert saved_names(tmp_path) == ["left", "kept"]


@pytest.mark.parametrize(
    ("limits", "text", "reason"),
    [
        (FileLimits(10_000, 2), None, "has 2 tests"),
        (FileLimits(500, 100), None, "more than 500 bytes"),
        (FileLimits(300, 100), " " * 1000, "more than 300 bytes"),
    ],
)
async def test_full_file_is_refused_and_unchanged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limits: FileLimits,
    text: str | None,
    reason: str,
) -> None:
    monkeypatch.setattr(emulator.console.routes, "_TESTS_FILE_LIMITS", limits)
    file = tmp_path / "tests.json"
    async with open_client(tmp_path, monkeypatch) as client:
        for number in range(2 if text is None else 0):
            assert (await client.post(PATH, json={"name": f"n{number}"})).status_code == 200
        if text is not None:
            file.write_text(text)
        before = file.read_text()
        refused = await client.post(PATH, json={"name": "one too many"})
        assert (refused.status_code, file.read_text()) == (413, before)
        assert reason in read_reason(refused.json())
        assert len(read_reason(refused.json())) < 400


async def test_saves_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator.console.routes, "_MAX_WAITING_SAVES", 3)
    async with open_client(tmp_path, monkeypatch) as client:
        saves = [client.post(PATH, json={"name": f"n{number}"}) for number in range(10)]
        codes = [each.status_code for each in await asyncio.gather(*saves)]
        assert set(codes) == {200, 429}
        assert len(saved_names(tmp_path)) == codes.count(200)
        # The places are free again.
        assert (await client.post(PATH, json={"name": "later"})).status_code == 200


@pytest.mark.parametrize(
    ("keys", "headers", "status"),
    [
        ("secret", {}, 401),
        ("secret", {"authorization": "Bearer wrong"}, 401),
        ("secret", KEY, 200),
        ("", {}, 200),
        ("", {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}, 403),
        ("", {"sec-fetch-site": "cross-site"}, 403),
        ("", {"origin": "null"}, 403),
        # A page that has rebound its name is of the same origin as its own name.
        ("", {"host": "evil.example", "origin": "http://evil.example"}, 403),
        ("", {"host": "evil.example", "sec-fetch-site": "same-origin"}, 403),
        (
            "",
            {"host": "localhost", "origin": "http://localhost", "content-type": "text/plain"},
            415,
        ),
    ],
)
async def test_only_callers_of_the_console_make_the_server_write(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keys: str,
    headers: dict[str, str],
    status: int,
) -> None:
    async with open_client(tmp_path, monkeypatch, api_keys=keys) as client:
        sent = {"content-type": "application/json", **headers}
        response = await client.post(PATH, content=b'{"name": "n"}', headers=sent)
    assert response.status_code == status
    assert (tmp_path / "tests.json").exists() is (status == 200)
