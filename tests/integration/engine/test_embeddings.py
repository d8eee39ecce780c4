"""Embeddings and fill-in-the-middle with both kinds of host."""

from __future__ import annotations

import pytest

from engine import EMBED, Engine, Priority
from engine.errors import EngineClosed, PromptTooLong, UnsupportedParameter
from engine.request import RenderedPrompt
from tests.integration.engine.conftest import EngineMaker

JOB = Priority.JOB


async def test_embeddings_are_returned_in_order(engine_of: EngineMaker) -> None:
    engine = engine_of()
    texts: list[RenderedPrompt] = ["a red cat", (5, 7), "a red cat"]
    one, two, repeated = await engine.compute(EMBED, texts, JOB)
    assert (one.tokens, two.tokens) == (3, 2)
    assert one == repeated
    assert len(one.vector) == (await engine.ready()).embedding_size
    assert engine.running == 0


async def test_refused_embedding_frees_the_slot(engine_of: EngineMaker) -> None:
    # R54
    engine = engine_of(slots=1, context_length=3)
    with pytest.raises(PromptTooLong) as raised:
        await engine.compute(EMBED, ["one", "one two three"], JOB)
    assert raised.value.details == {"prompt_tokens": 3, "context_length": 3, "param": "input"}
    assert engine.running == 0
    assert len(await engine.compute(EMBED, ["one"], JOB)) == 1


async def test_engine_without_embeddings_refuses_them(engine_of: EngineMaker) -> None:
    engine = engine_of(capabilities={"embeddings": False})
    with pytest.raises(UnsupportedParameter, match="the scripted engine has no embeddings"):
        await engine.compute(EMBED, ["one"], JOB)
    assert engine.running == 0


async def test_closed_engine_has_no_embeddings(engine_of: EngineMaker) -> None:
    engine: Engine = engine_of()
    await engine.ready()
    await engine.close()
    with pytest.raises(EngineClosed):
        await engine.compute(EMBED, ["one"], JOB)


async def test_infill_prompt_is_made_by_the_backend(engine_of: EngineMaker) -> None:
    assert await engine_of().infill("before ", " after") == "before <gap> after"
