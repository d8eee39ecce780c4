"""`python -m emulator.openai_page`: docs/openai.md, its tables made by asking the code itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from emulator.operations import OPERATIONS
from engine.backends.llamacpp.backend import claims as llamacpp
from engine.backends.rkllm.abi import ABI_12, ABI_13, Abi
from engine.backends.rkllm.claims import claims as rkllm
from engine.backends.scripted import ScriptedBackend
from engine.capabilities import Capabilities
from handler.errors import TABLE
from handler.openai.embeddings import EmbeddingsInput
from handler.openai.matrix import ADAPTERS, Engines, Matrix, dialect_table, in_markdown
from handler.openai.probes import CHAT, COMPLETIONS
from handler.sampling import IGNORED

# In sentences about it.
_MODEL = "the model"
TEXT = Path(__file__).with_suffix(".md")

# By the name of the field in `Dialect`.
DIALECT_WORDS: Mapping[str, str] = {
    "model_required": "`model` must be given",
    "max_stops": "most strings in `stop`",
    "usage_unasked": "a stream ends with `usage` where `stream_options` is unset",
    "role_in_every_delta": "every delta of a chat has a `role`, not the first one alone",
    "stop_in_stream": "a stream's text has the stop string in it, and must",
    "best_of_is_one": "`best_of` is 1 where it is unset, not `n`",
    "one_logprob": "`logprobs` must be 1, and not be streamed",
    "top_p_above_zero": "`top_p` must be above 0",
    "most_without_eos": "most `max_tokens` with `ignore_eos`, and how many where unset",
    "refuses_draft": "what is for a draft model is refused where there is none",
    "named_errors": "errors have names for their codes, not the HTTP status",
}

# By the name of the field in `Capabilities`; its other fields are about a model, or are parameters
# that have a row of their own.
ABILITY_WORDS: Mapping[str, str] = {
    "slots": "generations side by side",
    "max_logprobs": "alternatives a token is told with",
    "fixed_sampling": "sampling that is fixed while the model is loaded",
    "grammar": "answers held to a grammar, token by token",
    "json_schema": "answers held to a JSON Schema, token by token",
    "turns": "a chat is read as the turns it has",
    "plain_prompts": "a prompt goes in as it is",
    "tokenize": "tokens of a text are told",
    "embeddings": "vectors of texts",
    "adapters": "LoRA adapters by name",
    "draft": "a draft model guesses ahead",
    "prefix_reuse": "a chat's next turn is read from where the last one ended",
    "prompt_caches": "prompts are kept by name",
    "abort_in_prefill": "an abort is heard while a prompt is read",
}

# The documents' programs in tests/acceptance/programs, by the place for them in the text.
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
    """Return the whole page: the text, with what is made in its places."""
    matrix = Matrix(engines())
    made = {
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
    for place, told in made.items():
        text = text.replace(f"{{{place}}}", told)
    return text


def engines() -> Engines:
    """Return what each engine can do as it is usually set up, and in other ways that differ."""
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
        if known.tag == "OpenAI"
    ]
    return in_markdown(["route", "what for", "streams"], rows)


def _embeddings() -> str:
    able = {name: _has_vectors(ways) for name, ways in engines().items()}
    given = {name: field.description or "" for name, field in EmbeddingsInput.model_fields.items()}
    takes = {"input": "a string, an array of strings, of token ids, of arrays of token ids"} | given
    return in_markdown(
        ["parameter", "takes", *able],
        [[f"`{name}`", said, *able.values()] for name, said in takes.items()],
    )


def _has_vectors(ways: Mapping[str, Capabilities]) -> str:
    return _in_ways(ways, lambda able: "yes" if able.embeddings else "400")


def _abilities() -> str:
    known = engines()
    return in_markdown(
        ["what it can do", *known],
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
    """Return what is told of the usual way, and of the others where it is something else."""
    usual, *others = ((way, told(able)) for way, able in ways.items())
    return "; ".join([usual[1], *(f"{way}: {said}" for way, said in others if said != usual[1])])


def _errors() -> str:
    found: dict[tuple[int, str], list[str]] = {}
    for kind, row in TABLE.items():
        found.setdefault((row.status, row.type), []).append(kind.__name__)
    return in_markdown(
        ["status", "`type`", "what happened, by its name in the code"],
        [
            [str(status), f"`{kind}`", ", ".join(sorted(names))]
            for (status, kind), names in sorted(found.items())
        ],
    )


def _links(programs: Sequence[str]) -> str:
    return ", ".join(f"[{name}](../tests/acceptance/programs/{name})" for name in programs)


if __name__ == "__main__":
    sys.stdout.write(page())
