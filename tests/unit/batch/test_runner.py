"""How often a runner tries a line, and what it writes down when it is told to stop."""

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

LINES = 3
CRASH = LineOutcome(b"{}", ok=False, retryable=True, crashed=True)
TIMEOUT = LineOutcome(b"{}", ok=False, retryable=True)


class Stopping:
    """Answers lines, and has the runner stop while it is at the first."""

    def __init__(self, outcome: LineOutcome) -> None:
        self.outcome = outcome
        self.asked: list[int] = []
        self.runner: BatchRunner | None = None

    async def answer(self, line: Line, *, exclusive: bool = False) -> LineOutcome:
        self.asked.append(line.number)
        assert self.runner is not None
        self.runner.stop()
        return self.outcome


class Scripted:
    """Answers each try of a line with the next of some outcomes, the last one again and again."""

    def __init__(self, *outcomes: LineOutcome) -> None:
        self._outcomes = list(outcomes)
        # Of each try, whether the line was to run alone.
        self.exclusive: list[bool] = []

    async def answer(self, line: Line, *, exclusive: bool = False) -> LineOutcome:
        self.exclusive.append(exclusive)
        return self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[BatchJournal]:
    journal = BatchJournal(tmp_path / "out.partial")
    yield journal
    journal.close()


def source_of(folder: Path, lines: int) -> LineSource:
    line = {"method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(line | {"custom_id": str(n)}) + "\n" for n in range(lines)))
    return LineSource(path, 1_000)


@pytest.mark.parametrize(
    ("outcomes", "max_attempts", "exclusive"),
    [
        ([CRASH], 3, [False, False, True]),
        # A line that was running at three crashes is taken for their reason.
        ([CRASH], 100, [False, False, True]),
        ([CRASH, TIMEOUT], 3, [False, False, True]),
        ([TIMEOUT], 3, [False, False, False]),
        ([CRASH], 1, [False]),
        ([CRASH, LineOutcome(b"{}", ok=True)], 3, [False, False]),
    ],
)
async def test_line_runs_alone_at_its_last_try_if_the_engine_crashed_under_it(
    outcomes: list[LineOutcome],
    max_attempts: int,
    exclusive: list[bool],
    tmp_path: Path,
    journal: BatchJournal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("batch.runner._MIN_RETRY_DELAY_S", 0.0)
    journal.begin(JournalHeader("digest", 1))
    answerer = Scripted(*outcomes)
    runner = BatchRunner(
        source_of(tmp_path, 1),
        journal,
        cast("LineExecutor", answerer),
        BatchProgress(1),
        concurrency=1,
        max_attempts=max_attempts,
    )
    await runner.run()
    assert answerer.exclusive == exclusive
    assert journal.done == 1


@pytest.mark.parametrize(
    ("outcome", "kept"),
    [
        (LineOutcome(b"{}", ok=True), 1),
        (LineOutcome(b"{}", ok=False), 1),
        # Another try may end better: it is the next run's.
        (LineOutcome(b"{}", ok=False, retryable=True), 0),
    ],
)
async def test_what_is_under_way_is_written_down_unless_it_would_be_tried_again(
    outcome: LineOutcome, kept: int, tmp_path: Path, journal: BatchJournal
) -> None:
    journal.begin(JournalHeader("digest", LINES))
    answerer = Stopping(outcome)
    answerer.runner = BatchRunner(
        source_of(tmp_path, LINES),
        journal,
        cast("LineExecutor", answerer),
        BatchProgress(LINES),
        concurrency=1,
        max_attempts=3,
    )
    await answerer.runner.run()
    assert answerer.asked == [1]
    assert journal.done == kept
