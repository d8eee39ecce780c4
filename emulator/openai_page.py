"""`python -m emulator.openai_page`: docs/openai.md, its tables made by asking the code itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
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
            constrains=logits,
            prompt_caches=caches,
        )

    return {
        "": able(),
        "`RKLLM_SAMPLING=reload`": able(reloads=True),
        "`RKLLM_PROMPT_CACHES`": able(caches=True),
        "without a tokenizer": able(tokenizer=False),
        "`RKLLM_LORA`": able(adapters=ADAPTERS),
        "`RKLLM_MODE=logits`": able(logits=True),
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
    usual, *others = ((way, "yes" if able.embeddings else "400") for way, able in ways.items())
    return "; ".join([usual[1], *(f"{way}: {told}" for way, told in others if told != usual[1])])


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
