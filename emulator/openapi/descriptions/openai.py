"""OpenAI's API in /openapi.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emulator.http.error_format import ErrorFormat
from emulator.openapi.api_description import ApiDescription, Example
from emulator.openapi.operation import STREAMING, Operation, call_operation, query
from emulator.openapi.schemas import (
    COUNT,
    FLAG,
    TEXT,
    TEXTS,
    TEXTS_AND_IMAGES,
    Schema,
    fields_of,
    list_of,
    model_names,
    object_of,
    or_null,
    ref,
)
from emulator.settings.emulator_settings import EmulatorSettings
from handler.apis.core.template_variables import REASONING_EFFORTS
from handler.apis.core.tools import MAX_TOOLS, NAME_PATTERN
from handler.apis.openai.embeddings import EmbeddingsInput
from handler.apis.openai.parameters import ChatInput, CompletionInput, OpenAIInput
from handler.apis.openai.relevance import MAX_TEXTS
from handler.apis.openai.rerank import RerankInput
from handler.apis.openai.score import FIRST_NAMES, SECOND_NAMES, ScoreInput
from handler.errors import OPENAI_CODES
from handler.input.options import OptionsInput
from handler.input.sampling import MAX_TOKEN_ID

_TAG = "OpenAI"


def openai_operations(
    prefix: str,
    *,
    tag: str,
    errors: tuple[int, ...] = (),
    models: tuple[int, ...] = (),
    **rest: Any,
) -> dict[str, Operation]:
    """Return the routes under one prefix; `errors` and `models` are its additional failures."""
    return {
        f"{prefix}/completions": call_operation(
            "Complete a prompt",
            "CompletionAnswer",
            "Completion",
            tag=tag,
            errors=errors,
            can_stream=True,
            description=STREAMING,
            **rest,
        ),
        f"{prefix}/chat/completions": call_operation(
            "Answer a chat",
            "ChatAnswer",
            "Chat",
            tag=tag,
            errors=errors,
            can_stream=True,
            description=STREAMING,
            **rest,
        ),
        f"{prefix}/embeddings": call_operation(
            "Create embeddings", "EmbeddingsAnswer", "Embeddings", tag=tag, errors=errors, **rest
        ),
        f"{prefix}/rerank": call_operation(
            "Sort documents by relevance", "RerankAnswer", "Rerank", tag=tag, errors=errors, **rest
        ),
        f"{prefix}/score": call_operation(
            "Score pairs of texts", "ScoreAnswer", "Score", tag=tag, errors=errors, **rest
        ),
        f"{prefix}/models": Operation(
            summary="List models", tag=tag, response="Models", errors=models, **rest
        ),
        f"{prefix}/models/{{model}}": Operation(
            summary="Get a model", tag=tag, response="Model", errors=(404, *models), **rest
        ),
    }


_OPERATIONS = {
    **openai_operations("/v1", tag=_TAG),
    "/tokenize": call_operation("Tokenize a text", "Tokens", "Tokenize", tag=_TAG),
    "/detokenize": call_operation(
        "Turn token ids into text", "Detokenized", "Detokenize", tag=_TAG
    ),
    "/tokenizer_info": Operation(
        summary="Get the special tokens and the chat template",
        tag=_TAG,
        response="TokenizerInfo",
        errors=(400, 404, 503),
        query=(query("model", "The model; the first one by default.", type="string"),),
    ),
}
_EXAMPLES = {
    "Completion": Example(
        {"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0},
        names_model=True,
        can_stream=True,
    ),
    "Chat": Example(
        {
            "messages": [
                {"role": "system", "content": "You answer in one sentence."},
                {"role": "user", "content": "What is the capital of France?"},
            ],
            "max_tokens": 32,
            "temperature": 0,
        },
        names_model=True,
        can_stream=True,
    ),
    "Embeddings": Example({"input": ["The capital of France is", "Paris"]}, names_model=True),
    "Rerank": Example(
        {
            "query": "What is the capital of France?",
            "documents": ["Bananas are yellow.", "Paris is the capital of France."],
            "top_n": 1,
        },
        names_model=True,
    ),
    "Score": Example(
        {
            "text_1": "What is the capital of France?",
            "text_2": ["Bananas are yellow.", "Paris is the capital of France."],
        },
        names_model=True,
    ),
    "Tokenize": Example({"prompt": "The capital of France is"}),
    "Detokenize": Example({"tokens": [504, 3575, 282, 4649, 314]}),
}

_TOKEN: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}
_NOT_EMPTY: Schema = {"type": "string", "minLength": 1}
_NAMES: dict[str, Schema] = {"name": or_null(TEXT), "tool_call_id": or_null(TEXT)}
_MESSAGE: Schema = {
    "anyOf": [
        object_of(
            {
                "role": {"enum": ["developer", "system", "tool", "function"]},
                "content": TEXTS,
            },
            _NAMES,
        ),
        object_of({"role": {"const": "user"}, "content": TEXTS_AND_IMAGES}, _NAMES),
        object_of(
            {"role": {"const": "assistant"}},
            {
                **_NAMES,
                "content": or_null(TEXTS),
                "reasoning_content": or_null(TEXT),
                "reasoning": or_null(TEXT),
                "tool_calls": or_null(
                    list_of(
                        object_of(
                            {"function": object_of({"name": TEXT, "arguments": TEXT})},
                            {"id": or_null(TEXT)},
                        )
                    )
                ),
            },
        ),
    ]
}
_MESSAGES: Schema = list_of(_MESSAGE) | {"minItems": 1}
_SCORED_TEXT: Schema = {"anyOf": [_NOT_EMPTY, object_of({"text": _NOT_EMPTY})]}
_SCORED_TEXTS = list_of(_SCORED_TEXT) | {"minItems": 1, "maxItems": MAX_TEXTS}
_SCORE_SIDE = {"anyOf": [*_SCORED_TEXT["anyOf"], _SCORED_TEXTS]}
_SCORE_SIDES: dict[str, Schema] = {
    **{name: or_null(_SCORE_SIDE) for name in (*FIRST_NAMES, *SECOND_NAMES)},
    "text_1": or_null(_SCORE_SIDE) | {"description": "One text, or as many as `text_2` has."},
}
# Each side has one of its names.
_BOTH_SIDES: Schema = {
    "allOf": [
        {"anyOf": [{"required": [name]} for name in names]} for names in (FIRST_NAMES, SECOND_NAMES)
    ]
}
_SCHEMA: Schema = {"type": "object", "description": "A JSON Schema."}
_FUNCTION = object_of(
    {"name": {"type": "string", "pattern": f"^{NAME_PATTERN}$"}},
    {"description": or_null(TEXT), "parameters": or_null(_SCHEMA)},
)
_TOOLS: Schema = {
    "tools": or_null(
        list_of(object_of({"type": {"const": "function"}, "function": _FUNCTION}))
        | {"maxItems": MAX_TOOLS, "description": "Tools with different names."}
    ),
    "tool_choice": {
        "anyOf": [
            {"enum": ["none", "auto", "required", "any", None]},
            object_of({"function": object_of({"name": TEXT})}),
            object_of(
                {
                    "type": {"const": "allowed_tools"},
                    "allowed_tools": object_of(
                        {
                            "mode": {"enum": ["auto", "required"]},
                            "tools": list_of(object_of({"function": object_of({"name": TEXT})})),
                        }
                    ),
                }
            ),
        ],
        "description": "`required` and a named function need `tools`.",
    },
    "parallel_tool_calls": or_null(FLAG),
}
_TEMPLATE: Schema = {
    "enable_thinking": or_null(FLAG),
    "reasoning_effort": or_null({"enum": list(REASONING_EFFORTS)}),
    "chat_template_kwargs": or_null({"type": "object"}),
}
_FORMAT: Schema = {
    "anyOf": [
        object_of({"type": {"enum": ["text", "json_object"]}}),
        object_of(
            {"type": {"const": "json_schema"}, "json_schema": object_of({"schema": _SCHEMA})}
        ),
        # llama.cpp's form.
        object_of(
            {"type": {"const": "json_schema"}, "schema": _SCHEMA}, {"json_schema": {"type": "null"}}
        ),
        {"type": "null"},
    ]
}
# `stream_options` is allowed only together with `stream: true`; it takes any member.
_STREAMED = or_null(object_of({}, {"include_usage": or_null(FLAG)}))
_ONLY_STREAMED: Schema = {
    "if": {"required": ["stream_options"], "properties": {"stream_options": {"type": "object"}}},
    "then": {"required": ["stream"], "properties": {"stream": {"const": True}}},
}


def _generation(
    prompt: dict[str, Schema], parameters: type[OpenAIInput], models: Sequence[str], **rest: Schema
) -> Schema:
    """Return the schema of a body: its prompt, and the parameters that the handler checks."""
    known = fields_of(parameters)
    known["logit_bias"]["anyOf"][0]["propertyNames"] = {"pattern": "^[0-9]{1,9}$"}
    checks = {"type": "object", "properties": fields_of(OptionsInput)}
    description = {"description": "Checks of the answer; see docs/jobs.md."}
    return (
        object_of(
            prompt,
            {
                **known,
                **rest,
                "model": {"enum": [*model_names(models), None]},
                "response_format": _FORMAT,
                "stream_options": _STREAMED | {"description": "Only with `stream: true`."},
                "validation": or_null(checks) | description,
                "enable_validation": or_null(FLAG),
            },
        )
        | _ONLY_STREAMED
    )


def _build_schemas(settings: EmulatorSettings) -> dict[str, Schema]:
    """Return the schemas."""
    models = settings.served_models
    # An adapter of a model has no embeddings.
    embedding_models = [name for name in models if name not in settings.served_adapters]
    embedding_model = {"model": {"enum": [*model_names(embedding_models), None]}}
    prompt_usage = object_of({"prompt_tokens": COUNT, "total_tokens": COUNT})
    token_ids = list_of(_TOKEN) | {"minItems": 1}
    prompts = [
        _NOT_EMPTY,
        list_of(_NOT_EMPTY) | {"minItems": 1, "description": "Several prompts."},
        token_ids | {"description": "One prompt as token ids."},
        list_of(token_ids) | {"minItems": 1},
    ]
    usage = object_of(
        {
            "prompt_tokens": COUNT,
            "completion_tokens": COUNT,
            "total_tokens": COUNT,
            "prompt_tokens_details": object_of({"cached_tokens": COUNT}),
        }
    )
    ending = {"index": COUNT, "finish_reason": TEXT}
    answer = {"id": TEXT, "created": {"type": "integer"}, "model": TEXT, "usage": usage}
    message = object_of({"role": {"const": "assistant"}, "content": or_null(TEXT)})
    return {
        "Error": object_of(
            {
                "error": object_of(
                    {
                        "message": TEXT,
                        "type": TEXT,
                        "param": {"type": ["string", "null"]},
                        "code": {
                            "anyOf": [
                                {"type": "integer", "minimum": 400, "maximum": 599},
                                {"enum": list(OPENAI_CODES)},
                            ]
                        },
                    },
                    {"request_id": TEXT, "details": {"type": "object"}},
                )
            }
        ),
        "Completion": _generation({"prompt": {"anyOf": prompts}}, CompletionInput, models),
        "Chat": _generation(
            {"messages": _MESSAGES},
            ChatInput,
            models,
            **_TOOLS,
            **_TEMPLATE,
        ),
        "CompletionAnswer": object_of(
            answer
            | {
                "object": {"const": "text_completion"},
                "choices": list_of(object_of({**ending, "text": TEXT})),
            }
        ),
        "ChatAnswer": object_of(
            answer
            | {
                "object": {"const": "chat.completion"},
                "choices": list_of(object_of({**ending, "message": message})),
            }
        ),
        "Embeddings": object_of(
            {"input": {"anyOf": [*prompts, list_of({"anyOf": [_NOT_EMPTY, token_ids]})]}},
            {**fields_of(EmbeddingsInput), **embedding_model},
        ),
        "EmbeddingsAnswer": object_of(
            {
                "object": {"const": "list"},
                "model": TEXT,
                "data": list_of(
                    object_of(
                        {
                            "object": {"const": "embedding"},
                            "index": COUNT,
                            "embedding": {"anyOf": [list_of({"type": "number"}), TEXT]},
                        }
                    )
                ),
                "usage": prompt_usage,
            }
        ),
        "Rerank": object_of(
            {"query": _SCORED_TEXT, "documents": _SCORED_TEXTS},
            {**fields_of(RerankInput), **embedding_model},
        ),
        "RerankAnswer": object_of(
            {
                "id": TEXT,
                "object": {"const": "list"},
                "model": TEXT,
                "results": list_of(
                    object_of(
                        {"index": COUNT, "relevance_score": {"type": "number"}},
                        {"document": object_of({"text": TEXT})},
                    )
                ),
                "usage": prompt_usage,
            }
        ),
        "Score": object_of({}, {**_SCORE_SIDES, **fields_of(ScoreInput), **embedding_model})
        | _BOTH_SIDES,
        "ScoreAnswer": object_of(
            {
                "id": TEXT,
                "object": {"const": "list"},
                "created": {"type": "integer"},
                "model": TEXT,
                "data": list_of(
                    object_of(
                        {"index": COUNT, "object": {"const": "score"}, "score": {"type": "number"}}
                    )
                ),
                "usage": prompt_usage,
            }
        ),
        "Model": object_of(
            {
                "id": TEXT,
                "object": {"const": "model"},
                "root": TEXT,
                "max_model_len": or_null(COUNT),
                "state": TEXT,
            }
        ),
        "Models": object_of({"object": {"const": "list"}, "data": list_of(ref("Model"))}),
        "Tokenize": {"anyOf": [object_of({"prompt": TEXT}), object_of({"messages": _MESSAGES})]},
        "TokenizerInfo": object_of(
            {
                "tokenizer_class": TEXT,
                "bos_token": or_null(TEXT),
                "eos_token": or_null(TEXT),
                "pad_token": or_null(TEXT),
                "chat_template": or_null(TEXT),
            }
        ),
        "Tokens": object_of({"count": COUNT, "max_model_len": COUNT, "tokens": list_of(COUNT)}),
        "Detokenize": object_of({"tokens": list_of(_TOKEN)}),
        "Detokenized": object_of({"prompt": TEXT}),
    }


DESCRIPTION = ApiDescription(
    tags={_TAG: "OpenAI's API. Any OpenAI client works with the base URL `/v1`."},
    operations=_OPERATIONS,
    build_schemas=_build_schemas,
    examples=_EXAMPLES,
    path_parameters={"model": "The model's name, as `/v1/models` lists it."},
    error_schemas={ErrorFormat.OPENAI: "Error"},
)
