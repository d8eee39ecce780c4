"""Reasoning that a GGUF's own template opens, with changed templates of the tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import BackendConfig, Chat, Message
from engine.errors import RequestRejected
from tests.conftest import EngineFactory
from tests.models.llama import TEMPLATE, write_llama_model

ENDING = "{{ '<|im_start|>assistant\n' }}"
OPENS = "{{ '<|im_start|>assistant\n<think>\n' }}"
REFUSES = "{% if messages[0]['content'] == 'a' %}{{ raise_exception('no') }}{% endif %}"
TEMPLATES = {
    "usual": TEMPLATE,
    "opens": TEMPLATE.replace(ENDING, OPENS),
    "refuses": REFUSES + TEMPLATE,
}


def configure(folder: Path, template: str) -> BackendConfig:
    path = write_llama_model(folder / "model.gguf", template=template)
    options = {"model_path": str(path), "model_name": "tiny", "threads": 1, "slots": 1}
    return BackendConfig.from_wire("llamacpp", options | {"context_length": 256})


@pytest.mark.parametrize("kind", TEMPLATES)
async def test_template_that_opens_reasoning_is_detected(
    engine_factory: EngineFactory, tmp_path: Path, kind: str
) -> None:
    # R39: as DeepSeek-R1's, whose answers have only the thoughts' end in them.
    opens = kind == "opens"
    engine = engine_factory(configure(tmp_path, TEMPLATES[kind]))
    assert (await engine.ready()).starts_in_reasoning is opens
    if kind == "refuses":
        # The reason alone, without llama.cpp's trace.
        with pytest.raises(RequestRejected) as raised:
            await engine.render(Chat((Message("user", "a"),)))
        assert raised.value.message == ("messages: the model's chat template cannot take them: no")
    prompt = await engine.render(Chat((Message("user", "hi"),)))
    assert prompt.endswith("<|im_start|>assistant\n<think>\n") is opens
