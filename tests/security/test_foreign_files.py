"""Databases, devices and folders that this program did not create, with real servers."""

# Nothing else runs in the event loops of these tests, so they may block.
# ruff: noqa: ASYNC240

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import stat
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.security.data_servers import modes, refusal, running, tree, upload
from tests.waiting import poll_until

# Of the null device.
NULL = os.makedev(1, 3)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.long
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_database_of_another_program_is_refused_and_untouched(
    settings: dict[str, str], version: int
) -> None:
    """Other programs count the versions of their tables as well."""
    path = Path(settings["JOB_DB"])
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE jobs (wages REAL)")
        database.execute("INSERT INTO jobs VALUES (1.0)")
        database.execute(f"PRAGMA user_version = {version}")
    path.chmod(0o664)
    before = path.read_bytes()
    assert "another program created it" in refusal(settings)
    assert path.read_bytes() == before
    assert mode_of(path) == 0o664


@pytest.mark.long
def test_file_that_is_no_database_is_refused_and_untouched(settings: dict[str, str]) -> None:
    path = Path(settings["JOB_DB"])
    path.write_bytes(b"three years of work" * 1000)
    path.chmod(0o644)
    assert "file is not a database" in refusal(settings)
    assert path.read_bytes() == b"three years of work" * 1000
    assert mode_of(path) == 0o644


DEVICES = ["pipe", *(["null device"] if os.geteuid() == 0 else [])]


@pytest.mark.long_except("null device")
@pytest.mark.parametrize("kind", DEVICES)
def test_device_as_database_is_refused_and_keeps_its_mode(
    settings: dict[str, str], kind: str
) -> None:
    """As root, correcting the mode of /dev/null would close it for all other users."""
    path = Path(settings["JOB_DB"])
    os.mknod(path, (stat.S_IFIFO if kind == "pipe" else stat.S_IFCHR) | 0o600, NULL)
    path.chmod(0o666)
    assert refusal(settings) == (
        f"the job database {path} is not a regular file; choose another one with --db or JOB_DB"
    )
    assert mode_of(path) == 0o666
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.long_except("jobs.sqlite3.lock")
@pytest.mark.parametrize("name", ["jobs.sqlite3.lock", "jobs.sqlite3.batches/lock"])
def test_pipe_in_the_place_of_a_lock_does_not_hold_up_the_start(
    settings: dict[str, str], name: str
) -> None:
    path = Path(settings["JOB_DB"]).parent / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    refusal(settings)
    assert stat.S_ISFIFO(path.stat().st_mode)


async def completed_batch(client: httpx2.AsyncClient) -> dict[str, Any]:
    """Run a batch of one line; return it."""
    body = {
        "input_file_id": (await upload(client)).json()["id"],
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }
    made = (await client.post("/v1/batches", json=body)).json()

    async def ended() -> dict[str, Any] | None:
        batch: dict[str, Any] = (await client.get(f"/v1/batches/{made['id']}")).json()
        return batch if batch["status"] == "completed" else None

    return await poll_until(ended)


async def leave_batches_of_an_earlier_version(settings: dict[str, str]) -> dict[str, Any]:
    """Leave a completed batch in a folder as versions without a mark had it; return the batch."""
    folder = Path(settings["BATCH_DIR"])
    async with running(settings) as server, server.client() as client:
        batch = await completed_batch(client)
        server.process.send_signal(signal.SIGTERM)
        await server.wait_for_exit()
    (folder / "worker-rkllm-batches.json").unlink()
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return batch


async def test_batches_of_an_earlier_version_are_kept_and_made_private(
    settings: dict[str, str], tmp_path: Path
) -> None:
    settings |= {"BATCH_DIR": str(tmp_path / "kept")}
    batch = await leave_batches_of_an_earlier_version(settings)
    async with running(settings) as server, server.client() as client:
        assert (await client.get(f"/v1/batches/{batch['id']}")).json() == batch
        for file_id in (batch["input_file_id"], batch["output_file_id"]):
            content = await client.get(f"/v1/files/{file_id}/content")
            assert (content.status_code, content.content != b"") == (200, True)
        assert set(modes(tmp_path / "kept").values()) == {0o600, 0o700}


@pytest.mark.long
async def test_folder_of_an_earlier_version_with_another_file_is_refused_until_that_is_moved(
    settings: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    settings |= {"BATCH_DIR": str(folder)}
    batch = await leave_batches_of_an_earlier_version(settings)
    notes = folder / "files" / "notes.txt"
    notes.write_text("mine")
    before = tree(folder)
    assert refusal(settings) == (
        f"the batch folder {folder} (BATCH_DIR) is refused: an earlier version of this program "
        "seems to have created it, but files/notes.txt is not a file of this program: move that "
        "file to another folder, or use a new or an empty folder"
    )
    assert tree(folder) == before
    notes.rename(tmp_path / "notes.txt")
    async with running(settings) as server, server.client() as client:
        assert (await client.get(f"/v1/batches/{batch['id']}")).json() == batch
