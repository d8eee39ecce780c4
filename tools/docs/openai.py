"""`python -m tools.docs.openai`: docs/openai.md, with tables generated from the code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from emulator.openapi.operations import OPENAI_TAGS, OPERATIONS
from engine.backends.llamacpp.backend import claims as llamacpp
from engine.backends.rkllm.abi import ABI_12, ABI_13, Abi
from engine.backends.rkllm.model_capabilities import claims as rkllm
from engine.backends.scripted import ScriptedBackend
from engine.capabilities import Capabilities
from handler.openai.embeddings import EmbeddingsInput
from handler.parameter_names import IGNORED
from tools.docs.support_matrix import ADAPTERS, Engines, Matrix, dialect_table, in_markdown
from tools.docs.support_probes import CHAT, COMPLETIONS

# The model's name in the sentences of the page.
_MODEL = "the model"
TEXT = Path(__file__).with_suffix(".md")

# By the name of the field in `Dialect`.
DIALECT_WORDS: Mapping[str, str] = {
    "model_required": "`model` is required",
    "max_stops": "maximum number of `stop` strings",
    "usage_unasked": "a stream ends with `usage` without `stream_options`",
    "role_in_every_delta": "every chat delta has a `role`, not only the first",
    "stop_in_stream": "streamed text always includes the stop string",
    "best_of_is_one": "`best_of` defaults to 1, not to `n`",
    "one_logprob": "`logprobs` must be 1 and cannot be streamed",
    "top_p_above_zero": "`top_p` must be above 0",
    "most_without_eos": "`max_tokens` with `ignore_eos`: maximum and default",
    "refuses_draft": "parameters for a draft model get a 400 without one",
    "named_errors": "`code` of an error is a name, not the HTTP status",
}

# By the name of the field in `Capabilities`; its other fields are about a model, or are parameters
# that have a row of their own.
ABILITY_WORDS: Mapping[str, str] = {
    "slots": "parallel generations (slots)",
    "max_logprobs": "maximum log-probability alternatives per token",
    "fixed_sampling": "sampling parameters are fixed when the model is loaded",
    "grammar": "constrained decoding with a grammar",
    "json_schema": "constrained decoding with a JSON Schema",
    "turns": "chats keep their turns and roles",
    "plain_prompts": "raw prompts, without the chat template",
    "tokenize": "tokenization",
    "embeddings": "embeddings",
    "adapters": "LoRA adapters by name",
    "draft": "speculative decoding with a draft model",
    "prefix_reuse": "reuse of the previous turn's cache in a chat",
    "prompt_caches": "named prompt caches (`prompt_cache`)",
    "abort_in_prefill": "abort during prefill",
}

# By status and type; a test compares them with the table of errors.
ERROR_WORDS: Mapping[tuple[int, str], str] = {
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
PROGRAMS: Mapping[str, Sequence[str]] = {
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
        "dialects": dialect_table(DIALECT_WORDS),
        "completions": matrix.table(COMPLETIONS),
        "chat": matrix.table(CHAT),
        "notes": matrix.notes(),
        "embeddings": _embeddings(),
        "abilities": _abilities(),
        "ignored": "\n".join(
            f"- `/{'chat/' if route == CHAT else ''}completions`: "
            + ", ".join(f"`{name}`" for name in matrix.ignored(route, sorted(IGNORED)))
            for route in (COMPLETIONS, CHAT)
        ),
        "errors": _errors(),
        **{place: _links(programs) for place, programs in PROGRAMS.items()},
    }
    text = TEXT.read_text()
    for placeholder, section in sections.items():
        text = text.replace(f"{{{placeholder}}}", section)
    return text


def engines() -> Engines:
    """Return the capabilities of each engine with its defaults, and with settings that matter."""
    return {
        "llamacpp": {
            "": llamacpp(_MODEL, 4096, 4, infill=True),
            "`DRAFT_MODEL_PATH`": llamacpp(_MODEL, 4096, 4, infill=True, draft=True),
            "`DETERMINISTIC`": llamacpp(_MODEL, 4096, 1, infill=True, prefix_reuse=False),
        },
        "rkllm 1.2": _rkllm(ABI_12),
        "rkllm 1.3": _rkllm(ABI_13),
        "scripted": {"": ScriptedBackend(model_name=_MODEL).load()},
    }


def _rkllm(abi: Abi) -> Mapping[str, Capabilities]:
    def able(
        *,
        reloads: bool = False,
        tokenizer: bool = True,
        adapters: Sequence[str] = (),
        logits: bool = False,
        caches: bool = False,
        slots: int = 1,
    ) -> Capabilities:
        return rkllm(
            _MODEL,
            4096,
            abi,
            reloads=reloads,
            tokenizes=tokenizer,
            renders=tokenizer,
            adapters=adapters,
            logits=logits,
            reuses=slots == 1,
            prompt_caches=caches,
            slots=slots,
        )

    return {
        "": able(),
        "`RKLLM_SAMPLING=reload`": able(reloads=True),
        "`RKLLM_PROMPT_CACHES`": able(caches=True),
        "without a tokenizer": able(tokenizer=False),
        "`RKLLM_LORA`": able(adapters=ADAPTERS),
        "`RKLLM_MODE=logits`": able(logits=True),
        "`RKLLM_N_BATCH=4`": able(slots=4),
    }


def _routes() -> str:
    rows = [
        [f"`{path}`", known.summary, "yes" if known.events else ""]
        for path, known in OPERATIONS.items()
        if known.tag in OPENAI_TAGS
    ]
    return in_markdown(["route", "purpose", "can stream"], rows)


def _embeddings() -> str:
    able = {name: _has_vectors(ways) for name, ways in engines().items()}
    given = {name: field.description or "" for name, field in EmbeddingsInput.model_fields.items()}
    takes = {"input": "a string, an array of strings, of token ids, of arrays of token ids"} | given
    return in_markdown(
        ["parameter", "values", *able],
        [[f"`{name}`", said, *able.values()] for name, said in takes.items()],
    )


def _has_vectors(ways: Mapping[str, Capabilities]) -> str:
    return _in_ways(ways, lambda able: "yes" if able.embeddings else "400")


def _abilities() -> str:
    known = engines()
    return in_markdown(
        ["capability", *known],
        [
            [said, *(_in_ways(ways, partial(_ability, name)) for ways in known.values())]
            for name, said in ABILITY_WORDS.items()
        ],
    )


def _ability(name: str, able: Capabilities) -> str:
    value = getattr(able, name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return "yes" if value else "no"


def _in_ways(ways: Mapping[str, Capabilities], told: Callable[[Capabilities], str]) -> str:
    """Return the value for the default settings, and for other settings where it differs."""
    usual, *others = ((way, told(able)) for way, able in ways.items())
    return "; ".join([usual[1], *(f"{way}: {said}" for way, said in others if said != usual[1])])


def _errors() -> str:
    return in_markdown(
        ["status", "`type`", "meaning"],
        [[str(status), f"`{kind}`", text] for (status, kind), text in ERROR_WORDS.items()],
    )


def _links(programs: Sequence[str]) -> str:
    return ", ".join(f"[{name}](../tests/acceptance/programs/{name})" for name in programs)


if __name__ == "__main__":
    sys.stdout.write(page())
