"""Spans of requests, jobs and generations."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Protocol

from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context
from starlette.middleware import Middleware

from emulator.tracing.middleware import TracingMiddleware
from engine import Priority
from engine.hooks import EngineEvent, FirstToken, RequestEnded, RequestStarted
from jobs import Job, JobStatus

# Open spans of jobs, and of generations: a job may be deleted before it has ended.
_MAX_OPEN = 10_000
# Shorter waits for a slot get no span.
_MIN_WAIT_S = 0.001
_FAILED = Status(StatusCode.ERROR)


class SpanSink(Protocol):
    """The destination of spans."""

    @property
    def tracer(self) -> Tracer:
        """The tracer that creates spans."""

    async def close(self) -> None:
        """Send the remaining spans."""


class OpenSpans:
    """Open spans by an id; if there are too many, the oldest is ended."""

    def __init__(self) -> None:
        self._spans: OrderedDict[str, Span] = OrderedDict()

    def put(self, key: str, span: Span) -> None:
        """Add a span; one with the same id is ended."""
        self.end(key)
        self._spans[key] = span
        if len(self._spans) > _MAX_OPEN:
            self.end(next(iter(self._spans)))

    def get(self, key: str) -> Span | None:
        """Return an open span."""
        return self._spans.get(key)

    def end(self, key: str) -> None:
        """End a span now, if there is one."""
        span = self._spans.pop(key, None)
        if span is not None:
            span.end()


class OpenTelemetryTracing:
    """Traces requests, jobs and generations; an engine hook. Owned by the event loop.

    A request's span is the current span of its task, so spans that the task starts are its
    children. The span of a job is found by the job's id in the local worker's task. Spans never
    contain prompts or generated text.
    """

    def __init__(self, sink: SpanSink, model: str) -> None:
        self._sink = sink
        self._tracer = sink.tracer
        self._model = model
        self._jobs = OpenSpans()
        self._generations = OpenSpans()

    def middleware(self) -> list[Middleware]:
        """Return the middleware that creates a span for each client request."""
        return [Middleware(TracingMiddleware, tracer=self._tracer)]

    def job_enqueued(self, job: Job) -> None:
        """Start the span of a job, in the task that enqueues it."""
        attributes = {"worker_rkllm.job.id": job.id, "worker_rkllm.endpoint": job.endpoint}
        span = self._tracer.start_span("job", start_time=_ns(job.queued_at), attributes=attributes)
        self._jobs.put(job.id, span)

    def enter_job(self, job_id: str) -> None:
        """Make the job's span the current one; must be called in the job's own task."""
        span = self._jobs.get(job_id)
        if span is not None:
            context.attach(set_span_in_context(span, Context()))

    def job_ended(self, job: Job) -> None:
        """End a job's span, with a child span for its time in the queue."""
        span = self._jobs.get(job.id)
        if span is None:
            return
        if job.started_at is not None:
            parent = set_span_in_context(span, Context())
            queue_span = self._tracer.start_span("queue", parent, start_time=_ns(job.queued_at))
            queue_span.end(_ns(job.started_at))
        span.set_attribute("worker_rkllm.job.status", job.status.value)
        if job.status in (JobStatus.FAILED, JobStatus.TIMED_OUT):
            span.set_status(_FAILED)
        self._jobs.end(job.id)

    def __call__(self, event: EngineEvent) -> None:
        """Handle an event of the engine."""
        match event:
            case RequestStarted():
                self._generation_started(event)
            case FirstToken():
                if (span := self._generations.get(event.request_id)) is not None:
                    span.add_event("first_token")
            case RequestEnded():
                self._generation_ended(event)

    def _generation_started(self, event: RequestStarted) -> None:
        now = time.time_ns()
        # The lines of a batch are not part of the request that created it, maybe hours ago.
        parent = Context() if event.priority is Priority.BATCH else context.get_current()
        waited_s = event.queue_s + event.load_s
        if waited_s >= _MIN_WAIT_S:
            span = self._tracer.start_span("slot", parent, start_time=now - _ns(waited_s))
            span.set_attribute("worker_rkllm.load_seconds", event.load_s)
            span.end(now)
        attributes = {
            "gen_ai.request.model": self._model,
            "worker_rkllm.generation.id": event.request_id,
            "worker_rkllm.priority": event.priority.name.lower(),
        }
        span = self._tracer.start_span("generation", parent, attributes=attributes, start_time=now)
        self._generations.put(event.request_id, span)

    def _generation_ended(self, event: RequestEnded) -> None:
        span = self._generations.get(event.request_id)
        if span is None:
            return
        span.set_attribute("gen_ai.usage.output_tokens", event.tokens)
        if event.finish is not None:
            span.set_attribute("gen_ai.usage.input_tokens", event.finish.usage.prompt_tokens)
            span.set_attribute("gen_ai.response.finish_reasons", [event.finish.reason.value])
        if event.error is not None:
            span.set_attribute("error.type", type(event.error).__name__)
            span.set_status(_FAILED)
        self._generations.end(event.request_id)

    async def close(self) -> None:
        """Send the remaining spans."""
        await self._sink.close()


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
