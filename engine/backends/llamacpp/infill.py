"""How a model is asked for what is missing between two texts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.backends.llamacpp.server import LlamaServer
from engine.errors import BackendFailed, UnsupportedParameter

# Words that no model's marks are made of.
_PREFIX_PLACEHOLDER, _SUFFIX = "alpha", "omega"


def read_infill_template(server: LlamaServer) -> tuple[str, ...]:
    """Return the parts of such a prompt, nothing for a model that was not trained for it.

    llama.cpp knows the marks of many models, and the order they want, but generates from such a
    prompt only over HTTP, and cuts both texts to a part of its batch. So it is asked once how it
    would do it.
    """
    body = {
        "input_prefix": _PREFIX_PLACEHOLDER,
        "input_suffix": _SUFFIX_PLACEHOLDER,
        "prompt": "",
        "n_predict": 0,
    }
    try:
        prompt = str(server.ask("/infill", body)["prompt"])
    except UnsupportedParameter:
        return ()
    first, second, *_ = server.ask("/tokenize", {"content": prompt, "add_special": True})["tokens"]
    if first == second:
        # It begins with the mark of a text's beginning, which every prompt is given.
        prompt = prompt.removeprefix(server.ask("/detokenize", {"tokens": [first]})["content"])
    parts = tuple(re.split(f"({_PREFIX}|{_SUFFIX})", prompt))
    if sorted(parts[1::2]) != [_PREFIX_PLACEHOLDER, _SUFFIX_PLACEHOLDER]:
        raise BackendFailed(f"llama.cpp made a prompt of its own of two texts: {prompt}")
    return parts


def fill_infill_template(frame: tuple[str, ...], prefix: str, suffix: str) -> str:
    """Return the prompt for two texts."""
    texts: Mapping[str, str] = {_PREFIX_PLACEHOLDER: prefix, _SUFFIX_PLACEHOLDER: suffix}
    return "".join([texts.get(part, part) for part in frame])
