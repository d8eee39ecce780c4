"""Puts the outputs of all parts of a batch together, and checks that each line is there once."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from batch.output.token_totals import TokenTotals

# More problems are only counted: a wrong file has one on each line.
MAX_LISTED_PROBLEMS = 20
_NO_FILE = 0


class DuplicateIds(Exception):
    """Two lines of the input have the same id; the message is one sentence."""


@dataclass(slots=True)
class MergeProblems:
    """The lines of the parts that are not an answer to a line of the input, as sentences."""

    count: int = 0
    listed: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Record a problem."""
        self.count += 1
        if len(self.listed) < MAX_LISTED_PROBLEMS:
            self.listed.append(problem)


class MergedOutput:
    """The answers to the lines of an input, each with its place in the file of a part.

    `add_file` reads one file of a part; `answers` yields the lines in the order of the input. Ids
    are kept as hashes of eight bytes, and memory is about 130 bytes for each line of the input.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        """Take the ids of the input's lines, in their order. Raises DuplicateIds."""
        self._index: dict[int, int] = {}
        for number, custom_id in enumerate(ids):
            first = self._index.setdefault(_hash_id(custom_id), number)
            if first != number:
                raise DuplicateIds(
                    f"line {number + 1}: custom_id is the same as on line {first + 1}"
                )
        self.lines = len(self._index)
        self.failed = 0
        self.tokens = TokenTotals()
        self.problems = MergeProblems()
        self._paths: list[Path] = []
        # For each line: the file of its answer, from 1, and 0 without one; its place there.
        self._files = array("L", [_NO_FILE]) * self.lines
        self._offsets = array("Q", [0]) * self.lines
        self._lengths = array("L", [0]) * self.lines
        self._ok = bytearray(self.lines)

    def add_file(self, path: Path, name: str, *, ok: bool) -> None:
        """Read the answers, or with `ok` false the errors, of a part. Raises OSError."""
        self._paths.append(path)
        offset = 0
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                problem = self._add_line(raw, offset, ok=ok)
                if problem is not None:
                    self.problems.add(f"{name}, line {number}: {problem}")
                offset += len(raw)

    def _add_line(self, raw: bytes, offset: int, *, ok: bool) -> str | None:
        """Record the place of an answer; return what is wrong with it, if anything."""
        answer = _parse_answer(raw)
        custom_id = answer.get("custom_id", answer.get("id"))
        if not isinstance(custom_id, str):
            return "it is not an answer of a batch"
        line = self._index.get(_hash_id(custom_id))
        if line is None:
            return "its id is on no line of the input"
        if self._files[line] != _NO_FILE:
            return f"line {line + 1} of the input has an answer already"
        self._files[line], self._offsets[line] = len(self._paths), offset
        self._lengths[line], self._ok[line] = len(raw), ok
        self.failed += not ok
        if ok:
            self.tokens.add_answer(answer)
        return None

    def missing(self) -> Iterator[int]:
        """Yield the numbers, from 0, of the lines without an answer."""
        return (line for line, file in enumerate(self._files) if file == _NO_FILE)

    def answers(self, *, ok: bool) -> Iterator[bytes]:
        """Yield the answers, or the errors, in the order of the input. Raises OSError."""
        with ExitStack() as stack:
            files: dict[int, BinaryIO] = {}
            for line, number in enumerate(self._files):
                if number == _NO_FILE or self._ok[line] != ok:
                    continue
                if number not in files:
                    files[number] = stack.enter_context(self._paths[number - 1].open("rb"))
                files[number].seek(self._offsets[line])
                yield files[number].read(self._lengths[line]).rstrip(b"\r\n") + b"\n"


def _parse_answer(raw: bytes) -> dict[str, Any]:
    """Return the fields of an answer: of an OpenAI request, or of a job; none for other texts."""
    try:
        answer = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _hash_id(custom_id: str) -> int:
    hashed = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(hashed.digest(), "big")
