"""Check of all lines of a batch before the model is loaded."""

from __future__ import annotations

import hashlib
from array import array
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from batch.input.line import BadLine, Line, parse_line
from batch.input.source import LineSource

# Maximum number of problems to list: a file of another format has one on each line.
MAX_LISTED_PROBLEMS = 100


@dataclass(slots=True)
class InputSummary:
    """The result of a scan of an input.

    `problems` are the first MAX_LISTED_PROBLEMS problems, as line number and sentence;
    `problem_count` counts all of them. `digest` is the SHA-256 of the lines.
    """

    digest: str = ""
    lines: int = 0
    kind: str | None = None
    problem_count: int = 0
    problems: list[tuple[int, str]] = field(default_factory=list)

    def add_problem(self, number: int, problem: str) -> None:
        """Record a problem of a line."""
        self.problem_count += 1
        insort(self.problems, (number, problem))
        del self.problems[MAX_LISTED_PROBLEMS:]


def scan_input(
    source: LineSource,
    check: Callable[[Line], object],
    max_lines: int,
    on_line: Callable[[], object] = lambda: None,
) -> InputSummary:
    """Check every line with `check`, which raises BadLine, and return the problems.

    Duplicate ids are detected by hashes of eight bytes, because the ids themselves would need many
    times as much memory. Two different ids have the same hash once in ten billion files of 50,000
    lines.

    Raises:
        InputError: the file cannot be read.
    """
    summary = InputSummary()
    digest = hashlib.sha256()
    id_hashes, line_numbers = array("Q"), array("L")
    for raw in source.lines():
        digest.update(raw)
        summary.lines += 1
        number = source.lines_before + summary.lines
        on_line()
        if summary.lines > max_lines:
            continue
        if len(raw) > source.max_line_bytes:
            summary.add_problem(
                number, f"the line is longer than {source.max_line_bytes:,} bytes (MAX_BODY_MB)"
            )
            continue
        try:
            line = parse_line(raw, number)
            id_hashes.append(_hash_id(line.custom_id))
            line_numbers.append(number)
            summary.kind = summary.kind or line.kind
            if line.kind != summary.kind:
                raise BadLine(
                    f"the line is for {line.kind}, the lines before it are for {summary.kind}"
                )
            check(line)
        except BadLine as error:
            summary.add_problem(number, str(error))
    for first, duplicate in _find_duplicates(id_hashes):
        summary.add_problem(
            line_numbers[duplicate], f"custom_id is the same as on line {line_numbers[first]}"
        )
    if not summary.lines and not source.may_be_empty:
        summary.add_problem(1, f"{source.path} is empty")
    if summary.lines > max_lines:
        summary.add_problem(
            source.lines_before + max_lines + 1,
            f"the file has {summary.lines:,} lines, at most {max_lines:,} are allowed",
        )
    summary.digest = digest.hexdigest()
    return summary


def _find_duplicates(keys: array[int]) -> Iterator[tuple[int, int]]:
    """Yield the index of the first occurrence of a key and of each later one."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    first = 0
    for position, index in enumerate(order):
        if keys[index] != keys[order[first]]:
            first = position
        elif position != first:
            yield order[first], index


def compute_digest(source: LineSource) -> str:
    """Return the digest of a file, the same as in its InputSummary. Raises InputError."""
    digest = hashlib.sha256()
    for raw in source.lines():
        digest.update(raw)
    return digest.hexdigest()


def _hash_id(custom_id: str) -> int:
    hashed = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(hashed.digest(), "big")
