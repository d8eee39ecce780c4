"""JSON Schemas of the bodies of Ollama's API, by their names in /openapi.json."""

from __future__ import annotations

from emulator.openapi.schemas.common import (
    COUNT,
    FLAG,
    TEXT,
    Schema,
    list_of,
    object_of,
    or_null,
)

_CALL = object_of(
    {"function": object_of({"name": TEXT, "arguments": {"type": "object"}})}, {"id": TEXT}
)
_MESSAGE = object_of(
    {"role": {"enum": ["system", "user", "assistant", "tool"]}},
    {"content": or_null(TEXT), "tool_calls": or_null(list_of(_CALL)), "tool_name": or_null(TEXT)},
)
_KEEP_ALIVE: Schema = {
    "anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^-?\d{1,6}[smh]$"}],
    "description": "Seconds, or a duration such as `5m`.",
}
_FRACTION: Schema = {"type": "number", "minimum": 0, "maximum": 1}
_OPTIONS = object_of(
    {},
    {
        "temperature": or_null({"type": "number", "minimum": 0, "maximum": 2}),
        "top_p": or_null(_FRACTION),
        "min_p": or_null(_FRACTION),
        "top_k": or_null({"type": "integer", "minimum": -1, "maximum": 2**31 - 1}),
        "num_predict": or_null({"type": "integer", "minimum": -2, "maximum": 2**31 - 1}),
        "seed": or_null({"type": "integer", "minimum": -1, "maximum": 2**63 - 1}),
    },
)
_SHARED: dict[str, Schema] = {
    "model": or_null(TEXT),
    "stream": FLAG | {"default": True},
    "options": or_null(_OPTIONS),
    "keep_alive": _KEEP_ALIVE,
    "truncate": FLAG,
}
_GENERATING: dict[str, Schema] = _SHARED | {
    "format": {
        "enum": ["json", "", None],
        "description": "`json`, or a JSON Schema.",
    },
    "think": {"enum": [True, False, "low", "medium", "high", None]},
}
_MODEL_NAME = {"model": or_null(TEXT)}
_END: dict[str, Schema] = {
    "done_reason": TEXT,
    "total_duration": COUNT,
    "load_duration": COUNT,
    "prompt_eval_count": COUNT,
    "prompt_eval_duration": COUNT,
    "eval_count": COUNT,
    "eval_duration": COUNT,
    "warnings": list_of(TEXT),
}
_START: dict[str, Schema] = {"model": TEXT, "created_at": TEXT, "done": FLAG}
_DETAILS = object_of({"format": TEXT, "family": TEXT}, {"quantization_level": TEXT})
_LISTED = object_of(
    {"name": TEXT, "model": TEXT, "modified_at": TEXT, "size": COUNT, "digest": TEXT},
    {"details": _DETAILS, "expires_at": TEXT, "size_vram": COUNT, "context_length": COUNT},
)
_VECTOR = list_of({"type": "number"})


def ollama_schemas() -> dict[str, Schema]:
    """Return the schemas."""
    chat = _GENERATING | {"messages": list_of(_MESSAGE)}
    generate = _GENERATING | {
        "prompt": or_null(TEXT),
        "system": or_null(TEXT),
        "suffix": or_null(TEXT),
        "raw": FLAG,
    }
    return {
        "OllamaChat": object_of({}, chat),
        "OllamaChatAnswer": object_of(_START | {"message": _MESSAGE}, _END),
        "OllamaPrompt": object_of({}, generate),
        "OllamaAnswer": object_of(_START | {"response": TEXT}, _END | {"thinking": TEXT}),
        "OllamaTexts": object_of(
            {"input": {"anyOf": [TEXT, list_of(TEXT)]}}, {**_MODEL_NAME, "keep_alive": _KEEP_ALIVE}
        ),
        "OllamaVectors": object_of(
            {"model": TEXT, "embeddings": list_of(_VECTOR)}, {"prompt_eval_count": COUNT}
        ),
        "OllamaText": object_of({"prompt": TEXT}, {**_MODEL_NAME, "keep_alive": _KEEP_ALIVE}),
        "OllamaVector": object_of({"embedding": _VECTOR}),
        "OllamaModelName": object_of({}, {"model": or_null(TEXT)}),
        "OllamaModel": object_of(
            {"details": _DETAILS, "model_info": {"type": "object"}, "capabilities": list_of(TEXT)}
        ),
        "OllamaPull": object_of({}, {"model": or_null(TEXT), "stream": FLAG}),
        "OllamaStatus": object_of({}, {"status": TEXT, "total": COUNT, "completed": COUNT}),
        "OllamaModels": object_of({"models": list_of(_LISTED)}),
        "OllamaVersion": object_of({"version": TEXT}),
    }
