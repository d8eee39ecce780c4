"""A note next to a finished output: a repeated run with the same input does nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import orjson

from batch.output.destination import Destination, FileDestination


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The digest of the input and the counts of a run that answered every line.

    `output_bytes` is the size of the output: if the file's size differs, it was changed since. Only
    outputs that are local files have a note.
    """

    digest: str
    lines: int
    failed: int
    output_bytes: int

    @classmethod
    def read(cls, output: Destination) -> Self | None:
        """Return the note of an output; None if it does not exist or the output has changed."""
        if not isinstance(output, FileDestination):
            return None
        try:
            note = cls(**orjson.loads(_note_path(output).read_bytes()))
            return note if output.path.stat().st_size == note.output_bytes else None
        except (OSError, TypeError, ValueError):
            return None

    @classmethod
    def write(cls, output: Destination, digest: str, lines: int, failed: int) -> None:
        """Write the note of a complete output. Raises OSError."""
        if isinstance(output, FileDestination):
            note = cls(digest, lines, failed, output.path.stat().st_size)
            FileDestination(_note_path(output)).write([orjson.dumps(asdict(note)) + b"\n"])


def _note_path(output: FileDestination) -> Path:
    return output.path.with_name(f".{output.path.name}.finished")
