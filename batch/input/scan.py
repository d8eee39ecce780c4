"""Looking a whole batch over before a model is loaded for it."""

from __future__ import annotations

import hashlib
from array import array
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from batch.input.line import BadLine, Line, parse_line
from batch.input.source import LineSource

# So many problems are told one by one; a file of the wrong kind has as many as lines.
MAX_LISTED_PROBLEMS = 100


@dataclass(slots=True)
class InputSummary:
    """What is known of an input that has been looked over.

    `problems` are the first so many by line, with what is wrong there; `bad` counts all of them.
    `digest` is SHA-256 of the bytes.
    """

    digest: str = ""
    lines: int = 0
    kind: str | None = None
    bad: int = 0
    problems: list[tuple[int, str]] = field(default_factory=list)

    def blame(self, number: int, problem: str) -> None:
        """Note what is wrong with a line."""
        self.bad += 1
        insort(self.problems, (number, problem))
        del self.problems[MAX_LISTED_PROBLEMS:]


def scan_input(
    source: LineSource,
    check: Callable[[Line], object],
    max_lines: int,
    on_line: Callable[[], object] = lambda: None,
) -> InputSummary:
    """Read every line and say what is wrong with any; `check` raises BadLine.

    Ids are kept as hashes of eight bytes, and two different ones are alike once in ten billion
    files of 50,000 lines: the ids themselves would be many times as much memory.

    Raises:
        InputError: the file cannot be read.
    """
    found = InputSummary()
    digest = hashlib.sha256()
    ids, of_line = array("Q"), array("L")
    for raw in source.lines():
        digest.update(raw)
        found.lines += 1
        number = found.lines
        on_line()
        if number > max_lines:
            continue
        if len(raw) > source.max_line_bytes:
            found.blame(
                number, f"the line is longer than {source.max_line_bytes:,} bytes (MAX_BODY_MB)"
            )
            continue
        try:
            line = parse_line(raw, number)
            ids.append(_hash_id(line.custom_id))
            of_line.append(number)
            found.kind = found.kind or line.kind
            if line.kind != found.kind:
                raise BadLine(
                    f"the line is for {line.kind}, the lines before it are for {found.kind}"
                )
            check(line)
        except BadLine as error:
            found.blame(number, str(error))
    for first, again in _find_duplicates(ids):
        found.blame(of_line[again], f"custom_id is the same as on line {of_line[first]}")
    if not found.lines:
        found.blame(1, f"{source.path} is empty")
    if found.lines > max_lines:
        found.blame(
            max_lines + 1,
            f"the file has {found.lines:,} lines, at most {max_lines:,} are allowed",
        )
    found.digest = digest.hexdigest()
    return found


def _find_duplicates(keys: array[int]) -> Iterator[tuple[int, int]]:
    """Yield where a key comes first and where again, for each time that it does."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    first = 0
    for here, place in enumerate(order):
        if keys[place] != keys[order[first]]:
            first = here
        elif here != first:
            yield order[first], place


def compute_digest(source: LineSource) -> str:
    """Return what `look_over` takes down as a file's digest. Raises InputError."""
    digest = hashlib.sha256()
    for raw in source.lines():
        digest.update(raw)
    return digest.hexdigest()


def _hash_id(custom_id: str) -> int:
    named = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(named.digest(), "big")
