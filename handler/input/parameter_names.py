"""Parameter names of other servers: unsupported names, harmless labels, and synonyms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

# Parameters of OpenAI's API that are not supported here.
_OPENAI_NAMES = """
    audio best_of echo function_call functions length_penalty logprobs modalities prediction
    suffix top_logprobs verbosity web_search_options
"""
# Parameters of vLLM and SGLang.
_VLLM_NAMES = """
    add_generation_prompt add_special_tokens cache_salt
    chat_template custom_logit_processor custom_params detokenize
    diversity_penalty documents early_stopping guided_decoding_backend guided_whitespace_pattern
    include_reasoning kv_transfer_params logits_processors lora lora_path media_io_kwargs
    mm_processor_kwargs no_stop_trim priority prompt_embeds prompt_logprobs
    repetition_detection request_id return_hidden_states return_token_ids
    return_tokens_as_token_ids separate_reasoning session_params
    spaces_between_special_tokens stop_regex stream_reasoning
    use_beam_search vllm_xargs
"""
# Parameters of llama.cpp's server.
_LLAMACPP_NAMES = """
    adaptive_decay adaptive_target chat_format dry_allowed_length dry_base dry_multiplier
    dry_penalty_last_n dry_sequence_breakers dynatemp_exponent dynatemp_range generation_prompt
    grammar_lazy grammar_triggers id_slot image_data input_extra input_prefix input_suffix
    logit_bias_tokens min_keep mirostat mirostat_eta mirostat_tau n_cache_reuse n_discard
    n_indent n_keep n_probs parse_tool_calls penalize_nl post_sampling_probs preserved_tokens
    reasoning_budget_message reasoning_format reasoning_in_content repeat_last_n response_fields
    return_progress return_tokens samplers sse_ping_interval t_max_predict_ms t_max_prompt_ms
    tfs_z thinking_forced_open timings_per_token top_n_sigma typical_p xtc_probability
    xtc_threshold
"""
# Parameters of this project's earlier versions.
_REMOVED_NAMES = "prompt_cache"
# Known parameters that no dialect supports; a request with one gets a warning.
IGNORED = frozenset(f"{_OPENAI_NAMES} {_VLLM_NAMES} {_LLAMACPP_NAMES} {_REMOVED_NAMES}".split())

# Values without an effect, besides false and null, because they ask for the default: the defaults
# of OpenAI, vLLM, SGLang and llama.cpp. Clients such as llama.cpp's web page send all of their
# defaults.
NEUTRAL: Mapping[str, Sequence[Any]] = MappingProxyType(
    {
        "add_generation_prompt": [True],
        "add_special_tokens": [True],
        "best_of": [1],
        "custom_params": [{}],
        "detokenize": [True],
        "diversity_penalty": [0],
        "documents": [[]],
        "dry_allowed_length": [2],
        "dry_base": [1.75],
        "dry_multiplier": [0],
        "dry_penalty_last_n": [64, -1],
        "dry_sequence_breakers": [["\n", ":", '"', "*"]],
        "dynatemp_exponent": [1],
        "dynatemp_range": [0],
        "function_call": ["auto", "none"],
        "functions": [[]],
        "grammar_triggers": [[]],
        "guided_decoding_backend": ["auto"],
        "id_slot": [-1],
        "image_data": [[]],
        "include_reasoning": [True],
        "input_extra": [[]],
        "input_prefix": [""],
        "input_suffix": [""],
        "kv_transfer_params": [{}],
        "length_penalty": [1],
        "logits_processors": [[]],
        "media_io_kwargs": [{}],
        "min_keep": [0],
        "mirostat": [0],
        "mirostat_eta": [0.1],
        "mirostat_tau": [5],
        "mm_processor_kwargs": [{}],
        "modalities": [["text"]],
        "n_cache_reuse": [0],
        "n_discard": [0],
        "n_indent": [0],
        "n_keep": [0],
        "n_probs": [0],
        "parse_tool_calls": [True],
        "preserved_tokens": [[]],
        "priority": [0],
        "reasoning_format": ["auto", "deepseek"],
        "repeat_last_n": [-1],
        "response_fields": [[]],
        "separate_reasoning": [True],
        "session_params": [{}],
        "spaces_between_special_tokens": [True],
        "stop_regex": ["", []],
        "stream_reasoning": [True],
        "t_max_predict_ms": [0, -1],
        "t_max_prompt_ms": [0, -1],
        "tfs_z": [1],
        "top_logprobs": [0],
        "top_n_sigma": [-1],
        "typical_p": [1],
        "verbosity": ["medium"],
        "vllm_xargs": [{}],
        "xtc_probability": [0],
        "xtc_threshold": [0.1],
    }
)

# Accepted without a warning: they identify the caller or the call and do not change the answer.
LABELS = frozenset(
    {
        "cache_prompt",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)

# Names that other servers and libraries use for a supported parameter.
SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        "frequency_pen": "frequency_penalty",
        "freq_penalty": "frequency_penalty",
        "max_gen_toks": "max_tokens",
        "max_length": "max_tokens",
        "max_new_tokens": "max_tokens",
        "max_output_tokens": "max_tokens",
        "n_predict": "max_tokens",
        "num_predict": "max_tokens",
        "presence_pen": "presence_penalty",
        "random_seed": "seed",
        "rep_pen": "repetition_penalty",
        "repeat_penalty": "repetition_penalty",
        "stop_sequence": "stop",
        "stop_sequences": "stop",
        "stop_strings": "stop",
        "stop_words": "stop",
        "temp": "temperature",
    }
)


def has_no_effect(name: str, value: Any) -> bool:
    """Return whether an unsupported parameter has a value that would not change the answer."""
    if value is None:
        return True
    neutral = NEUTRAL.get(name, ())
    if isinstance(value, bool):
        # Not by `in`, because True and 1 are equal.
        return value is any(each is True for each in neutral)
    return any(not isinstance(each, bool) and value == each for each in neutral)
