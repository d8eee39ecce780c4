"""Batches of a server that is killed, wherever it hurts, and of one whose disk is full."""

from __future__ import annotations

import ast
import asyncio
import json
import random
import resource
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from common.failpoints import MARKER_VARIABLE, NAME_VARIABLE
from tests.conftest import ScriptFactory
from tests.crashes.server import Server
from tests.crashes.template import ROOT, Template
from tests.integration.batch.runs import call
from tests.prompt_counter import PromptCounter
from tests.waiting import poll_until, wait_until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

SLOTS = 4
FINAL = ("completed", "failed", "expired", "cancelled")
# What has to be done for a failpoint to be passed.
FAILPOINTS = {
    "upload-taken": "upload",
    "record-dropped": "delete",
    "batch-kept": "complete",
    "batch-validated": "complete",
    "batch-finalizing": "complete",
    "batch-written": "complete",
    "batch-file-kept": "complete",
    "batch-ended": "complete",
    "batch-cancelling": "cancel",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def template() -> AsyncIterator[Template]:
    found = await Template.open()
    yield found
    await found.close()


def server_of(folder: Path, model: Path, template: Template, **settings: str) -> Server:
    """Return a server that keeps its batches and forgets its jobs."""
    given = {"MODEL_PATH": str(model), "JOB_DB": ":memory:", "BATCH_DIR": str(folder / "kept")}
    return Server(folder, given | settings, template)


def lines(count: int, prompt: str = "p") -> bytes:
    """Return a file of which each prompt is its own, and one line cannot be answered."""
    found = [call(f"id {each}", f"{prompt} {each}") for each in range(count)]
    found[-1]["body"]["temperature"] = 9
    return b"".join(json.dumps(each).encode() + b"\n" for each in found)


class Person:
    """Somebody with a batch, who knows only what was answered."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def upload(self, data: bytes) -> str:
        form = {"purpose": "batch"}
        response = await self._http.post("/v1/files", data=form, files={"file": ("in", data)})
        assert response.status_code == 200, response.text
        return str(response.json()["id"])

    async def create(self, file_id: str) -> str:
        body = {
            "input_file_id": file_id,
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        }
        response = await self._http.post("/v1/batches", json=body)
        assert response.status_code == 200, response.text
        return str(response.json()["id"])

    async def post(self, path: str) -> httpx2.Response:
        return await self._http.post(path)

    async def delete(self, file_id: str) -> httpx2.Response:
        return await self._http.delete(f"/v1/files/{file_id}")

    async def all(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._http.get(f"/v1/{kind}")).json()["data"]
        return found

    async def batch(self, batch_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self._http.get(f"/v1/batches/{batch_id}")).json()
        return found

    async def begun(self, batch_id: str) -> None:
        async def ask() -> bool:
            return bool((await self.batch(batch_id))["status"] != "validating")

        await poll_until(ask)

    async def ended(self, batch_id: str) -> dict[str, Any]:
        async def ask() -> dict[str, Any] | None:
            found = await self.batch(batch_id)
            return found if found["status"] in FINAL else None

        return await poll_until(ask, within_s=60)

    async def read(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        raw = (await self._http.get(f"/v1/files/{file_id}/content")).content
        assert raw.endswith(b"\n")
        return [json.loads(each) for each in raw.splitlines()]

    async def check(self, batch_id: str, count: int) -> dict[str, Any]:
        """See that a batch ends, and each of its lines is in one of its files, once."""
        done = await self.ended(batch_id)
        output, errors = [
            await self.read(done[name]) for name in ("output_file_id", "error_file_id")
        ]
        assert sorted(each["custom_id"] for each in output + errors) == sorted(
            f"id {each}" for each in range(count)
        )
        assert all(each["response"]["status_code"] == 200 for each in output)
        return done


def kept(folder: Path) -> tuple[set[str], set[str]]:
    """Return the names of what is on disk: files, and batches."""
    files, batches = folder / "kept" / "files", folder / "kept" / "batches"
    return {each.name for each in files.iterdir()}, {each.name for each in batches.iterdir()}


async def nothing_is_left_over(person: Person, folder: Path) -> None:
    files, batches = await person.all("files"), await person.all("batches")
    made = {each["id"] for each in files if each["purpose"] == "batch_output"}
    named = {each[name] for each in batches for name in ("output_file_id", "error_file_id")}
    assert made == named - {None}
    wanted = {name for each in files for name in (each["id"], f"{each['id']}.json")}
    await wait_until(lambda: kept(folder) == (wanted, {f"{each['id']}.json" for each in batches}))


async def test_every_failpoint_of_the_package_has_its_kill() -> None:
    found = [
        str(node.args[0].value)
        for path in (ROOT / "emulator" / "batches").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "failpoint"
        if isinstance(node.args[0], ast.Constant)
    ]
    assert sorted(found) == sorted(FAILPOINTS)


async def live(person: Person, doing: str, file_id: str) -> None:
    """Do what the server is to be killed in."""
    if doing == "upload":
        await person.upload(lines(5))
    elif doing == "delete":
        await person.delete(file_id)
    else:
        batch_id = await person.create(file_id)
        if doing == "cancel":
            await person.begun(batch_id)
            await person.post(f"/v1/batches/{batch_id}/cancel")
        await person.ended(batch_id)


@pytest.mark.long_except("batch-written")
@pytest.mark.parametrize("name", FAILPOINTS)
async def test_killed_at(
    name: str, template: Template, script: ScriptFactory, tmp_path: Path
) -> None:
    doing = FAILPOINTS[name]
    hang = {"when": "p 0" if doing == "cancel" else "never", "pieces": [{"hang_s": 3600}]}
    server = server_of(tmp_path, script(hang, {}), template, ENGINE_ISOLATION="thread")
    try:
        await server.start(**{NAME_VARIABLE: name, MARKER_VARIABLE: str(tmp_path / "mark")})
        async with server.client() as http:
            person = Person(http)
            file_id = await person.upload(lines(5)) if doing != "upload" else ""
            with pytest.raises(httpx2.HTTPError):
                await live(person, doing, file_id)
        assert await server.ended() == -signal.SIGKILL
        await server.start()
        async with server.client() as http:
            person = Person(http)
            statuses = [
                (await person.check(each["id"], 5))["status"]
                for each in await person.all("batches")
            ]
            assert statuses == {"complete": ["completed"], "cancel": ["cancelled"]}.get(doing, [])
            inputs = [each for each in await person.all("files") if each["purpose"] == "batch"]
            assert len(inputs) == (doing not in ("upload", "delete"))
            await nothing_is_left_over(person, tmp_path)
    finally:
        await server.close()
    assert "Traceback" not in server.last_words(), server.last_words()


async def test_killed_at_random_and_each_line_answered_once(
    template: Template, script: ScriptFactory, tmp_path: Path, scale: int
) -> None:
    count, kills = (200, 3) if scale == 1 else (2_000, 20)
    counter = PromptCounter(tmp_path / "prompts")
    model = script({"delay_ms": 2}, slots=SLOTS)
    server = server_of(tmp_path, model, template, **counter.variables)
    chance = random.Random(count)
    try:
        await server.start()
        async with server.client() as http:
            person = Person(http)
            batch_id = await person.create(await person.upload(lines(count)))
        for _ in range(kills):
            await asyncio.to_thread(counter.wait_for, chance.randrange(5, count // kills // 2))
            await server.kill()
            assert await server.orphans() == []
            counter.drain()
            await server.start()
        async with server.client() as http:
            person = Person(http)
            done = await person.check(batch_id, count)
            assert done["status"] == "completed"
            assert done["request_counts"] == {"total": count, "completed": count - 1, "failed": 1}
            texts = {
                each["custom_id"]: each["response"]["body"]["choices"][0]["text"]
                for each in await person.read(done["output_file_id"])
            }
            assert texts == {f"id {each}": f"p {each}" for each in range(count - 1)}
            await nothing_is_left_over(person, tmp_path)
        counter.drain()
        assert counter.counts.keys() == {f"p {each}" for each in range(count - 1)}
        assert 0 <= counter.counts.total() - (count - 1) <= kills * SLOTS
    finally:
        await server.close()
        counter.close()


async def test_a_disk_that_fills_up_costs_nothing(
    template: Template, script: ScriptFactory, tmp_path: Path
) -> None:
    """No file may grow beyond a limit, as on a disk that is full, until it is lifted."""
    count = 300
    server = server_of(tmp_path, script({}), template, ENGINE_ISOLATION="thread")
    try:
        await server.start()
        async with server.client() as http:
            person = Person(http)
            file_id = await person.upload(lines(count))
            _, most = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (40_000, most))
            form, file = {"purpose": "batch"}, {"file": ("in", lines(2 * count))}
            refused = await http.post("/v1/files", data=form, files=file)
            assert refused.status_code == 507
            assert refused.json()["error"]["message"] == (
                "the disk of BATCH_DIR does not take it: File too large"
            )
            batch_id = await person.create(file_id)
            said = "the disk of BATCH_DIR does not take its answers: File too large"
            await wait_until(lambda: f"batch {batch_id} has to wait: {said}" in server.last_words())
            found = await person.batch(batch_id)
            assert found["status"] == "in_progress"
            assert 0 < found["request_counts"]["completed"] < count
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (most, most))
            assert (await person.check(batch_id, count))["status"] == "completed"
            await nothing_is_left_over(person, tmp_path)
    finally:
        await server.close()
    assert "Traceback" not in server.last_words(), server.last_words()
