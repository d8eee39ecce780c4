"""Traces from a request to its tokens, as a collector receives them."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
from collections.abc import AsyncIterator
from functools import partial

import httpx2
import pytest

from common.setting_error import SettingError
from emulator.settings.emulator_settings import EmulatorSettings
from emulator.tracing import exporter
from engine import Engine
from engine.hooks import RequestStarted
from handler.settings.engine_configs import build_engine_config
from tests.conftest import ScriptFactory
from tests.integration.batch.runs import call
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.job_client import submit_job, wait_for_status
from tests.integration.emulator.serving import RawConnection
from tests.integration.emulator.trace_collector import ReceivedSpan, TraceCollector, run_collector
from tests.waiting import PATIENCE, poll_until, wait_until

ROUTE = "/v1/completions"
MARK = "xyzzy-prompt"
THREAD_END_TIMEOUT_S = 5.0 * PATIENCE
STEADY = {"when": "steady", "pieces": ["a", "b", "c"], "delay_ms": 10, "prefill_ms": 30}
HANG = {"when": "hang", "pieces": ["a", {"hang_s": 3600}]}
BROKEN = {"when": "broken", "pieces": ["a", {"error": "no luck"}]}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@pytest.fixture(autouse=True)
def _flush_spans_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    # A variable of the OpenTelemetry SDK, which otherwise exports every 5 s.
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")


@pytest.fixture
async def collector() -> AsyncIterator[TraceCollector]:
    async with run_collector() as running_collector:
        yield running_collector


@pytest.fixture
def traced(collector: TraceCollector, serve: Serve) -> Serve:
    """Return a function that starts servers which send traces to the collector."""
    return partial(serve, otel_exporter_otlp_endpoint=collector.url)


async def wait_for_trace(
    collector: TraceCollector, root: str, *names: str
) -> dict[str, ReceivedSpan]:
    """Wait for a trace with one span of each name; return the spans by name.

    On a busy machine, a generation may wait for its slot, so an extra `slot` span is allowed.
    """

    def has_arrived() -> bool:
        return all(collector.find_spans(name) for name in (root, *names))

    await wait_until(has_arrived)
    spans = {name: collector.find_span(name) for name in (root, *names)}
    inside = {span.name for span in collector.spans if span.trace_id == spans[root].trace_id}
    assert inside - {"slot"} == spans.keys()
    return spans


async def test_job_has_one_trace_from_the_request_to_the_generation(
    collector: TraceCollector, traced: Serve, script: ScriptFactory
) -> None:
    server = await traced(script(STEADY))
    async with server.client() as client:
        for probe in ("/health", "/metrics", "/v2/other/ping/worker"):
            assert (await client.get(probe)).status_code == 200
        body = {"input": {"prompt": f"steady {MARK}"}}
        response = await client.post("/runsync", json=body, headers=HEADERS)
        job = response.json()
    spans = await wait_for_trace(collector, "POST runsync", "job", "queue", "generation")
    # Probes are not traced.
    assert {span.trace_id for span in collector.spans} == {TRACE}
    request, sent_job, queue, run = (
        spans[name] for name in ("POST runsync", "job", "queue", "generation")
    )
    assert (request.trace_id, request.parent_id) == (TRACE, PARENT)
    assert (sent_job.parent_id, queue.parent_id, run.parent_id) == (
        request.span_id,
        sent_job.span_id,
        sent_job.span_id,
    )
    assert request.start_ns <= sent_job.start_ns + 10**6
    assert sent_job.start_ns == queue.start_ns <= queue.end_ns <= sent_job.end_ns
    assert run.start_ns <= run.events["first_token"] - 25 * 10**6
    assert run.events["first_token"] < run.end_ns
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["worker_rkllm.request.id"] == response.headers["x-request-id"]
    assert sent_job.attributes["worker_rkllm.job.id"] == job["id"]
    assert sent_job.attributes["worker_rkllm.job.status"] == "COMPLETED"
    assert run.attributes["gen_ai.usage.output_tokens"] == 3
    assert run.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert not any(span.failed for span in spans.values())
    assert collector.service == "worker-rkllm"
    assert MARK not in str(collector.spans)


async def test_streams_waits_and_failures_have_spans(
    collector: TraceCollector, traced: Serve, script: ScriptFactory
) -> None:
    path = script(HANG, STEADY, BROKEN, slots=1)
    server = await traced(path)
    async with server.client() as client:
        with await RawConnection.connect(server.port) as wire:
            await wire.post(ROUTE, {"prompt": "hang", "stream": True})
            await wire.read_head()
            await wire.read_chunk()
            steady = client.post(ROUTE, json={"prompt": "steady", "stream": True})
            waiting = asyncio.create_task(steady)
            await wait_until(lambda: server.engine.waiting == 1)
            await asyncio.sleep(0.03)
        await waiting
        await wait_until(lambda: len(collector.find_spans("POST completions")) == 2)
        await wait_until(lambda: len(collector.find_spans("generation")) == 2)
        requests = {span.span_id: span for span in collector.find_spans("POST completions")}
        aborted, queued = sorted(collector.find_spans("generation"), key=lambda span: span.start_ns)
        # Two requests have two traces, and one request had to wait for the other.
        assert {aborted.parent_id, queued.parent_id} == requests.keys()
        assert aborted.trace_id != queued.trace_id
        assert aborted.attributes["error.type"] == "GenerationCancelled"
        [slot] = [span for span in collector.find_spans("slot") if span.trace_id == queued.trace_id]
        assert slot.parent_id == queued.parent_id
        assert slot.end_ns - slot.start_ns >= 29 * 10**6
        assert requests[queued.parent_id].end_ns >= queued.end_ns - 10**6
        collector.spans.clear()
        # An invalid traceparent is ignored, and a new trace starts.
        wrong = {"traceparent": "00-zz-yy-01"}
        response = await client.post(ROUTE, json={"prompt": "broken"}, headers=wrong)
        assert response.status_code == 500
        spans = await wait_for_trace(collector, "POST completions", "generation")
        assert spans["POST completions"].parent_id == ""
        assert all(span.failed for span in spans.values())
        assert spans["generation"].attributes["error.type"] == "BackendFailed"


async def test_request_span_has_status_499_when_the_client_disconnects(
    collector: TraceCollector, traced: Serve, script: ScriptFactory
) -> None:
    server = await traced(script(HANG))
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "hang"})
        # Disconnect only now: before the generation starts, there is nothing to cancel.
        await server.events.wait(RequestStarted)
    spans = await wait_for_trace(collector, "POST completions", "generation")
    assert spans["POST completions"].attributes["http.response.status_code"] == 499
    assert spans["generation"].attributes["error.type"] == "GenerationCancelled"


async def test_job_spans_belong_to_the_request_that_created_the_job(
    collector: TraceCollector, traced: Serve, script: ScriptFactory
) -> None:
    server = await traced(script(STEADY))
    async with server.client() as client:
        job_id = await submit_job(client, "", input={"prompt": "steady"})
        await wait_for_status(client, job_id, "COMPLETED", "")
        await wait_until(
            lambda: bool(collector.find_spans("job") and collector.find_spans("POST run"))
        )
        job, run = collector.find_span("job"), collector.find_span("generation")
        accepted = collector.find_span("POST run")
        assert {accepted.trace_id} == {job.trace_id, run.trace_id}
        assert accepted.end_ns < run.end_ns
        collector.spans.clear()
        body = {"prompt": "steady", "stream": True}
        await client.post("/v2/default/openai/v1/completions", json=body)
        spans = await wait_for_trace(collector, "POST completions", "job", "queue", "generation")
        assert spans["job"].parent_id == spans["POST completions"].span_id
        assert spans["generation"].parent_id == spans["job"].span_id
        collector.spans.clear()
        await check_batch_traces(client, collector)


async def check_batch_traces(client: httpx2.AsyncClient, collector: TraceCollector) -> None:
    """Check that each line has its own trace: the request may have been made hours before."""
    data = "\n".join(json.dumps(call(name, "steady")) for name in "ab").encode()
    files = {"file": ("in.jsonl", data)}
    upload = await client.post("/v1/files", files=files, data={"purpose": "batch"})
    body = {"input_file_id": upload.json()["id"], "endpoint": ROUTE, "completion_window": "24h"}
    batch_id = (await client.post("/v1/batches", json=body)).json()["id"]

    async def ended() -> bool:
        return bool((await client.get(f"/v1/batches/{batch_id}")).json()["completed_at"])

    await poll_until(ended)
    await wait_until(lambda: len(collector.find_spans("generation")) == 2)
    assert {run.parent_id for run in collector.find_spans("generation")} == {""}


async def test_unreachable_collector_delays_only_the_shutdown(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "_FLUSH_TIMEOUT_S", 0.2)
    server = await serve(otel_exporter_otlp_endpoint="http://127.0.0.1:9")
    async with server.client() as client:
        assert (await client.post(ROUTE, json={"prompt": "x"})).status_code == 200
    async with asyncio.timeout(40):
        await server.uvicorn.lifespan.shutdown()
    assert "not all traces were sent" in caplog.text
    # The exporter gives up sooner than the SDK would.
    await wait_until(
        lambda: "traces" not in {each.name for each in threading.enumerate()}, THREAD_END_TIMEOUT_S
    )


def test_opentelemetry_is_imported_only_when_tracing_is_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As if it were not installed. `lint-imports` checks that no other module imports it.
    for name in [*sys.modules]:
        if name.startswith(("opentelemetry", "emulator.tracing.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    setup = importlib.import_module("emulator.tracing.setup")
    settings = EmulatorSettings(engine="scripted", engine_isolation="thread", job_db=":memory:")
    engine = Engine(build_engine_config(settings))
    assert setup.build_tracing(settings, engine).middleware() == []
    traced_settings = settings.model_copy(
        update={"otel_exporter_otlp_endpoint": "http://127.0.0.1:4318"}
    )
    with pytest.raises(SettingError) as error:
        setup.build_tracing(traced_settings, engine)
    assert str(error.value).startswith("OTEL_EXPORTER_OTLP_ENDPOINT: traces need opentelemetry")
    assert "pip install opentelemetry-sdk" in str(error.value)
