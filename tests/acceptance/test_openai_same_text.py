"""A request has the same text unstreamed, streamed and as a RunPod job (R24, R45, R46).

Over HTTP, and through the job queue for the jobs; with `DETERMINISTIC=on`, because concurrent
requests may change a text.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from emulator.settings.emulator_settings import EmulatorSettings
from tests.fake_rkllm import build, write_script
from tests.fake_rkllm.tokenizer import write_tokenizer
from tests.integration.emulator.serving import run_server
from tests.unit.handler.apis.openai import reading
from tests.unit.handler.apis.openai.reading import ReadResponse

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
# As short as possible, because each call evaluates its whole prompt.
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}]
# The route and the body of OpenAI's call; a job has the same body as its input.
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "prompt": (COMPLETIONS, {"prompt": "The capital of France is"}),
    "messages": (CHAT, {"messages": TURNS}),
    # The answer begins with a character of three tokens.
    "smileys": (COMPLETIONS, {"prompt": "a=😀, b=😀, c="}),
}
GREEDY: dict[str, Any] = {"temperature": 0}
# OpenAI's defaults, which differ from a job's.
JOB: dict[str, Any] = {"top_p": 1, "top_k": -1}
# The length of the embedded model's answers; the test stops at each of their characters.
TOKENS, LONG_TOKENS = 4, 8
# Repeated prefixes, and characters of two and of three tokens.
SCRIPT = r"""
context 8192
answer
  say "A st" "op, a" " st" "air, \xc3" "\xa9t\xc3\xa9, " "\xe2" "\x82" "\xac 5 an" "d \xf0\x9f"
  say "\x98\x80. Sto" "p" "." "\n\nA sto" "p."
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of an answer, in a form that all routes share."""

    text: str
    finish_reason: str | None
    stop_reason: str | int | None
    tokens: int | None


class Requester:
    """Sends one request to a server by each route."""

    def __init__(self, client: httpx2.AsyncClient, max_tokens: int) -> None:
        self._client = client
        self.max_tokens = max_tokens

    async def complete(self, route: str, body: dict[str, Any]) -> list[Choice]:
        return _choices(reading.read_response(await self._post(route, body)))

    async def stream(self, route: str, body: dict[str, Any]) -> list[Choice]:
        response = await self._client.post(route, json={**body, "stream": True})
        assert response.status_code == 200
        return _choices(reading.read_stream([response.content]))

    async def complete_as_job(self, route: str, body: dict[str, Any]) -> list[Choice]:
        """Send a job with the fields of RunPod's own OpenAI routes."""
        return _choices(
            reading.read_response(await self._job(openai_route=route, openai_input=body))
        )

    async def stream_as_job(self, route: str, body: dict[str, Any]) -> list[Choice]:
        events = await self._job(openai_route=route, openai_input={**body, "stream": True})
        return _choices(reading.read_stream([events.encode()]))

    async def read_texts(self, route: str, body: dict[str, Any]) -> dict[str, str]:
        """Return the text of a response or a message, whole and from the events of a stream."""
        whole = await self._post(route, body)
        parts = [part for item in whole.get("output", [whole]) for part in item.get("content", ())]
        response = await self._client.post(route, json={**body, "stream": True})
        assert response.status_code == 200, response.text
        deltas = ""
        for line in response.text.split("\n"):
            if line.startswith("data: {"):
                delta = json.loads(line.removeprefix("data: ")).get("delta", "")
                deltas += delta if isinstance(delta, str) else delta.get("text", "")
        return {"whole": "".join(part["text"] for part in parts), "streamed": deltas}

    async def read_ollama_texts(self, route: str, body: dict[str, Any]) -> dict[str, str]:
        """Return the text of an answer of Ollama's API, whole and from the lines of a stream."""
        options = {"temperature": 0, "num_predict": self.max_tokens}
        body = {**body, "options": options}

        def read(answer: dict[str, Any]) -> str:
            return str(answer["response"] if "response" in answer else answer["message"]["content"])

        whole = await self._post(route, {**body, "stream": False})
        response = await self._client.post(route, json=body)
        assert response.status_code == 200, response.text
        lines = [json.loads(line) for line in response.text.split("\n") if line]
        return {"whole": read(whole), "streamed": "".join(map(read, lines))}

    async def job(self, body: dict[str, Any], *, stream: bool = True, **params: Any) -> Choice:
        """Send a job as RunPod's clients do."""
        sampling = {**JOB, "max_tokens": self.max_tokens, **params, "stream": stream}
        job_input = {**body, "sampling_params": sampling, "enable_validation": False}
        job_input["apply_chat_template"] = False
        output = await self._job(**job_input)
        (choice,) = output["choices"]
        if stream:
            assert "".join(choice["deltas"]) == choice["text"]
        else:
            assert choice["tokens"] == [choice["text"]]
        tokens = output["usage"]["output"]
        return Choice(choice["text"], choice["finish_reason"], choice.get("stop_reason"), tokens)

    async def _job(self, **job_input: Any) -> Any:
        response = await self._post("/runsync", {"input": job_input})
        assert response["status"] == "COMPLETED", response
        return response["output"]

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        response = await self._client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()


def _choices(response: ReadResponse) -> list[Choice]:
    assert response.usage is not None
    # The usage counts the tokens of all choices together.
    tokens = response.usage["completion_tokens"] if len(response.choices) == 1 else None
    return [
        Choice(choice.text, choice.finish_reason, choice.stop_reason, tokens)
        for _, choice in sorted(response.choices.items())
    ]


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["llamacpp", "rkllm-1.2", "rkllm-1.3"]
)
async def requester(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    model_path: Path,
    scale: int,
) -> AsyncIterator[Requester]:
    """A server on one of the engines."""
    engine, _, abi = request.param.partition("-")
    settings: dict[str, Any] = {"engine": engine, "model_path": model_path, "deterministic": True}
    max_tokens = TOKENS if scale == 1 else LONG_TOKENS
    if abi:
        folder = tmp_path_factory.mktemp("rkllm")
        write_tokenizer(folder)
        settings["model_path"] = write_script(folder / "model.rkllm", SCRIPT)
        settings |= {"rkllm_lib_path": build(abi, folder), "rkllm_abi": abi}
        max_tokens = 100
    settings |= {"context_length": 512, "job_db": ":memory:", "drain_s": 0}
    async with run_server(EmulatorSettings(**settings)) as server:
        async with server.client(timeout=60) as client:
            yield Requester(client, max_tokens)


@pytest.fixture(params=REQUESTS)
def case(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A route and the body of a request to it."""
    return REQUESTS[request.param]


@pytest.mark.long_except("llamacpp-smileys", "rkllm-1.3-messages")
async def test_all_routes_return_the_same_text(
    requester: Requester, case: tuple[str, dict[str, Any]]
) -> None:
    # R24, R45, R46
    route, body = case
    call = {**body, **GREEDY, "max_tokens": requester.max_tokens}
    (choice,) = await requester.complete(route, call)
    assert choice.text
    assert await requester.stream(route, call) == [choice]
    assert await requester.complete_as_job(route, call) == [choice]
    assert await requester.stream_as_job(route, call) == [choice]
    for stream in (False, True):
        assert await requester.job(body, stream=stream, **GREEDY) == choice


@pytest.mark.long_except("rkllm-1.3-prompt")
@pytest.mark.timeout(600)
async def test_all_routes_end_at_the_same_stop_sequence(
    requester: Requester, case: tuple[str, dict[str, Any]]
) -> None:
    # R11, R24, R26: one, two and three characters long, and the first place that has them counts.
    route, body = case
    call = {**body, **GREEDY, "max_tokens": requester.max_tokens}
    (unstopped,) = await requester.complete(route, call)
    text = unstopped.text
    for place in range(len(text)):
        stop = text[place : place + 1 + place % 3]
        stops: dict[str, Any] = {"stop": ["never said", stop]}
        (choice,) = await requester.complete(route, call | stops)
        before, _, _ = text.partition(stop)
        assert (choice.text, choice.finish_reason, choice.stop_reason) == (before, "stop", stop)
        assert await requester.stream(route, call | stops) == [choice]
        assert await requester.job(body, **GREEDY, **stops) == choice


@pytest.mark.long_except("rkllm-1.3-messages")
async def test_all_routes_return_the_same_two_choices_for_a_seed(
    requester: Requester, case: tuple[str, dict[str, Any]]
) -> None:
    # R10, R15, R24: each choice has a seed of its own, counted up from the one that is given.
    route, body = case
    sampling: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True}
    call = {**body, **sampling, "max_tokens": requester.max_tokens, "seed": 11, "n": 2}
    choices = await requester.complete(route, call)
    assert len(choices) == 2
    assert await requester.stream(route, call) == choices
    assert await requester.complete_as_job(route, call) == choices
    assert await requester.stream_as_job(route, call) == choices
    jobs = [await requester.job(body, **sampling, seed=seed) for seed in (11, 12)]
    assert [each.text for each in jobs] == [each.text for each in choices]


@pytest.mark.long_except("rkllm-1.3")
async def test_text_is_the_same_in_all_apis(requester: Requester) -> None:
    limit = requester.max_tokens
    (chat,) = await requester.complete(CHAT, {"messages": TURNS, **GREEDY, "max_tokens": limit})
    response = {"input": TURNS, **GREEDY, "max_output_tokens": limit}
    system, user = TURNS
    message = {
        "model": "claude",
        "system": system["content"],
        "messages": [user],
        "max_tokens": limit,
        "temperature": 0,
    }
    texts = {
        "response": await requester.read_texts("/v1/responses", response),
        "background": await requester.read_texts("/v1/responses", response | {"background": True}),
        "message": await requester.read_texts("/v1/messages", message),
        "ollama": await requester.read_ollama_texts("/api/chat", {"messages": TURNS}),
        "generate": await requester.read_ollama_texts(
            "/api/generate", {"prompt": user["content"], "system": system["content"]}
        ),
    }
    expected = dict.fromkeys(("whole", "streamed"), chat.text)
    for name in ("response", "message", "ollama", "generate"):
        assert texts[name] == expected, name
    assert texts["background"]["streamed"] == chat.text
