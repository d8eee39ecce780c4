"""The token counts of a batch: from answers of all APIs, each answer once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from batch.output.journal import BatchJournal, JournalHeader
from batch.output.token_totals import TokenTotals, find_usage


def answer(body: Any) -> bytes:
    response = {"status_code": 200, "request_id": "r", "body": body}
    return orjson.dumps({"custom_id": "a", "response": response, "error": None})


def chat(prompt: int, completion: int) -> bytes:
    return answer({"usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


@pytest.mark.parametrize(
    ("body", "counts"),
    [
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}, (3, 2)),
        # Embeddings have no completion.
        ({"usage": {"prompt_tokens": 3, "total_tokens": 3}}, (3, 0)),
        ({"usage": {"input_tokens": 3, "output_tokens": 2}}, (3, 2)),
        ({"usage": {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 4}}, (7, 2)),
        ({"prompt_eval_count": 3, "eval_count": 2, "done": True}, (3, 2)),
        # The output of a job.
        ({"usage": {"input": 3, "output": 2, "total": 5}}, (3, 2)),
        ({"object": "list", "data": []}, None),
        ({"usage": None}, None),
        ({"usage": {}}, None),
        ({"usage": 7}, None),
        ({"usage": {"total_tokens": 5}}, None),
        ({"usage": {"input": 3}}, None),
        ({"usage": {"prompt_tokens": "3", "completion_tokens": 2}}, None),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": None}}, None),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": -2}}, None),
        ({"usage": {"prompt_tokens": True, "completion_tokens": 2}}, None),
        ([], None),
    ],
)
def test_find_usage_reads_each_api_and_guesses_nothing(
    body: Any, counts: tuple[int, int] | None
) -> None:
    usage = find_usage(body)
    assert (usage and usage[:2]) == counts


def test_totals_add_up_answers_and_jobs() -> None:
    job = orjson.dumps(
        {"id": "b", "status": "COMPLETED", "output": {"usage": {"input": 5, "output": 1}}}
    )
    totals = TokenTotals.from_answers([chat(1_000, 20), chat(30, 4), job])
    assert totals == TokenTotals(1_035, 25, answers=3)
    assert totals.format() == "tokens: 1,035 prompt, 25 completion"


def test_totals_name_the_answers_without_counts() -> None:
    totals = TokenTotals.from_answers([chat(3, 2), answer({"choices": []})])
    assert totals.format() == (
        "tokens: 3 prompt, 2 completion, without 1 of 2 answers that have no token counts"
    )
    none = TokenTotals.from_answers([answer({"choices": []})] * 2)
    assert none.format() == "tokens: unknown, the answers have no token counts"
    assert TokenTotals.from_answers([]).format() == "tokens: 0 prompt, 0 completion"


def test_totals_of_a_resumed_journal_have_each_line_once(tmp_path: Path) -> None:
    path = tmp_path / "out.partial"
    first = BatchJournal(path)
    first.begin(JournalHeader("digest", 3))
    first.add(2, chat(10, 1), ok=True)
    first.add(1, answer({"error": {"message": "no"}}), ok=False)
    size = first.size
    first.close()
    # The answer to a line again, and one that was not written to its end.
    with path.open("ab") as file:
        file.write(path.read_bytes()[size - 20 : size])
        record = path.read_bytes().splitlines()[1]
        file.write(record + b"\n" + record[:30])
    second = BatchJournal(path)
    second.add(3, chat(100, 5), ok=True)
    totals = TokenTotals.from_answers(second.answers(ok=True, ordered=False))
    second.close()
    assert totals == TokenTotals(110, 6, answers=2)
