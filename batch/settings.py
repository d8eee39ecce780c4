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
        0,
        ge=0,
        le=10_000,
        description="Lines under way; 0 is the engine's slots, twice as many in a worker.",
    )
    batch_lease_s: float = Field(
        60,
        ge=3,
        le=43_200,
        description="How long a message of a queue is a worker's; it is renewed at a third.",
    )
    batch_poll_s: float = Field(
        10,
        ge=1,
        le=20,
        description="How long a worker waits for messages; a stop takes as long if none comes.",
    )
    batch_receives: int = Field(
        5,
        ge=2,
        le=1_000,
        description="Receives of a message, the last one for its error, where the queue has no "
        "redrive policy.",
    )
    batch_queue_url: str = Field("", description="On AWS Lambda: the queue that calls.")
    batch_results: str = Field(
        "", description="On AWS Lambda: s3://BUCKET/PREFIX, where answers go."
    )
