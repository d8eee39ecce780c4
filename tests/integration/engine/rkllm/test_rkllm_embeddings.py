"""Embeddings from the runtime's last layer, with both ABIs: pooling, counts, and generations.

The fake library's row of the token r is r, r + 0.01, r + 0.02 and so on to 8 numbers, so that a
row identifies its token.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from engine import EMBED, Engine, Priority
from engine.backends.options import options_from_wire
from engine.backends.rkllm.abi.abi import ABI_12, Abi
from engine.backends.rkllm.abi.structs import CallbackAnswer
from engine.backends.rkllm.board.profile import Profile, write_profile
from engine.doctor.examiner import Doctor
from engine.errors import (
    BackendFailed,
    EngineStalled,
    PromptTooLong,
    RequestRejected,
    UnsupportedParameter,
)
from engine.request import RenderedPrompt
from handler.apis.openai.service import OpenAIService
from handler.errors import InvalidRequest, ModelNotFound
from handler.pipeline import Pipeline
from tests.fake_rkllm import read_log
from tests.fake_rkllm.tokenizer import write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask, first_text, read, request
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("examined_once")
only_processes = pytest.mark.parametrize("isolation", ["process"], indirect=True)
only_threads = pytest.mark.parametrize("isolation", ["thread"], indirect=True)

WIDTH = 8
COUNT = 'answer\n  say "\\{i} " times=3\n'


def normalised(row: Sequence[float]) -> list[float]:
    length = math.hypot(*row)
    return [number / length for number in row]


def row_of(token: float) -> list[float]:
    return [token + column / 100 for column in range(WIDTH)]


def ended(log: Path) -> list[dict[str, str]]:
    """Return how the runs so far have ended."""
    return [call.values for call in read_log(log) if call.name == "run_end"]


async def embed(engine: Engine, *texts: RenderedPrompt) -> list[tuple[Sequence[float], int]]:
    embeddings = await engine.compute(EMBED, texts, Priority.INTERACTIVE)
    return [(each.vector, each.tokens) for each in embeddings]


async def abandon_an_embedding(engine: Engine, log: Path) -> None:
    """Request an embedding and cancel it once it runs; it keeps its slot until it is computed."""
    await engine.ready()
    abandoned = asyncio.create_task(embed(engine, (1, 2, 3)))
    await wait_until(lambda: log.read_text().count(" rkllm_run ") == 1)
    abandoned.cancel()
    await asyncio.gather(abandoned, return_exceptions=True)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Write tokenizer files for every model of this test: one token per byte, after a first one."""
    return write_tokenizer(tmp_path)


@only_threads
@pytest.mark.usefixtures("tokenizer")
async def test_embedding_is_that_of_the_last_token(
    rkllm_of: RkllmMaker, call_log: Path, abi: Abi
) -> None:
    engine = rkllm_of(COUNT)
    assert (await engine.ready()).embeddings
    (vector, tokens), (other, fewer) = await embed(engine, "four!", (7, 8, 9))
    assert (tokens, fewer) == (6, 3)
    assert vector == pytest.approx(normalised(row_of(5)), abs=1e-6)
    assert other == pytest.approx(normalised(row_of(2)), abs=1e-6)
    # Generation works as before, and no history is kept in between.
    assert (await ask(engine))[0] == "0 1 2 "
    assert [call.name for call in read_log(call_log)].count("rkllm_run") == 3


@only_threads
@pytest.mark.usefixtures("tokenizer")
@pytest.mark.parametrize(("pooling", "token"), [("last", 5), ("mean", 2.5), ("cls", 0)])
async def test_pooling_is_a_setting(rkllm_of: RkllmMaker, pooling: str, token: float) -> None:
    [(vector, _)] = await embed(rkllm_of(COUNT, pooling=pooling), "four!")
    assert vector == pytest.approx(normalised(row_of(token)), abs=1e-6)


@only_threads
@pytest.mark.usefixtures("tokenizer")
async def test_text_beyond_the_context_is_refused_before_the_run(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    # R54
    engine = rkllm_of(COUNT, context_length=64)
    assert [tokens for _, tokens in await embed(engine, "x" * 63)] == [64]
    with pytest.raises(
        PromptTooLong, match=r"input: 65 tokens do not fit .* of 64 tokens"
    ) as caught:
        await embed(engine, "x" * 64)
    assert caught.value.details["param"] == "input"
    for bad in ((), (260,), (-1,)):
        with pytest.raises(RequestRejected, match="input: "):
            await embed(engine, bad)
    assert [call.name for call in read_log(call_log)].count("rkllm_run") == 1


@only_threads
async def test_embeddings_need_a_tokenizer(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(COUNT)
    assert not (await engine.ready()).embeddings
    with pytest.raises(UnsupportedParameter, match="the rkllm engine has no embeddings"):
        await embed(engine, (1, 2))


@only_processes
@pytest.mark.usefixtures("tokenizer")
async def test_embeddings_and_generations_never_overlap(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    # A second run on a handle ends the process, and an abandoned embedding is a run too.
    engine = rkllm_of(f'answer when="1 2 3"\n  prefill_ms 300\n{COUNT}')
    await abandon_an_embedding(engine, call_log)
    assert (await ask(engine))[0] == "0 1 2 "
    texts = await asyncio.gather(*(ask(engine) for _ in range(4)), embed(engine, "a", "b"))
    assert [each[0] for each in texts[:4]] == ["0 1 2 "] * 4
    runs = [call.name for call in read_log(call_log) if call.name in ("rkllm_run", "run_end")]
    assert runs == ["rkllm_run", "run_end"] * (len(runs) // 2)
    assert engine.restarts == 0


@only_threads
@pytest.mark.usefixtures("tokenizer")
async def test_abort_of_a_waiting_run_does_not_affect_an_embedding(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    engine = rkllm_of(f'answer when="1 2 3"\n  prefill_ms 300 hears\n{COUNT}')
    await abandon_an_embedding(engine, call_log)
    waits = asyncio.create_task(ask(engine))
    await wait_until(lambda: engine.waiting == 1)
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    await wait_until(lambda: " run_end run=1 " in call_log.read_text())
    assert ended(call_log)[0]["end"] == "finished"
    assert not any(call.name == "rkllm_abort" for call in read_log(call_log))


@pytest.mark.usefixtures("tokenizer")
async def test_slot_is_held_until_the_embedding_is_done(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    # The next request would otherwise wait for it with its own timeout.
    engine = rkllm_of(f'answer when="1 2 3"\n  prefill_ms 300 hears\n{COUNT}')
    await abandon_an_embedding(engine, call_log)
    assert (engine.running, ended(call_log)) == (1, [])
    await wait_until(lambda: engine.running == 0)
    assert [each["end"] for each in ended(call_log)] == ["finished"]


@only_processes
@pytest.mark.usefixtures("tokenizer")
@pytest.mark.parametrize("n_batch", [1, 2])
async def test_hanging_embedding_fails_without_affecting_others(
    rkllm_of: RkllmMaker, n_batch: int
) -> None:
    # R54
    script = f'answer when="1 2 3"\n  prefill_ms 600000\n{COUNT}'
    engine = rkllm_of(script, n_batch=n_batch, prefill_timeout_s=2.0)
    await engine.ready()
    with pytest.raises(EngineStalled, match=r"did not embed within 2 s \(PREFILL_TIMEOUT_S\)"):
        await embed(engine, (1, 2, 3))
    assert (await ask(engine, (4, 5)))[0] == "0 1 2 "
    assert len(await embed(engine, (7, 8))) == 1
    assert (engine.restarts, engine.running) == (1, 0)


@pytest.mark.long
@only_processes
@pytest.mark.usefixtures("tokenizer")
async def test_hanging_embedding_of_a_client_that_left(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    script = f'answer when="1 2 3"\n  prefill_ms 600000\n{COUNT}'
    engine = rkllm_of(script, n_batch=2, prefill_timeout_s=2.0)
    await abandon_an_embedding(engine, call_log)
    await wait_until(lambda: engine.restarts == 1)
    assert (await ask(engine, (4, 5)))[0] == "0 1 2 "
    assert engine.running == 0


@only_processes
@pytest.mark.usefixtures("tokenizer")
async def test_embedding_waits_for_a_long_run(rkllm_of: RkllmMaker) -> None:
    script = f'answer when="9 9"\n  say "on " us=20000 times=150\n{COUNT}'
    engine = rkllm_of(script, n_batch=2, prefill_timeout_s=1.5)
    async with await engine.generate(request((9, 9))) as stream:
        await first_text(stream)
        vector = asyncio.create_task(embed(engine, (7, 8)))
        await read(stream)
        assert len(await vector) == 1
    assert engine.restarts == 0


@only_threads
@pytest.mark.usefixtures("tokenizer")
async def test_embedding_does_not_use_the_cache_of_a_chat(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    engine = rkllm_of(COUNT)
    await ask(engine, (1, 2, 3))
    before = len(read_log(call_log))
    await embed(engine, (7, 8, 9))
    names = [call.name for call in read_log(call_log)[before:]]
    assert "rkllm_clear_kv_cache" in names[: names.index("rkllm_run")]


@only_threads
@pytest.mark.usefixtures("tokenizer")
async def test_runtime_failure_is_reported(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(f'answer when="1 2"\n  returns 3\n{COUNT}')
    with pytest.raises(BackendFailed, match="rkllm_run answered 3"):
        await embed(engine, (1, 2))
    assert len(await embed(engine, (1, 3))) == 1


@only_threads
@pytest.mark.usefixtures("tokenizer")
async def test_openai_call_is_counted_and_answered(rkllm_of: RkllmMaker) -> None:
    service = OpenAIService(Pipeline(rkllm_of(COUNT), "fake", adapters=("legal",)))
    body = await service.create_embeddings(
        {"model": "fake", "input": ["ab", "c"], "dimensions": WIDTH}
    )
    assert [len(each["embedding"]) for each in body["data"]] == [WIDTH] * 2
    assert body["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    for bad, message in (
        ({"dimensions": 4}, "dimensions must be 8, the length of fake's vectors, got 4"),
        ({"model": "legal"}, "model must be fake for vectors, which adapters do not make"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            await service.create_embeddings({"input": "a", **bad})
    with pytest.raises(ModelNotFound, match="there is: fake, legal"):
        await service.create_embeddings({"input": "a", "model": "other"})


@only_threads
@pytest.mark.usefixtures("tokenizer")
async def test_output_is_released_where_the_runtime_supports_it(
    rkllm_of: RkllmMaker, call_log: Path, abi: Abi
) -> None:
    await embed(rkllm_of(COUNT), "a")
    [numbers] = [call.values for call in read_log(call_log) if call.name == "numbers"]
    expected = CallbackAnswer.RELEASE_OUTPUT if abi is not ABI_12 else CallbackAnswer.GO_ON
    assert int(numbers["answer"]) == expected


@pytest.mark.usefixtures("tokenizer")
@pytest.mark.parametrize("mode", ["generate", "logits"])
def test_doctor_tests_an_embedding_in_both_modes(
    library: Path, model: Callable[[str], Path], mode: str
) -> None:
    path = model(f"vocabulary 260\nchatter none\n{COUNT}")
    profile = path.with_suffix(".json")
    write_profile(profile, library, path, Profile(logits_with_history=True))
    options = {
        "model_path": str(path),
        "profile": str(profile),
        "model_name": "fake",
        "lib_path": str(library),
        "mode": mode,
    }
    findings = list(Doctor(options_from_wire("rkllm", options)).examine())
    assert ("loading", "seed", mode == "logits") in findings
    vector = {name: value for step, name, value in findings if step == "vector"}
    assert (vector["tokens"], vector["numbers"]) == (28, WIDTH)
    assert "closing" in {step for step, *_ in findings}


@only_threads
@pytest.mark.usefixtures("tokenizer")
async def test_cache_is_cleared_between_vectors(rkllm_of: RkllmMaker, call_log: Path) -> None:
    # rkllama#139: without it a vector took up to 26 s instead of 0.3 s.
    engine = rkllm_of(COUNT)
    await embed(engine, "one", "two", "three")
    names = [call.name for call in read_log(call_log)]
    names = [name for name in names if name in ("rkllm_run", "rkllm_clear_kv_cache")]
    vectors = names.index("rkllm_run")
    assert names[vectors:] == ["rkllm_run", "rkllm_clear_kv_cache"] * 3
