"""Translate Ollama's `options` into the parameters of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.value_description import describe_value
from handler.errors import InvalidRequest
from handler.input.unknown_keys import KnownKeys

# The names of the same parameters in OpenAI's API, as vLLM extends it.
PARAMETERS: Mapping[str, str] = {
    "frequency_penalty": "frequency_penalty",
    "min_p": "min_p",
    "num_predict": "max_tokens",
    "presence_penalty": "presence_penalty",
    "repeat_penalty": "repetition_penalty",
    "seed": "seed",
    "stop": "stop",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
}
# Ollama's own defaults, from its reference of the Modelfile. They are no limits at temperature 0.
DEFAULTS: Mapping[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
_UNSUPPORTED = (
    *("draft_num_predict", "f16_kv", "logits_all", "low_vram", "main_gpu", "mirostat"),
    *("mirostat_eta", "mirostat_tau", "num_batch", "num_gpu", "num_keep", "num_thread", "numa"),
    *("penalize_newline", "repeat_last_n", "tfs_z", "typical_p", "use_mlock", "use_mmap"),
    "vocab_only",
)
_KEYS = KnownKeys(
    "options.",
    PARAMETERS,
    notes={
        **dict.fromkeys(_UNSUPPORTED, "is not supported and was ignored"),
        "num_ctx": "was ignored: the context is the setting CONTEXT_LENGTH",
    },
    warns_about_all=True,
)


def translate_options(options: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the parameters, and a warning for each option that has no effect.

    The values are checked by the reader of OpenAI's bodies. Raises InvalidRequest.
    """
    if options is None:
        options = {}
    if not isinstance(options, Mapping):
        raise InvalidRequest(f"options must be an object, got {describe_value(options)}", "options")
    set_options = {
        name: options[name] for name in PARAMETERS if options.get(name) not in (None, [], "")
    }
    for name in ("num_predict", "seed"):
        # A number below these means that there is no limit, or a random seed.
        lowest = 1 if name == "num_predict" else 0
        value = set_options.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value < lowest:
            del set_options[name]
    parameters = {PARAMETERS[name]: value for name, value in {**DEFAULTS, **set_options}.items()}
    return parameters, _KEYS.warnings(options)
