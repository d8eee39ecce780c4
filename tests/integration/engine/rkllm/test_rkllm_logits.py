"""RKLLM_MODE=logits with both ABIs: sampling from a model whose logits are known.

The fake library's logits depend on each preceding token, so an answer shows whether the runtime
received the complete prompt, each token once and in order, and no token of another request.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import EMBED, Chat, Engine, FinishReason, Message, Priority
from engine.backends.rkllm.logits.sampler import Sampler
from engine.backends.rkllm.logits.token_loop import PREFILL_CHUNK_TOKENS
from engine.errors import (
    BackendFailed,
    ModelLoadFailed,
    PromptTooLong,
    RequestRejected,
    UnsupportedParameter,
)
from engine.request import RenderedPrompt, SamplingParams
from tests.fake_rkllm import Call, read_log
from tests.fake_rkllm.oracle import logits_after
from tests.fake_rkllm.tokenizer import id_of, tokenizer, write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask, first_text, read, request
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("examined_once")
only_processes = pytest.mark.parametrize("isolation", ["process"], indirect=True)
only_threads = pytest.mark.parametrize("isolation", ["thread"], indirect=True)

SIZE = 260
MODEL = f"vocabulary {SIZE}\nanswer\n"
END = id_of("</s>")
GREEDY: dict[str, Any] = {"temperature": 0.0}


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> Path:
    """Write tokenizer files for every model of this test, with one token per byte."""
    return write_tokenizer(tmp_path)


def logits_engine(rkllm_of: RkllmMaker, script: str = MODEL, **options: Any) -> Engine:
    return rkllm_of(script, mode="logits", **options)


def expected(
    prompt: RenderedPrompt, *, lora: str = "", context: int = 4096, **sampling: Any
) -> list[int]:
    """Return the expected tokens of an answer, each computed from all tokens before it."""
    tokens = list(prompt) if isinstance(prompt, tuple) else tokenizer().encode(prompt).ids
    params = SamplingParams(**sampling)
    chooses = Sampler(params, tokens, SIZE)
    sampled: list[int] = []
    while len(tokens) + len(sampled) < context and len(sampled) != params.max_tokens:
        token = chooses.sample(logits_after([*tokens, *sampled], SIZE, lora)).token
        if token == END and not params.ignore_eos:
            break
        sampled.append(token)
    return sampled


def decode_text(tokens: Sequence[int]) -> str:
    """Return the text of tokens as in a stream."""
    decode = tokenizer().decoder.decode
    plain = [tokenizer().id_to_token(token) for token in tokens if token < 256]
    return str(decode([piece for piece in plain if piece is not None]))


def calls(log: Path, name: str) -> list[Call]:
    return [call for call in read_log(log) if call.name == name]


async def answer(engine: Engine, prompt: RenderedPrompt = "hi", **sampling: Any) -> str:
    text, _ = await ask(engine, prompt, **sampling)
    # A stream omits an incomplete character at its end; decoding the complete text does not.
    return text.rstrip("\N{REPLACEMENT CHARACTER}")


async def matches_expected(engine: Engine, prompt: RenderedPrompt = "hi", **sampling: Any) -> bool:
    text = await answer(engine, prompt, **sampling)
    return text == decode_text(expected(prompt, **sampling)).rstrip("\N{REPLACEMENT CHARACTER}")


@only_threads
async def test_capabilities(rkllm_of: RkllmMaker) -> None:
    capabilities = await logits_engine(rkllm_of).ready()
    assert (
        capabilities.seed,
        capabilities.min_p,
        capabilities.logit_bias,
        capabilities.penalties,
        capabilities.ignore_eos,
    ) == (True,) * 5
    assert (
        capabilities.max_logprobs,
        capabilities.fixed_sampling,
        capabilities.abort_in_prefill,
    ) == (20, {}, True)
    assert (capabilities.grammar, capabilities.json_schema, capabilities.prefix_reuse) == (
        True,
        True,
        False,
    )


@only_threads
async def test_answer_follows_the_models_logits_step_by_step(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    engine = logits_engine(rkllm_of)
    prompt = "x" * (2 * PREFILL_CHUNK_TOKENS + 44)
    assert await matches_expected(engine, prompt, **GREEDY, max_tokens=30)
    # The prompt in chunks, then one token at a time, and the cache cleared afterwards.
    fed = [int(call.values["tokens"]) for call in calls(call_log, "rkllm_run")]
    assert fed[:3] == [PREFILL_CHUNK_TOKENS, PREFILL_CHUNK_TOKENS, 45]
    assert set(fed[3:]) <= {1}
    assert len(calls(call_log, "rkllm_clear_kv_cache")) == 2


SAMPLINGS: list[dict[str, Any]] = [
    {"seed": 5},
    {"seed": 6, "temperature": 0.4, "top_p": 0.8},
    {"seed": 7, "top_k": 5, "min_p": 0.3},
    {"seed": 8, "repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 1.5},
    {"seed": 9, "logit_bias": {65: 4.0, 66: 4.0, 67: -100.0}},
]


@only_threads
async def test_sampling_is_honoured(rkllm_of: RkllmMaker) -> None:
    # R9, R10: and the same seed gives the same answer.
    engine = logits_engine(rkllm_of)
    for sampling in SAMPLINGS:
        async with await engine.generate(request("hi", **sampling, max_tokens=40)) as stream:
            text = "".join(delta.text for delta in await read(stream))
        assert stream.warnings == ()
        text = text.rstrip("\N{REPLACEMENT CHARACTER}")
        assert text == decode_text(expected("hi", **sampling, max_tokens=40)).rstrip(
            "\N{REPLACEMENT CHARACTER}"
        )
        assert await answer(engine, **sampling, max_tokens=40) == text
        assert await answer(engine, **{**sampling, "seed": 99}, max_tokens=40) != text


@only_threads
async def test_logprobs_are_the_models(rkllm_of: RkllmMaker) -> None:
    # R13
    engine = logits_engine(rkllm_of)
    sampling: dict[str, Any] = {"seed": 3, "max_tokens": 12, "logprobs": 3, "ignore_eos": True}
    async with await engine.generate(request("hi", **sampling)) as stream:
        deltas = await read(stream)
    tokens = expected("hi", **sampling)
    logprobs = [delta.logprob for delta in deltas if delta.logprob is not None]
    assert len(logprobs) == len(tokens) == 12
    preceding = tokenizer().encode("hi").ids
    for each, token in zip(logprobs, tokens, strict=True):
        row = logits_after(preceding, SIZE).astype(np.float64)
        logs = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert each.logprob == pytest.approx(logs[token], abs=1e-4)
        assert [logprob for _, logprob in each.top] == pytest.approx(
            sorted(logs, reverse=True)[:3], abs=1e-4
        )
        preceding.append(token)


@only_threads
async def test_end_of_sequence_ends_the_answer(rkllm_of: RkllmMaker) -> None:
    # R4, R10: it is not a token of the answer, unless it is ignored.
    engine = logits_engine(rkllm_of)
    text, finish = await ask(engine, logit_bias={END: 100.0})
    assert (text, finish.reason, finish.usage.completion_tokens) == ("", FinishReason.STOP, 0)
    text, finish = await ask(engine, logit_bias={END: 100.0}, ignore_eos=True, max_tokens=7)
    assert (text, finish.reason, finish.usage.completion_tokens) == ("", FinishReason.LENGTH, 7)


@only_threads
async def test_limits_and_stops_are_exact(rkllm_of: RkllmMaker, call_log: Path) -> None:
    # R8, R11
    engine = logits_engine(rkllm_of, context_length=64)
    only_a = {"logit_bias": {id_of("a"): 100.0}, **GREEDY}
    text, finish = await ask(engine, "x" * 50, **only_a)
    assert (text, finish.reason) == ("a" * 13, FinishReason.LENGTH)
    assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (51, 13)
    text, finish = await ask(engine, "hi", **only_a, max_tokens=5)
    assert (text, finish.reason) == ("aaaaa", FinishReason.LENGTH)
    text, finish = await ask(engine, "hi", **only_a, stop=("aaaa",))
    assert (text, finish.reason, finish.stop_reason) == ("", FinishReason.STOP, "aaaa")
    assert finish.usage.completion_tokens == 4
    with pytest.raises(PromptTooLong):
        await ask(engine, "x" * 64)
    # No token is computed that is not delivered.
    fed = sum(int(call.values["tokens"]) for call in calls(call_log, "rkllm_run"))
    assert fed == (51 + 12) + (3 + 4) + (3 + 3)


@only_processes
async def test_answers_do_not_share_a_context(rkllm_of: RkllmMaker, call_log: Path) -> None:
    engine = logits_engine(rkllm_of)
    sampling: dict[str, Any] = {**GREEDY, "max_tokens": 12}
    expected_texts = {
        prompt: decode_text(expected(prompt, **sampling)) for prompt in ("a", "ab", "b")
    }
    texts = await asyncio.gather(
        *(answer(engine, prompt, **sampling) for prompt in [*expected_texts] * 3)
    )
    for prompt, text in zip([*expected_texts] * 3, texts, strict=True):
        assert text == expected_texts[prompt].rstrip("\N{REPLACEMENT CHARACTER}")
    # Also after a cancelled and a refused request.
    forever: dict[str, Any] = {"logit_bias": {id_of("a"): 100.0}, "ignore_eos": True}
    async with await engine.generate(request("left", **forever)) as stream:
        await first_text(stream)
    await wait_until(lambda: not engine.running)
    with pytest.raises(RequestRejected, match="logit_bias: there is no token 260"):
        await ask(engine, "a", logit_bias={SIZE: 1.0})
    assert await matches_expected(engine, "a", **sampling)
    runs = [call.name for call in read_log(call_log) if call.name in ("rkllm_run", "run_end")]
    assert runs == ["rkllm_run", "run_end"] * (len(runs) // 2)


@only_threads
async def test_abort_takes_effect_between_prompt_chunks(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    engine = logits_engine(rkllm_of, f"vocabulary {SIZE}\nanswer\n  prefill_ms 100\n")
    await engine.ready()
    abandoned = asyncio.create_task(ask(engine, "x" * (10 * PREFILL_CHUNK_TOKENS)))
    await wait_until(lambda: call_log.exists() and bool(calls(call_log, "rkllm_run")))
    abandoned.cancel()
    await asyncio.gather(abandoned, return_exceptions=True)
    await wait_until(lambda: not engine.running)
    assert len(calls(call_log, "rkllm_run")) < 5
    assert await matches_expected(engine, **GREEDY, max_tokens=2)


@only_threads
async def test_failure_affects_only_its_request(rkllm_of: RkllmMaker) -> None:
    engine = logits_engine(
        rkllm_of,
        f'vocabulary {SIZE}\nanswer when="1 2"\n  returns 3\nanswer when="3 4"\n  prefill_ms 0\n'
        "answer\n",
    )
    with pytest.raises(BackendFailed, match="rkllm_run answered 3"):
        await ask(engine, (1, 2), **GREEDY)
    assert await matches_expected(engine, (3, 4), **GREEDY, max_tokens=5)


@only_threads
async def test_adapter_is_used_in_every_step(rkllm_of: RkllmMaker, tmp_path: Path) -> None:
    (tmp_path / "one.lora").touch()
    engine = logits_engine(rkllm_of, lora=f"french={tmp_path}/one.lora")
    sampling: dict[str, Any] = {**GREEDY, "max_tokens": 12}
    expected_text = decode_text(expected("hi", lora="french", **sampling))
    assert expected_text != decode_text(expected("hi", **sampling))
    text = await answer(engine, **sampling, lora="french")
    assert text == expected_text.rstrip("\N{REPLACEMENT CHARACTER}")
    assert await matches_expected(engine, **sampling)


@only_threads
async def test_embeddings_alongside_answers(rkllm_of: RkllmMaker) -> None:
    engine = logits_engine(rkllm_of)
    [vector] = await engine.compute(EMBED, ["hi"], Priority.INTERACTIVE)
    assert vector.tokens == 3
    assert await matches_expected(engine, **GREEDY, max_tokens=5)


@only_threads
async def test_chat_needs_a_template(rkllm_of: RkllmMaker, tmp_path: Path) -> None:
    chat = Chat((Message("user", "hi"),))
    assert (await ask(logits_engine(rkllm_of), chat, **GREEDY, max_tokens=2))[1]
    write_tokenizer(tmp_path, None)
    with pytest.raises(UnsupportedParameter, match="fake has no chat template"):
        await ask(logits_engine(rkllm_of), chat)


@only_threads
async def test_missing_dependency_is_named_in_logits_mode(
    rkllm_of: RkllmMaker, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "engine.backends.rkllm.logits.token_loop", None)
        with pytest.raises(ModelLoadFailed, match="RKLLM_MODE=logits needs numpy: `pip install"):
            await logits_engine(rkllm_of).ready()
    (files / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadFailed, match="RKLLM_MODE=logits needs the tokenizer files"):
        await logits_engine(rkllm_of).ready()


@only_threads
async def test_chat_is_computed_completely(rkllm_of: RkllmMaker, call_log: Path) -> None:
    # R16: the cache between steps belongs to the answer alone.
    engine = logits_engine(rkllm_of)
    prompt = tuple(range(10))
    sampling: dict[str, Any] = {**GREEDY, "max_tokens": 3}
    for _ in range(2):
        async with await engine.generate(request(prompt, **sampling)) as stream:
            await read(stream)
        assert stream.result is not None
        assert stream.result.usage.cached_tokens == 0
        await engine.compute(EMBED, ["hi"], Priority.INTERACTIVE)
        contexts = [
            call.values for call in calls(call_log, "context") if call.values["new"] == "10"
        ]
        assert contexts[-1]["held"] == "0"
        prompt = (*prompt, *expected(prompt, **sampling))[:10]
