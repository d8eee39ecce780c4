"""A file as clients know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

PREFIX = "file-"
# What a client uploads, and what a batch makes of it.
INPUT, OUTPUT = "batch", "batch_output"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """What is known of a file beside its bytes; times in whole seconds since 1970."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> StoredFile:
        """Return the file that `record` was made of. Raises TypeError for anything else."""
        file = cls(**record)
        texts = (file.id, file.filename, file.purpose)
        numbers = (file.bytes, file.created_at, 0 if file.expires_at is None else file.expires_at)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a text has another type")
        if not all(type(number) is int for number in numbers):
            raise TypeError("a number has another type")
        return file

    def shown(self) -> dict[str, Any]:
        """Return the file as OpenAI tells of one."""
        # A file is looked over before it gets its id.
        return {"object": "file", "status": "processed", "status_details": None, **asdict(self)}
