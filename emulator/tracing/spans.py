"""Spans of calls, jobs and runs, each made where it begins and ended where it ends."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Protocol

from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context
from starlette.middleware import Middleware

from emulator.tracing.job_store import TracedJobStore
from emulator.tracing.middleware import TracingMiddleware
from engine import Priority
from engine.hooks import EngineEvent, FirstToken, RequestEnded, RequestStarted
from jobs import Job, JobStatus, JobStore

# Spans that are open at a time, of jobs and of runs each: jobs may be forgotten without an end.
_MOST_OPEN = 10_000
# A shorter wait is none.
_WAIT_S = 0.001
_FAILED = Status(StatusCode.ERROR)


class SpanSink(Protocol):
    """Where spans go."""

    @property
    def tracer(self) -> Tracer:
        """What spans are made with."""

    async def close(self) -> None:
        """Send what is left."""


class OpenSpans:
    """Spans by an id, until they end; the oldest is ended unfinished where there are too many."""

    def __init__(self) -> None:
        self._spans: OrderedDict[str, Span] = OrderedDict()

    def put(self, key: str, span: Span) -> None:
        """Keep a span, in place of one of the same id."""
        self.end(key)
        self._spans[key] = span
        if len(self._spans) > _MOST_OPEN:
            self.end(next(iter(self._spans)))

    def get(self, key: str) -> Span | None:
        """Return a span that has not ended."""
        return self._spans.get(key)

    def end(self, key: str) -> None:
        """End a span now, if there is one."""
        span = self._spans.pop(key, None)
        if span is not None:
            span.end()


class OpenTelemetryTracing:
    """An engine's hook, and what the server tells of calls and jobs; owned by the event loop.

    A call's span is the current one of its task, so what the task begins is a part of it; a job
    carries its own to the task of the local worker by its id. No text is ever put into a span.
    """

    def __init__(self, export: SpanSink, model: str) -> None:
        self._export = export
        self._tracer = export.tracer
        self._model = model
        self._jobs = OpenSpans()
        self._runs = OpenSpans()

    def middleware(self) -> list[Middleware]:
        """Return what makes a span of each call."""
        return [Middleware(TracingMiddleware, tracer=self._tracer)]

    def store(self, store: JobStore) -> JobStore:
        """Return the store that tells of each job that is sent."""
        return TracedJobStore.through(store, self._sent)

    def _sent(self, job: Job) -> None:
        named = {"worker_rkllm.job.id": job.id, "worker_rkllm.endpoint": job.endpoint}
        span = self._tracer.start_span("job", start_time=_ns(job.queued_at), attributes=named)
        self._jobs.put(job.id, span)

    def enter(self, job_id: str) -> None:
        """Have what this task does from here on be a part of a job; the task is the job's own."""
        span = self._jobs.get(job_id)
        if span is not None:
            context.attach(set_span_in_context(span, Context()))

    def job_ended(self, job: Job) -> None:
        """End a job's span; how long it waited is known by now."""
        span = self._jobs.get(job.id)
        if span is None:
            return
        if job.started_at is not None:
            inside = set_span_in_context(span, Context())
            waited = self._tracer.start_span("queue", inside, start_time=_ns(job.queued_at))
            waited.end(_ns(job.started_at))
        span.set_attribute("worker_rkllm.job.status", job.status.value)
        if job.status in (JobStatus.FAILED, JobStatus.TIMED_OUT):
            span.set_status(_FAILED)
        self._jobs.end(job.id)

    def __call__(self, event: EngineEvent) -> None:
        """Take an event of the engine."""
        match event:
            case RequestStarted():
                self._started(event)
            case FirstToken():
                if (span := self._runs.get(event.request_id)) is not None:
                    span.add_event("first_token")
            case RequestEnded():
                self._ended(event)

    def _started(self, event: RequestStarted) -> None:
        now = time.time_ns()
        # The lines of a batch were not asked for by the call that made it, hours ago.
        inside = Context() if event.priority is Priority.BATCH else context.get_current()
        waited_s = event.queue_s + event.load_s
        if waited_s >= _WAIT_S:
            span = self._tracer.start_span("slot", inside, start_time=now - _ns(waited_s))
            span.set_attribute("worker_rkllm.load_seconds", event.load_s)
            span.end(now)
        about = {
            "gen_ai.request.model": self._model,
            "worker_rkllm.generation.id": event.request_id,
            "worker_rkllm.priority": event.priority.name.lower(),
        }
        span = self._tracer.start_span("generation", inside, attributes=about, start_time=now)
        self._runs.put(event.request_id, span)

    def _ended(self, event: RequestEnded) -> None:
        span = self._runs.get(event.request_id)
        if span is None:
            return
        span.set_attribute("gen_ai.usage.output_tokens", event.tokens)
        if event.finish is not None:
            span.set_attribute("gen_ai.usage.input_tokens", event.finish.usage.prompt_tokens)
            span.set_attribute("gen_ai.response.finish_reasons", [event.finish.reason.value])
        if event.error is not None:
            span.set_attribute("error.type", type(event.error).__name__)
            span.set_status(_FAILED)
        self._runs.end(event.request_id)

    async def close(self) -> None:
        """Send what is left."""
        await self._export.close()


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
