"""One trace from a request to its tokens, at a real collector's end of the wire."""

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

from emulator.settings import EmulatorSettings
from emulator.tracing import exporter
from engine import Engine
from engine.hooks import RequestStarted
from handler.setting_error import SettingError
from tests.conftest import ScriptFactory
from tests.integration.batch.runs import call
from tests.integration.emulator.asking import becomes, sent
from tests.integration.emulator.collector import Collector, Spanned, collecting
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import Wire
from tests.waiting import PATIENCE, poll_until, wait_until

ROUTE = "/v1/completions"
MARK = "xyzzy-prompt"
GONE_S = 5.0 * PATIENCE
STEADY = {"when": "steady", "pieces": ["a", "b", "c"], "delay_ms": 10, "prefill_ms": 30}
HANG = {"when": "hang", "pieces": ["a", {"hang_s": 3600}]}
BROKEN = {"when": "broken", "pieces": ["a", {"error": "no luck"}]}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    # The SDK's own variable: it gathers for 5 s otherwise.
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as found:
        yield found


@pytest.fixture
def traced(collector: Collector, serve: Serve) -> Serve:
    """Starts servers whose traces go to the collector."""
    return partial(serve, otel_exporter_otlp_endpoint=collector.url)


async def trace(collector: Collector, root: str, *names: str) -> dict[str, Spanned]:
    """Wait for a trace of one span by each of these names; return them by their names.

    On a busy machine a run may wait a moment for its slot, where a test does not want it to.
    """

    def there() -> bool:
        return all(collector.named(name) for name in (root, *names))

    await wait_until(there)
    spans = {name: collector.one(name) for name in (root, *names)}
    inside = {span.name for span in collector.spans if span.trace == spans[root].trace}
    assert inside - {"slot"} == spans.keys()
    return spans


async def test_a_job_is_one_trace_from_its_client_to_its_tokens(
    collector: Collector, traced: Serve, script: ScriptFactory
) -> None:
    server = await traced(script(STEADY))
    async with server.client() as client:
        for probe in ("/health", "/metrics", "/v2/other/ping/worker"):
            assert (await client.get(probe)).status_code == 200
        body = {"input": {"prompt": f"steady {MARK}"}}
        response = await client.post("/runsync", json=body, headers=HEADERS)
        job = response.json()
    found = await trace(collector, "POST runsync", "job", "queue", "generation")
    # A probe is no trace of its own.
    assert {span.trace for span in collector.spans} == {TRACE}
    request, sent_job, queue, run = (
        found[name] for name in ("POST runsync", "job", "queue", "generation")
    )
    assert (request.trace, request.parent) == (TRACE, PARENT)
    assert (sent_job.parent, queue.parent, run.parent) == (request.id, sent_job.id, sent_job.id)
    assert request.begun <= sent_job.begun + 10**6
    assert sent_job.begun == queue.begun <= queue.ended <= sent_job.ended
    assert run.begun <= run.events["first_token"] - 25 * 10**6
    assert run.events["first_token"] < run.ended
    assert request.about["http.response.status_code"] == 200
    assert request.about["worker_rkllm.request.id"] == response.headers["x-request-id"]
    assert sent_job.about["worker_rkllm.job.id"] == job["id"]
    assert sent_job.about["worker_rkllm.job.status"] == "COMPLETED"
    assert run.about["gen_ai.usage.output_tokens"] == 3
    assert run.about["gen_ai.response.finish_reasons"] == ["stop"]
    assert not any(span.failed for span in found.values())
    assert collector.service == "worker-rkllm"
    assert MARK not in str(collector.spans)


async def test_streams_failures_and_waits(
    collector: Collector, traced: Serve, script: ScriptFactory
) -> None:
    path = script(HANG, STEADY, BROKEN, slots=1)
    server = await traced(path)
    async with server.client() as client:
        with await Wire.connect(server.port) as wire:
            await wire.post(ROUTE, {"prompt": "hang", "stream": True})
            await wire.head()
            await wire.chunk()
            steady = client.post(ROUTE, json={"prompt": "steady", "stream": True})
            waits = asyncio.create_task(steady)
            await wait_until(lambda: server.engine.waiting == 1)
            await asyncio.sleep(0.03)
        await waits
        await wait_until(lambda: len(collector.named("POST completions")) == 2)
        await wait_until(lambda: len(collector.named("generation")) == 2)
        requests = {span.id: span for span in collector.named("POST completions")}
        left, waited = sorted(collector.named("generation"), key=lambda span: span.begun)
        # Two calls, two traces, and one had to wait for the other.
        assert {left.parent, waited.parent} == requests.keys()
        assert left.trace != waited.trace
        assert left.about["error.type"] == "GenerationCancelled"
        [slot] = [span for span in collector.named("slot") if span.trace == waited.trace]
        assert slot.parent == waited.parent
        assert slot.ended - slot.begun >= 29 * 10**6
        assert requests[waited.parent].ended >= waited.ended - 10**6
        collector.spans.clear()
        # No trace, or one that cannot be: one of its own begins.
        wrong = {"traceparent": "00-zz-yy-01"}
        response = await client.post(ROUTE, json={"prompt": "broken"}, headers=wrong)
        assert response.status_code == 500
        found = await trace(collector, "POST completions", "generation")
        assert found["POST completions"].parent == ""
        assert all(span.failed for span in found.values())
        assert found["generation"].about["error.type"] == "BackendFailed"


async def test_a_client_that_leaves_has_no_answer(
    collector: Collector, traced: Serve, script: ScriptFactory
) -> None:
    server = await traced(script(HANG))
    with await Wire.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "hang"})
        # A slot may be held while the model loads, and then nothing is run for who has left.
        await server.events.wait(RequestStarted)
    found = await trace(collector, "POST completions", "generation")
    assert found["POST completions"].about["http.response.status_code"] == 499
    assert found["generation"].about["error.type"] == "GenerationCancelled"


async def test_jobs_that_outlive_their_call_and_calls_by_way_of_the_queue(
    collector: Collector, traced: Serve, script: ScriptFactory
) -> None:
    server = await traced(script(STEADY))
    async with server.client() as client:
        job_id = await sent(client, "", input={"prompt": "steady"})
        await becomes(client, job_id, "COMPLETED", "")
        await wait_until(lambda: bool(collector.named("job") and collector.named("POST run")))
        job, run = collector.one("job"), collector.one("generation")
        accepted = collector.one("POST run")
        assert {accepted.trace} == {job.trace, run.trace}
        assert accepted.ended < run.ended
        collector.spans.clear()
        body = {"prompt": "steady", "stream": True}
        await client.post("/v2/default/openai/v1/completions", json=body)
        found = await trace(collector, "POST completions", "job", "queue", "generation")
        assert found["job"].parent == found["POST completions"].id
        assert found["generation"].parent == found["job"].id
        collector.spans.clear()
        await lines_of_a_batch(client, collector)


async def lines_of_a_batch(client: httpx2.AsyncClient, collector: Collector) -> None:
    """Each is a trace of its own: the call that made them may be hours ago."""
    data = "\n".join(json.dumps(call(name, "steady")) for name in "ab").encode()
    files = {"file": ("in.jsonl", data)}
    upload = await client.post("/v1/files", files=files, data={"purpose": "batch"})
    body = {"input_file_id": upload.json()["id"], "endpoint": ROUTE, "completion_window": "24h"}
    batch_id = (await client.post("/v1/batches", json=body)).json()["id"]

    async def ended() -> bool:
        return bool((await client.get(f"/v1/batches/{batch_id}")).json()["completed_at"])

    await poll_until(ended)
    await wait_until(lambda: len(collector.named("generation")) == 2)
    assert {run.parent for run in collector.named("generation")} == {""}


async def test_a_collector_that_is_not_there_costs_nothing_but_a_moment_at_the_end(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "_FLUSH_TIMEOUT_S", 0.2)
    server = await serve(otel_exporter_otlp_endpoint="http://127.0.0.1:9")
    async with server.client() as client:
        assert (await client.post(ROUTE, json={"prompt": "x"})).status_code == 200
    async with asyncio.timeout(10):
        await server.uvicorn.lifespan.shutdown()
    assert "not all traces were sent" in caplog.text
    # Nor is it tried for as long as the SDK would.
    await wait_until(lambda: "traces" not in {each.name for each in threading.enumerate()}, GONE_S)


def test_nothing_of_it_is_imported_while_it_is_off_and_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As if it were not installed; that nobody else imports it is a rule of `lint-imports`.
    for name in [*sys.modules]:
        if name.startswith(("opentelemetry", "emulator.tracing.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    choice = importlib.import_module("emulator.tracing.setup")
    settings = EmulatorSettings(engine="scripted", engine_isolation="thread", job_db=":memory:")
    engine = Engine(settings.engine_config())
    assert choice.choose(settings, engine).middleware() == []
    on = settings.model_copy(update={"otel_exporter_otlp_endpoint": "http://127.0.0.1:4318"})
    with pytest.raises(SettingError) as told:
        choice.choose(on, engine)
    assert str(told.value).startswith("OTEL_EXPORTER_OTLP_ENDPOINT: traces need opentelemetry")
    assert "pip install 'worker-rkllm[otel]'" in str(told.value)
