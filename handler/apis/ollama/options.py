"""Read Ollama's `options`: the parameters of sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from common.value_description import describe_value
from engine import SamplingParams
from handler.errors import InvalidRequest
from handler.input.sampling import (
    MAX_INT32,
    MAX_STOP_CHARS,
    MAX_STOPS,
    ParameterInput,
    StopStrings,
    find_unset,
    validate_model,
)
from handler.input.unknown_keys import KnownKeys

_PATH = "options."


class OptionsInput(ParameterInput):
    """Ollama's options; a field that is unset has the default of Ollama's own Modelfile.

    These defaults are no limits at temperature 0.
    """

    temperature: float = Field(0.8, ge=0, le=2, description="a number from 0 to 2")
    top_k: int = Field(
        40, ge=-1, le=MAX_INT32, description="a whole number, -1 or 0 for all tokens"
    )
    top_p: float = Field(0.9, ge=0, le=1, description="a number from 0 to 1")
    min_p: float = Field(0.0, ge=0, le=1, description="a number from 0 to 1")
    # A number below 1 means that there is no limit.
    num_predict: int | None = Field(
        None, le=MAX_INT32, description=f"a whole number up to {MAX_INT32}"
    )
    # A negative number means a random seed.
    seed: int | None = Field(None, lt=2**63, description="a whole number of up to 63 bits")
    stop: StopStrings | None = Field(
        None,
        description=f"a string or an array of up to {MAX_STOPS} of them, "
        f"each of up to {MAX_STOP_CHARS} characters",
    )
    stop_in_reasoning: bool | None = Field(None, description="true or false")
    repeat_penalty: float = Field(1.0, gt=0, le=100, description="a number above 0, at most 100")
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="a number from -2 to 2")
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="a number from -2 to 2")


_UNSUPPORTED = (
    *("draft_num_predict", "f16_kv", "logits_all", "low_vram", "main_gpu", "mirostat"),
    *("mirostat_eta", "mirostat_tau", "num_batch", "num_gpu", "num_keep", "num_thread", "numa"),
    *("penalize_newline", "repeat_last_n", "tfs_z", "typical_p", "use_mlock", "use_mmap"),
    "vocab_only",
)
_KEYS = KnownKeys(
    _PATH,
    OptionsInput.model_fields,
    notes={
        **dict.fromkeys(_UNSUPPORTED, "is not supported and was ignored"),
        "num_ctx": "was ignored: the context is the setting CONTEXT_LENGTH",
    },
    warns_about_all=True,
)


def read_options(
    options: Any, max_tokens: int | None, adapter: str | None
) -> tuple[SamplingParams, tuple[str, ...]]:
    """Return how to sample, and a warning for each option that has no effect.

    `max_tokens` limits an answer without a limit of its own; `adapter` is the LoRA adapter to use.

    Raises:
        InvalidRequest: naming the option that is wrong.
    """
    if options is None:
        options = {}
    if not isinstance(options, Mapping):
        raise InvalidRequest(f"options must be an object, got {describe_value(options)}", "options")
    # Null, and an empty text or list, mean that an option is unset.
    values = {
        name: options[name]
        for name in OptionsInput.model_fields
        if options.get(name) not in (None, [], "")
    }
    fields = validate_model(OptionsInput, values, _PATH)
    limit, seed, stop = fields.num_predict, fields.seed, fields.stop or ()
    sampling = SamplingParams(
        max_tokens=limit if limit is not None and limit >= 1 else max_tokens,
        temperature=fields.temperature,
        top_k=fields.top_k or -1,
        top_p=fields.top_p,
        min_p=fields.min_p,
        seed=seed if seed is not None and seed >= 0 else None,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_in_reasoning=fields.stop_in_reasoning,
        repetition_penalty=fields.repeat_penalty,
        frequency_penalty=fields.frequency_penalty,
        presence_penalty=fields.presence_penalty,
        lora=adapter,
        unset=find_unset(fields),
    )
    return sampling, _KEYS.warnings(options)
