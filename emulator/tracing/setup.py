"""Enable tracing if it is configured. OpenTelemetry is imported only then."""

from __future__ import annotations

from typing import Any, Protocol

from starlette.middleware import Middleware

from common.setting_error import SettingError
from emulator.settings.emulator_settings import EmulatorSettings
from engine import AnyEngine
from jobs import Job


class Tracing(Protocol):
    """The events of the server that become spans."""

    def middleware(self) -> list[Middleware]:
        """Return the middleware that traces requests."""

    def job_enqueued(self, job: Job) -> None:
        """Start the span of a job, in the task that enqueues it."""

    def enter_job(self, job_id: str) -> None:
        """Make the job's span the parent of everything that the current task does from now on."""

    def job_ended(self, job: Job) -> None:
        """End the span of a job."""

    async def close(self) -> None:
        """Send the remaining spans."""


class NoTracing:
    """Traces nothing."""

    def middleware(self) -> list[Middleware]:
        """Return no middleware."""
        return []

    def job_enqueued(self, job: Job) -> None:
        """Do nothing."""

    def enter_job(self, job_id: str) -> None:
        """Do nothing."""

    def job_ended(self, job: Job) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


def build_tracing(settings: EmulatorSettings, engine: AnyEngine | None = None) -> Tracing:
    """Return tracing to OTEL_EXPORTER_OTLP_ENDPOINT, or NoTracing if that is unset.

    Raises:
        SettingError: the packages for tracing are not installed.
    """
    endpoint = settings.otel_exporter_otlp_endpoint
    if endpoint is None:
        return NoTracing()
    try:
        # Importing them takes a second, and they start threads.
        from emulator.tracing.exporter import build_exporter
        from emulator.tracing.spans import OpenTelemetryTracing
    except ImportError as error:
        raise SettingError(
            f"OTEL_EXPORTER_OTLP_ENDPOINT: traces need {error.name}, which is not installed: "
            "`pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http` adds it"
        ) from None
    tracing: Any = OpenTelemetryTracing(build_exporter(endpoint), settings.served_model)
    if engine is not None:
        engine.subscribe(tracing)
    result: Tracing = tracing
    return result
