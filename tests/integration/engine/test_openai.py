"""The openai engine in front of a server whose bytes are known."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from engine import EMBED, BackendConfig, Chat, Engine, FinishReason, Message, Priority
from engine.backends.openai import backend, server_calls
from engine.backends.options import OpenAIOptions
from engine.errors import (
    EngineCrashed,
    EngineRestarting,
    EngineStalled,
    ModelLoadFailed,
    RequestRejected,
    UnsupportedParameter,
)
from tests.conftest import EngineFactory
from tests.integration.engine.support import ask, first_text, request
from tests.integration.engine.upstream import Exchange, Upstream, run_upstream
from tests.ports import free_port
from tests.waiting import WAIT_S, wait_until

HI = Chat((Message("user", "hi"),))
only_threads = pytest.mark.parametrize("isolation", ["thread"], indirect=True)
Start = Callable[..., Any]
Front = Callable[..., Engine]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Return a function that starts an upstream."""
    async with AsyncExitStack() as stack:

        async def start(**fields: Any) -> Upstream:
            return await stack.enter_async_context(run_upstream(Upstream(**fields)))

        yield start


@pytest.fixture
def front(engine_factory: EngineFactory, isolation: str) -> Front:
    """Return a function that builds an engine with these upstreams."""

    def build(*upstreams: Upstream, config: Any = None, **options: Any) -> Engine:
        urls = tuple(each.url for each in upstreams)
        fields: dict[str, Any] = {"model_name": "front", "model_id": "m", "urls": urls} | options
        return engine_factory(
            BackendConfig(OpenAIOptions(**fields)), isolation=isolation, **(config or {})
        )

    return build


async def test_answer_of_the_server_is_that_of_the_engine(start: Start, front: Front) -> None:
    upstream = await start()
    engine = front(upstream, key="secret")
    text, finish = await ask(engine, HI)
    assert (text, finish.reason) == ("Hello", FinishReason.STOP)
    assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (5, 2)
    [exchange] = upstream.requests
    assert (exchange.path, exchange.body["model"]) == ("/v1/chat/completions", "m")
    assert exchange.headers["authorization"] == "Bearer secret"
    assert (await ask(engine, "Once"))[0] == "Hello"
    assert upstream.requests[1].path == "/v1/completions"


async def test_stop_string_ends_the_answer_and_closes_the_connection(
    start: Start, front: Front
) -> None:
    closed = asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        await exchange.open_stream()
        for text in ("one ST", "OP", " two"):
            await exchange.send_text(text)
        await exchange.wait_closed()
        closed.set()

    engine = front(await start(answer=answer))
    text, finish = await ask(engine, HI, stop=("STOP",))
    assert (text, finish.stop_reason) == ("one ", "STOP")
    assert any("usage" in warning for warning in finish.warnings)
    await asyncio.wait_for(closed.wait(), 30)


@pytest.mark.parametrize("phase", ["before the head", "before the text", "in the text"])
async def test_abort_closes_the_connection(start: Start, front: Front, phase: str) -> None:
    has_request, closed = asyncio.Event(), asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        if phase != "before the head":
            await exchange.open_stream()
        if phase == "in the text":
            await exchange.send_text("one")
        has_request.set()
        await exchange.wait_closed()
        closed.set()

    engine = front(await start(answer=answer))
    stream = await engine.generate(request(HI))
    if phase == "in the text":
        assert await first_text(stream) == "one"
    await asyncio.wait_for(has_request.wait(), 30)
    stream.abort()
    await asyncio.wait_for(closed.wait(), 30)
    await wait_until(lambda: engine.running == 0)


@only_threads
async def test_limit_of_tokens_is_the_servers_and_not_counted_in_pieces(
    start: Start, front: Front
) -> None:
    upstream = await start()

    async def answer(exchange: Exchange) -> None:
        await exchange.open_stream()
        for letter in "letters":
            await exchange.send_text(letter)
        await exchange.send_text("", "length", usage={"prompt_tokens": 1, "completion_tokens": 2})
        await exchange.end_stream()

    upstream.answer = answer
    text, finish = await ask(front(upstream), HI, max_tokens=2)
    assert (text, finish.reason, finish.usage.completion_tokens) == (
        "letters",
        FinishReason.LENGTH,
        2,
    )
    assert upstream.requests[0].body["max_tokens"] == 2


@only_threads
async def test_connection_is_used_again(
    start: Start, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_END_GRACE_S", WAIT_S)
    upstream = await start()
    engine = front(upstream)
    for _ in range(5):
        await ask(engine, HI)
    # One for the list of models is the first one of the answers too.
    assert upstream.connections == 1


@only_threads
async def test_request_on_a_new_connection_is_sent_once(start: Start, front: Front) -> None:
    async def answer(exchange: Exchange) -> None:
        # It may have computed the answer, and this request may be why it ends.
        exchange.writer.close()

    upstream = await start(answer=answer)
    engine = front(upstream)
    with pytest.raises(EngineCrashed, match="did not answer"):
        await asyncio.gather(ask(engine, HI), ask(engine, HI))
    # The first one may have had the connection on which the models were listed.
    await wait_until(lambda: engine.running == 0)
    assert len(upstream.requests) <= 3


@only_threads
async def test_last_attempt_of_a_job_leaves_room_for_others(start: Start, front: Front) -> None:
    engine = front(await start())
    slot = await engine.reserve(Priority.JOB, exclusive=True)
    assert (await ask(engine, HI))[0] == "Hello"
    slot.release()


@only_threads
async def test_requests_go_to_the_server_with_the_fewest(start: Start, front: Front) -> None:
    release = asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send_text("a")
        await release.wait()
        await exchange.send_text("", "stop")
        await exchange.end_stream()

    both = [await start(answer=answer) for _ in range(2)]
    engine = front(*both)
    streams = [await engine.generate(request(HI)) for _ in range(6)]
    for stream in streams:
        await first_text(stream)
    assert [len(each.requests) for each in both] == [3, 3]
    release.set()
    for stream in streams:
        await stream.wait_ended()


@only_threads
async def test_broken_answer_fails_the_request_and_the_next_one_works(
    start: Start, front: Front
) -> None:
    upstream = await start()

    async def answer(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send_text("half an")
        exchange.writer.close()

    working, upstream.answer = upstream.answer, answer
    engine = front(upstream)
    with pytest.raises(EngineCrashed, match="broke off"):
        await ask(engine, HI)
    upstream.answer = working
    assert (await ask(engine, HI))[0] == "Hello"


@only_threads
async def test_silent_server_is_a_stall(start: Start, front: Front) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send_text("one")
        await exchange.wait_closed()

    engine = front(await start(answer=answer), config={"stall_timeout_s": 0.2})
    with pytest.raises(EngineStalled, match="STALL_TIMEOUT_S"):
        await ask(engine, HI)


@only_threads
async def test_refusal_of_the_server_is_one_of_the_request(start: Start, front: Front) -> None:
    async def answer(exchange: Exchange) -> None:
        error = {"message": "top_p must be positive", "param": "top_p"}
        await exchange.send_json({"error": error}, "400 Bad Request")

    engine = front(await start(answer=answer))
    with pytest.raises(RequestRejected, match="top_p must be positive") as caught:
        await ask(engine, HI, top_p=0.0)
    assert caught.value.details["param"] == "top_p"


@only_threads
async def test_answer_that_is_no_stream_fails(start: Start, front: Front) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send_json({"choices": []})

    engine = front(await start(answer=answer))
    with pytest.raises(EngineCrashed, match="application/json, not with a stream of events"):
        await ask(engine, HI)


@only_threads
async def test_missing_server_is_a_restart(
    start: Start, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_calls, "PATIENCE_S", 0.2)
    upstream = Upstream()
    async with run_upstream(upstream):
        engine = front(upstream)
        await engine.ready()
    with pytest.raises(EngineRestarting, match="no server of UPSTREAM_URL takes requests"):
        await ask(engine, HI)


# ---- the load ----


async def test_engine_waits_for_a_server_that_starts_later(front: Front) -> None:
    upstream = Upstream()
    port = free_port()
    upstream.url = f"http://127.0.0.1:{port}/v1"
    engine = front(upstream)
    loading = asyncio.create_task(engine.ready())
    await asyncio.sleep(0)
    async with run_upstream(upstream, port):
        await loading
        assert (await ask(engine, HI))[0] == "Hello"


@only_threads
async def test_engine_waits_for_a_model_that_is_loading(
    start: Start, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_RETRY_S", 0.01)
    upstream = await start(models=[{"id": "m", "state": "loading"}])
    loading = asyncio.create_task(front(upstream).ready())
    await wait_until(lambda: upstream.model_requests > 1)
    assert not loading.done()
    upstream.models = [{"id": "m", "state": "ready", "owned_by": "worker-rkllm"}]
    assert (await loading).min_tokens


@only_threads
async def test_model_that_its_server_cannot_load_ends_the_load(start: Start, front: Front) -> None:
    upstream = await start(models=[{"id": "m", "state": "dead", "failure": "there is no file"}])
    with pytest.raises(ModelLoadFailed, match=r"UPSTREAM_URL: http.*: there is no file"):
        await front(upstream, load_timeout_s=0.0).ready()


@only_threads
async def test_load_ends_if_no_server_answers(front: Front) -> None:
    upstream = Upstream(url=f"http://127.0.0.1:{free_port()}/v1")
    with pytest.raises(
        ModelLoadFailed, match=r"UPSTREAM_URL: http://127\.0\.0\.1:\d+ does not answer"
    ):
        await front(upstream, load_timeout_s=0.0).ready()


@only_threads
async def test_wrong_key_ends_the_load(start: Start, front: Front) -> None:
    upstream = await start(models_status="401 Unauthorized")
    with pytest.raises(ModelLoadFailed, match="refuses UPSTREAM_KEY with status 401") as caught:
        await front(upstream, key="the-secret").ready()
    assert "the-secret" not in caught.value.message


@only_threads
async def test_unlisted_model_is_a_warning(
    start: Start, front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = await start(models=[{"id": "a", "owned_by": "vllm"}, {"id": "b"}])
    with caplog.at_level(logging.WARNING):
        assert (await ask(front(upstream), HI))[0] == "Hello"
    assert "does not list the model m, it lists: a, b" in caplog.text


@only_threads
@pytest.mark.parametrize("models_status", ["404 Not Found", "200 OK"])
async def test_server_without_a_list_of_models_is_used(
    start: Start, front: Front, models_status: str
) -> None:
    upstream = await start(models=[], models_status=models_status)
    assert (await ask(front(upstream), HI))[0] == "Hello"


@only_threads
async def test_capabilities_are_those_of_the_kind_of_server(start: Start, front: Front) -> None:
    vllm = await start(models=[{"id": "m", "owned_by": "vllm", "max_model_len": 2048}])
    llama = await start(models=[{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 512}}])
    ollama = await start(models=[{"id": "m:latest", "owned_by": "library"}])
    known, other, plain = [await front(each).ready() for each in (vllm, llama, ollama)]
    assert (known.context_length, other.context_length, plain.context_length) == (2048, 512, 0)
    assert (known.min_tokens, other.min_tokens, plain.min_tokens) == (True, False, False)
    assert (known.fixed_sampling, plain.fixed_sampling) == (
        {},
        {"top_k": -1, "repetition_penalty": 1.0},
    )
    assert other.grammar
    assert json.dumps(plain.to_wire())


# ---- embeddings ----


@only_threads
async def test_embedding_is_that_of_the_server_with_length_1(start: Start, front: Front) -> None:
    async def answer(exchange: Exchange) -> None:
        usage = {"prompt_tokens": 2}
        await exchange.send_json({"data": [{"embedding": [3, 4]}], "usage": usage})

    upstream = await start(answer=answer)
    engine = front(upstream)
    [embedding] = await engine.compute(EMBED, ("two words",), Priority.JOB)
    assert (embedding.vector, embedding.tokens) == ([0.6, 0.8], 2)
    [exchange] = upstream.requests
    assert (exchange.path, exchange.body["input"]) == ("/v1/embeddings", "two words")
    with pytest.raises(UnsupportedParameter, match="input: the openai engine takes text"):
        await engine.compute(EMBED, ((1, 2),), Priority.JOB)


@only_threads
async def test_embeddings_of_a_request_are_computed_together(start: Start, front: Front) -> None:
    together = asyncio.Barrier(4)

    async def answer(exchange: Exchange) -> None:
        await asyncio.wait_for(together.wait(), WAIT_S)
        size = len(exchange.body["input"])
        await exchange.send_json(
            {"data": [{"embedding": [size, 0]}], "usage": {"prompt_tokens": size}}
        )

    engine = front(await start(answer=answer), slots=4)
    texts = ["a" * (number + 1) for number in range(8)]
    embeddings = await engine.compute(EMBED, texts, Priority.JOB)
    assert [each.tokens for each in embeddings] == [1, 2, 3, 4, 5, 6, 7, 8]


@only_threads
async def test_failed_embedding_is_an_error(start: Start, front: Front) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send_json({"data": []})

    engine = front(await start(answer=answer))
    with pytest.raises(EngineCrashed, match="no embedding"):
        await engine.compute(EMBED, ("text",), Priority.JOB)
