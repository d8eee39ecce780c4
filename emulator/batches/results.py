"""Writes the output file and the error file of a batch."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from batch.input.line import parse_line
from batch.input.source import LineSource
from batch.output.journal import BatchJournal
from emulator.batches.file_storage import FileStorage
from emulator.batches.models import BatchResult
from handler.apis.calls import read_usage

_UNANSWERED_MESSAGES = {
    "batch_cancelled": "the batch was cancelled before this line was answered",
    "batch_expired": "the batch expired before this line was answered",
}


@dataclass(slots=True)
class UsageTotals:
    """The token counts of all answers of a batch."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def count(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        """Add the usage of each line, and yield the line unchanged."""
        for line in lines:
            usage = read_usage(orjson.loads(line)["response"]["body"])
            self.input_tokens += usage.prompt_tokens
            self.cached_tokens += usage.cached_tokens
            self.output_tokens += usage.completion_tokens
            yield line

    def to_openai(self) -> dict[str, Any]:
        """Return the OpenAI usage object of a batch."""
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.input_tokens + self.output_tokens,
        }


def write_results(
    storage: FileStorage,
    ids: tuple[str, str],
    journal: BatchJournal,
    source: LineSource,
    unanswered_code: str,
) -> tuple[BatchResult, dict[str, int]]:
    """Write the output and error files; return the result, and each file's size in bytes by its id.

    The error file has the failed lines first and then the unanswered lines, whose error code is
    `unanswered_code`. A file that would be empty is not written. Blocks, so it runs on a thread;
    nothing else may use the journal meanwhile.

    Raises:
        InsufficientStorage: the disk is full.
        InputError: the batch's input cannot be read.
    """
    output_id, error_id = ids
    usage = UsageTotals()
    sizes = {}
    completed = journal.done - journal.failed
    if completed:
        sizes[output_id] = storage.write_content(output_id, usage.count(journal.answers(ok=True)))
    if journal.failed or journal.done < journal.lines:
        error_lines = _error_lines(journal, source, unanswered_code)
        sizes[error_id] = storage.write_content(error_id, error_lines)
    result = BatchResult(
        completed=completed,
        failed=journal.failed,
        output_file_id=output_id if output_id in sizes else None,
        error_file_id=error_id if error_id in sizes else None,
        usage=usage.to_openai(),
    )
    return result, sizes


def _error_lines(
    journal: BatchJournal, source: LineSource, unanswered_code: str
) -> Iterator[bytes]:
    yield from journal.answers(ok=False)
    if journal.done == journal.lines:
        return
    for number, raw in enumerate(source.lines(), 1):
        if journal.is_missing(number):
            error_line = {
                "id": f"batch_req_{uuid.uuid4().hex}",
                "custom_id": parse_line(raw, number).custom_id,
                "response": None,
                "error": {
                    "code": unanswered_code,
                    "message": _UNANSWERED_MESSAGES[unanswered_code],
                },
            }
            yield orjson.dumps(error_line) + b"\n"
