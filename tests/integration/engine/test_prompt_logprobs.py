"""The log-probabilities of prompts, with the tiny model."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engine import SCORE, BackendConfig, Engine, EngineConfig, Priority, PromptToken
from engine.errors import PromptTooLong, RequestRejected
from tests.integration.engine.support import read, request

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONTEXT = 512
# Longer than one batch of 64 tokens, with characters of several tokens.
TEXT = "The quick brown fox jumps over the lazy dog. 😀 Zürich 你好\n" * 8


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(model_path: Path) -> AsyncIterator[Engine]:
    options = {"model_path": str(model_path), "model_name": "tiny", "context_length": CONTEXT}
    engine = Engine(
        EngineConfig(backend=BackendConfig.from_wire("llamacpp", {**options, "slots": 1}))
    )
    await engine.ready()
    yield engine
    assert (engine.running, engine.restarts) == (0, 0)
    await engine.close()


async def score(engine: Engine, prompt: str | tuple[int, ...]) -> list[PromptToken]:
    [tokens] = await engine.compute(SCORE, [(prompt, 5)], Priority.INTERACTIVE)
    return tokens


async def test_tokens_are_the_prompt(engine: Engine) -> None:
    tokens = await score(engine, TEXT)
    assert "".join(token.text for token in tokens) == TEXT
    assert len(tokens) == len(await engine.tokenize(TEXT)) > 128
    assert (tokens[0].logprob, tokens[0].top) == (None, ())
    for token in tokens[1:]:
        values = [value for _, value in token.top]
        assert token.logprob is not None
        assert token.logprob <= values[0] <= 0
        assert values == sorted(values, reverse=True)
        assert len(values) == 5
        assert sum(map(math.exp, values)) < 1.000_1


async def test_token_ids_have_one_entry_each(engine: Engine) -> None:
    ids = tuple(await engine.tokenize(TEXT))
    assert await score(engine, ids) == await score(engine, TEXT)


async def test_every_value_depends_on_all_tokens_before_it(engine: Engine) -> None:
    # Also on those of other batches.
    tokens = await score(engine, TEXT)
    changed = await score(engine, TEXT.replace("T", "t", 1))
    assert [each.text for each in changed[1:]] == [each.text for each in tokens[1:]]
    assert all(
        one.logprob != other.logprob for one, other in zip(tokens[1:], changed[1:], strict=True)
    )
    # And on none after it.
    begun = await score(engine, TEXT[: len(TEXT) // 2])
    assert [each.logprob for each in begun[1:]] == pytest.approx(
        [each.logprob for each in tokens[1 : len(begun)]], abs=0.05
    )


async def test_values_are_those_of_a_generation(engine: Engine) -> None:
    # The greedy answer's own log-probabilities are those of the same tokens in a prompt.
    prompt = "Once upon a time there was " * 5
    generation = request(prompt, temperature=0, max_tokens=20, logprobs=1)
    async with await engine.generate(generation) as stream:
        deltas = await read(stream)
    generated = [delta.logprob for delta in deltas if delta.logprob is not None]
    ids = tuple(await engine.tokenize(prompt + "".join(each.token for each in generated)))
    scored = (await score(engine, ids))[-len(generated) :]
    assert [token.text for token in scored] == [each.token for each in generated]
    for token, each in zip(scored, generated, strict=True):
        assert token.logprob == pytest.approx(each.logprob, abs=0.05)
        assert token.top[0][0] == each.token


async def test_one_token_has_no_log_probability(engine: Engine) -> None:
    assert await score(engine, (100,)) == [PromptToken(await engine.detokenize((100,)))]


async def test_what_cannot_be_scored_is_refused(engine: Engine) -> None:
    with pytest.raises(PromptTooLong, match="513 tokens do not fit the context of 512"):
        await score(engine, (100,) * (CONTEXT + 1))
    with pytest.raises(PromptTooLong, match="do not fit the context of 512"):
        await score(engine, "word " * 600)
    with pytest.raises(RequestRejected, match="prompt: 9999999 is no token id"):
        await score(engine, (9_999_999,))
    assert len(await score(engine, (100,) * CONTEXT)) == CONTEXT


async def test_tokens_have_their_ids_and_ranks(engine: Engine) -> None:
    ids = await engine.tokenize(TEXT)
    tokens = await score(engine, TEXT)
    for token_id, token in zip(ids[1:], tokens[1:], strict=True):
        assert token.token_id == token_id
        assert len(token.top_ids) == len(token.top) == 5
        if token.rank <= 5:
            assert token.top_ids[token.rank - 1] == token_id
            assert token.top[token.rank - 1][1] == token.logprob
        else:
            assert token_id not in token.top_ids
    assert any(token.rank > 5 for token in tokens)
