"""A body for each route that takes one, to be sent as it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Those of OpenAI's routes name the model that is served as well.
OF_A_MODEL = frozenset({"Completion", "Chat", "Embeddings"})

# By the name of their schema.
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
    "Embeddings": {"input": ["The capital of France is", "Paris"]},
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
    "Detokenize": {"tokens": [504, 3575, 282, 4649, 314]},
}


def example(schema: str, model: str) -> dict[str, Any]:
    """Return a body of a schema, for a server of that model."""
    named = {"model": model} if schema in OF_A_MODEL else {}
    return {**named, **_EXAMPLES[schema]}
