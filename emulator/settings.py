"""The settings of `python -m emulator`."""

from __future__ import annotations

from pydantic import Field

from handler.settings import Settings


class EmulatorSettings(Settings):
    """What the local server needs beside the engine's settings."""

    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="The port to listen on; 0 is any free one.")
    endpoint_id: str = Field(
        "default", min_length=1, description="The endpoint that the local worker serves."
    )
    max_body_mb: float = Field(20, gt=0, description="The largest request body, in megabytes.")
    stream_interval_ms: float = Field(
        0, ge=0, description="Least time between two events of a stream; 0 sends as fast as read."
    )
