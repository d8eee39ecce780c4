"""Validates a file of OpenAI requests before any of them is answered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from batch.input.line import BadLine, Line
from batch.input.scan import MAX_LISTED_PROBLEMS, InputSummary, scan_input
from batch.input.source import LineSource
from handler.apis.calls import CALL_ROUTES
from handler.apis.openai.service import EMBEDDINGS

# OpenAI's limit, for all lines of a file together.
MAX_EMBEDDING_INPUTS = 50_000


@dataclass(frozen=True, slots=True)
class LineLimits:
    """The maximum number of lines of a file, and the maximum length of a line in bytes."""

    lines: int
    line_bytes: int

    def open_source(self, path: Path) -> LineSource:
        """Return the lines of a file."""
        return LineSource(path, self.line_bytes)


class _LineCheck:
    """Checks the lines of one file in order; `endpoint` is its batch's endpoint, if it has one."""

    def __init__(self, endpoint: str | None) -> None:
        self._endpoint = endpoint
        self._embedding_inputs = 0

    def __call__(self, line: Line) -> None:
        if line.route is None:
            raise BadLine("custom_id, method, url and body must be given, and no job's input")
        if line.route not in CALL_ROUTES:
            raise BadLine(f"url must be one of {', '.join(CALL_ROUTES)}, got {line.route}")
        if self._endpoint not in (None, line.route):
            raise BadLine(f"url must be the batch's endpoint, {self._endpoint}, got {line.route}")
        if line.route == EMBEDDINGS:
            value = line.body.get("input")
            # A list of integers is a single input: the token ids of one text.
            is_list = isinstance(value, list) and value and not isinstance(value[0], int)
            self._embedding_inputs += len(value) if isinstance(value, list) and is_list else 1
            if self._embedding_inputs > MAX_EMBEDDING_INPUTS:
                raise BadLine(f"the lines up to here have more than {MAX_EMBEDDING_INPUTS} inputs")


def validate_input(path: Path, limits: LineLimits, endpoint: str | None = None) -> InputSummary:
    """Check every line of a file of OpenAI requests and return the summary with its problems.

    The parameters of a request are not checked: as in OpenAI's batches, a refused request becomes
    a line of the error file and does not fail the batch. Raises InputError.
    """
    return scan_input(limits.open_source(path), _LineCheck(endpoint), limits.lines)


def list_problems(
    summary: InputSummary, max_problems: int = MAX_LISTED_PROBLEMS
) -> list[tuple[int | None, str]]:
    """Return the first problems with their line numbers, then the count of the others, if any."""
    problems: list[tuple[int | None, str]] = list(summary.problems[:max_problems])
    if summary.problem_count > len(problems):
        problems.append((None, f"and {summary.problem_count - len(problems):,} problems more"))
    return problems
