"""What a runner writes down when it is told to stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from batch.answerer import Answerer, Outcome
from batch.journal import Header, Journal
from batch.line import Line
from batch.runner import Runner
from batch.source import Source
from batch.tally import Tally

LINES = 3


class Stopping:
    """Answers lines, and has the runner stop while it is at the first."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.asked: list[int] = []
        self.runner: Runner | None = None

    async def answer(self, line: Line) -> Outcome:
        self.asked.append(line.number)
        assert self.runner is not None
        self.runner.stop()
        return self.outcome


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
    outcome: Outcome, kept: int, tmp_path: Path
) -> None:
    line = {"method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(line | {"custom_id": str(n)}) + "\n" for n in range(LINES)))
    journal = Journal(tmp_path / "out.partial")
    try:
        journal.begin(Header("digest", LINES))
        answerer = Stopping(outcome)
        answerer.runner = Runner(
            Source(path, 1_000),
            journal,
            cast("Answerer", answerer),
            Tally(LINES),
            at_once=1,
            tries=3,
        )
        await answerer.runner.run()
        assert answerer.asked == [1]
        assert journal.done == kept
    finally:
        journal.close()
