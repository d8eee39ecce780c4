"""The known keys of the request bodies of each OpenAI endpoint."""

from __future__ import annotations

from collections.abc import Mapping

from handler.apis.openai.parameters import (
    CHAT_ONLY_PARAMETERS,
    ChatInput,
    CompletionInput,
    OpenAIInput,
)
from handler.input.constraints import CONSTRAINT_KEYS
from handler.input.parameter_names import IGNORED, LABELS
from handler.input.reasoning_budget import BUDGET_KEYS
from handler.input.unknown_keys import KnownKeys

_UNSUPPORTED = "is not supported and was ignored"
_COMMON_KEYS = (
    LABELS
    | CONSTRAINT_KEYS
    | BUDGET_KEYS
    | {"enable_validation", "model", "stream_options", "validation"}
)
_MISPLACED_NOTES = {
    "apply_chat_template": "is only for jobs and was ignored",
    "extra_body": "was ignored: put its members into the body itself",
    "sampling_params": "is only for jobs and was ignored: put its members into the body itself",
}
_NOTES = dict.fromkeys(IGNORED, _UNSUPPORTED) | _MISPLACED_NOTES

# `read_parameters` warns about `ignored` keys and about chat-only keys in completions.
BODY_KEYS: Mapping[type[OpenAIInput], KnownKeys] = {
    CompletionInput: KnownKeys(
        "",
        CompletionInput.model_fields.keys() | _COMMON_KEYS | {"prompt"},
        ignored=IGNORED | set(CHAT_ONLY_PARAMETERS),
        notes=_NOTES | {"messages": "is only for chats and was ignored"},
    ),
    ChatInput: KnownKeys(
        "",
        ChatInput.model_fields.keys() | _COMMON_KEYS | set(CHAT_ONLY_PARAMETERS) | {"messages"},
        ignored=IGNORED,
        notes=_NOTES | {"prompt": "is only for completions and was ignored"},
    ),
}
TOKENIZE_KEYS = KnownKeys(
    "",
    LABELS | {"add_special_tokens", "messages", "model", "prompt"},
    notes=dict.fromkeys((*CHAT_ONLY_PARAMETERS, "return_token_strs"), _UNSUPPORTED) | _NOTES,
)
DETOKENIZE_KEYS = KnownKeys("", LABELS | {"model", "tokens"}, notes=_NOTES)
# The keys of a batch input line around its body.
CALL_LINE_KEYS = KnownKeys(
    "",
    ("body", "custom_id", "method", "url"),
    misplaced=dict.fromkeys(
        CompletionInput.model_fields.keys()
        | ChatInput.model_fields.keys()
        | set(CHAT_ONLY_PARAMETERS)
        | CONSTRAINT_KEYS
        | BUDGET_KEYS
        | {"messages", "model", "prompt"},
        "body.",
    ),
    notes=_NOTES,
)
