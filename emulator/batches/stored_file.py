"""A file as clients know it."""

from __future__ import annotations

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

    def shown(self) -> dict[str, Any]:
        """Return the file as OpenAI tells of one."""
        # A file is looked over before it gets its id.
        return {"object": "file", "status": "processed", "status_details": None, **asdict(self)}
