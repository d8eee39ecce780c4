"""A note next to a finished output: a repeated run with the same input does nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Self

import orjson

from batch.output.destination import Destination
from batch.output.token_totals import TokenTotals
from handler.delivery.blobs import BlobDenied, BlobNotFound


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The digest of the input, the counts and the tokens of a run that answered every line.

    `output_bytes` is the size of the output: if it differs, the output was changed since. A run
    whose machine was lost after it had written its output is not an error when it is repeated.
    """

    digest: str
    lines: int
    failed: int
    output_bytes: int
    tokens: TokenTotals

    @classmethod
    def read(cls, output: Destination) -> Self | None:
        """Return the note of an output; None if it does not exist or the output has changed.

        Raises BlobError.
        """
        place = output.sibling(_note_name(output))
        if place is None:
            return None
        try:
            fields = orjson.loads(place.read())
            note = cls(**fields | {"tokens": TokenTotals(**fields["tokens"])})
            return note if output.find_size() == note.output_bytes else None
        except (OSError, BlobNotFound, BlobDenied, KeyError, TypeError, ValueError):
            # Credentials that may only write are refused for an object that does not exist.
            return None

    @classmethod
    def write(
        cls, output: Destination, digest: str, lines: int, failed: int, tokens: TokenTotals
    ) -> None:
        """Write the note of a complete output. Raises OSError or BlobError."""
        place, output_bytes = output.sibling(_note_name(output)), output.find_size()
        if place is not None and output_bytes is not None:
            note = cls(digest, lines, failed, output_bytes, tokens)
            place.write([orjson.dumps(asdict(note)) + b"\n"])


def _note_name(output: Destination) -> str:
    return f".{output.name}.finished"
