"""Embeddings of the real model, concurrently with generations."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from engine import EMBED, BackendConfig, Engine, Priority
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
        BackendConfig.from_wire("llamacpp", {**options, "slots": 2, "context_length": CONTEXT}),
        isolation=request.param,
    )


@pytest.mark.long_except("process")
async def test_embeddings_and_answers_do_not_affect_each_other(engine: Engine) -> None:
    # R9, R31
    single, _ = await ask(engine, PROMPT, temperature=0, max_tokens=8)
    texts = ["A red cat.", "So far away", "A red cat."]
    (concurrent, _), embeddings = await asyncio.gather(
        ask(engine, PROMPT, temperature=0, max_tokens=8), engine.compute(EMBED, texts, Priority.JOB)
    )
    assert concurrent == single
    assert embeddings[0] == embeddings[2] != embeddings[1]
    assert {len(each.vector) for each in embeddings} == {(await engine.ready()).embedding_size}
    assert all(math.isclose(math.hypot(*each.vector), 1, abs_tol=1e-4) for each in embeddings)
    # An earlier text with the same beginning does not affect a later embedding.
    [shorter] = await engine.compute(EMBED, ["A red"], Priority.JOB)
    [repeated] = await engine.compute(EMBED, ["A red cat."], Priority.JOB)
    assert shorter != repeated == embeddings[0]


@pytest.mark.long_except("process")
async def test_longest_text_is_embedded_and_a_longer_one_is_refused(engine: Engine) -> None:
    # R54
    tokens = tuple((await engine.tokenize(" one" * CONTEXT))[:CONTEXT])
    [longest] = await engine.compute(EMBED, [tokens], Priority.JOB)
    assert longest.tokens == CONTEXT
    too_long = "^input: 65 tokens do not fit the context of 64 tokens$"
    with pytest.raises(PromptTooLong, match=too_long) as raised:
        await engine.compute(EMBED, [(*tokens, tokens[0])], Priority.JOB)
    assert raised.value.details["param"] == "input"
    with pytest.raises(
        RequestRejected, match=r"^input: 1000000000 is no token id of tiny"
    ) as unknown:
        await engine.compute(EMBED, [(10**9,)], Priority.JOB)
    assert unknown.value.details == {"param": "input"}
    assert engine.running == 0
