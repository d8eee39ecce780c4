"""Reasoning that a GGUF's own template opens, with a changed template of the default model."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import BackendConfig, Chat, Message
from engine.errors import RequestRejected
from tests.conftest import EngineFactory

# Parts of its template, and their replacements.
BEGINNING = (
    b"{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    b"<|im_end|>\n' }}"
)
ENDING = b"{{ '<|im_start|>assistant\n' }}"
OPENS = b"{{ '<|im_start|>as<think>\n' }}"
REFUSES = b"{% if messages[0]['content'] == 'a' %}{{ raise_exception('no') }}{% endif %}"


def changed(model_path: Path, folder: Path, old: bytes, new: bytes) -> BackendConfig:
    model = model_path.read_bytes()
    assert model.count(old) == 1
    path = folder / "model.gguf"
    # Each has the same length, so that nothing else in the file moves.
    path.write_bytes(model.replace(old, new.ljust(len(old))))
    options = {"model_path": str(path), "model_name": "tiny", "threads": 1, "slots": 1}
    return BackendConfig("llamacpp", options | {"context_length": 256})


@pytest.mark.parametrize(
    ("old", "new", "opens"),
    [(ENDING, ENDING, False), (ENDING, OPENS, True), (BEGINNING, REFUSES, False)],
    ids=["usual", "opens", "refuses"],
)
async def test_template_that_opens_reasoning_is_detected(
    engine_factory: EngineFactory,
    model_path: Path,
    tmp_path: Path,
    old: bytes,
    new: bytes,
    opens: bool,
) -> None:
    # R39: as DeepSeek-R1's, whose answers have only the thoughts' end in them.
    engine = engine_factory(changed(model_path, tmp_path, old, new))
    assert (await engine.ready()).starts_in_reasoning is opens
    if old is BEGINNING:
        # The reason alone, without llama.cpp's trace.
        with pytest.raises(RequestRejected) as raised:
            await engine.render(Chat((Message("user", "a"),)))
        assert raised.value.message == ("messages: the model's chat template cannot take them: no")
    prompt = await engine.render(Chat((Message("user", "hi"),)))
    assert prompt.endswith("<|im_start|>as<think>\n") is opens
