"""Kill the server at each failpoint, and check that no acknowledged job is lost."""

from __future__ import annotations

import ast
import asyncio
import copy
import os
import shutil
import signal
import sqlite3
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from common.failpoints import MARKER_VARIABLE, NAME_VARIABLE
from tests.crashes import database
from tests.crashes.hook import WebhookReceiver
from tests.crashes.parts import AT_START, LOCKED, PARTS, STORE_KILLED, in_store
from tests.crashes.recording_client import FAR, RecordingClient, ServerDisconnected
from tests.crashes.server import Server
from tests.crashes.template import ROOT, Template
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = {
    "ENGINE_ISOLATION": "thread",
    "LEASE_S": "0.6",
    "MAX_LOSSES": "1000",
    "MIN_EXECUTION_TIMEOUT_MS": "1",
    "MIN_JOB_TTL_MS": "1",
    "POLL_HOLD_S": "0.02",
    "SYNC_RETENTION_S": "0.1",
    "WEBHOOK_PAUSE_S": "0.05",
    "WORKER_GRACE_S": "0.1",
}


@dataclass
class PreparedServer:
    """The database of a killed server, with a completed job, a waiting one and a leased one."""

    folder: Path
    recorder: RecordingClient
    template: Template
    webhooks: WebhookReceiver

    def copy_to(self, folder: Path) -> tuple[Server, RecordingClient]:
        """Return a server on a copy of the database, not started yet, and a copy of the client."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        return Server(folder, SETTINGS, self.template), copy.deepcopy(self.recorder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def prepared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PreparedServer]:
    folder = tmp_path_factory.mktemp("yesterday")
    template = await Template.open()
    async with WebhookReceiver.open() as webhooks:
        recorder = RecordingClient(webhooks.url)
        server = Server(folder, SETTINGS, template)
        try:
            await server.start()
            async with server.client() as recorder.http:
                await recorder.wait_for_end(await recorder.run("default"))
                await recorder.run(FAR)
                await recorder.run(FAR)
                await recorder.hold_job()
            # The server writes the lease after its response.
            await wait_until(lambda: database.read(server.database).statuses["IN_PROGRESS"] == 1)
            await server.kill()
            assert await server.orphans() == []
            del recorder.http
            yield PreparedServer(folder, recorder, template, webhooks)
        finally:
            await server.close()
            await template.close()


async def test_every_failpoint_of_the_source_has_a_scenario() -> None:
    names = {
        name
        for folder in ("jobs", "emulator")
        for path in (ROOT / folder).rglob("*.py")
        # test_batch_kills.py has the failpoints of batches.
        if path.parent.name != "batches"
        for name in _failpoints(path.read_text())
    }
    assert sorted(names) == sorted(PARTS)
    assert len(names) >= 25


def _failpoints(source: str) -> Iterator[str]:
    """Yield the names in the calls of `failpoint`, both of them for a conditional expression."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="failpoint"), args=[ast.IfExp() as condition]):
                names = [condition.body, condition.orelse]
            case ast.Call(func=ast.Name(id="failpoint"), args=[name]):
                names = [name]
            case _:
                continue
        for name in names:
            assert isinstance(name, ast.Constant), ast.unparse(node)
            yield str(name.value)


@pytest.mark.long
async def test_server_exits_with_a_message_when_each_store_process_dies_at_its_start(
    prepared: PreparedServer, tmp_path: Path
) -> None:
    server, _ = prepared.copy_to(tmp_path)
    try:
        # Without a marker file each store process dies at this failpoint.
        await server.spawn(**{NAME_VARIABLE: "store-loading"})
        assert await server.wait_for_exit() == 3
        log = server.log_end()
        assert "the server does not start: the job database jobs.sqlite3 was not read" in log
        assert "Traceback" not in log, log
    finally:
        await server.close()


# One of the server, and one of its store process.
@pytest.mark.long_except("enqueue-durable")
@pytest.mark.parametrize("name", sorted(PARTS))
async def test_jobs_survive_a_kill_at(name: str, prepared: PreparedServer, tmp_path: Path) -> None:
    server, recorder = prepared.copy_to(tmp_path)
    mark = tmp_path / "mark"
    try:
        await _run_until_killed(name, mark, server, recorder)
        assert mark.exists(), "nothing was killed"
        await server.close()
        await server.start()
        async with server.client() as recorder.http:
            await recorder.check()
        assert await server.orphans() == []
    finally:
        await server.close()
    assert "Traceback" not in server.log_end(), server.log_end()
    for job_id in recorder.with_webhook:
        # A webhook is delivered at least once, and each time with the same payload.
        payloads = prepared.webhooks.received[job_id]
        assert all(payload == payloads[0] for payload in payloads)


async def _run_until_killed(
    name: str, mark: Path, server: Server, recorder: RecordingClient
) -> None:
    """Run the scenario of a failpoint until the server, or only its store process, is killed."""
    environment = {NAME_VARIABLE: name, MARKER_VARIABLE: str(mark)}
    if name in AT_START:
        await server.spawn(**environment)
        await wait_until(mark.exists)
        if in_store(name):
            # Another store process reads the database.
            await server.wait_until_settled()
            assert server.is_running, server.log_end()
        else:
            assert await server.wait_for_exit() == -signal.SIGKILL
        return
    await server.spawn(**environment)
    await server.wait_until_settled()
    if not server.is_running:
        # On a busy machine the copied lease may expire before the server is healthy.
        assert await server.wait_for_exit() == -signal.SIGKILL
        return
    if name in STORE_KILLED:
        pid = server.store_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    lock = _locked(server.database) if name in LOCKED else None
    try:
        async with server.client() as recorder.http:
            running = asyncio.ensure_future(PARTS[name](recorder))
            if lock is not None:
                await wait_until(mark.exists)
                lock.close()
            await running
            await wait_until(mark.exists)
    except ServerDisconnected:
        assert not in_store(name), "the server has to live on"
    finally:
        if lock is not None:
            lock.close()
    if not in_store(name):
        assert await server.wait_for_exit() == -signal.SIGKILL


def _locked(database: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection
