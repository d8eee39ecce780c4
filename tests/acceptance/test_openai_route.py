"""The openai package, unmodified, against `/v2/default/openai/v1`: any worker answers it alike.

The endpoint is served by the worker in the server, or by `python -m handler` under RunPod's own SDK
as a process that has joined, in either STREAM_MODE. A worker that does not stream has nothing to
say before its end; all else is the same.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.acceptance.workers.processes import HANDLERS, Platform, SDKWorker, wait_until_true

ROOT = Path(__file__).resolve().parents[2]
PROXY = HANDLERS.with_name("proxy.py")
MODEL = "little"
TEXT = "Good day you 😀"
KINDS = ("local", "generator", "aggregate")
STREAMING = KINDS[:2]
SLOTS = 2
SCRIPT = {
    "slots": SLOTS,
    "answers": [
        {"when": "wait", "pieces": ["early ", {"hang_s": 600}]},
        {"when": "late", "pieces": ["so far", {"error": "out of luck", "delay_ms": 300}]},
        {"when": "broken", "pieces": [{"error": "out of luck"}]},
        {"when": "say", "pieces": ["Good", " day", " you", " 😀"], "delay_ms": 20},
        {},
    ],
}

pytestmark = pytest.mark.timeout(120)


class Endpoint:
    """A server and the worker of its endpoint `default`."""

    def __init__(self, platform: Platform, worker: SDKWorker | None) -> None:
        self.platform = platform
        self.worker = worker
        self.client = OpenAI(base_url=self.base_url, api_key="any", max_retries=0)

    @property
    def base_url(self) -> str:
        return f"{self.platform.url('default')}/openai/v1"

    def jobs(self, state: str) -> int:
        """Return how many jobs are in a state."""
        counts = self.platform.client.get("/v2/default/health").json()["jobs"]
        count: int = counts[state]
        return count

    def check_free(self) -> None:
        """Check that no job is open, and that all slots answer."""
        wait_until_true(lambda: not self.jobs("inProgress") and not self.jobs("inQueue"))
        for _ in range(SLOTS):
            answer = self.client.completions.create(model=MODEL, prompt="say it", timeout=30)
            assert answer.choices[0].text == TEXT


def _serve(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp(kind)
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    settings = {"MODEL_PATH": str(script), "MODEL_NAME": MODEL}
    local = kind == "local"
    platform = Platform(folder, LOCAL_WORKER="on" if local else "off", **settings)
    worker = None
    if not local:
        worker_folder = tmp_path_factory.mktemp(f"{kind}-worker")
        variables = {**settings, "STREAM_MODE": kind}
        worker = SDKWorker(platform, "default", worker_folder, ["-m", "handler"], variables)
    endpoint = Endpoint(platform, worker)
    yield endpoint
    endpoint.client.close()
    if worker is not None:
        worker.close()
    platform.close()


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Endpoint]]:
    # Start all together, because each SDK worker takes seconds to import the SDK.
    makers = {kind: _serve(kind, tmp_path_factory) for kind in KINDS}
    yield {kind: next(maker) for kind, maker in makers.items()}
    for maker in makers.values():
        assert next(maker, None) is None


@pytest.fixture(params=KINDS)
def endpoint(request: pytest.FixtureRequest, endpoints: dict[str, Endpoint]) -> Endpoint:
    """An endpoint with each kind of worker."""
    return endpoints[request.param]


@pytest.fixture(params=STREAMING)
def streaming(request: pytest.FixtureRequest, endpoints: dict[str, Endpoint]) -> Endpoint:
    """An endpoint with each kind of worker that streams."""
    return endpoints[request.param]


def test_models(endpoint: Endpoint) -> None:
    assert [model.id for model in endpoint.client.models.list()] == [MODEL]
    assert endpoint.client.models.retrieve(MODEL).owned_by == "worker-rkllm"
    with pytest.raises(openai.NotFoundError, match=MODEL):
        endpoint.client.models.retrieve("gpt-4")


def test_completion_is_the_same_streamed(
    endpoint: Endpoint,
) -> None:  # R24, R32
    completion = endpoint.client.completions.create(model=MODEL, prompt="say it")
    assert (completion.choices[0].text, completion.choices[0].finish_reason) == (TEXT, "stop")
    stream = endpoint.client.completions.create(model=MODEL, prompt="say it", stream=True)
    chunks = list(stream)
    assert stream.response.headers["content-type"].startswith("text/event-stream")
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].usage == completion.usage


def test_chat_is_the_same_streamed(endpoint: Endpoint) -> None:  # R24, R36
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "say it"}]
    completion = endpoint.client.chat.completions.create(model=MODEL, messages=messages)
    assert completion.choices[0].message.content == TEXT
    with endpoint.client.chat.completions.stream(
        model=MODEL, messages=messages, stream_options={"include_usage": True}
    ) as stream:
        texts = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(texts) == final.choices[0].message.content == TEXT
    assert final.usage == completion.usage


def test_first_chunk_arrives_before_the_job_ends(streaming: Endpoint) -> None:  # R29
    # The answer hangs after its first word, so a chunk that arrives was sent while the job runs.
    stream = streaming.client.completions.create(model=MODEL, prompt="wait", stream=True)
    assert next(stream).choices[0].text == "early "
    assert streaming.jobs("inProgress") == 1
    stream.close()
    streaming.check_free()


@pytest.mark.long_except("aggregate")
def test_client_that_leaves_frees_the_worker(endpoint: Endpoint) -> None:  # R31
    for stream in (True, False) * SLOTS:
        with pytest.raises((openai.APITimeoutError, openai.APIConnectionError)):
            list(
                endpoint.client.with_options(timeout=1.5).completions.create(
                    model=MODEL, prompt="wait", stream=stream
                )
            )
    endpoint.check_free()


@pytest.mark.long_except("generator")
def test_errors_raise_the_clients_own_classes(endpoint: Endpoint) -> None:  # R30, R53
    create = endpoint.client.completions.create
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as bad:
            create(model=MODEL, prompt="x", temperature=3, stream=stream)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError, match=MODEL):
            create(model="gpt-4", prompt="x", stream=stream)
        with pytest.raises(openai.InternalServerError, match="out of luck"):
            create(model=MODEL, prompt="broken", stream=stream)


def test_error_in_mid_stream_is_raised_by_the_client(endpoint: Endpoint) -> None:  # R30
    stream = endpoint.client.completions.create(model=MODEL, prompt="late", stream=True)
    assert next(stream).choices[0].text == "so far"
    with pytest.raises(openai.APIError, match="out of luck"):
        list(stream)


@pytest.mark.long_except("generator")
async def test_concurrent_streams_are_not_mixed_up(endpoint: Endpoint) -> None:
    async with AsyncOpenAI(base_url=endpoint.base_url, api_key="any", max_retries=0) as client:

        async def ask(number: int) -> None:
            words = f"number {number} of eight"
            stream = await client.completions.create(model=MODEL, prompt=words, stream=True)
            assert "".join([chunk.choices[0].text async for chunk in stream]) == words

        await asyncio.gather(*[ask(number) for number in range(8)])


@pytest.fixture(scope="module")
def proxy(
    endpoints: dict[str, Endpoint], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenAI]:
    """A client of an endpoint whose worker passes calls on to another server."""
    platform = endpoints["local"].platform
    worker = SDKWorker(platform, "proxy", tmp_path_factory.mktemp("proxy"), [str(PROXY)], {})
    with OpenAI(base_url=f"{platform.url('proxy')}/openai/v1", api_key="any", max_retries=0) as it:
        yield it
    worker.close()


def test_worker_that_uses_another_server(proxy: OpenAI) -> None:
    completion = proxy.completions.create(model="other", prompt="this and that")
    assert completion.choices[0].text == "this and that"
    stream = proxy.completions.create(model="other", prompt="this and that", stream=True)
    assert [chunk.choices[0].text for chunk in stream] == ["this", "and", "that"]
    with pytest.raises(openai.NotFoundError, match="no such route"):
        proxy.models.list()


def test_endpoint_without_workers(endpoints: dict[str, Endpoint]) -> None:
    base_url = f"{endpoints['local'].platform.url('nobody')}/openai/v1"
    with OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError, match="no worker") as late:
                client.completions.create(
                    model=MODEL, prompt="x", stream=stream, extra_query={"wait": 1000}
                )
            assert late.value.status_code == 504


@pytest.mark.long
@pytest.mark.long_except("generator")
def test_documented_program_runs(endpoint: Endpoint) -> None:  # R37
    documentation = (ROOT / "docs" / "runpod.md").read_text()
    programs = re.findall(r"^```python\n(.+?)\n```$", documentation, re.M | re.S)
    [program] = [each for each in programs if each.startswith("from openai import")]
    program = re.sub(r"http://.+?/v1", endpoint.base_url, program, count=1)
    program = re.sub(r'model="[^"]+"', f'model="{MODEL}"', program, count=1)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace('"Hi"', '"say it"')],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == (TEXT, "")


def test_log_names_the_job_of_a_call(endpoints: dict[str, Endpoint]) -> None:  # R55
    endpoint = endpoints["local"]
    name = "asked-for-its-log"
    endpoint.client.completions.create(
        model=MODEL, prompt="say it", extra_headers={"x-request-id": name}
    )

    def log_line() -> dict[str, object] | None:
        lines = [json.loads(line) for line in endpoint.platform.log.splitlines()]
        matching = [line for line in lines if line.get("request_id") == name and "status" in line]
        return matching[0] if matching else None

    # The server writes the line after the response.
    line = wait_until_true(log_line)
    assert line["path"] == "/v2/default/openai/v1/completions"
    job = endpoint.platform.client.get(f"/v2/default/status/{line['job_id']}").json()
    assert job["status"] == "COMPLETED"
