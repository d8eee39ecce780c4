"""Batches whose answers are larger than the server may keep (BATCH_STORE_MB)."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.batches import executor
from engine.hooks import RequestStarted
from tests.conftest import ScriptFactory
from tests.integration.emulator.batches.support import calls, client_of, counts, jsonl
from tests.integration.emulator.conftest import Serve
from tests.waiting import wait_until

LIMIT_BYTES = 1_000_000
LINES = 20
ANSWER = "x" * 20_000


def bytes_in(folder: Path) -> int:
    """Return the size of the files that clients can see, and of the answers that become files."""
    paths = [*(folder / "files").iterdir(), *(folder / "batches").iterdir()]
    return sum(path.stat().st_size for path in paths if path.suffix != ".json")


async def test_answers_beyond_the_limit_are_not_written_and_the_batch_waits_for_room(
    serve: Serve,
    script: ScriptFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(executor, "_RETRY_DELAY_S", 0.05)
    folder = tmp_path / "kept"
    server = await serve(
        script({"pieces": [ANSWER]}), batch_dir=folder, batch_store_mb=LIMIT_BYTES / 1e6
    )

    def waits() -> int:
        return sum("has to wait" in record.getMessage() for record in caplog.records)

    async with client_of(server) as client:
        filler = await client.upload(jsonl(calls(7, "y" * 100_000)))
        batch = await client.create(calls(LINES))
        await wait_until(lambda: waits() >= 5)
        started = len(server.events.of(RequestStarted))
        await wait_until(lambda: waits() >= 10)
        assert "BATCH_STORE_MB" in caplog.text
        assert LIMIT_BYTES * 0.8 < bytes_in(folder) <= LIMIT_BYTES
        # While there is no room, no answer is computed in vain.
        assert len(server.events.of(RequestStarted)) == started < LINES
        other = await client.create(calls(1))
        await client.openai.batches.cancel(other.id)
        assert (await client.ended(other)).status == "cancelled"
        await client.openai.files.delete(filler)
        done = await client.ended(batch)
        assert (done.status, counts(done)) == ("completed", (LINES, LINES, 0))
        answers = await client.lines(done.output_file_id)
        assert len({line["custom_id"] for line in answers}) == LINES
        # The space that the batch had reserved is free again.
        await client.upload(jsonl(calls(4, "y" * 100_000)))
