"""The settings of `python -m batch`."""

from __future__ import annotations

from pydantic import Field

from handler.settings import Settings


class BatchSettings(Settings):
    """What a batch needs beyond an engine; the limits are OpenAI's."""

    batch_max_lines: int = Field(
        50_000, ge=1, le=10_000_000, description="The most lines of a batch."
    )
    batch_max_mb: int = Field(200, ge=1, le=100_000, description="The largest input file.")
    max_body_mb: int = Field(10, ge=1, le=1_000, description="The longest line.")
    batch_tries: int = Field(
        3, ge=1, le=100, description="How often a line is tried whose failure may pass."
    )
    batch_at_once: int = Field(
        0, ge=0, le=10_000, description="Lines under way; 0 is twice the engine's slots."
    )
