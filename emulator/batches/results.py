"""What a batch leaves: an output file, and an error file for what failed or was not done."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from batch.input.line import parse_line
from batch.input.source import LineSource
from batch.output.journal import BatchJournal
from emulator.batches.batch import Results
from emulator.batches.file_storage import Folder

_UNDONE = {
    "batch_cancelled": "the batch was cancelled before this line was answered",
    "batch_expired": "the batch expired before this line was answered",
}
_NO_DETAILS = {"cached_tokens": 0}


@dataclass(slots=True)
class BatchUsage:
    """Adds up what answers say of their tokens."""

    read: int = 0
    cached: int = 0
    written: int = 0

    def count(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the lines as they are."""
        for line in lines:
            usage = orjson.loads(line)["response"]["body"]["usage"]
            self.read += usage["prompt_tokens"]
            # Vectors have neither.
            self.cached += usage.get("prompt_tokens_details", _NO_DETAILS)["cached_tokens"]
            self.written += usage.get("completion_tokens", 0)
            yield line

    def shown(self) -> dict[str, Any]:
        """Return it as OpenAI tells of a batch's."""
        return {
            "input_tokens": self.read,
            "input_tokens_details": {"cached_tokens": self.cached},
            "output_tokens": self.written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.read + self.written,
        }


def write_results(
    folder: Folder, ids: tuple[str, str], journal: BatchJournal, source: LineSource, undone: str
) -> tuple[Results, dict[str, int]]:
    """Write the files that a batch leaves, and return how many bytes each has, by its id.

    Lines without an answer go to the error file under the code `undone`, behind those that failed.
    A file that would be empty is not written. For a thread; the journal must be at rest.

    Raises:
        NoRoom: the disk does not take it.
        InputError: the batch's input cannot be read.
    """
    output_id, error_id = ids
    usage = BatchUsage()
    sizes = {}
    completed = journal.done - journal.failed
    if completed:
        sizes[output_id] = folder.write(output_id, usage.count(journal.answers(ok=True)))
    if journal.failed or journal.done < journal.lines:
        sizes[error_id] = folder.write(error_id, _errors(journal, source, undone))
    found = Results(
        completed=completed,
        failed=journal.failed,
        output_file_id=output_id if output_id in sizes else None,
        error_file_id=error_id if error_id in sizes else None,
        usage=usage.shown(),
    )
    return found, sizes


def _errors(journal: BatchJournal, source: LineSource, undone: str) -> Iterator[bytes]:
    yield from journal.answers(ok=False)
    if journal.done == journal.lines:
        return
    for number, raw in enumerate(source.lines(), 1):
        if journal.is_missing(number):
            told = {
                "id": f"batch_req_{uuid.uuid4().hex}",
                "custom_id": parse_line(raw, number).custom_id,
                "response": None,
                "error": {"code": undone, "message": _UNDONE[undone]},
            }
            yield orjson.dumps(told) + b"\n"
