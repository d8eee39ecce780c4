"""Spans of jobs and runs: how they end, and how many may be open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from emulator.tracing.spans import OpenTelemetryTracing
from engine import Finish, FinishReason, Priority, Usage
from engine.hooks import RequestEnded, RequestStarted
from jobs import JobStatus, MemoryJobStore, NewJob


class RecordingSink:
    """Keeps spans in place of sending them."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer: Tracer = provider.get_tracer("tests")

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """Return the ended spans in the order of their ends."""
        return self._exporter.get_finished_spans()

    async def close(self) -> None: ...


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


@pytest.fixture
def traced(sink: RecordingSink) -> OpenTelemetryTracing:
    return OpenTelemetryTracing(sink, "tiny")


def ended(name: str, *, queue_s: float = 0.0) -> tuple[RequestStarted, RequestEnded]:
    finish = Finish(reason=FinishReason.LENGTH, usage=Usage(7, 5))
    request_ended = RequestEnded(name, finish, None, False, 2.0, Priority.BATCH, 5, 1.0)
    return RequestStarted(name, Priority.BATCH, queue_s), request_ended


@pytest.mark.parametrize(
    ("status", "failed"),
    [
        (JobStatus.COMPLETED, False),
        (JobStatus.CANCELLED, False),
        (JobStatus.FAILED, True),
        (JobStatus.TIMED_OUT, True),
    ],
)
async def test_job_span_has_the_final_status(
    sink: RecordingSink, traced: OpenTelemetryTracing, status: JobStatus, failed: bool
) -> None:
    store = MemoryJobStore(on_enqueued=traced.job_enqueued)
    sent = await store.enqueue(NewJob(endpoint="e", input=b"1"))
    assert len(sink.spans) == 0
    traced.job_ended(replace(sent, status=status))
    [span] = sink.spans
    assert span.attributes is not None
    assert span.attributes["worker_rkllm.job.status"] == status.value
    assert span.status.is_ok is not failed


def test_generation_span_has_its_attributes(
    sink: RecordingSink, traced: OpenTelemetryTracing
) -> None:
    for event in ended("r", queue_s=0.5):
        traced(event)
    slot, run = sink.spans
    assert slot.name == "slot"
    assert slot.start_time is not None
    assert slot.end_time is not None
    assert slot.end_time - slot.start_time == 500_000_000
    assert run.start_time == slot.end_time
    assert dict(run.attributes or {}) == {
        "gen_ai.request.model": "tiny",
        "worker_rkllm.generation.id": "r",
        "worker_rkllm.priority": "batch",
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.response.finish_reasons": ("length",),
    }


def test_free_slot_has_no_slot_span(sink: RecordingSink, traced: OpenTelemetryTracing) -> None:
    for event in ended("r", queue_s=0.0001):
        traced(event)
    assert [span.name for span in sink.spans] == ["generation"]


def test_open_spans_are_limited(sink: RecordingSink, traced: OpenTelemetryTracing) -> None:
    requests = [ended(str(number)) for number in range(10_001)]
    for started, _ in requests:
        traced(started)
    [span] = sink.spans
    assert span.attributes is not None
    assert span.attributes["worker_rkllm.generation.id"] == "0"
    # The end of a span that was dropped is ignored.
    for _, end in requests:
        traced(end)
    assert len(sink.spans) == len(requests)
