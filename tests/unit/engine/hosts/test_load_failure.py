"""Errors of loads for clients."""

from __future__ import annotations

from engine.backends.options import LlamaCppOptions
from engine.errors import ModelLoadFailed
from engine.hosts.load_failure import name_model


def test_name_model_leaves_out_folders_and_keeps_the_kind_and_details() -> None:
    options = LlamaCppOptions(model_path="/srv/models/a.gguf", model_name="small", slots=2)
    error = ModelLoadFailed("/srv/models/a.gguf is truncated", hint="load it again")
    named = name_model(error, options)
    assert type(named) is ModelLoadFailed
    assert named.message == "the model small cannot be loaded: a.gguf is truncated"
    assert named.details == {"hint": "load it again"}
