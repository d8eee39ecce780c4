"""LoRA adapters with llama.cpp: real library, tiny model, adapters with random weights."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine import EMBED, BackendConfig, Engine
from engine.backends.lora_adapters import parse_adapters
from engine.errors import GenerationTimeout, ModelLoadFailed, UnsupportedParameter
from engine.request import Priority
from tests.conftest import EngineFactory
from tests.integration.engine.support import ask, child_pid, first_text, read, request
from tests.models.llama import WIDTH
from tests.models.lora_adapter import build_lora_adapter
from tests.models.projector import build_projector
from tests.waiting import wait_until

PROMPT = "The capital of France is"
NAMES = (None, "one", "two")


def configure(model: Path, lora: str, **options: object) -> BackendConfig:
    defaults: dict[str, object] = {
        **{"model_path": str(model), "model_name": "m", "adapters": parse_adapters(lora)},
        **{"threads": 2, "context_length": 256, "slots": 2},
    }
    return BackendConfig.from_wire("llamacpp", defaults | options)


@pytest.fixture
def lora(tmp_path: Path) -> str:
    """Write two adapters; return their setting."""
    one = build_lora_adapter(tmp_path / "one.gguf", seed=1)
    two = build_lora_adapter(tmp_path / "two.gguf", seed=2)
    return f"one={one},two={two}"


@pytest.fixture
def engine(engine_factory: EngineFactory, model_path: Path, lora: str) -> Engine:
    return engine_factory(configure(model_path, lora))


async def answer(engine: Engine, lora: str | None, max_tokens: int = 12) -> str:
    """Return the likeliest answer to the same prompt."""
    options = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
    return (await ask(engine, PROMPT, lora=lora, **options))[0]


async def test_adapter_never_affects_another_answer(
    engine: Engine, engine_factory: EngineFactory, model_path: Path
) -> None:
    base = await answer(engine_factory(configure(model_path, "")), None)
    texts = {name: await answer(engine, name) for name in NAMES}
    assert texts[None] == base
    assert len(set(texts.values())) == 3
    # The slots have the same prompt of each of the others in their caches.
    for name in ("one", None, "two", "one", "two", None, None, "one", "one", None):
        assert await answer(engine, name) == texts[name]
    for order in (NAMES * 2, NAMES[::-1] * 2):
        found = await asyncio.gather(*(answer(engine, name) for name in order))
        assert found == [texts[name] for name in order]


async def test_prompt_is_reused_only_with_the_same_adapter(
    engine_factory: EngineFactory, model_path: Path, lora: str
) -> None:
    engine = engine_factory(configure(model_path, lora, slots=1))

    async def count_cached_tokens(name: str | None) -> int:
        _, finish = await ask(engine, PROMPT, lora=name, max_tokens=2, temperature=0.0)
        return finish.usage.cached_tokens

    for name in (None, "one", "two", None, "one"):
        assert await count_cached_tokens(name) == 0
        assert await count_cached_tokens(name) > 0


async def test_aborted_and_refused_requests_leave_no_cache_behind(
    engine_factory: EngineFactory, model_path: Path, lora: str
) -> None:
    engine = engine_factory(configure(model_path, lora, slots=1))
    base = await answer(engine, None)
    async with await engine.generate(request(PROMPT, lora="one", ignore_eos=True)) as stream:
        await first_text(stream)
    assert await answer(engine, None) == base
    adapted = await answer(engine, "one")
    async with await engine.generate(request(PROMPT, ignore_eos=True)) as stream:
        pass
    assert await answer(engine, "one") == adapted


async def test_adapters_take_turns_while_the_other_never_pauses(engine: Engine) -> None:
    # llama.cpp alone would compute the slot with the lower number for as long as it is busy.
    is_done = asyncio.Event()

    async def ask_base_again_and_again() -> None:
        while not is_done.is_set():
            await answer(engine, None, max_tokens=20)

    busy = [asyncio.create_task(ask_base_again_and_again()) for _ in range(2)]
    async with asyncio.timeout(60):
        for name in ("one", "two", "one"):
            await answer(engine, name, max_tokens=20)
    is_done.set()
    await asyncio.gather(*busy)


async def test_waiting_request_can_be_aborted(
    engine_factory: EngineFactory, model_path: Path, lora: str
) -> None:
    # Filling the context takes seconds.
    engine = engine_factory(configure(model_path, lora, context_length=8192))
    await engine.ready()
    pid = child_pid(engine)
    async with await engine.generate(request(PROMPT, ignore_eos=True)) as running:
        await first_text(running)
        with pytest.raises(GenerationTimeout):
            await ask(engine, PROMPT, lora="one", timeout_s=0.2)
        await wait_until(lambda: engine.running == 1)
        # The next request without an adapter does not wait.
        assert await answer(engine, None, max_tokens=2)
    assert await answer(engine, "one", max_tokens=2)
    assert (engine.restarts, child_pid(engine)) == (0, pid)


async def test_scale_weighs_the_adapter(
    engine_factory: EngineFactory, model_path: Path, tmp_path: Path
) -> None:
    path = build_lora_adapter(tmp_path / "one.gguf")
    engine = engine_factory(configure(model_path, f"none={path}:0,full={path},triple={path}:3"))
    texts = [await answer(engine, name, 20) for name in (None, "none", "full", "triple")]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


async def test_embeddings_and_images_work_beside_adapters(
    engine_factory: EngineFactory, model_path: Path, lora: str, tmp_path: Path
) -> None:
    projector = build_projector(tmp_path / "mmproj.gguf", WIDTH)
    plain = engine_factory(configure(model_path, ""))
    engine = engine_factory(configure(model_path, lora, mmproj_path=str(projector)))
    [expected] = await plain.compute(EMBED, ["text"], Priority.JOB)
    assert await answer(engine, "one") != await answer(plain, None)
    [embedding] = await engine.compute(EMBED, ["text"], Priority.JOB)
    assert embedding.vector == expected.vector
    tokens = tuple(await engine.tokenize(PROMPT))
    texts = []
    for name in (None, "one", None):
        async with await engine.generate(
            request(tokens, lora=name, max_tokens=12, temperature=0.0)
        ) as stream:
            texts.append("".join(delta.text for delta in await read(stream)))
    assert texts[0] == texts[2] != texts[1]


async def test_unknown_adapter_error_lists_the_known_ones(engine: Engine) -> None:
    with pytest.raises(UnsupportedParameter, match="no adapter 'three', there are: one, two"):
        await answer(engine, "three")


@pytest.mark.parametrize("content", ["missing", "text", "other model", "model", "cut short"])
async def test_unfit_adapter_is_named(
    engine_factory: EngineFactory, model_path: Path, tmp_path: Path, content: str
) -> None:
    good = build_lora_adapter(tmp_path / "good.gguf")
    bad = tmp_path / "bad.gguf"
    match content:
        case "text":
            bad.write_text("<html>")
        case "other model":
            build_lora_adapter(bad, width=WIDTH * 2)
        case "model":
            bad.symlink_to(model_path)
        case "cut short":
            bad.write_bytes(good.read_bytes()[:-1000])
    engine = engine_factory(configure(model_path, f"bad={bad},good={good}"))
    with pytest.raises(ModelLoadFailed, match=r"^LORA_ADAPTERS: .*bad\.gguf"):
        await engine.ready()
