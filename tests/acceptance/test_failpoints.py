"""kill -9 at each place where a crash could cost something, one by one."""

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
from tests.crashes.hook import Hook
from tests.crashes.parts import AT_START, LOCKED, PARTS, STORE_KILLED, in_store
from tests.crashes.scene import FAR, Gone, Scene
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
class Yesterday:
    """A database with a job that has ended, one that waits, one that somebody has."""

    folder: Path
    scene: Scene
    template: Template
    hook: Hook

    def begin(self, folder: Path) -> tuple[Server, Scene]:
        """Return a server on a copy of it that is not started yet, and what was heard so far."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        return Server(folder, SETTINGS, self.template), copy.deepcopy(self.scene)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def yesterday(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Yesterday]:
    folder = tmp_path_factory.mktemp("yesterday")
    template = await Template.open()
    async with Hook.open() as hook:
        scene = Scene(hook.url)
        server = Server(folder, SETTINGS, template)
        try:
            await server.start()
            async with server.client() as scene.http:
                await scene.ends(await scene.run("default"))
                await scene.run(FAR)
                await scene.run(FAR)
                await scene.keep()
            # The lease is written a moment later.
            await asyncio.sleep(0.2)
            await server.kill()
            assert await server.orphans() == []
            del scene.http
            yield Yesterday(folder, scene, template, hook)
        finally:
            await server.close()
            await template.close()


async def test_every_failpoint_of_the_source_has_its_kill() -> None:
    found = {
        name
        for folder in ("jobs", "emulator")
        for path in (ROOT / folder).rglob("*.py")
        # test_batch_kills.py has the failpoints of batches.
        if path.parent.name != "batches"
        for name in _failpoints(path.read_text())
    }
    assert sorted(found) == sorted(PARTS)
    assert len(found) >= 25


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


async def test_server_whose_store_never_lives_to_read_says_so_and_ends(
    yesterday: Yesterday, tmp_path: Path
) -> None:
    server, _ = yesterday.begin(tmp_path)
    try:
        # Without a mark each store process dies there.
        await server.spawn(**{NAME_VARIABLE: "store-loading"})
        assert await server.ended() == 3
        said = server.last_words()
        assert "the server does not start: the job database jobs.sqlite3 was not read" in said
        assert "Traceback" not in said, said
    finally:
        await server.close()


@pytest.mark.long_except(
    "change-durable",
    "enqueue-durable",
    "local-ran",
    "publish",
    "recovering",
    "result-kept",
    "store-answered",
)
@pytest.mark.parametrize("name", sorted(PARTS))
async def test_killed_at(name: str, yesterday: Yesterday, tmp_path: Path) -> None:
    server, scene = yesterday.begin(tmp_path)
    mark = tmp_path / "mark"
    try:
        await _day(name, mark, server, scene)
        assert mark.exists(), "nothing was killed"
        await server.close()
        await server.start()
        async with server.client() as scene.http:
            await scene.check()
        assert await server.orphans() == []
    finally:
        await server.close()
    assert "Traceback" not in server.last_words(), server.last_words()
    for job_id in scene.hooked:
        # At least once, and each time the same.
        told = yesterday.hook.told[job_id]
        assert all(each == told[0] for each in told)


async def _day(name: str, mark: Path, server: Server, scene: Scene) -> None:
    """Live until the kill, or through it where only the store process dies."""
    environment = {NAME_VARIABLE: name, MARKER_VARIABLE: str(mark)}
    if name in AT_START:
        await server.spawn(**environment)
        await wait_until(mark.exists)
        if in_store(name):
            # Another one reads the database.
            await server.settle()
            assert server.lives, server.last_words()
        else:
            assert await server.ended() == -signal.SIGKILL
        return
    await server.spawn(**environment)
    await server.settle()
    if not server.lives:
        # A lease of yesterday is over before the server answers, where the machine is busy.
        assert await server.ended() == -signal.SIGKILL
        return
    if name in STORE_KILLED:
        pid = server.store_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    lock = _locked(server.database) if name in LOCKED else None
    try:
        async with server.client() as scene.http:
            doing = asyncio.ensure_future(PARTS[name](scene))
            if lock is not None:
                await wait_until(mark.exists)
                lock.close()
            await doing
            await wait_until(mark.exists)
    except Gone:
        assert not in_store(name), "the server has to live on"
    finally:
        if lock is not None:
            lock.close()
    if not in_store(name):
        assert await server.ended() == -signal.SIGKILL


def _locked(database: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection
