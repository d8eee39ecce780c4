"""Batches survive the shutdown of one server and resume on the next."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from batch.output.journal import BatchJournal, JournalHeader
from emulator.app import create_app
from emulator.batches import executor
from emulator.settings.emulator_settings import EmulatorSettings
from emulator.startup.components import build_components
from engine import Engine
from engine.hooks import RequestStarted
from handler.settings.engine_configs import build_engine_config
from jobs import StoreUnavailable
from tests.conftest import ScriptFactory
from tests.integration.emulator.batches.support import HANG, Clients, calls, client_of, counts, ids
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import run_server
from tests.waiting import wait_until


def settings(folder: Path, model: Path, **overrides: Any) -> EmulatorSettings:
    values: dict[str, Any] = {
        "engine": "scripted",
        "engine_isolation": "thread",
        "model_path": model,
        "job_db": ":memory:",
        "batch_dir": folder,
        "drain_s": 0,
    }
    return EmulatorSettings(**values | overrides)


async def test_shutdown_finishes_running_lines_and_the_next_server_resumes(
    script: ScriptFactory, tmp_path: Path
) -> None:
    options = settings(tmp_path / "kept", script({"delay_ms": 20}, slots=2), drain_s=20)
    async with run_server(options) as server, client_of(server) as client:
        batch = await client.create(calls(40))
        queued_batch = await client.create(calls(3))
        await client.wait_until(batch, lambda batch: counts(batch)[1] >= 5)
        async with asyncio.timeout(40):
            await server.graceful_shutdown.wait()
        started_ids = {each.request_id for each in server.events.of(RequestStarted)}
    journal = tmp_path / "kept" / "batches" / f"{batch.id}.partial"
    journaled = len(journal.read_bytes().splitlines()) - 1
    # Running lines were finished and journaled, and no new line was started.
    assert journaled == len(started_ids)
    assert 5 <= journaled < 40
    async with run_server(options) as server, client_of(server) as client:
        ended = [await client.ended(each) for each in (batch, queued_batch)]
        assert [(each.status, counts(each)) for each in ended] == [
            ("completed", (40, 40, 0)),
            ("completed", (3, 3, 0)),
        ]
        assert len(server.events.of(RequestStarted)) == 40 - journaled + 3
        lines = await client.lines(ended[0].output_file_id)
        assert ids(lines) == sorted(f"id {each}" for each in range(40))
    assert not journal.exists()


async def test_damaged_journal_record_repeats_only_its_own_line(
    script: ScriptFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = settings(tmp_path / "kept", script(HANG, {}, slots=2), batch_window_s=60)
    async with run_server(options) as server, client_of(server) as client:
        batch = await client.create([*calls(6), *calls(7, "hang")[6:]])
        await client.wait_until(batch, lambda batch: counts(batch)[1] == 6)
    journal = tmp_path / "kept" / "batches" / f"{batch.id}.partial"
    journal.write_bytes(journal.read_bytes().replace(b"p 1", b"p 9"))
    async with run_server(options) as server, client_of(server) as client:
        await client.wait_until(batch, lambda batch: counts(batch)[1] == 6)
        # Only the damaged line and the hanging line are started.
        await wait_until(lambda: len(server.events.of(RequestStarted)) == 2)
        await client.openai.batches.cancel(batch.id)
        ended = await client.ended(batch)
        assert counts(ended) == (7, 6, 0)
        assert "up to 1 lines are answered again" in caplog.text


async def test_removed_input_file_fails_the_batch(
    serve: Serve, clients: Clients, script: ScriptFactory, tmp_path: Path
) -> None:
    client = clients(await serve(script(HANG, {}), batch_dir=tmp_path / "kept"))
    first = await client.create(calls(1, "hang"))
    batch = await client.create(calls(2))
    for each in (first, batch):
        await client.wait_until(each, lambda batch: batch.status == "in_progress")
    (tmp_path / "kept" / "files" / batch.input_file_id).unlink()
    await client.openai.batches.cancel(first.id)
    ended = await client.ended(batch)
    assert ended.status == "failed"
    assert ended.errors is not None
    [problem] = list(ended.errors.data or ())
    assert (problem.code, problem.line) == ("input_lost", None)
    assert "cannot be read any more" in (problem.message or "")


async def test_batch_expires_in_time_after_the_clock_was_set_back(
    script: ScriptFactory, tmp_path: Path
) -> None:
    options = settings(tmp_path / "kept", script(HANG, {}), batch_window_s=0.5)
    async with run_server(options) as server, client_of(server) as client:
        batch = await client.create(calls(1, "hang"))
        await client.wait_until(batch, lambda batch: batch.status == "in_progress")
    record = tmp_path / "kept" / "batches" / f"{batch.id}.json"
    record_content = json.loads(record.read_text())
    # The record as a server sees it whose clock is a year behind.
    record.write_text(
        json.dumps(record_content | {"expires_at": record_content["expires_at"] + 31_536_000})
    )
    async with run_server(options) as server, client_of(server) as client:
        assert (await client.ended(batch)).status == "expired"


class _SlowJournal(BatchJournal):
    """A journal that is slow to open, as on a slow disk."""

    def __init__(
        self,
        path: Path,
        expected: JournalHeader,
        reserve: Callable[[int], object],
        opening: threading.Event,
    ) -> None:
        super().__init__(path, expected=expected, reserve=reserve)
        opening.set()
        time.sleep(0.2)


async def test_shutdown_while_a_journal_is_opened_releases_the_journal(
    script: ScriptFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, opening = settings(tmp_path / "kept", script({})), threading.Event()
    with monkeypatch.context() as slow:
        slow.setattr(executor, "BatchJournal", partial(_SlowJournal, opening=opening))
        async with run_server(options) as server, client_of(server) as client:
            batch = await client.create(calls(1))
            await wait_until(opening.is_set)
    async with run_server(options) as server, client_of(server) as client:
        assert (await client.ended(batch)).status == "completed"


async def test_second_server_on_the_same_folder_does_not_start(
    script: ScriptFactory, tmp_path: Path
) -> None:
    options = settings(tmp_path / "kept", script({}))
    async with run_server(options):
        app = create_app(build_components(options, Engine(build_engine_config(options))))
        with pytest.raises(StoreUnavailable, match="another server uses"):
            async with app.router.lifespan_context(app):
                pass
