"""One job, two ways: the worker in the local server, and the same worker under RunPod's SDK.

For each STREAM_MODE a server with its local worker, and `python -m handler` joined to another
endpoint of it, run the same jobs on the same script. A client must get the same responses, but for
ids, times, the worker's name, and the number of chunks of a stream, which depends on time.

The differences that the SDK causes are not visible in the responses about one job: docs/runpod.md
has the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.acceptance.workers.processes import Job, Platform, SDKWorker, wait_until_true

pytestmark = pytest.mark.long

MODES = ("aggregate", "generator")
# The local worker's endpoint, and the SDK worker's.
LOCAL, SDK = "default", "sdk"

ANSWERS: list[dict[str, Any]] = [
    {"when": "hello", "pieces": ["He", "llo", " wor", "ld"], "delay_ms": 80},
    {"when": "hang", "pieces": ["again", {"hang_s": 600}]},
    {"when": "crash", "pieces": ["He", {"signal": "SIGKILL", "delay_ms": 300}]},
    {"when": "fail", "pieces": ["He", {"error": "out of luck", "delay_ms": 300}]},
    # Three times half a megabyte: text, deltas and tokens.
    {"when": "large", "pieces": ["so " * 1000], "repeat": 170},
    {},
]


def text(prompt: str, **sampling: Any) -> dict[str, Any]:
    return {"input": {"prompt": prompt, "sampling_params": {"seed": 1, **sampling}}}


def openai(route: str, **body: Any) -> dict[str, Any]:
    return {"input": {"openai_route": route, "openai_input": {"seed": 1, **body}}}


TURNS = [{"role": "user", "content": "hello"}]
CASES: dict[str, dict[str, Any]] = {
    "prompt": text("hello"),
    "prompt, streamed": text("hello", stream=True),
    "messages": {"input": {"messages": TURNS}},
    "bad prompt": text(""),
    "no object": {"input": "hello"},
    "openai whole": openai("/v1/completions", prompt="hello"),
    "openai chat whole": openai("/v1/chat/completions", messages=TURNS),
    "openai stream": openai("/v1/completions", prompt="hello", stream=True),
    "openai chat stream": openai("/v1/chat/completions", messages=TURNS, stream=True),
    "openai models": openai("/v1/models"),
    "openai error": openai("/v1/completions", prompt=5),
    "engine failure": text("fail", stream=True),
    "engine death": text("crash", stream=True),
    "1.5 MB": text("large", stream=True, max_tokens=1000),
    "time limit": {**text("hang", stream=True), "policy": {"executionTimeout": 600}},
    "cancel": text("hang", stream=True),
}

_VARYING = {"id", "created", "timings", "delayTime", "executionTime", "workerId"}
# A job is retried after a crash. With the SDK, the server counts the attempts of a job; the local
# worker counts the crashes during it.
_ATTEMPTS = re.compile("^the job was .* the last time: ")


def normalize(value: Any) -> Any:
    """Return a response without ids, times and workers, and with the chunks of a stream joined."""
    if isinstance(value, dict):
        return {key: normalize(each) for key, each in value.items() if key not in _VARYING}
    if isinstance(value, list):
        pieces = [event for each in value for event in (_events(each) or [each])]
        return _merge_chunks([normalize(piece) for piece in pieces])
    if (events := _events(value)) is not None:
        return normalize(events)
    if isinstance(value, str) and value.startswith("{"):
        return normalize(json.loads(value))
    if isinstance(value, str):
        return _ATTEMPTS.sub("", value)
    return value


def _events(value: Any) -> list[Any] | None:
    """Return the JSON of a text of server-sent events; None for another value."""
    if not isinstance(value, str) or not value.startswith("data: "):
        return None
    assert value.endswith("\n\n")
    events = [event.removeprefix("data: ") for event in value[:-2].split("\n\n")]
    return [event if event == "[DONE]" else json.loads(event) for event in events]


def _merge_chunks(pieces: list[Any]) -> list[Any]:
    """Join the texts of adjacent chunks that are otherwise the same."""
    merged: list[Any] = []
    joined = ""
    for piece in pieces:
        new, piece = _split_text(piece)
        if new is None or not merged or merged[-1] != piece:
            merged += [joined, piece] if new is None else [piece]
        joined += new or ""
    return [*merged, joined] if joined else merged


def _split_text(piece: Any) -> tuple[str | None, Any]:
    """Return the text and the rest of a partial output; None as the text of another output."""
    if not isinstance(piece, dict) or "usage" in piece or not piece.get("choices"):
        return None, piece
    choice = dict(piece["choices"][0])
    if "delta" in choice:
        delta = dict(choice["delta"])
        content = delta.pop("content", None)
        choice["delta"] = delta
    else:
        content = choice.pop("text", None)
    choice.pop("tokens", None)
    return content or "", {**piece, "choices": [choice]}


class Pair:
    """A server with its local worker, and an SDK worker of another endpoint."""

    def __init__(self, mode: str, platform: Platform, worker: SDKWorker) -> None:
        self.mode = mode
        self.platform = platform
        self.worker = worker

    def send(self, endpoint: str, case: str) -> Job:
        return self.platform.send(endpoint, CASES[case])


def _pair(mode: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp(mode)
    script = folder / "script.json"
    script.write_text(json.dumps({"answers": ANSWERS, "slots": 2}))
    settings = {"MODEL_PATH": str(script), "STREAM_MODE": mode}
    platform = Platform(folder, MIN_EXECUTION_TIMEOUT_MS="1", **settings)
    worker = SDKWorker(
        platform, SDK, tmp_path_factory.mktemp(f"{mode}-worker"), ["-m", "handler"], settings
    )
    yield Pair(mode, platform, worker)
    worker.close()
    platform.close()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pair]]:
    # Start both together, because each worker takes seconds to import the SDK.
    makers = {mode: _pair(mode, tmp_path_factory) for mode in MODES}
    yield {mode: next(maker) for mode, maker in makers.items()}
    for maker in makers.values():
        assert next(maker, None) is None


@pytest.fixture(params=MODES)
def pair(request: pytest.FixtureRequest, pairs: dict[str, Pair]) -> Pair:
    """The workers of either mode."""
    return pairs[request.param]


def client_view(job: Job) -> dict[str, Any]:
    """Return all responses that a client gets about a job."""
    streamed = job.read_stream()
    return {"stream": normalize(streamed), "status": normalize(job.wait_for_end())}


def _streams(job: Job) -> bool:
    return bool(job.call("stream")["stream"])


@pytest.mark.long_except(
    "aggregate-prompt, streamed",
    "aggregate-cancel",
    "aggregate-engine death",
    "aggregate-openai chat stream",
    "aggregate-openai error",
    "generator-prompt",
    "generator-time limit",
    "generator-openai chat whole",
    "generator-openai stream",
    "generator-bad prompt",
    "generator-1.5 MB",
)
@pytest.mark.timeout(90)
@pytest.mark.parametrize("case", CASES)
def test_same_answer(pair: Pair, case: str) -> None:
    sdk, local = pair.send(SDK, case), pair.send(LOCAL, case)
    if case == "cancel":
        for job in (sdk, local):
            job.wait_until_started()
        if pair.mode == "generator":
            for job in (sdk, local):
                wait_until_true(partial(_streams, job))
        answers = [normalize(job.call("cancel", "POST")) for job in (sdk, local)]
        assert answers == [{"status": "CANCELLED"}] * 2
    local_view, sdk_view = client_view(local), client_view(sdk)
    if pair.mode == "aggregate":
        # The SDK streams generators only; the test below has what the local worker streams.
        local_view["stream"] = []
    assert sdk_view == local_view
    # Each case has the outcome of its name.
    failing = {"bad prompt", "no object", "openai error", "engine failure", "engine death"}
    ends = {"cancel": "CANCELLED", "time limit": "TIMED_OUT"}
    ends |= dict.fromkeys(failing, "FAILED")
    assert local_view["status"]["status"] == ends.get(case, "COMPLETED")
    if case == "1.5 MB":
        assert len(json.dumps(local.output())) > 1_500_000


@pytest.mark.long_except("openai chat stream", "engine failure")
@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    "case",
    ["prompt, streamed", "openai stream", "openai chat stream", "engine failure", "engine death"],
)
def test_stream_in_aggregate_mode_is_that_of_an_sdk_worker_in_generator_mode(
    pairs: dict[str, Pair], case: str
) -> None:  # R59
    sdk = pairs["generator"].send(SDK, case)
    local = pairs["aggregate"].send(LOCAL, case)
    streamed = normalize(local.read_stream())
    assert streamed
    assert streamed == normalize(sdk.read_stream())


@pytest.mark.long_except("aggregate-openai stream", "generator-prompt")
@pytest.mark.parametrize("case", ["prompt", "openai stream", "openai error"])
def test_same_answer_of_runsync(pair: Pair, case: str) -> None:
    sdk, local = (normalize(pair.platform.call_sync(name, CASES[case])) for name in (SDK, LOCAL))
    assert sdk == local
