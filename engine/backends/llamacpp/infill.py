"""Fill-in-the-middle prompts: read a model's template from llama.cpp and fill it in."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.backends.llamacpp.server import LlamaServer
from engine.errors import BackendFailed, UnsupportedParameter

# Words that occur in no model's fill-in-the-middle markers.
_PREFIX_PLACEHOLDER, _SUFFIX_PLACEHOLDER = "alpha", "omega"


def read_infill_template(server: LlamaServer) -> tuple[str, ...]:
    """Return the parts of a fill-in-the-middle prompt; empty if the model does not support it.

    llama.cpp knows the markers of many models and their order. But it generates from such a prompt
    only over HTTP, and truncates both texts to a part of its batch. So its prompt for two
    placeholders is read once, and prompts are built from that.

    Raises:
        BackendFailed: llama.cpp's prompt does not contain each placeholder exactly once.
    """
    body = {
        "input_prefix": _PREFIX_PLACEHOLDER,
        "input_suffix": _SUFFIX_PLACEHOLDER,
        "prompt": "",
        "n_predict": 0,
    }
    try:
        prompt = str(server.request("/infill", body)["prompt"])
    except UnsupportedParameter:
        return ()
    first, second, *_ = server.request("/tokenize", {"content": prompt, "add_special": True})[
        "tokens"
    ]
    if first == second:
        # The prompt starts with the beginning-of-sequence token, which llama.cpp adds to every
        # prompt anyway.
        prompt = prompt.removeprefix(server.request("/detokenize", {"tokens": [first]})["content"])
    parts = tuple(re.split(f"({_PREFIX_PLACEHOLDER}|{_SUFFIX_PLACEHOLDER})", prompt))
    if sorted(parts[1::2]) != [_PREFIX_PLACEHOLDER, _SUFFIX_PLACEHOLDER]:
        raise BackendFailed(f"llama.cpp made a prompt of its own of two texts: {prompt}")
    return parts


def fill_infill_template(template: tuple[str, ...], prefix: str, suffix: str) -> str:
    """Return the fill-in-the-middle prompt for two texts."""
    texts: Mapping[str, str] = {_PREFIX_PLACEHOLDER: prefix, _SUFFIX_PLACEHOLDER: suffix}
    return "".join([texts.get(part, part) for part in template])
