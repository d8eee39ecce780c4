"""Images in chats with llama.cpp: real library, tiny model, a projector with random weights."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from engine import EMBED, BackendConfig, Engine
from engine.errors import ModelLoadFailed, RequestRejected
from engine.request import Chat, ChatImage, Message, Priority
from tests.conftest import EngineFactory
from tests.integration.engine.support import ask, child_pid, first_text, request
from tests.models import llama
from tests.models.projector import build_projector
from tests.unit.handler.input.images import jpeg_header, png
from tests.waiting import wait_until

MODEL_WIDTH = llama.WIDTH
RED, BLUE = png(40, 30), png(40, 30, (0, 0, 255))
TEXT = "Describe this please."


def chat(*images: bytes, text: str = TEXT) -> Chat:
    files = tuple(ChatImage(base64.b64encode(each).decode(), len("Describe")) for each in images)
    return Chat((Message("user", text, images=files),))


def configure(model: Path, projector: Path, **options: Any) -> BackendConfig:
    options = {
        **{"model_path": str(model), "model_name": "m", "mmproj_path": str(projector)},
        **{"threads": 2, "context_length": 512, "slots": 2},
        **options,
    }
    return BackendConfig.from_wire("llamacpp", options)


@pytest.fixture
def projector(tmp_path: Path) -> Path:
    return build_projector(tmp_path / "mmproj.gguf", MODEL_WIDTH)


@pytest.fixture
def engine(engine_factory: EngineFactory, model_path: Path, projector: Path) -> Engine:
    return engine_factory(configure(model_path, projector))


async def answer(engine: Engine, prompt: Any, **options: Any) -> str:
    return (await ask(engine, prompt, **{"max_tokens": 8, "temperature": 0.0} | options))[0]


async def test_answers_depend_on_the_images_and_their_order(engine: Engine) -> None:
    await engine.ready()
    assert engine.capabilities is not None
    assert engine.capabilities.images
    prompts = [chat(), chat(RED), chat(BLUE), chat(RED, BLUE), chat(BLUE, RED)]
    texts = [await answer(engine, prompt, logprobs=1) for prompt in prompts]
    assert len(set(texts)) >= 4
    # The slots' caches have the beginnings of the prompts, and must not mix up the images.
    assert [await answer(engine, prompt) for prompt in prompts] == texts
    assert await asyncio.gather(*(answer(engine, prompt) for prompt in prompts)) == texts


async def test_image_counts_as_tokens_and_is_reused_in_the_next_turn(engine: Engine) -> None:
    text, finish = await ask(engine, chat(RED), max_tokens=8, temperature=0.0)
    _, plain = await ask(engine, chat(), max_tokens=8, temperature=0.0)
    assert finish.usage.prompt_tokens == plain.usage.prompt_tokens + 4
    assert finish.usage.completion_tokens == 8
    messages = (*chat(RED).messages, Message("assistant", text), Message("user", "Why?"))
    _, second = await ask(engine, Chat(messages), max_tokens=1)
    assert second.usage.cached_tokens >= finish.usage.prompt_tokens
    messages = (*chat(BLUE).messages, *messages[1:])
    _, other = await ask(engine, Chat(messages), max_tokens=1)
    assert other.usage.cached_tokens < finish.usage.prompt_tokens - 4


async def test_text_and_token_prompts_work_beside_a_projector(engine: Engine) -> None:
    text = await answer(engine, "The capital of France is")
    tokens = tuple(await engine.tokenize("The capital of France is"))
    assert await answer(engine, tokens) == text
    _, finish = await ask(engine, tokens, max_tokens=2, logprobs=2, temperature=0.0)
    assert finish.usage.completion_tokens == 2
    [embedding] = await engine.compute(EMBED, ["text"], Priority.JOB)
    assert len(embedding.vector) == MODEL_WIDTH


async def test_log_probabilities_come_with_images(engine: Engine) -> None:
    async with await engine.generate(
        request(chat(RED), max_tokens=3, logprobs=2, ignore_eos=True)
    ) as stream:
        deltas = [delta async for batch in stream for delta in batch]
    assert [len(delta.logprob.top) for delta in deltas if delta.logprob] == [2, 2, 2]


async def test_broken_image_is_refused_and_others_are_served(engine: Engine) -> None:
    with pytest.raises(RequestRejected, match="Failed to load image"):
        await ask(engine, chat(jpeg_header(10, 10)))
    with pytest.raises(RequestRejected, match="do not fit the context"):
        await ask(engine, chat(*[RED] * 200))
    assert await answer(engine, chat(RED))


async def test_aborted_generation_with_an_image_frees_its_slot(engine: Engine) -> None:
    await engine.ready()
    pid = child_pid(engine)
    for _ in range(3):
        async with await engine.generate(request(chat(RED), ignore_eos=True)) as stream:
            await first_text(stream)
        async with await engine.generate(request(chat(RED, BLUE), ignore_eos=True)):
            pass
    assert await answer(engine, chat(RED))
    await wait_until(lambda: not engine.running)
    assert (engine.restarts, child_pid(engine)) == (0, pid)


async def test_projector_for_another_model_is_named(
    engine_factory: EngineFactory, model_path: Path, tmp_path: Path
) -> None:
    projector = build_projector(tmp_path / "other.gguf", MODEL_WIDTH // 2)
    engine = engine_factory(configure(model_path, projector))
    with pytest.raises(ModelLoadFailed, match=r"^MMPROJ_PATH: .*other\.gguf .* another model"):
        await engine.ready()


@pytest.mark.parametrize("content", ["model", "text", "missing"])
async def test_file_that_is_no_projector_is_named(
    engine_factory: EngineFactory, model_path: Path, tmp_path: Path, content: str
) -> None:
    projector = tmp_path / "projector.gguf"
    if content == "model":
        projector = model_path
    elif content == "text":
        projector.write_text("<html>")
    engine = engine_factory(configure(model_path, projector))
    with pytest.raises(ModelLoadFailed, match=rf"^MMPROJ_PATH: .*{projector.name}"):
        await engine.ready()
