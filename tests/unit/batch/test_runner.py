"""How often a runner tries a line, and what it writes down when it is told to stop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from batch.input.line import Line
from batch.input.source import Source
from batch.line_executor import Answerer, Outcome
from batch.output.journal import Header, Journal
from batch.progress import Tally
from batch.runner import Runner

LINES = 3
CRASH = Outcome(b"{}", ok=False, retryable=True, crashed=True)
TIMEOUT = Outcome(b"{}", ok=False, retryable=True)


class Stopping:
    """Answers lines, and has the runner stop while it is at the first."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.asked: list[int] = []
        self.runner: Runner | None = None

    async def answer(self, line: Line, *, alone: bool = False) -> Outcome:
        self.asked.append(line.number)
        assert self.runner is not None
        self.runner.stop()
        return self.outcome


class Scripted:
    """Answers each try of a line with the next of some outcomes, the last one again and again."""

    def __init__(self, *outcomes: Outcome) -> None:
        self._outcomes = list(outcomes)
        # Of each try, whether the line was to run alone.
        self.alone: list[bool] = []

    async def answer(self, line: Line, *, alone: bool = False) -> Outcome:
        self.alone.append(alone)
        return self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "out.partial")
    yield journal
    journal.close()


def source_of(folder: Path, lines: int) -> Source:
    line = {"method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(line | {"custom_id": str(n)}) + "\n" for n in range(lines)))
    return Source(path, 1_000)


@pytest.mark.parametrize(
    ("outcomes", "tries", "alone"),
    [
        ([CRASH], 3, [False, False, True]),
        # A line that was running at three crashes is taken for their reason.
        ([CRASH], 100, [False, False, True]),
        ([CRASH, TIMEOUT], 3, [False, False, True]),
        ([TIMEOUT], 3, [False, False, False]),
        ([CRASH], 1, [False]),
        ([CRASH, Outcome(b"{}", ok=True)], 3, [False, False]),
    ],
)
async def test_line_runs_alone_at_its_last_try_if_the_engine_crashed_under_it(
    outcomes: list[Outcome],
    tries: int,
    alone: list[bool],
    tmp_path: Path,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("batch.runner._FIRST_PAUSE_S", 0.0)
    journal.begin(Header("digest", 1))
    answerer = Scripted(*outcomes)
    runner = Runner(
        source_of(tmp_path, 1),
        journal,
        cast("Answerer", answerer),
        Tally(1),
        at_once=1,
        tries=tries,
    )
    await runner.run()
    assert answerer.alone == alone
    assert journal.done == 1


@pytest.mark.parametrize(
    ("outcome", "kept"),
    [
        (Outcome(b"{}", ok=True), 1),
        (Outcome(b"{}", ok=False), 1),
        # Another try may end better: it is the next run's.
        (Outcome(b"{}", ok=False, retryable=True), 0),
    ],
)
async def test_what_is_under_way_is_written_down_unless_it_would_be_tried_again(
    outcome: Outcome, kept: int, tmp_path: Path, journal: Journal
) -> None:
    journal.begin(Header("digest", LINES))
    answerer = Stopping(outcome)
    answerer.runner = Runner(
        source_of(tmp_path, LINES),
        journal,
        cast("Answerer", answerer),
        Tally(LINES),
        at_once=1,
        tries=3,
    )
    await answerer.runner.run()
    assert answerer.asked == [1]
    assert journal.done == kept
