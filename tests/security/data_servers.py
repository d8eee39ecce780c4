"""Real servers whose files and folders are attacked."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.integration.batch.runs import call
from tests.integration.emulator.processes import (
    ROOT,
    EmulatorProcess,
    build_environment,
    run_emulator,
    server_command,
)

LIMIT_S = 60


@asynccontextmanager
async def running(settings: dict[str, str]) -> AsyncIterator[EmulatorProcess]:
    async with run_emulator(settings) as server:
        await server.wait_until_listening()
        yield server


def refusal(settings: dict[str, str], command: list[str] | None = None, **options: Any) -> str:
    """Return what a server writes that does not start and exits with code 2."""
    ran: subprocess.CompletedProcess[str] = subprocess.run(
        command or server_command(),
        env=build_environment(settings),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        **options,
    )
    assert ran.returncode == 2, (ran.returncode, ran.stderr)
    assert "Traceback" not in ran.stderr
    return ran.stderr.strip()


async def submit(server: EmulatorProcess, count: int = 1) -> list[str]:
    """Submit jobs for an endpoint without workers; return their ids, which are acknowledged."""
    async with server.client() as client:
        answers = [
            await client.post("/v2/far/run", json={"input": {"prompt": str(number)}})
            for number in range(count)
        ]
    assert {answer.status_code for answer in answers} == {200}
    return [answer.json()["id"] for answer in answers]


async def status(server: EmulatorProcess, job_id: str) -> int:
    async with server.client() as client:
        return (await client.get(f"/v2/far/status/{job_id}")).status_code


async def upload(client: httpx2.AsyncClient, lines: int = 1) -> httpx2.Response:
    data = "".join(json.dumps(call(f"line {number}")) + "\n" for number in range(lines))
    return await client.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", data.encode())}
    )


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the mode and content of everything in a folder."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
    }


def modes(*folders: Path) -> dict[str, int]:
    """Return the permissions of everything in folders."""
    return {
        str(path): stat.S_IMODE(path.stat().st_mode)
        for folder in folders
        for path in [folder, *folder.rglob("*")]
    }


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
