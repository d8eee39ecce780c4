"""Whether there are traces: OpenTelemetry is imported from here, and only where it is wanted."""

from __future__ import annotations

from typing import Any, Protocol

from starlette.middleware import Middleware

from emulator.settings import EmulatorSettings
from engine import AnyEngine
from handler.setting_error import SettingError
from jobs import Job, JobStore


class Tracing(Protocol):
    """What the server tells of while it works."""

    def middleware(self) -> list[Middleware]:
        """Return what each HTTP call is to pass through."""

    def store(self, store: JobStore) -> JobStore:
        """Return the store as whoever sends jobs is to see it."""

    def enter(self, job_id: str) -> None:
        """Have what this task does from here on be a part of a job."""

    def job_ended(self, job: Job) -> None:
        """Take a job that has ended."""

    async def close(self) -> None:
        """Send what is left."""


class NoTracing:
    """No traces: everything is as it is."""

    def middleware(self) -> list[Middleware]:
        """Return nothing to pass through."""
        return []

    def store(self, store: JobStore) -> JobStore:
        """Return the store itself."""
        return store

    def enter(self, job_id: str) -> None:
        """Do nothing."""

    def job_ended(self, job: Job) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


def build_tracing(settings: EmulatorSettings, engine: AnyEngine) -> Tracing:
    """Return traces that go where OTEL_EXPORTER_OTLP_ENDPOINT says, none where it says nothing.

    Raises:
        SettingError: their packages are not installed.
    """
    endpoint = settings.otel_exporter_otlp_endpoint
    if endpoint is None:
        return NoTracing()
    try:
        # They take a second to import, and threads to run.
        from emulator.tracing.exporter import build_exporter
        from emulator.tracing.spans import OpenTelemetryTracing
    except ImportError as error:
        raise SettingError(
            f"OTEL_EXPORTER_OTLP_ENDPOINT: traces need {error.name}, which is not installed: "
            "`pip install 'worker-rkllm[otel]'` adds it"
        ) from None
    traced: Any = OpenTelemetryTracing(build_exporter(endpoint), settings.served_model)
    engine.subscribe(traced)
    found: Tracing = traced
    return found
