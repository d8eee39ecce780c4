"""Servers whose disk is really full: a small one in memory, mounted for the server alone."""

# Nothing else runs in the event loops of these tests, so they may block.
# ruff: noqa: ASYNC221

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.integration.emulator.processes import (
    ROOT,
    EmulatorProcess,
    build_environment,
    server_command,
)
from tests.security.data_servers import running, status, submit, upload
from tests.waiting import poll_until

# Mounts a disk, copies files to it and fills it.
PREPARE = """
mount -t tmpfs -o size=2m,"$3" tmpfs "$1" && cp -a "$2/." "$1" || exit 99
head -c 4000000 /dev/zero > "$1/filler" 2> /dev/null
shift 3
exec "$@"
"""


def _namespace() -> list[str]:
    """Return the words that run a command with mounts of its own, where that is allowed."""
    for user in ([], ["--user", "--map-root-user"]):
        words = ["unshare", *user, "--mount"]
        probe = [*words, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        if (
            shutil.which(words[0])
            and not subprocess.run(probe, check=False, capture_output=True).returncode
        ):
            return words
    return []


NAMESPACE = _namespace()


@asynccontextmanager
async def on_small_disk(
    settings: dict[str, str], seed: Path, options: str
) -> AsyncIterator[tuple[EmulatorProcess, Path]]:
    """Run a server whose data are on a small disk that is full; yield it and its folder."""
    folder = Path(settings["JOB_DB"]).parent
    process = await asyncio.create_subprocess_exec(
        *NAMESPACE,
        *["sh", "-c", PREPARE, "sh", str(folder), str(seed), options],
        *server_command(),
        cwd=ROOT,
        env=build_environment(settings),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    server = EmulatorProcess(process)
    try:
        await server.wait_until_listening()
        yield server, Path(f"/proc/{server.pid}/root{folder}")
    finally:
        if process.returncode is None:
            process.kill()
        await server.wait_for_exit()


CASES = [("new", "mode=700"), ("with jobs", "mode=700"), ("no files left", "nr_inodes=2")]

# Where not even root may mount, `test_data_on_disk` has the same with a limit on file sizes.
if NAMESPACE:

    @pytest.mark.long_except("with jobs-mode=700")
    @pytest.mark.parametrize(("kind", "options"), CASES)
    async def test_server_on_a_full_disk_starts_and_takes_jobs_when_there_is_space(
        settings: dict[str, str], tmp_path: Path, kind: str, options: str
    ) -> None:
        acknowledged: list[str] = []
        if kind == "with jobs":
            async with running(settings) as server:
                acknowledged = await submit(server, 3)
                server.process.kill()
        seed = Path(settings["JOB_DB"]).parent
        seed = seed.rename(tmp_path / "seed")
        (tmp_path / "data").mkdir()
        async with (
            on_small_disk(settings, seed, options) as (server, disk),
            server.client() as client,
        ):
            assert [await status(server, job_id) for job_id in acknowledged] == [200] * len(
                acknowledged
            )
            assert (await client.post("/v2/far/run", json={"input": 1})).status_code == 503
            assert (await upload(client)).status_code == 507
            assert (await client.get("/health")).json()["status"] == "degraded"
            # Requests that need no disk are served.
            assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200
            if kind == "no files left":
                inside = ["nsenter", "--mount", "--target", str(server.pid)]
                command = ["mount", "-o", "remount,nr_inodes=100", str(tmp_path / "data")]
                subprocess.run([*inside, *command], check=True)
            (disk / "filler").unlink()

            async def is_accepted() -> bool:
                return not (await client.post("/v2/far/run", json={"input": 1})).is_error

            await poll_until(is_accepted)
            assert (await upload(client)).status_code == 200
            assert (await client.get("/health")).json()["status"] == "ok"
            acknowledged += await submit(server)
            # The next server is given what the disk has after a kill.
            shutil.rmtree(tmp_path / "seed")
            shutil.copytree(disk, tmp_path / "seed")
        shutil.rmtree(tmp_path / "data")
        (tmp_path / "seed").rename(tmp_path / "data")
        async with running(settings) as server:
            assert {await status(server, job_id) for job_id in acknowledged} == {200}
