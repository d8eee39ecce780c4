"""Reranking by the real library, with an encoder and with a decoder as reranking models."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import EMBED, RERANK, BackendConfig, Engine, Priority
from engine.errors import PromptTooLong, UnsupportedParameter
from tests.conftest import EngineFactory
from tests.models.llama import write_llama_model
from tests.models.reranking import CONTEXT, write_reranking_model


def llamacpp(path: Path) -> BackendConfig:
    options = {"model_path": str(path), "model_name": "tiny", "threads": 1}
    return BackendConfig.from_wire("llamacpp", {**options, "slots": 2, "context_length": CONTEXT})


@pytest.fixture(params=["encoder", "decoder"])
def engine(engine_factory: EngineFactory, tmp_path: Path, request: pytest.FixtureRequest) -> Engine:
    path = tmp_path / "ranking.gguf"
    if request.param == "encoder":
        write_reranking_model(path)
    else:
        write_llama_model(path, properties={"llama.pooling_type": 4})
    return engine_factory(llamacpp(path), isolation="process")


async def test_document_has_the_same_score_alone_and_among_others(engine: Engine) -> None:
    capabilities = await engine.ready()
    assert (capabilities.rerank, capabilities.embeddings) == (True, False)
    paris, bananas = ("capital of france", "paris"), ("capital of france", "bananas are yellow")
    scores = await engine.compute(RERANK, [paris, bananas, paris], Priority.JOB)
    assert scores[0] == scores[2] != scores[1]
    assert [scores[1]] == await engine.compute(RERANK, [bananas], Priority.JOB)
    assert all(0 < each.tokens < CONTEXT for each in scores)
    with pytest.raises(UnsupportedParameter, match="has no embeddings"):
        await engine.compute(EMBED, ["a"], Priority.JOB)


async def test_pair_that_is_too_long_is_refused_by_name(engine: Engine) -> None:
    # R54
    # The encoder has no token for the space alone, and the decoder none for a word without it.
    fitting = (" one", " one" * (CONTEXT - 5))
    [longest] = await engine.compute(RERANK, [fitting], Priority.JOB)
    assert CONTEXT - 4 <= longest.tokens <= CONTEXT
    params = [("query", "documents[0]"), ("query", "documents[1]")]
    for pair, param, tokens in (
        ((fitting[0], fitting[1] + " one"), "documents[1]", CONTEXT + 1),
        ((" one" * CONTEXT, " one"), "query", CONTEXT + 4),
    ):
        with pytest.raises(PromptTooLong) as raised:
            await engine.compute(RERANK, [fitting, pair], Priority.JOB, params=params)
        assert raised.value.details["param"] == param
        assert raised.value.message.startswith(f"{param}: {tokens} tokens of a query and a doc")
    assert engine.running == 0


async def test_other_models_do_not_rerank(engine_factory: EngineFactory, model_path: Path) -> None:
    engine = engine_factory(llamacpp(model_path))
    assert not (await engine.ready()).rerank
    with pytest.raises(UnsupportedParameter, match=r"^query: tiny is no reranking model$"):
        await engine.compute(RERANK, [("a", "b")], Priority.JOB)
