"""BatchRunner: attempts per line, and a stop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from batch.input.line import Line
from batch.input.source import LineSource
from batch.line_executor import LineExecutor, LineOutcome
from batch.output.journal import BatchJournal, JournalHeader
from batch.progress import BatchProgress
from batch.runner import BatchRunner
from tests.virtual_time import VirtualClock

LINES = 3
CRASH = LineOutcome(b"{}", ok=False, retryable=True, crashed=True)
TIMEOUT = LineOutcome(b"{}", ok=False, retryable=True)


class StoppingExecutor:
    """Stops the runner during the first line."""

    def __init__(self, outcome: LineOutcome) -> None:
        self.outcome = outcome
        self.answered_numbers: list[int] = []
        self.runner: BatchRunner | None = None

    async def answer(self, line: Line, *, exclusive: bool = False) -> LineOutcome:
        self.answered_numbers.append(line.number)
        assert self.runner is not None
        self.runner.stop()
        return self.outcome


class ScriptedExecutor:
    """Returns the next of some outcomes for each attempt, and then always the last one."""

    def __init__(self, *outcomes: LineOutcome) -> None:
        self._outcomes = list(outcomes)
        # For each attempt, whether it was exclusive.
        self.exclusive: list[bool] = []

    async def answer(self, line: Line, *, exclusive: bool = False) -> LineOutcome:
        self.exclusive.append(exclusive)
        return self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[BatchJournal]:
    journal = BatchJournal(tmp_path / "out.partial")
    yield journal
    journal.close()


def create_source(folder: Path, lines: int) -> LineSource:
    line = {"method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(line | {"custom_id": str(n)}) + "\n" for n in range(lines)))
    return LineSource(path, 1_000)


@pytest.mark.parametrize(
    ("outcomes", "max_attempts", "exclusive"),
    [
        ([CRASH], 3, [False, False, True]),
        # A line that was running at three crashes counts as their cause.
        ([CRASH], 100, [False, False, True]),
        ([CRASH, TIMEOUT], 3, [False, False, True]),
        ([TIMEOUT], 3, [False, False, False]),
        ([CRASH], 1, [False]),
        ([CRASH, LineOutcome(b"{}", ok=True)], 3, [False, False]),
    ],
)
async def test_runner_makes_the_last_attempt_exclusive_after_a_crash(
    outcomes: list[LineOutcome],
    max_attempts: int,
    exclusive: list[bool],
    tmp_path: Path,
    journal: BatchJournal,
    clock: VirtualClock,
) -> None:
    journal.begin(JournalHeader("digest", 1))
    executor = ScriptedExecutor(*outcomes)
    runner = BatchRunner(
        create_source(tmp_path, 1),
        journal,
        cast("LineExecutor", executor),
        BatchProgress(1),
        concurrency=1,
        max_attempts=max_attempts,
    )
    await runner.run()
    assert executor.exclusive == exclusive
    assert journal.done == 1


@pytest.mark.parametrize(
    ("outcome", "journaled"),
    [
        (LineOutcome(b"{}", ok=True), 1),
        (LineOutcome(b"{}", ok=False), 1),
        # The next run retries it.
        (LineOutcome(b"{}", ok=False, retryable=True), 0),
    ],
)
async def test_stopped_runner_journals_lines_in_progress_unless_retryable(
    outcome: LineOutcome, journaled: int, tmp_path: Path, journal: BatchJournal
) -> None:
    journal.begin(JournalHeader("digest", LINES))
    executor = StoppingExecutor(outcome)
    executor.runner = BatchRunner(
        create_source(tmp_path, LINES),
        journal,
        cast("LineExecutor", executor),
        BatchProgress(LINES),
        concurrency=1,
        max_attempts=3,
    )
    await executor.runner.run()
    assert executor.answered_numbers == [1]
    assert journal.done == journaled
