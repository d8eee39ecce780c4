"""One request, one text: whole, streamed and as a RunPod job, on both engines (R24, R45, R46).

Over HTTP, and through the job queue for the jobs; `DETERMINISTIC=on`, for a text depends on what
runs beside it.
"""

from __future__ import annotations

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
from tests.unit.handler.openai import reading
from tests.unit.handler.openai.reading import ReadResponse

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
# As short as they can be: each call reads all of its prompt again.
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}]
# By the route that a call of ours goes to; the same is a job's input.
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "prompt": (COMPLETIONS, {"prompt": "The capital of France is"}),
    "messages": (CHAT, {"messages": TURNS}),
    # Whose answer begins with a character of three tokens.
    "smileys": (COMPLETIONS, {"prompt": "a=😀, b=😀, c="}),
}
GREEDY: dict[str, Any] = {"temperature": 0}
# What a job would do otherwise.
JOB: dict[str, Any] = {"top_p": 1, "top_k": -1}
# Tokens of the embedded model's answers; each of their characters is a place to stop at.
TOKENS, MOST_TOKENS = 4, 8
# What begins like something before it, and characters over two tokens and three.
SCRIPT = r"""
context 8192
answer
  say "A st" "op, a" " st" "air, \xc3" "\xa9t\xc3\xa9, " "\xe2" "\x82" "\xac 5 an" "d \xf0\x9f"
  say "\x98\x80. Sto" "p" "." "\n\nA sto" "p."
"""


@dataclass(frozen=True, slots=True)
class Said:
    """One choice as a client gets it, however it asked."""

    text: str
    finish_reason: str | None
    stop_reason: str | int | None
    tokens: int | None


class Asking:
    """Asks a server for the same in all ways there are."""

    def __init__(self, client: httpx2.AsyncClient, max_tokens: int) -> None:
        self._client = client
        self.max_tokens = max_tokens

    async def whole(self, route: str, body: dict[str, Any]) -> list[Said]:
        return _said(reading.read_response(await self._post(route, body)))

    async def streamed(self, route: str, body: dict[str, Any]) -> list[Said]:
        response = await self._client.post(route, json={**body, "stream": True})
        assert response.status_code == 200
        return _said(reading.read_stream([response.content]))

    async def bridged(self, route: str, body: dict[str, Any]) -> list[Said]:
        """As RunPod's own OpenAI routes hand a call to a worker."""
        return _said(reading.read_response(await self._job(openai_route=route, openai_input=body)))

    async def bridged_stream(self, route: str, body: dict[str, Any]) -> list[Said]:
        events = await self._job(openai_route=route, openai_input={**body, "stream": True})
        return _said(reading.read_stream([events.encode()]))

    async def job(self, body: dict[str, Any], *, stream: bool = True, **params: Any) -> Said:
        """As RunPod's clients ask for text."""
        sampling = {**JOB, "max_tokens": self.max_tokens, **params, "stream": stream}
        given = {**body, "sampling_params": sampling, "enable_validation": False}
        given["apply_chat_template"] = False
        output = await self._job(**given)
        (choice,) = output["choices"]
        if stream:
            assert "".join(choice["deltas"]) == choice["text"]
        else:
            assert choice["tokens"] == [choice["text"]]
        tokens = output["usage"]["output"]
        return Said(choice["text"], choice["finish_reason"], choice.get("stop_reason"), tokens)

    async def _job(self, **given: Any) -> Any:
        shown = await self._post("/runsync", {"input": given})
        assert shown["status"] == "COMPLETED", shown
        return shown["output"]

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        response = await self._client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()


def _said(told: ReadResponse) -> list[Said]:
    assert told.usage is not None
    # Of one choice alone it is known how many of the tokens are its own.
    tokens = told.usage["completion_tokens"] if len(told.choices) == 1 else None
    return [
        Said(each.text, each.finish_reason, each.stop_reason, tokens)
        for _, each in sorted(told.choices.items())
    ]


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["llamacpp", "rkllm-1.2", "rkllm-1.3"]
)
async def asking(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    model_path: Path,
    scale: int,
) -> AsyncIterator[Asking]:
    """A server on one of the engines."""
    engine, _, abi = request.param.partition("-")
    settings: dict[str, Any] = {"engine": engine, "model_path": model_path, "deterministic": True}
    max_tokens = TOKENS if scale == 1 else MOST_TOKENS
    if abi:
        folder = tmp_path_factory.mktemp("rkllm")
        write_tokenizer(folder)
        settings["model_path"] = write_script(folder / "model.rkllm", SCRIPT)
        settings |= {"rkllm_lib_path": build(abi, folder), "rkllm_abi": abi}
        max_tokens = 100
    settings |= {"context_length": 512, "job_db": ":memory:", "drain_s": 0}
    async with run_server(EmulatorSettings(**settings)) as server:
        async with server.client(timeout=60) as client:
            yield Asking(client, max_tokens)


@pytest.fixture(params=ASKED)
def asked(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A route, and what it is asked."""
    return ASKED[request.param]


@pytest.mark.long_except("llamacpp-smileys", "rkllm-1.3-messages")
async def test_every_way_gives_one_text(asking: Asking, asked: tuple[str, dict[str, Any]]) -> None:
    # R24, R45, R46
    route, body = asked
    call = {**body, **GREEDY, "max_tokens": asking.max_tokens}
    (said,) = await asking.whole(route, call)
    assert said.text
    assert await asking.streamed(route, call) == [said]
    assert await asking.bridged(route, call) == [said]
    assert await asking.bridged_stream(route, call) == [said]
    for stream in (False, True):
        assert await asking.job(body, stream=stream, **GREEDY) == said


@pytest.mark.long_except("rkllm-1.3-prompt")
@pytest.mark.timeout(600)
async def test_every_way_ends_at_the_same_stop_wherever_it_is(
    asking: Asking, asked: tuple[str, dict[str, Any]]
) -> None:
    # R11, R24, R26: one, two and three characters long, and the first place that has them counts.
    route, body = asked
    call = {**body, **GREEDY, "max_tokens": asking.max_tokens}
    (whole,) = await asking.whole(route, call)
    text = whole.text
    for place in range(len(text)):
        stop = text[place : place + 1 + place % 3]
        stops: dict[str, Any] = {"stop": ["never said", stop]}
        (said,) = await asking.whole(route, call | stops)
        before, _, _ = text.partition(stop)
        assert (said.text, said.finish_reason, said.stop_reason) == (before, "stop", stop)
        assert await asking.streamed(route, call | stops) == [said]
        assert await asking.job(body, **GREEDY, **stops) == said


@pytest.mark.long_except("rkllm-1.3-messages")
async def test_every_way_gives_the_same_two_choices_of_a_seed(
    asking: Asking, asked: tuple[str, dict[str, Any]]
) -> None:
    # R10, R15, R24: each choice has a seed of its own, counted up from the one that is given.
    route, body = asked
    sampling: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True}
    call = {**body, **sampling, "max_tokens": asking.max_tokens, "seed": 11, "n": 2}
    choices = await asking.whole(route, call)
    assert len(choices) == 2
    assert await asking.streamed(route, call) == choices
    assert await asking.bridged(route, call) == choices
    assert await asking.bridged_stream(route, call) == choices
    jobs = [await asking.job(body, **sampling, seed=seed) for seed in (11, 12)]
    assert [each.text for each in jobs] == [each.text for each in choices]
