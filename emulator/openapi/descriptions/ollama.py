"""Ollama's API in /openapi.json."""

from __future__ import annotations

from emulator.openapi.api_description import ApiDescription, Example
from emulator.openapi.operation import BODY_ERRORS, NOT_FOUND, Operation, call_operation
from emulator.openapi.schemas import (
    COUNT,
    FLAG,
    TEXT,
    TEXTS,
    TEXTS_AND_IMAGES,
    Schema,
    fields_of,
    list_of,
    object_of,
    or_null,
)
from emulator.settings.emulator_settings import EmulatorSettings
from handler.apis.ollama.options import OptionsInput

_TAG = "Ollama"
_LINES = "Unless `stream` is false, the answer is a stream of such objects, one a line."
_OPERATIONS = {
    "/api/chat": call_operation(
        "Answer a chat",
        "OllamaChatAnswer",
        "OllamaChat",
        tag=_TAG,
        description=_LINES,
    ),
    "/api/generate": call_operation(
        "Answer a prompt", "OllamaAnswer", "OllamaPrompt", tag=_TAG, description=_LINES
    ),
    "/api/embed": call_operation("Embed texts", "OllamaVectors", "OllamaTexts", tag=_TAG),
    "/api/embeddings": call_operation(
        "Embed one text, in the older form", "OllamaVector", "OllamaText", tag=_TAG
    ),
    "/api/show": Operation(
        summary="Get the details of a model",
        tag=_TAG,
        response="OllamaModel",
        body="OllamaModelName",
        errors=(*BODY_ERRORS, *NOT_FOUND),
    ),
    "/api/pull": Operation(
        summary="Download a model from the Hugging Face Hub, and serve it",
        tag=_TAG,
        response="OllamaStatus",
        body="OllamaPull",
        errors=(*BODY_ERRORS, *NOT_FOUND, 429),
        description=_LINES,
    ),
    "/api/tags": Operation(summary="List the models", tag=_TAG, response="OllamaModels"),
    "/api/ps": Operation(summary="List the loaded models", tag=_TAG, response="OllamaModels"),
    "/api/version": Operation(
        summary="Get the version of the API", tag=_TAG, response="OllamaVersion"
    ),
}
_EXAMPLES = {
    "OllamaChat": Example(
        {
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "stream": False,
            "options": {"temperature": 0, "num_predict": 32},
        },
        names_model=True,
    ),
    "OllamaPrompt": Example(
        {
            "prompt": "What is the capital of France?",
            "stream": False,
            "options": {"temperature": 0, "num_predict": 32},
        },
        names_model=True,
    ),
    "OllamaTexts": Example({"input": ["The capital of France is", "Paris"]}, names_model=True),
    "OllamaText": Example({"prompt": "The capital of France is"}, names_model=True),
    "OllamaModelName": Example({}, names_model=True),
    "OllamaPull": Example({"stream": False}, names_model=True),
}

_CALL = object_of(
    {"function": object_of({"name": TEXT}, {"arguments": or_null({"type": "object"})})},
    {"id": or_null(TEXT)},
)
_IMAGES: Schema = or_null(list_of(TEXT)) | {"description": "Images in base64."}
_REST_OF_MESSAGE: dict[str, Schema] = {
    "tool_calls": or_null(list_of(_CALL)),
    "tool_name": or_null(TEXT),
    "tool_call_id": or_null(TEXT),
}
_MESSAGE: Schema = {
    "anyOf": [
        object_of(
            {"role": {"enum": ["developer", "system", "assistant", "tool", "function"]}},
            {"content": or_null(TEXTS), **_REST_OF_MESSAGE},
        ),
        object_of(
            {"role": {"const": "user"}},
            {"content": or_null(TEXTS_AND_IMAGES), "images": _IMAGES, **_REST_OF_MESSAGE},
        ),
    ]
}
_NUMBER = r"(\d+(\.\d*)?|\.\d+)"
_KEEP_ALIVE: Schema = {
    "anyOf": [
        {"type": ["number", "null"]},
        {"const": ""},
        {
            "type": "string",
            "pattern": rf"^[+-]?({_NUMBER}|({_NUMBER}(ns|us|µs|ms|s|m|h))+)$",
            "maxLength": 40,
        },
    ],
    "description": "Seconds, or a duration such as `5m` or `1h30m`.",
}
_UNSET: Schema = {"enum": ["", [], None]}


_OPTIONS = object_of(
    {}, {name: {"anyOf": [field, _UNSET]} for name, field in fields_of(OptionsInput).items()}
)
_SHARED: dict[str, Schema] = {
    "model": or_null(TEXT),
    "stream": or_null(FLAG) | {"default": True},
    "options": or_null(_OPTIONS),
    "keep_alive": _KEEP_ALIVE,
    "truncate": or_null(FLAG),
}
_GENERATING: dict[str, Schema] = _SHARED | {
    "format": {
        "anyOf": [{"enum": ["json", "", None]}, {"type": "object"}],
        "description": "`json`, or a JSON Schema.",
    },
    "think": {"enum": [True, False, "low", "medium", "high", "max", "", None]},
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


def _build_schemas(_: EmulatorSettings) -> dict[str, Schema]:
    """Return the schemas."""
    chat = _GENERATING | {"messages": or_null(list_of(_MESSAGE))}
    generate = _GENERATING | {
        "prompt": or_null(TEXT),
        "system": or_null(TEXT),
        "suffix": or_null(TEXT),
        "images": _IMAGES,
        "raw": or_null(FLAG),
    }
    return {
        "OllamaChat": object_of({}, chat),
        "OllamaChatAnswer": object_of(_START | {"message": _MESSAGE}, _END),
        "OllamaPrompt": object_of({}, generate),
        "OllamaAnswer": object_of(_START | {"response": TEXT}, _END | {"thinking": TEXT}),
        "OllamaTexts": object_of(
            {},
            {
                **_MODEL_NAME,
                "input": or_null({"anyOf": [TEXT, list_of(TEXT)]}),
                "keep_alive": _KEEP_ALIVE,
            },
        ),
        "OllamaVectors": object_of(
            {"model": TEXT, "embeddings": list_of(_VECTOR)}, {"prompt_eval_count": COUNT}
        ),
        "OllamaText": object_of(
            {}, {**_MODEL_NAME, "prompt": or_null(TEXT), "keep_alive": _KEEP_ALIVE}
        ),
        "OllamaVector": object_of({"embedding": _VECTOR}),
        "OllamaModelName": object_of({}, {"model": or_null(TEXT)}),
        "OllamaModel": object_of(
            {"details": _DETAILS, "model_info": {"type": "object"}, "capabilities": list_of(TEXT)}
        ),
        "OllamaPull": object_of({}, {"model": or_null(TEXT), "stream": or_null(FLAG)}),
        "OllamaStatus": object_of({}, {"status": TEXT, "total": COUNT, "completed": COUNT}),
        "OllamaModels": object_of({"models": list_of(_LISTED)}),
        "OllamaVersion": object_of({"version": TEXT}),
    }


DESCRIPTION = ApiDescription(
    tags={_TAG: "Ollama's API. Its clients work with the server's address as their host."},
    operations=_OPERATIONS,
    build_schemas=_build_schemas,
    examples=_EXAMPLES,
)
