"""A job database that is removed, moved or replaced while its server runs."""

# Nothing else runs in the event loops of these tests, so they may block.
# ruff: noqa: ASYNC240

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.emulator.processes import EmulatorProcess
from tests.security.data_servers import children, running, status, submit
from tests.waiting import poll_until, wait_until

MAX_FILES = 200


def store_process(server: EmulatorProcess) -> int:
    [store] = [
        pid
        for pid in children(server.pid)
        if b"jobs.sqlite.server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return store


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, even if its parent has not noticed yet."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def replace(path: Path, copy: Path, inode: int) -> None:
    """Put a copy in the place of a removed file, with the same inode number if that is free."""
    others = []
    for number in range(MAX_FILES):
        new = path.with_name(f"new-{number}")
        new.touch()
        if new.stat().st_ino == inode:
            break
        others.append(new)
    shutil.copyfile(copy, new)
    new.rename(path)
    for other in others:
        other.unlink(missing_ok=True)


@pytest.mark.long
async def test_older_copy_in_the_place_of_the_database_takes_no_jobs(
    settings: dict[str, str], tmp_path: Path
) -> None:
    """A file system gives the inode of a removed file to the next one."""
    path = Path(settings["JOB_DB"])
    async with running(settings) as server:
        await submit(server)
        server.process.send_signal(signal.SIGTERM)
        await server.wait_for_exit()
    shutil.copyfile(path, tmp_path / "older")
    async with running(settings) as server:
        (acknowledged,) = await submit(server)
        store, inode = store_process(server), path.stat().st_ino
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink()
        os.kill(store, signal.SIGKILL)
        await wait_until(lambda: has_ended(store))
        replace(path, tmp_path / "older", inode)
        async with server.client() as client:
            for _ in range(3):
                answer = await client.post("/v2/far/run", json={"input": 1})
                assert answer.status_code == 503
                assert "was removed or replaced while the server was running" in answer.text
            assert (await client.get("/health")).json()["status"] == "degraded"
        assert await status(server, acknowledged) == 200
    assert path.read_bytes() == (tmp_path / "older").read_bytes()


@pytest.mark.long_except("False")
@pytest.mark.parametrize("comes_back", [True, False])
async def test_result_of_a_running_job_is_not_acknowledged_until_the_database_is_back(
    settings: dict[str, str], comes_back: bool
) -> None:
    path = Path(settings["JOB_DB"])
    async with running(settings) as server, server.client() as client:
        (job_id,) = await submit(server)
        taken = await client.get("/v2/far/job-take/w")
        assert taken.json()["id"] == job_id
        aside = path.with_name("aside")
        path.rename(aside)

        async def done() -> int:
            answer = await client.post(f"/v2/far/job-done/w/{job_id}", json={"output": "yes"})
            return answer.status_code

        async def job() -> dict[str, Any]:
            payload: dict[str, Any] = (await client.get(f"/v2/far/status/{job_id}")).json()
            return payload

        for _ in range(3):
            assert await done() == 503
        # The worker still has the job and may send the result again.
        assert (await job())["status"] == "IN_PROGRESS"
        if comes_back:
            aside.rename(path)

            async def taken_by_now() -> bool:
                return await done() == 200

            await poll_until(taken_by_now)
            assert (await job())["output"] == "yes"
        server.process.kill()
    if not comes_back:
        # As an operator would do after the end of the server.
        aside.rename(path)
    async with running(settings) as server, server.client() as client:
        final_job = (await client.get(f"/v2/far/status/{job_id}")).json()
        if comes_back:
            assert (final_job["status"], final_job["output"]) == ("COMPLETED", "yes")
        else:
            # No result was acknowledged, so the job runs again.
            assert final_job["status"] in ("IN_QUEUE", "IN_PROGRESS")
