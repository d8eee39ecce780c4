"""One part of an input that several processes answer: its lines and the name of its output."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath

from batch.input.source import LineSource
from batch.output.destination import STDOUT
from common.value_description import describe_value

MAX_SHARDS = 100_000
# The variables that number the processes of a Kubernetes Indexed Job, a Slurm array and a SkyPilot
# task, each from 0.
INDEX_VARIABLES = ("JOB_COMPLETION_INDEX", "SLURM_ARRAY_TASK_ID", "SKYPILOT_NODE_RANK")
_NUMBER = re.compile(r"[0-9]{1,6}")
_SHARD = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


class ShardError(Exception):
    """The part cannot be determined; the message is one sentence with a remedy."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `index`, from 0, of `count` parts of about the same number of lines."""

    index: int
    count: int

    def bounds(self, lines: int) -> tuple[int, int]:
        """Return the first line of the part, from 0, and the line after its last one."""
        return self.index * lines // self.count, (self.index + 1) * lines // self.count

    def rename(self, address: str) -> str:
        """Return the address of the part's output: `answers.jsonl` is `answers-00012.jsonl`."""
        folder, slash, name = address.rpartition("/")
        path = PurePosixPath(name)
        return f"{folder}{slash}{path.stem}-{self.index:05}{path.suffix}"


class ShardSource(LineSource):
    """Reads the lines of one part of a file; a part of a short file may have none."""

    may_be_empty = True

    def __init__(self, path: Path, max_line_bytes: int, shard: Shard) -> None:
        super().__init__(path, max_line_bytes)
        self._shard = shard
        self._bounds: tuple[int, int] | None = None

    @property
    def lines_before(self) -> int:
        """The number of lines of the file before the part; known after the first reading."""
        return 0 if self._bounds is None else self._bounds[0]

    def _read_lines(self) -> Iterator[bytes]:
        if self._bounds is None:
            self._bounds = self._shard.bounds(sum(1 for _ in super()._read_lines()))
        return islice(super()._read_lines(), *self._bounds)


def find_shard_of_line(line: int, lines: int, count: int) -> int:
    """Return the index of the shard that has a line, from 0, of a file of `lines` lines."""
    return ((line + 1) * count - 1) // lines


def parse_shard(text: str) -> Shard:
    """Return the part of an option's value, `3/8`. Raises ShardError."""
    match = _SHARD.fullmatch(text)
    if match is None:
        raise ShardError(f"--shard must be I/N, for example 0/8, got {describe_value(text)}")
    return _check(Shard(int(match[1]), int(match[2])), "--shard")


def find_shard(count: int, environment: Mapping[str, str]) -> Shard:
    """Return the part of this process, whose index a scheduler has set in its environment.

    Raises ShardError: there is no index, there are two of them, or it is not below `count`.
    """
    values = {name: environment[name] for name in INDEX_VARIABLES if environment.get(name)}
    if not values:
        raise ShardError(
            f"--shards needs the part's index in one of {', '.join(INDEX_VARIABLES)}; --shard I/N "
            "does without"
        )
    if len(set(values.values())) > 1:
        names = " and ".join(f"{name}={value}" for name, value in values.items())
        raise ShardError(f"{names} are different indexes: name the part with --shard I/N")
    name, value = next(iter(values.items()))
    if not _NUMBER.fullmatch(value):
        raise ShardError(f"{name} must be a whole number from 0, got {describe_value(value)}")
    return _check(Shard(int(value), count), name)


def _check(shard: Shard, name: str) -> Shard:
    if not 1 <= shard.count <= MAX_SHARDS:
        raise ShardError(f"there can be 1 to {MAX_SHARDS:,} shards, got {shard.count}")
    if shard.index >= shard.count:
        raise ShardError(
            f"{name}: the index of {shard.count} shards is from 0 to {shard.count - 1}, got "
            f"{shard.index}"
        )
    return shard


def check_output(address: str) -> None:
    """Raise ShardError if the outputs of several processes would be one."""
    if address == STDOUT:
        raise ShardError("--output must be a file or an s3:// address for a shard, got -")
