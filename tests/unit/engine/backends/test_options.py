"""The options of backends as JSON values and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.backends.lora_adapters import LoraAdapter
from engine.backends.options import (
    BackendOptions,
    LlamaCppOptions,
    RkllmOptions,
    ScriptedOptions,
    options_from_wire,
    options_to_wire,
)

ADAPTERS = (LoraAdapter("one", Path("/a,b=c:1.gguf"), 0.5), LoraAdapter("two", Path("two")))


@pytest.mark.parametrize(
    "options",
    [
        ScriptedOptions(),
        LlamaCppOptions(model_path="m", model_name="n", adapters=ADAPTERS),
        RkllmOptions(model_path="m", model_name="n", adapters=ADAPTERS, vision="v.rknn"),
    ],
    ids=lambda options: options.backend,
)
def test_options_are_the_same_after_json(options: BackendOptions) -> None:
    values = json.loads(json.dumps(options_to_wire(options)))
    assert options_from_wire(options.backend, values) == options


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no backend 'abacus'"):
        options_from_wire("abacus", {})
