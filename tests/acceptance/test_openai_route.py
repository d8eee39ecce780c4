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

from tests.acceptance.workers.processes import HANDLERS, Platform, SDKWorker, becomes

ROOT = Path(__file__).resolve().parents[2]
PROXY = HANDLERS.with_name("proxy.py")
MODEL = "little"
TEXT = "Good day you 😀"
PLACES = ("local", "generator", "aggregate")
STREAMING = PLACES[:2]
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


class Place:
    """A server, and what serves its endpoint `default`."""

    def __init__(self, platform: Platform, worker: SDKWorker | None) -> None:
        self.platform = platform
        self.worker = worker
        self.client = OpenAI(base_url=self.base_url, api_key="any", max_retries=0)

    @property
    def base_url(self) -> str:
        return f"{self.platform.url('default')}/openai/v1"

    def jobs(self, state: str) -> int:
        """How many of its jobs are in a state."""
        counts = self.platform.client.get("/v2/default/health").json()["jobs"]
        found: int = counts[state]
        return found

    def check_free(self) -> None:
        """Check that nothing runs, and that all slots answer."""
        becomes(lambda: not self.jobs("inProgress") and not self.jobs("inQueue"))
        for _ in range(SLOTS):
            answer = self.client.completions.create(model=MODEL, prompt="say it", timeout=30)
            assert answer.choices[0].text == TEXT


def _place(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp(kind)
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    settings = {"MODEL_PATH": str(script), "MODEL_NAME": MODEL}
    local = kind == "local"
    platform = Platform(folder, LOCAL_WORKER="on" if local else "off", **settings)
    worker = None
    if not local:
        place = tmp_path_factory.mktemp(f"{kind}-worker")
        known = {**settings, "STREAM_MODE": kind}
        worker = SDKWorker(platform, "default", place, ["-m", "handler"], known)
    found = Place(platform, worker)
    yield found
    found.client.close()
    if worker is not None:
        worker.close()
    platform.close()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Place]]:
    # All at once, for each SDK worker takes seconds to import the SDK.
    makers = {kind: _place(kind, tmp_path_factory) for kind in PLACES}
    yield {kind: next(maker) for kind, maker in makers.items()}
    for maker in makers.values():
        assert next(maker, None) is None


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, places: dict[str, Place]) -> Place:
    """Each of them."""
    return places[request.param]


@pytest.fixture(params=STREAMING)
def streaming(request: pytest.FixtureRequest, places: dict[str, Place]) -> Place:
    """Those whose worker streams."""
    return places[request.param]


def test_models(place: Place) -> None:
    assert [model.id for model in place.client.models.list()] == [MODEL]
    assert place.client.models.retrieve(MODEL).owned_by == "worker-rkllm"
    with pytest.raises(openai.NotFoundError, match=MODEL):
        place.client.models.retrieve("gpt-4")


def test_completion_streamed_and_whole(place: Place) -> None:  # R24, R32
    whole = place.client.completions.create(model=MODEL, prompt="say it")
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (TEXT, "stop")
    stream = place.client.completions.create(model=MODEL, prompt="say it", stream=True)
    found = list(stream)
    assert stream.response.headers["content-type"].startswith("text/event-stream")
    assert "".join(chunk.choices[0].text for chunk in found) == TEXT
    assert found[-1].choices[0].finish_reason == "stop"
    assert found[-1].usage == whole.usage


def test_chat_streamed_and_whole(place: Place) -> None:  # R24, R36
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "say it"}]
    whole = place.client.chat.completions.create(model=MODEL, messages=messages)
    assert whole.choices[0].message.content == TEXT
    with place.client.chat.completions.stream(
        model=MODEL, messages=messages, stream_options={"include_usage": True}
    ) as stream:
        texts = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(texts) == final.choices[0].message.content == TEXT
    assert final.usage == whole.usage


def test_first_chunk_arrives_before_the_job_ends(streaming: Place) -> None:  # R29
    # The answer hangs after its first word: what is here of it came before any end.
    stream = streaming.client.completions.create(model=MODEL, prompt="wait", stream=True)
    assert next(stream).choices[0].text == "early "
    assert streaming.jobs("inProgress") == 1
    stream.close()
    streaming.check_free()


@pytest.mark.long_except("aggregate")
def test_client_that_leaves_frees_the_worker(place: Place) -> None:  # R31
    for stream in (True, False) * SLOTS:
        with pytest.raises((openai.APITimeoutError, openai.APIConnectionError)):
            list(
                place.client.with_options(timeout=1.5).completions.create(
                    model=MODEL, prompt="wait", stream=stream
                )
            )
    place.check_free()


@pytest.mark.long_except("generator")
def test_errors_are_the_clients_own_classes(place: Place) -> None:  # R30, R53
    create = place.client.completions.create
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as bad:
            create(model=MODEL, prompt="x", temperature=3, stream=stream)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError, match=MODEL):
            create(model="gpt-4", prompt="x", stream=stream)
        with pytest.raises(openai.InternalServerError, match="out of luck"):
            create(model=MODEL, prompt="broken", stream=stream)


def test_error_in_mid_stream_is_raised_by_the_client(place: Place) -> None:  # R30
    stream = place.client.completions.create(model=MODEL, prompt="late", stream=True)
    assert next(stream).choices[0].text == "so far"
    with pytest.raises(openai.APIError, match="out of luck"):
        list(stream)


@pytest.mark.long_except("generator")
async def test_many_streams_at_a_time_get_each_their_own(place: Place) -> None:
    async with AsyncOpenAI(base_url=place.base_url, api_key="any", max_retries=0) as client:

        async def ask(number: int) -> None:
            words = f"number {number} of eight"
            stream = await client.completions.create(model=MODEL, prompt=words, stream=True)
            assert "".join([chunk.choices[0].text async for chunk in stream]) == words

        await asyncio.gather(*[ask(number) for number in range(8)])


@pytest.fixture(scope="module")
def proxy(places: dict[str, Place], tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """A client of an endpoint that a worker serves which is not ours."""
    platform = places["local"].platform
    worker = SDKWorker(platform, "proxy", tmp_path_factory.mktemp("proxy"), [str(PROXY)], {})
    with OpenAI(base_url=f"{platform.url('proxy')}/openai/v1", api_key="any", max_retries=0) as it:
        yield it
    worker.close()


def test_worker_that_is_not_ours(proxy: OpenAI) -> None:
    whole = proxy.completions.create(model="other", prompt="this and that")
    assert whole.choices[0].text == "this and that"
    stream = proxy.completions.create(model="other", prompt="this and that", stream=True)
    assert [chunk.choices[0].text for chunk in stream] == ["this", "and", "that"]
    with pytest.raises(openai.NotFoundError, match="no such route"):
        proxy.models.list()


def test_endpoint_that_nobody_serves(places: dict[str, Place]) -> None:
    base_url = f"{places['local'].platform.url('nobody')}/openai/v1"
    with OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError, match="no worker") as late:
                client.completions.create(
                    model=MODEL, prompt="x", stream=stream, extra_query={"wait": 1000}
                )
            assert late.value.status_code == 504


@pytest.mark.long_except("generator")
def test_documented_program_runs(place: Place) -> None:  # R37
    documentation = (ROOT / "docs" / "runpod.md").read_text()
    programs = re.findall(r"^```python\n(.+?)\n```$", documentation, re.M | re.S)
    [program] = [each for each in programs if each.startswith("from openai import")]
    program = re.sub(r"http://.+?/v1", place.base_url, program, count=1)
    program = re.sub(r'model="[^"]+"', f'model="{MODEL}"', program, count=1)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace('"Hi"', '"say it"')],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == (TEXT, "")


def test_log_names_the_job_of_a_call(places: dict[str, Place]) -> None:  # R55
    place = places["local"]
    name = "asked-for-its-log"
    place.client.completions.create(
        model=MODEL, prompt="say it", extra_headers={"x-request-id": name}
    )

    def told_of() -> dict[str, object] | None:
        lines = [json.loads(line) for line in place.platform.log.splitlines()]
        told = [line for line in lines if line.get("request_id") == name and "status" in line]
        return told[0] if told else None

    # It is written when the call is over, which its client is told of before.
    told = becomes(told_of)
    assert told["path"] == "/v2/default/openai/v1/completions"
    job = place.platform.client.get(f"/v2/default/status/{told['job_id']}").json()
    assert job["status"] == "COMPLETED"
