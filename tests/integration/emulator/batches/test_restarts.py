"""Batches through the end of one server and the start of the next."""

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
from jobs import StoreUnavailable
from tests.conftest import ScriptFactory
from tests.integration.emulator.batches.support import HANG, Clients, calls, client_of, counts, ids
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import run_server
from tests.waiting import wait_until


def settings(folder: Path, model: Path, **options: Any) -> EmulatorSettings:
    values: dict[str, Any] = {
        "engine": "scripted",
        "engine_isolation": "thread",
        "model_path": model,
        "job_db": ":memory:",
        "batch_dir": folder,
        "drain_s": 0,
    }
    return EmulatorSettings(**values | options)


async def test_the_servers_end_lets_lines_end_and_its_next_start_goes_on(
    script: ScriptFactory, tmp_path: Path
) -> None:
    given = settings(tmp_path / "kept", script({"delay_ms": 20}, slots=2), drain_s=20)
    async with run_server(given) as server, client_of(server) as client:
        made = await client.create(calls(40))
        waits = await client.create(calls(3))
        await client.until(made, lambda batch: counts(batch)[1] >= 5)
        async with asyncio.timeout(20):
            await server.graceful_shutdown.wait()
        begun = {each.request_id for each in server.events.of(RequestStarted)}
    journal = tmp_path / "kept" / "batches" / f"{made.id}.partial"
    kept = len(journal.read_bytes().splitlines()) - 1
    # What was under way was finished and written down, and nothing was begun anew.
    assert kept == len(begun)
    assert 5 <= kept < 40
    async with run_server(given) as server, client_of(server) as client:
        done = [await client.ended(each) for each in (made, waits)]
        assert [(each.status, counts(each)) for each in done] == [
            ("completed", (40, 40, 0)),
            ("completed", (3, 3, 0)),
        ]
        assert len(server.events.of(RequestStarted)) == 40 - kept + 3
        lines = await client.lines(done[0].output_file_id)
        assert ids(lines) == sorted(f"id {each}" for each in range(40))
    assert not journal.exists()


async def test_damaged_record_of_a_journal_costs_that_line_alone(
    script: ScriptFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = settings(tmp_path / "kept", script(HANG, {}, slots=2), batch_window_s=60)
    async with run_server(given) as server, client_of(server) as client:
        made = await client.create([*calls(6), *calls(7, "hang")[6:]])
        await client.until(made, lambda batch: counts(batch)[1] == 6)
    journal = tmp_path / "kept" / "batches" / f"{made.id}.partial"
    journal.write_bytes(journal.read_bytes().replace(b"p 1", b"p 9"))
    async with run_server(given) as server, client_of(server) as client:
        await client.until(made, lambda batch: counts(batch)[1] == 6)
        # The damaged one and the one that hangs.
        await wait_until(lambda: len(server.events.of(RequestStarted)) == 2)
        await client.openai.batches.cancel(made.id)
        done = await client.ended(made)
        assert counts(done) == (7, 6, 0)
        assert "up to 1 lines are answered again" in caplog.text


async def test_an_input_that_somebody_removed_fails_its_batch(
    serve: Serve, clients: Clients, script: ScriptFactory, tmp_path: Path
) -> None:
    client = clients(await serve(script(HANG, {}), batch_dir=tmp_path / "kept"))
    first = await client.create(calls(1, "hang"))
    made = await client.create(calls(2))
    for each in (first, made):
        await client.until(each, lambda batch: batch.status == "in_progress")
    (tmp_path / "kept" / "files" / made.input_file_id).unlink()
    await client.openai.batches.cancel(first.id)
    done = await client.ended(made)
    assert done.status == "failed"
    assert done.errors is not None
    [problem] = list(done.errors.data or ())
    assert (problem.code, problem.line) == ("input_lost", None)
    assert "cannot be read any more" in (problem.message or "")


async def test_a_clock_that_was_put_back_meanwhile_lets_no_batch_live_for_ever(
    script: ScriptFactory, tmp_path: Path
) -> None:
    given = settings(tmp_path / "kept", script(HANG, {}), batch_window_s=0.5)
    async with run_server(given) as server, client_of(server) as client:
        made = await client.create(calls(1, "hang"))
        await client.until(made, lambda batch: batch.status == "in_progress")
    record = tmp_path / "kept" / "batches" / f"{made.id}.json"
    known = json.loads(record.read_text())
    # As a batch looks to a server that believes it is a year ago.
    record.write_text(json.dumps(known | {"expires_at": known["expires_at"] + 31_536_000}))
    async with run_server(given) as server, client_of(server) as client:
        assert (await client.ended(made)).status == "expired"


class _SlowToOpen(BatchJournal):
    """The journal on a disk that takes its time."""

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


async def test_a_server_that_ends_while_a_journal_is_opened_lets_go_of_it(
    script: ScriptFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, opening = settings(tmp_path / "kept", script({})), threading.Event()
    with monkeypatch.context() as slow:
        slow.setattr(executor, "BatchJournal", partial(_SlowToOpen, opening=opening))
        async with run_server(given) as server, client_of(server) as client:
            made = await client.create(calls(1))
            await wait_until(opening.is_set)
    async with run_server(given) as server, client_of(server) as client:
        assert (await client.ended(made)).status == "completed"


async def test_two_servers_do_not_share_a_folder(script: ScriptFactory, tmp_path: Path) -> None:
    given = settings(tmp_path / "kept", script({}))
    async with run_server(given):
        app = create_app(build_components(given, Engine(given.engine_config())))
        with pytest.raises(StoreUnavailable, match="another server uses"):
            async with app.router.lifespan_context(app):
                pass
