"""Fill-in-the-middle with a model that has marks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import BackendConfig
from engine.errors import UnsupportedParameter
from tests.conftest import EngineFactory
from tests.integration.engine.support import ask
from tests.models.llama import write_llama_model

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


def llamacpp(path: Path) -> BackendConfig:
    options = {"model_path": str(path), "model_name": "tiny", "threads": 1}
    return BackendConfig.from_wire("llamacpp", {**options, "slots": 1, "context_length": 512})


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    return write_llama_model(tmp_path / "marked.gguf", special_tokens=MARKS)


async def test_infill_prompt_has_the_models_marks(
    engine_factory: EngineFactory, marked: Path
) -> None:
    engine = engine_factory(llamacpp(marked))
    assert (await engine.ready()).infill
    prompt = await engine.infill("def add(a, b):\n    return ", "\n\nprint(add(1, 2))")
    assert prompt.endswith(
        "<|fim_prefix|>def add(a, b):\n    return <|fim_suffix|>\n\nprint(add(1, 2))<|fim_middle|>"
    )
    # Each mark is one token, and long texts are not cut.
    for mark in MARKS:
        assert len(await engine.tokenize(mark)) == 1
    long = await engine.infill("word " * 150, " word" * 150)
    assert long.count("word") == 300
    _, finish = await ask(engine, long, max_tokens=1, temperature=0)
    assert finish.usage.prompt_tokens > 300


async def test_infill_is_refused_for_a_model_without_marks(
    engine_factory: EngineFactory, model_path: Path
) -> None:
    # R16
    engine = engine_factory(llamacpp(model_path))
    assert not (await engine.ready()).infill
    with pytest.raises(UnsupportedParameter, match="suffix: tiny cannot fill gaps"):
        await engine.infill("a", "b")
