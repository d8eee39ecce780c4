"""RKLLM_MODE=logits: the cost of sampling each token here, in addition to the runtime.

The vocabulary is Qwen's, with 151,936 tokens: a row of logits has 608 kB, which is copied during
the callback and then searched. The runtime is the stand-in of `tests/fake_rkllm`, ABI 1.3; its time
to fabricate a row is in the lines for answers, and is shown separately before them. The time of an
NPU per token is in none. All figures are processor time of one thread, so other load on the machine
does not count.
"""

from __future__ import annotations

import random
import string
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from time import process_time
from typing import Any, cast

import numpy as np

from benchmarks.measure import Table
from benchmarks.options import Options, print_progress
from engine.backends.rkllm.abi.abi import ABI_13, bind
from engine.backends.rkllm.abi.structs import RKLLMInferMode
from engine.backends.rkllm.library import load_library
from engine.backends.rkllm.logits.grammar import Constraint, GrammarCompiler
from engine.backends.rkllm.logits.sampler import Sampler
from engine.backends.rkllm.logits.token_loop import TokenLoop
from engine.backends.rkllm.logits.vocabulary import Vocabulary
from engine.backends.rkllm.runs.run import InitConfig
from engine.backends.rkllm.runtime import Runtime
from engine.backends.rkllm.tokenizer import ChatTokenizer
from engine.request import SamplingParams
from tests.fake_rkllm import build, write_script

NAME = "logits"
SIZE = 151_936
_TOKENS = 100
_PROMPT = list(range(100))
_JOB: Mapping[str, Any] = {"temperature": 0.7, "top_k": 50, "top_p": 0.9}
_WAYS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "a job's defaults": _JOB,
    "temperature alone": {"temperature": 1.0},
    "top_p 0.9 alone": {"top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
    "a job's defaults and all penalties": {
        **_JOB,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.5,
    },
    "a job's defaults and 20 logprobs": {**_JOB, "logprobs": 20},
}


_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "count": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
    },
    "required": ["name", "count", "tags"],
    "additionalProperties": False,
}
_CONSTRAINED_TEXT = (
    b'{"name": "Some one who is here, and there", "count": 1234, "tags": ["red", "blue"]}'
)


class _Tokens:
    """A vocabulary that has only a size."""

    size = SIZE
    ends = frozenset[int]()

    def piece(self, token: int) -> bytes:
        return b"a"

    def text(self, token: int) -> str:
        return "a"


class _Words:
    """All bytes, then words and JSON punctuation, and an end token; texts are bytes."""

    size = SIZE
    ends = frozenset((SIZE - 1,))
    special: Mapping[int, str] = {SIZE - 1: "</s>"}

    def __init__(self) -> None:
        dice = random.Random(1)
        words = {bytes((byte,)): None for byte in range(256)}
        while len(words) < SIZE - 1:
            letters = dice.choice((string.ascii_lowercase, '{}[]":,. \n0123456789-_'))
            word = "".join(dice.choices(letters, k=dice.randint(2, 9)))
            words[(dice.choice(("", " ")) + word).encode()] = None
        self._pieces = [*words, b""]

    def piece(self, token: int) -> bytes:
        return self._pieces[token]

    def encode(self, text: str, *, special: bool) -> list[int]:
        return list(text.encode())


def run(options: Options) -> list[Table]:
    """Measure the sampler alone, then whole answers on the stand-in."""
    table = Table(title=NAME, ours="ours")
    repeats = max(options.pairs, 3)
    for way, sampling in _WAYS.items():
        print_progress(f"{NAME}: {way}")
        params = SamplingParams(seed=1, **sampling)
        table.add_single(
            f"choosing, {way}", "CPU ms/token", [_choosing_ms(params) for _ in range(repeats)]
        )
    print_progress(f"{NAME}: held to a schema")
    words = _Words()
    table.add_single(
        "preparing the vocabulary for schemas, once",
        "CPU ms",
        [_known_ms(words) for _ in range(3)],
    )
    grammars = _grammars(words)
    table.add_single(
        "compiling a schema",
        "CPU ms/answer",
        [_schema_ms(grammars) for _ in range(repeats)],
    )
    table.add_single(
        "choosing, a job's defaults, held to a schema",
        "CPU ms/token",
        [_held_ms(grammars) for _ in range(repeats)],
    )
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        runtime = _runtime(Path(folder))
        table.add_single(
            "bare stand-in, a row of logits without reading it",
            "CPU ms/token",
            [_bare_ms(runtime) for _ in range(repeats)],
        )
        for way in ("greedy", "a job's defaults"):
            print_progress(f"{NAME}: an answer, {way}")
            params = SamplingParams(seed=1, **_WAYS[way])
            table.add_single(
                f"an answer's token, {way}",
                "CPU ms/token",
                [_answer_ms(runtime, grammars, params) for _ in range(repeats)],
            )
        runtime.close()
    table.notes.append(f"{SIZE:,} tokens in the vocabulary, a prompt of {len(_PROMPT)}.")
    return [table]


def _choosing_ms(params: SamplingParams) -> float:
    """Measure sampling on rows like those of models: a few tokens are near the maximum, most are
    far below.
    """
    dice = np.random.default_rng(1)
    rows = (dice.standard_normal((8, SIZE)) * 3).astype(np.float32)
    rows[:, :20] = 22 - np.arange(20) / 2
    chooses = Sampler(params, _PROMPT, SIZE)
    started = process_time()
    for number in range(_TOKENS):
        chooses.sample(rows[number % len(rows)])
    return (process_time() - started) * 1000 / _TOKENS


def _grammars(words: _Words) -> GrammarCompiler:
    return GrammarCompiler(cast("Vocabulary", words), cast("ChatTokenizer", words))


def _known_ms(words: _Words) -> float:
    started = process_time()
    _grammars(words)
    return (process_time() - started) * 1000


def _held(grammars: GrammarCompiler) -> Constraint:
    held = grammars.build_constraint(SamplingParams(json_schema=_SCHEMA))
    assert held is not None
    return held


def _schema_ms(grammars: GrammarCompiler) -> float:
    started = process_time()
    _held(grammars).allowed_tokens()
    return (process_time() - started) * 1000


def _held_ms(grammars: GrammarCompiler) -> float:
    """Measure constrained sampling for a model that would write this text anyway, so that no byte
    is forced.
    """
    held = _held(grammars)
    chooses = Sampler(SamplingParams(seed=1, **_JOB), _PROMPT, SIZE)
    rows = (np.random.default_rng(1).standard_normal((8, SIZE)) * 3).astype(np.float32)
    spent = 0.0
    for number, byte in enumerate(_CONSTRAINED_TEXT):
        row = rows[number % len(rows)]
        row[byte] = 50
        started = process_time()
        picked = chooses.sample(row, held.allowed_tokens())
        held.advance(picked.token, fast_forward=False)
        spent += process_time() - started
        assert picked.token == byte
        row[byte] = 0
    return spent * 1000 / len(_CONSTRAINED_TEXT)


def _runtime(folder: Path) -> Runtime:
    model = write_script(
        folder / "model.rkllm", f"chatter none\nvocabulary {SIZE}\nanswer\n  thread caller\n"
    )
    runtime = Runtime(bind(load_library(build("1.3", folder)), ABI_13), ABI_13)
    runtime.init(InitConfig(model=model, context_length=4096, sampling=SamplingParams()))
    return runtime


def _bare_ms(runtime: Runtime) -> float:
    assert runtime.clear_cache()
    started = process_time()
    for token in range(_TOKENS):
        mode = RKLLMInferMode.RKLLM_INFER_GET_LOGITS
        runtime.compute([token], mode, lambda result: None, keep_history=True)
    return (process_time() - started) * 1000 / _TOKENS


def _answer_ms(runtime: Runtime, grammars: GrammarCompiler, params: SamplingParams) -> float:
    """Measure the tokens after the first one, which includes the prefill."""
    stamps: list[float] = []

    def on_piece(piece: bytes, token: int, logprob: object) -> bool:
        stamps.append(process_time())
        return len(stamps) > _TOKENS

    stepwise = TokenLoop(runtime, cast("Vocabulary", _Tokens()), 4096, grammars)
    stepwise.run(_PROMPT, params, on_piece, threading.Event())
    return (stamps[-1] - stamps[0]) * 1000 / _TOKENS
