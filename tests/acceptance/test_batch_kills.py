"""Batches survive kills of the server at each failpoint, and a full disk."""

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
# The operation that passes each failpoint.
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
    template = await Template.open()
    yield template
    await template.close()


def server_of(folder: Path, model: Path, template: Template, **settings: str) -> Server:
    """Return a server that stores its batches on disk and its jobs in memory."""
    variables = {"MODEL_PATH": str(model), "JOB_DB": ":memory:", "BATCH_DIR": str(folder / "kept")}
    return Server(folder, variables | settings, template)


def lines(count: int, prompt: str = "p") -> bytes:
    """Return an input file with unique prompts, whose last line is invalid."""
    calls = [call(f"id {each}", f"{prompt} {each}") for each in range(count)]
    calls[-1]["body"]["temperature"] = 9
    return b"".join(json.dumps(each).encode() + b"\n" for each in calls)


class BatchClient:
    """A client of the files and batches routes."""

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
        objects: list[dict[str, Any]] = (await self._http.get(f"/v1/{kind}")).json()["data"]
        return objects

    async def batch(self, batch_id: str) -> dict[str, Any]:
        batch: dict[str, Any] = (await self._http.get(f"/v1/batches/{batch_id}")).json()
        return batch

    async def wait_until_started(self, batch_id: str) -> None:
        async def has_started() -> bool:
            return bool((await self.batch(batch_id))["status"] != "validating")

        await poll_until(has_started)

    async def wait_for_end(self, batch_id: str) -> dict[str, Any]:
        async def read_final() -> dict[str, Any] | None:
            batch = await self.batch(batch_id)
            return batch if batch["status"] in FINAL else None

        return await poll_until(read_final, within_s=60)

    async def read(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        raw = (await self._http.get(f"/v1/files/{file_id}/content")).content
        assert raw.endswith(b"\n")
        return [json.loads(each) for each in raw.splitlines()]

    async def check(self, batch_id: str, count: int) -> dict[str, Any]:
        """Check that a batch ends, and that each of its lines is in one of its files, once."""
        done = await self.wait_for_end(batch_id)
        output, errors = [
            await self.read(done[name]) for name in ("output_file_id", "error_file_id")
        ]
        assert sorted(each["custom_id"] for each in output + errors) == sorted(
            f"id {each}" for each in range(count)
        )
        assert all(each["response"]["status_code"] == 200 for each in output)
        return done


def names_on_disk(folder: Path) -> tuple[set[str], set[str]]:
    """Return the names in the folders of files and of batches."""
    files, batches = folder / "kept" / "files", folder / "kept" / "batches"
    return {each.name for each in files.iterdir()}, {each.name for each in batches.iterdir()}


async def check_no_leftovers(client: BatchClient, folder: Path) -> None:
    files, batches = await client.all("files"), await client.all("batches")
    made = {each["id"] for each in files if each["purpose"] == "batch_output"}
    named = {each[name] for each in batches for name in ("output_file_id", "error_file_id")}
    assert made == named - {None}
    expected_files = {name for each in files for name in (each["id"], f"{each['id']}.json")}
    await wait_until(
        lambda: (
            names_on_disk(folder) == (expected_files, {f"{each['id']}.json" for each in batches})
        )
    )


async def test_every_failpoint_of_the_package_has_an_operation() -> None:
    failpoints = [
        str(node.args[0].value)
        for path in (ROOT / "emulator" / "batches").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "failpoint"
        if isinstance(node.args[0], ast.Constant)
    ]
    assert sorted(failpoints) == sorted(FAILPOINTS)


async def run_operation(client: BatchClient, operation: str, file_id: str) -> None:
    """Run the operation during which the server is killed."""
    if operation == "upload":
        await client.upload(lines(5))
    elif operation == "delete":
        await client.delete(file_id)
    else:
        batch_id = await client.create(file_id)
        if operation == "cancel":
            await client.wait_until_started(batch_id)
            await client.post(f"/v1/batches/{batch_id}/cancel")
        await client.wait_for_end(batch_id)


@pytest.mark.long
@pytest.mark.parametrize("name", FAILPOINTS)
async def test_batches_survive_a_kill_at(
    name: str, template: Template, script: ScriptFactory, tmp_path: Path
) -> None:
    operation = FAILPOINTS[name]
    hang = {"when": "p 0" if operation == "cancel" else "never", "pieces": [{"hang_s": 3600}]}
    server = server_of(tmp_path, script(hang, {}), template, ENGINE_ISOLATION="thread")
    try:
        await server.start(**{NAME_VARIABLE: name, MARKER_VARIABLE: str(tmp_path / "mark")})
        async with server.client() as http:
            client = BatchClient(http)
            file_id = await client.upload(lines(5)) if operation != "upload" else ""
            with pytest.raises(httpx2.HTTPError):
                await run_operation(client, operation, file_id)
        assert await server.wait_for_exit() == -signal.SIGKILL
        await server.start()
        async with server.client() as http:
            client = BatchClient(http)
            statuses = [
                (await client.check(each["id"], 5))["status"]
                for each in await client.all("batches")
            ]
            assert statuses == {"complete": ["completed"], "cancel": ["cancelled"]}.get(
                operation, []
            )
            inputs = [each for each in await client.all("files") if each["purpose"] == "batch"]
            assert len(inputs) == (operation not in ("upload", "delete"))
            await check_no_leftovers(client, tmp_path)
    finally:
        await server.close()
    assert "Traceback" not in server.log_end(), server.log_end()


@pytest.mark.long
async def test_lines_have_one_answer_each_when_the_server_is_killed_at_random_times(
    template: Template, script: ScriptFactory, tmp_path: Path, scale: int
) -> None:
    count, kills = (60, 1) if scale == 1 else (2_000, 20)
    counter = PromptCounter(tmp_path / "prompts")
    model = script({"delay_ms": 2}, slots=SLOTS)
    server = server_of(tmp_path, model, template, **counter.variables)
    rng = random.Random(count)
    try:
        await server.start()
        async with server.client() as http:
            client = BatchClient(http)
            batch_id = await client.create(await client.upload(lines(count)))
        for _ in range(kills):
            await asyncio.to_thread(counter.wait_for, rng.randrange(5, count // kills // 2))
            await server.kill()
            assert await server.orphans() == []
            counter.drain()
            await server.start()
        async with server.client() as http:
            client = BatchClient(http)
            done = await client.check(batch_id, count)
            assert done["status"] == "completed"
            assert done["request_counts"] == {"total": count, "completed": count - 1, "failed": 1}
            texts = {
                each["custom_id"]: each["response"]["body"]["choices"][0]["text"]
                for each in await client.read(done["output_file_id"])
            }
            assert texts == {f"id {each}": f"p {each}" for each in range(count - 1)}
            await check_no_leftovers(client, tmp_path)
        counter.drain()
        assert counter.counts.keys() == {f"p {each}" for each in range(count - 1)}
        assert 0 <= counter.counts.total() - (count - 1) <= kills * SLOTS
    finally:
        await server.close()
        counter.close()


@pytest.mark.long
async def test_batch_waits_while_the_disk_is_full(
    template: Template, script: ScriptFactory, tmp_path: Path
) -> None:
    """A file size limit has the effect of a full disk; the test lifts it later."""
    count = 300
    server = server_of(tmp_path, script({}), template, ENGINE_ISOLATION="thread")
    try:
        await server.start()
        async with server.client() as http:
            client = BatchClient(http)
            file_id = await client.upload(lines(count))
            _, hard_limit = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (40_000, hard_limit))
            form, file = {"purpose": "batch"}, {"file": ("in", lines(2 * count))}
            refused = await http.post("/v1/files", data=form, files=file)
            assert refused.status_code == 507
            assert refused.json()["error"]["message"] == (
                "the disk of BATCH_DIR does not take it: File too large"
            )
            batch_id = await client.create(file_id)
            reason = "the disk of BATCH_DIR does not take its answers: File too large"
            await wait_until(lambda: f"batch {batch_id} has to wait: {reason}" in server.log_end())
            batch = await client.batch(batch_id)
            assert batch["status"] == "in_progress"
            assert 0 < batch["request_counts"]["completed"] < count
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard_limit, hard_limit))
            assert (await client.check(batch_id, count))["status"] == "completed"
            await check_no_leftovers(client, tmp_path)
    finally:
        await server.close()
    assert "Traceback" not in server.log_end(), server.log_end()
