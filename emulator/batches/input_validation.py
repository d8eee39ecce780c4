"""What is looked at in a file of requests before any is answered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from batch.input.line import BadLine, Line
from batch.input.scan import MAX_LISTED_PROBLEMS, InputSummary, scan_input
from batch.input.source import LineSource
from handler.openai.service import EMBEDDINGS, ENDPOINT_SPECS

ENDPOINTS = (*ENDPOINT_SPECS, EMBEDDINGS)
# OpenAI's, for all lines together.
MAX_EMBEDDING_INPUTS = 50_000


@dataclass(frozen=True, slots=True)
class LineLimits:
    """How many lines a file may have, and how long each may be."""

    lines: int
    line_bytes: int

    def source(self, path: Path) -> LineSource:
        """Return a file's lines."""
        return LineSource(path, self.line_bytes)


class _Check:
    """Looks at one line after the other of one file; `endpoint` is its batch's, if there is one."""

    def __init__(self, endpoint: str | None) -> None:
        self._endpoint = endpoint
        self._inputs = 0

    def __call__(self, line: Line) -> None:
        if line.route is None:
            raise BadLine("custom_id, method, url and body must be given, and no job's input")
        if line.route not in ENDPOINTS:
            raise BadLine(f"url must be one of {', '.join(ENDPOINTS)}, got {line.route}")
        if self._endpoint not in (None, line.route):
            raise BadLine(f"url must be the batch's endpoint, {self._endpoint}, got {line.route}")
        if line.route == EMBEDDINGS:
            given = line.body.get("input")
            several = isinstance(given, list) and given and not isinstance(given[0], int)
            self._inputs += len(given) if isinstance(given, list) and several else 1
            if self._inputs > MAX_EMBEDDING_INPUTS:
                raise BadLine(f"the lines up to here have more than {MAX_EMBEDDING_INPUTS} inputs")


def look(path: Path, limits: LineLimits, endpoint: str | None = None) -> InputSummary:
    """Return what is known of a file of OpenAI requests, and what is wrong with it.

    What a request asks for is not looked at: one that is refused is a line of the error file, as
    anywhere else that takes this format, and ends nobody's batch. Raises InputError.
    """
    return scan_input(limits.source(path), _Check(endpoint), limits.lines)


def told(found: InputSummary, most: int = MAX_LISTED_PROBLEMS) -> list[tuple[int | None, str]]:
    """Return what is wrong by lines, and in the last place how much more there is."""
    problems: list[tuple[int | None, str]] = list(found.problems[:most])
    if found.problem_count > len(problems):
        problems.append((None, f"and {found.problem_count - len(problems):,} problems more"))
    return problems
