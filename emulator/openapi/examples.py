"""Example bodies for the routes that take one; each can be sent as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Bodies that name the served model as well.
SCHEMAS_WITH_MODEL = frozenset(
    {
        *("Completion", "Chat", "NewResponse", "Embeddings", "NewMessage", "MessagePrompt"),
        *("OllamaChat", "OllamaPrompt", "OllamaTexts", "OllamaText", "OllamaModelName"),
        "OllamaPull",
        *("Rerank", "Score"),
    }
)

# By the name of the body's schema.
_EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "NewJob": {
        "input": {
            "prompt": "The capital of France is",
            "sampling_params": {"max_tokens": 16, "temperature": 0},
        }
    },
    "Chunk": {"output": {"text": " Paris"}},
    "Result": {"output": {"text": " Paris."}},
    "Completion": {"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0},
    "Chat": {
        "messages": [
            {"role": "system", "content": "You answer in one sentence."},
            {"role": "user", "content": "What is the capital of France?"},
        ],
        "max_tokens": 32,
        "temperature": 0,
    },
    "NewResponse": {
        "input": "What is the capital of France?",
        "instructions": "You answer in one sentence.",
        "max_output_tokens": 32,
        "temperature": 0,
    },
    "NewMessage": {
        "max_tokens": 32,
        "temperature": 0,
        "system": "You answer in one sentence.",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    },
    "MessagePrompt": {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    },
    "OllamaChat": {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "stream": False,
        "options": {"temperature": 0, "num_predict": 32},
    },
    "OllamaPrompt": {
        "prompt": "What is the capital of France?",
        "stream": False,
        "options": {"temperature": 0, "num_predict": 32},
    },
    "OllamaTexts": {"input": ["The capital of France is", "Paris"]},
    "OllamaText": {"prompt": "The capital of France is"},
    "OllamaModelName": {},
    "OllamaPull": {"stream": False},
    "Embeddings": {"input": ["The capital of France is", "Paris"]},
    "Rerank": {
        "query": "What is the capital of France?",
        "documents": ["Bananas are yellow.", "Paris is the capital of France."],
        "top_n": 1,
    },
    "Score": {
        "text_1": "What is the capital of France?",
        "text_2": ["Bananas are yellow.", "Paris is the capital of France."],
    },
    "NewFile": {
        "purpose": "batch",
        "file": '{"custom_id": "one", "method": "POST", "url": "/v1/completions", '
        '"body": {"prompt": "The capital of France is", "max_tokens": 16}}\n',
    },
    "NewBatch": {
        "input_file_id": "file-00000000000100c0ffee00c0ffee",
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    },
    "Tokenize": {"prompt": "The capital of France is"},
    "WorkerCall": {"prompt": "The capital of France is", "max_tokens": 16},
    "NewFaultRule": {"fault": "status=503; retry-after=2", "operation": "chat", "times": 1},
    "NewTest": {"name": "greets"},
    "Detokenize": {"tokens": [504, 3575, 282, 4649, 314]},
}


# Schemas whose answer can be streamed.
_STREAMABLE = ("Completion", "Chat", "NewResponse", "NewMessage")


def examples(schema: str, model: str) -> dict[str, Any]:
    """Return OpenAPI's `example` or `examples` of a body, for a server of that model."""
    body = {**({"model": model} if schema in SCHEMAS_WITH_MODEL else {}), **_EXAMPLES[schema]}
    if schema in _STREAMABLE:
        return {
            "examples": {
                "whole": {"summary": "The whole answer", "value": body},
                "streamed": {"summary": "Streamed", "value": {**body, "stream": True}},
            }
        }
    return {"example": body}
