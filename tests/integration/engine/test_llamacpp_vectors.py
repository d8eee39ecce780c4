"""Vectors of the real model, beside its generations."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from engine import BackendConfig, Engine, Priority
from engine.errors import PromptTooLong, RequestRejected
from tests.conftest import EngineFactory
from tests.integration.engine.support import ask

CONTEXT = 64
PROMPT = "Once upon a time"


@pytest.fixture(params=["process", "thread"])
def engine(
    engine_factory: EngineFactory, model_path: Path, request: pytest.FixtureRequest
) -> Engine:
    options = {"model_path": str(model_path), "model_name": "tiny", "threads": 1}
    return engine_factory(
        BackendConfig("llamacpp", {**options, "slots": 2, "context_length": CONTEXT}),
        isolation=request.param,
    )


async def test_vectors_and_answers_do_not_touch_each_other(engine: Engine) -> None:
    # R9, R31
    alone, _ = await ask(engine, PROMPT, temperature=0, max_tokens=8)
    texts = ["A red cat.", "So far away", "A red cat."]
    (beside, _), found = await asyncio.gather(
        ask(engine, PROMPT, temperature=0, max_tokens=8), engine.embed(texts, Priority.JOB)
    )
    assert beside == alone
    assert found[0] == found[2] != found[1]
    assert {len(each.vector) for each in found} == {(await engine.ready()).embedding_size}
    assert all(math.isclose(math.hypot(*each.vector), 1, abs_tol=1e-4) for each in found)
    # Nothing of an earlier text is in a later one that begins like it.
    [shorter] = await engine.embed(["A red"], Priority.JOB)
    [again] = await engine.embed(["A red cat."], Priority.JOB)
    assert shorter != again == found[0]


async def test_longest_text_and_one_that_is_too_long(engine: Engine) -> None:
    # R54
    tokens = tuple((await engine.tokenize(" one" * CONTEXT))[:CONTEXT])
    [longest] = await engine.embed([tokens], Priority.JOB)
    assert longest.tokens == CONTEXT
    too_long = "^input: 65 tokens do not fit the context of 64 tokens$"
    with pytest.raises(PromptTooLong, match=too_long) as raised:
        await engine.embed([(*tokens, tokens[0])], Priority.JOB)
    assert raised.value.details["param"] == "input"
    with pytest.raises(
        RequestRejected, match=r"^input: 1000000000 is no token id of tiny"
    ) as unknown:
        await engine.embed([(10**9,)], Priority.JOB)
    assert unknown.value.details == {"param": "input"}
    assert engine.running == 0
