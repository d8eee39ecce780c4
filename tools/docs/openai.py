"""`python -m tools.docs.openai`: docs/openai.md, with tables generated from the code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from emulator.openapi.api_description import ApiDescription
from emulator.openapi.descriptions import aliases, batches, openai, responses
from engine.backends.llamacpp.backend import build_capabilities as llamacpp
from engine.backends.options import ScriptedOptions
from engine.backends.rkllm.abi.abi import ABI_12, ABI_13, Abi
from engine.backends.rkllm.model_capabilities import build_capabilities as rkllm
from engine.backends.scripted import ScriptedBackend
from engine.capabilities import Capabilities
from handler.apis.openai.embeddings import EmbeddingsInput
from handler.apis.openai.relevance import MAX_TEXTS
from handler.apis.openai.rerank import RerankInput
from handler.apis.openai.score import FIRST_NAMES, SECOND_NAMES, ScoreInput
from handler.input.parameter_names import IGNORED
from tools.docs.api_support import message_table, response_table
from tools.docs.support_matrix import ADAPTERS, Engines, Matrix, dialect_table, in_markdown
from tools.docs.support_probes import CHAT, COMPLETIONS

# The model's name in the sentences of the page.
_MODEL = "the model"
TEXT = Path(__file__).with_suffix(".md")

# The APIs with a row for each of their routes in the page.
DESCRIBED_APIS: Sequence[ApiDescription] = (
    openai.DESCRIPTION,
    responses.DESCRIPTION,
    batches.DESCRIPTION,
    aliases.DESCRIPTION,
)

# By the name of the field in `Dialect`.
DIALECT_LABELS: Mapping[str, str] = {
    "model_required": "`model` is required",
    "max_stops": "maximum number of `stop` strings",
    "usage_by_default": "a stream ends with `usage` without `stream_options`",
    "role_in_every_delta": "every chat delta has a `role`, not only the first",
    "stop_in_stream": "streamed text always includes the stop string",
    "best_of_is_one": "`best_of` defaults to 1, not to `n`",
    "one_logprob": "`logprobs` must be 1 and cannot be streamed",
    "top_p_above_zero": "`top_p` must be above 0",
    "max_tokens_ignoring_eos": "`max_tokens` with `ignore_eos`: maximum and default",
    "rejects_unavailable_draft": "parameters for a draft model get a 400 without one",
    "named_errors": "`code` of an error is a name, not the HTTP status",
}

# By the name of the field in `Capabilities`; its other fields are about a model, or are parameters
# that have a row of their own.
CAPABILITY_LABELS: Mapping[str, str] = {
    "slots": "parallel generations (slots)",
    "max_logprobs": "maximum log-probability alternatives per token",
    "prompt_logprobs": "log-probabilities of the prompt (`echo`, `prompt_logprobs`)",
    "fixed_sampling": "sampling parameters are fixed when the model is loaded",
    "grammar": "constrained decoding with a grammar",
    "json_schema": "constrained decoding with a JSON Schema",
    "turns": "chats keep their turns and roles",
    "plain_prompts": "raw prompts, without the chat template",
    "images": "images in messages",
    "tokenize": "tokenization",
    "embeddings": "embeddings",
    "rerank": "reranking with a reranking model",
    "adapters": "LoRA adapters by name",
    "draft": "speculative decoding with a draft model",
    "prefix_reuse": "reuse of the previous turn's cache in a chat",
    "plain_marks": "special tokens in messages are read as text",
    "abort_in_prefill": "abort during prefill",
}

_TEXT = "a string, or an object with `text`"
RERANK_TEXTS: Mapping[str, str] = {
    "query": _TEXT,
    "documents": f"an array of up to {MAX_TEXTS} of these",
}
SCORE_TEXTS: Mapping[str, str] = {
    "`, `".join(names): f"{_TEXT}, or an array of up to {MAX_TEXTS} of these"
    for names in (FIRST_NAMES, SECOND_NAMES)
}

# By status and type; a test compares them with the table of errors.
ERROR_DESCRIPTIONS: Mapping[tuple[int, str], str] = {
    (400, "invalid_request_error"): "A parameter is missing, wrong or not supported by the engine; "
    "the prompt is longer than the context; or a rule blocks the request.",
    (404, "not_found_error"): "The model, file or batch does not exist.",
    (413, "invalid_request_error"): "The request body is too large.",
    (413, "result_too_large_error"): "The result of a job is too large for the server.",
    (415, "invalid_request_error"): "The content type is not supported.",
    (429, "rate_limit_error"): "Too many requests wait for a slot (`MAX_QUEUE`).",
    (499, "cancelled_error"): "The generation was cancelled.",
    (500, "engine_error"): "The engine failed or crashed.",
    (502, "result_not_kept_error"): "The result could not be written to the bucket.",
    (503, "service_unavailable_error"): "The engine is being restarted for longer than a moment "
    "(`Retry-After` has the seconds to wait), the model is not loaded, or the engine has stopped.",
    (504, "timeout_error"): "A timeout expired: for the request, the first token or the next one.",
}

# Client programs in tests/acceptance/programs, by their placeholder in the text.
CLIENT_PROGRAMS: Mapping[str, Sequence[str]] = {
    "text": ["text_stream.sh", "text_stream.py"],
    "oracle": [
        "chat_whole.sh",
        "chat_stream.sh",
        "chat_story.sh",
        "chat_pretty.sh",
        "chat_requests.py",
        "chat_openai.py",
        "chat_fetch.mjs",
        "chat_openai.mjs",
        "chat_requests_errors.py",
        "troubleshooting.sh",
    ],
    "gateway": ["gateway.sh"],
    "server": ["model_server.sh", "model_server.py"],
}


def page() -> str:
    """Return the whole page: the text with its placeholders filled in."""
    matrix = Matrix(engines())
    sections = {
        "routes": _routes(),
        "dialects": dialect_table(DIALECT_LABELS),
        "completions": matrix.table(COMPLETIONS),
        "chat": matrix.table(CHAT),
        "notes": matrix.notes(),
        "responses": response_table(),
        "messages": message_table(),
        "embeddings": _embeddings(),
        "rerank": _parameters(RERANK_TEXTS, RerankInput, _can_score),
        "score": _parameters(SCORE_TEXTS, ScoreInput, _can_score),
        "capabilities": _capabilities(),
        "ignored": "\n".join(
            f"- `/{'chat/' if route == CHAT else ''}completions`: "
            + ", ".join(f"`{name}`" for name in matrix.ignored(route, sorted(IGNORED)))
            for route in (COMPLETIONS, CHAT)
        ),
        "errors": _errors(),
        **{name: _links(programs) for name, programs in CLIENT_PROGRAMS.items()},
    }
    text = TEXT.read_text()
    for placeholder, section in sections.items():
        text = text.replace(f"{{{placeholder}}}", section)
    return text


def engines() -> Engines:
    """Return each engine's capabilities, by default and with the settings that change them."""
    return {
        "llamacpp": {
            "": llamacpp(_MODEL, 4096, 4, infill=True),
            "`DRAFT_MODEL_PATH`": llamacpp(_MODEL, 4096, 4, infill=True, draft=True),
            "`MMPROJ_PATH`": llamacpp(_MODEL, 4096, 4, infill=True, images=True),
            "`LORA_ADAPTERS`": llamacpp(_MODEL, 4096, 4, infill=True, adapters=ADAPTERS),
            "`DETERMINISTIC`": llamacpp(_MODEL, 4096, 1, infill=True, prefix_reuse=False),
            "a reranking model": llamacpp(
                _MODEL, 4096, 4, infill=True, embedding_size=0, rerank=True
            ),
        },
        "rkllm 1.2": _rkllm(ABI_12),
        "rkllm 1.3": _rkllm(ABI_13),
        "scripted": {"": ScriptedBackend(ScriptedOptions(model_name=_MODEL)).load()},
    }


def _rkllm(abi: Abi) -> Mapping[str, Capabilities]:
    def build(**settings: Any) -> Capabilities:
        defaults = {
            "can_reload": False,
            "has_tokenizer": True,
            "has_template": True,
            "kv_reuse": True,
        }
        return rkllm(_MODEL, 4096, abi, **defaults | settings)

    return {
        "": build(),
        "`RKLLM_SAMPLING=reload`": build(can_reload=True),
        "without a tokenizer": build(has_tokenizer=False, has_template=False),
        "`RKLLM_LORA`": build(adapters=ADAPTERS),
        "`RKLLM_MODE=logits`": build(logits=True),
        "a reranking model": build(rerank_gap="it needs another mode"),
        "a reranking model with `RKLLM_MODE=logits`": build(rerank=True, kv_reuse=False),
        "`RKLLM_VISION`": build(images=True),
        "`RKLLM_N_BATCH=4`": build(slots=4, kv_reuse=False),
    }


def _routes() -> str:
    rows = [
        [f"`{path}`", known.summary, "yes" if known.can_stream else ""]
        for api in DESCRIBED_APIS
        for path, known in api.operations.items()
    ]
    return in_markdown(["route", "purpose", "can stream"], rows)


def _embeddings() -> str:
    texts = {"input": "a string, an array of strings, of token ids, of arrays of token ids"}
    return _parameters(texts, EmbeddingsInput, lambda capabilities: capabilities.embeddings)


def _can_score(capabilities: Capabilities) -> bool:
    return capabilities.rerank or capabilities.embeddings


def _parameters(
    texts: Mapping[str, str],
    parameters: type[BaseModel],
    is_supported: Callable[[Capabilities], bool],
) -> str:
    """Return the table of a route that all parameters of an engine support, or none."""
    support = {
        engine: _describe_configurations(
            configurations, lambda capabilities: "yes" if is_supported(capabilities) else "400"
        )
        for engine, configurations in engines().items()
    }
    values = dict(texts)
    for name, field in parameters.model_fields.items():
        values[name] = field.description or ""
    rows = [[f"`{name}`", text, *support.values()] for name, text in values.items()]
    return in_markdown(["parameter", "values", *support], rows)


def _capabilities() -> str:
    configurations_by_engine = engines()
    rows = [
        [
            label,
            *(
                _describe_configurations(configurations, partial(_capability, name))
                for configurations in configurations_by_engine.values()
            ),
        ]
        for name, label in CAPABILITY_LABELS.items()
    ]
    return in_markdown(["capability", *configurations_by_engine], rows)


def _capability(name: str, capabilities: Capabilities) -> str:
    value = getattr(capabilities, name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return "yes" if value else "no"


def _describe_configurations(
    configurations: Mapping[str, Capabilities], describe: Callable[[Capabilities], str]
) -> str:
    """Return the description of the default settings, and of other settings if it differs."""
    (_, default), *others = (
        (name, describe(capabilities)) for name, capabilities in configurations.items()
    )
    return "; ".join([default, *(f"{name}: {text}" for name, text in others if text != default)])


def _errors() -> str:
    return in_markdown(
        ["status", "`type`", "meaning"],
        [[str(status), f"`{kind}`", text] for (status, kind), text in ERROR_DESCRIPTIONS.items()],
    )


def _links(programs: Sequence[str]) -> str:
    return ", ".join(f"[{name}](../tests/acceptance/programs/{name})" for name in programs)


if __name__ == "__main__":
    sys.stdout.write(page())
