"""Examines step by step what a backend does on this machine, and prints each finding.

`python -m handler doctor` runs it as `python -m engine.doctor.examiner PARENT_PID`, with the
backend as JSON on stdin. Each finding is one JSON line on stdout, written at once: if the runtime
kills this process, the earlier findings and the current step are known.
"""

from __future__ import annotations

import base64
import ctypes
import importlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from common.fingerprint import sha256_of_ends
from common.process_utils import die_with_parent, exit_now, ignore_signals
from engine.backends import build
from engine.backends.base import Backend
from engine.backends.options import BackendOptions, RkllmOptions, options_from_wire
from engine.capabilities import Capabilities
from engine.doctor import machine_info
from engine.doctor.answer_checks import build_picture, find_cosine, is_count, is_garbage
from engine.doctor.run_trace import RunTrace, trace_run
from engine.errors import BackendFailed, EngineError, RequestRejected
from engine.request import Chat, ChatImage, Message, Prompt

# The names of the first finding of a step, and of the last one if it fails.
BEGINS = "begins"
FAILED = "failed"

Findings = Iterator[tuple[str, Any]]

# The answer to the short prompt ends before any limit: an aborted run may have no statistics. The
# answer to the long one does not end before the limit or the abort.
_SHORT_PROMPT = "Count from one to twenty, in words."
_LONG_PROMPT = "Tell a long story about a walnut tree."
_LIMIT_TOKENS = 5
# The first two are alike, the third is not.
_TEXTS = (
    "The cat sleeps on the sofa.",
    "A kitten is having a nap on the couch.",
    "The central bank raised its interest rates in March.",
)
# Vectors of unlike texts from a language model have a cosine below it, and equal ones above.
_MAX_COSINE = 0.999
_PICTURE_PROMPT = "Which colour is this picture? Answer with one word."
_COLOURS = {"red": b"\xff\0\0", "blue": b"\0\0\xff"}
_LOOK_TOKENS = 24
_ABORT_AT_TOKEN = 8
_MAX_PROMPT_WORDS = 1024
# Valid in any vocabulary; their text does not matter.
_PROMPT_TOKENS = tuple(range(100, 140))
# A shorter prefill cannot be distinguished from one that was interrupted.
_MIN_PREFILL_S = 0.2
_FINAL_RUNS = 5
# The finding about a build of llama.cpp that is slower than the machine allows.
SLOW_BUILD = "slow build"
# The steps that show how fast prompts and answers are.
SPEED_STEPS = ("loading", "first run", "long prompt", "closing")
# Long enough for the driver's own average of the load.
_NPU_TOKENS = 64


class Doctor:
    """Examines one backend on the calling thread; only callbacks may come on other threads."""

    def __init__(self, options: BackendOptions) -> None:
        self._options = options
        self._backend: Backend = build(options)
        self._capabilities: Capabilities | None = None
        self._prefill_s: float | None = None
        self._runs = 0

    def examine(self, only: Collection[str] | None = None) -> Iterator[tuple[str, str, Any]]:
        """Yield findings as step, name and value; the value of BEGINS is whether a model is loaded.

        `only` names the steps to run, None for all.

        A step that fails is a finding too. It is the last one if no model is loaded, because all
        later steps need one.
        """
        for step, run_step in self._steps():
            if only is not None and step not in only:
                continue
            yield step, BEGINS, self._capabilities is not None
            try:
                for name, value in run_step():
                    yield step, name, value
            except Exception as error:
                if not isinstance(error, EngineError):
                    traceback.print_exc()
                yield step, FAILED, f"{type(error).__name__}: {error}"
                if self._capabilities is None:
                    return

    def _steps(self) -> Iterator[tuple[str, Callable[[], Findings]]]:
        yield "machine", machine_info.describe_machine
        yield "model", self._model
        if isinstance(options := self._options, RkllmOptions):
            from engine.backends.rkllm.board import diagnostics

            yield "driver", lambda: diagnostics.report_driver(options.cpu_mask)
            yield "library", lambda: diagnostics.report_library(options)
        yield "loading", self._loading
        yield "first run", self._first_run
        yield f"limit of {_LIMIT_TOKENS} tokens", self._limit
        yield "abort in decode", self._abort_in_decode
        yield "next turn", self._next_turn
        yield "long prompt", self._long_prompt
        yield "abort in prefill", self._abort_in_prefill
        yield "afterwards", self._afterwards
        if self._options.backend == "rkllm":
            yield "NPU", self._npu
            if self._capabilities and self._capabilities.embeddings:
                yield "vector", self._vector
            if self._capabilities and self._capabilities.images:
                yield "pictures", self._pictures
            for adapter in self._capabilities.adapters if self._capabilities else ():
                yield f"adapter {adapter}", partial(self._adapter, adapter)
        yield "closing", self._closing

    def _model(self) -> Findings:
        path = Path(self._options.model_path or "")
        if not path.is_file():
            # The backend reports whether that is an error.
            yield "path", str(path) if path.name else "none was given"
            return
        yield "path", str(path)
        yield "bytes", path.stat().st_size
        yield "sha256 of its first and last million bytes", sha256_of_ends(path)

    def _loading(self) -> Findings:
        started = time.monotonic()
        capabilities = self._backend.load()
        yield "seconds", round(time.monotonic() - started, 2)
        yield "resident memory, MB", machine_info.resident_mb()
        self._capabilities = capabilities
        if self._options.backend == "llamacpp":
            from engine.backends.llamacpp.cpu_features import find_slow_build_warning

            library: Any = importlib.import_module("xllamacpp")
            if (warning := find_slow_build_warning(library.get_system_info())) is not None:
                yield SLOW_BUILD, warning
        # `runtime` repeats the findings of the step "library".
        yield from (each for each in capabilities.to_wire().items() if each[0] != "runtime")

    def _first_run(self) -> Findings:
        run = self._run(_SHORT_PROMPT, max_tokens=256)
        reported = run.end.reported_tokens
        text = "".join(run.text)
        yield "text", text[:200]
        yield "ms to the first callback", _ms(run.first_s)
        yield "prefill ms, as the runtime says", round(run.end.prefill_ms, 1)
        yield "prompt tokens", run.end.prompt_tokens
        yield "tokens a second", _rounded(run.tokens_per_second)
        yield "callbacks", run.callbacks
        yield "tokens, as the runtime counts", reported
        beyond = None if reported is None else run.callbacks - reported
        yield "callbacks beyond the runtime's count", beyond
        # Batched runs call back from a thread of their own.
        is_batched = isinstance(self._options, RkllmOptions) and self._options.n_batch > 1
        is_comparable = run.threads and not is_batched
        is_same_thread = run.threads == {threading.get_ident()}
        yield "callbacks on the calling thread", is_same_thread if is_comparable else None
        yield "threads that called back", len(run.threads)
        counts = is_count(text)
        yield "counts, as it was asked to", counts
        if is_garbage(text) or (isinstance(self._options, RkllmOptions) and not counts):
            kind = "empty" if not text.strip() else "no text" if is_garbage(text) else "no count"
            raise BackendFailed(
                f"the answer is {kind}: the model is damaged, or was converted for another chip or "
                "version of the runtime"
            )

    def _limit(self) -> Findings:
        run = self._run(_LONG_PROMPT, max_tokens=_LIMIT_TOKENS)
        yield "text", "".join(run.text)
        yield "callbacks", run.callbacks
        beyond = run.callbacks - _LIMIT_TOKENS
        yield "callbacks beyond the limit", beyond if beyond >= 0 else None
        after = run.returned - run.callback_times[-1] if run.callback_times else None
        yield "ms from the last one to the return", _ms(after)

    def _abort_in_decode(self) -> Findings:
        run = self._run(_LONG_PROMPT, max_tokens=256, abort_at_token=_ABORT_AT_TOKEN)
        yield "ms to the return", _ms(run.abort_s)
        late = run.callbacks - _ABORT_AT_TOKEN if run.abort_s is not None else None
        yield "callbacks after it", late

    def _next_turn(self) -> Findings:
        first = self._run(_PROMPT_TOKENS, max_tokens=_LIMIT_TOKENS)
        # Tokens without an id cannot be sent again.
        prompt = (*_PROMPT_TOKENS, *(id_ for id_ in first.ids if id_ >= 0), *_PROMPT_TOKENS)
        yield "prompt tokens", len(prompt)
        yield "tokens of the first turn", len(_PROMPT_TOKENS) + len(first.ids)
        try:
            second = self._run(prompt, max_tokens=1)
        except RequestRejected as error:
            # The runtime generated a token that the tokenizer files lack, such as one that only
            # fills the vocabulary up. The board is not at fault.
            yield "not tried", error.message
            return
        yield "tokens reused", second.end.cached_tokens

    def _long_prompt(self) -> Findings:
        run = self._run(self._build_long_prompt(), max_tokens=1)
        # If the first token ends the answer, there is no callback: the run returns instead.
        self._prefill_s = run.first_s or run.returned - run.started
        yield "prompt tokens", run.end.prompt_tokens
        yield "ms to the first callback", _ms(self._prefill_s)

    def _abort_in_prefill(self) -> Findings:
        prefill_s = self._prefill_s
        if prefill_s is None:
            yield "prefill interrupted", None
            return
        run = self._run(self._build_long_prompt(), max_tokens=8, abort_after_s=prefill_s / 4)
        yield "ms to the abort", _ms(prefill_s / 4)
        yield "ms from there to the return", _ms(run.abort_s)
        yield "callbacks", run.callbacks
        # An abort near the end of the prefill, or after it, shows nothing.
        delay_s = None if run.aborted is None else run.aborted - run.started
        yield "ms from the start to the abort", _ms(delay_s)
        is_early = delay_s is not None and delay_s < prefill_s / 2
        is_conclusive = prefill_s >= _MIN_PREFILL_S and is_early and run.abort_s is not None
        was_interrupted = run.returned - run.started < 0.6 * prefill_s
        yield "prefill interrupted", was_interrupted if is_conclusive else None

    def _afterwards(self) -> Findings:
        before = machine_info.resident_mb()
        for _ in range(_FINAL_RUNS):
            run = self._run(_LONG_PROMPT, max_tokens=8)
        after = machine_info.resident_mb()
        yield "more runs", _FINAL_RUNS
        yield "callbacks of the last one", run.callbacks
        yield "resident memory, MB", after
        growth = None if before is None or after is None else round(after - before, 1)
        yield "growth over these runs, MB", growth

    def _npu(self) -> Findings:
        from engine.backends.rkllm.board.npu_state import NpuWatch

        watch = NpuWatch()
        with watch.watching():
            self._run(self._build_long_prompt(), max_tokens=_NPU_TOKENS)
        highest = watch.highest
        cores = {f"core {core}": round(load * 100) for core, load in enumerate(highest.load)}
        yield "highest load, %", cores or None
        yield "clock, MHz", None if highest.clock_hz is None else round(highest.clock_hz / 1e6)
        yield "highest temperature, °C", highest.temperature_celsius

    def _vector(self) -> Findings:
        started = time.monotonic()
        embed = self._backend.operations["embed"]
        vector, tokens = embed(_TEXTS[0])
        yield "tokens", tokens
        yield "numbers", len(vector)
        yield "ms", _ms(time.monotonic() - started)
        like, unlike = (find_cosine(vector, embed(text)[0]) for text in _TEXTS[1:])
        yield "cosine of two like texts", round(like, 4)
        yield "cosine of two unlike texts", round(unlike, 4)
        yield "like texts are nearer", like > unlike
        if unlike > _MAX_COSINE:
            # Boards reported vectors that are all alike (rknn-llm#515).
            raise BackendFailed("the vectors of unlike texts are alike: they are of no use")

    def _pictures(self) -> Findings:
        texts = []
        for colour, value in _COLOURS.items():
            picture = ChatImage(base64.b64encode(build_picture(value)).decode(), 0)
            run = self._run(_PICTURE_PROMPT, max_tokens=_LOOK_TOKENS, images=(picture,))
            texts.append("".join(run.text))
            yield f"text about a {colour} picture", texts[-1][:200]
            yield "prompt tokens", run.end.prompt_tokens
            yield "ms to the first callback", _ms(run.first_s)
        named = [colour in text.casefold() for colour, text in zip(_COLOURS, texts, strict=True)]
        yield "colours named", all(named)
        if is_garbage("".join(texts)) or not all(text.strip() for text in texts):
            raise BackendFailed("the answers about pictures are empty or no text")
        if not any(named) and len({*texts}) == 1:
            raise BackendFailed("the answer does not depend on the picture")

    def _adapter(self, name: str) -> Findings:
        run = self._run(_SHORT_PROMPT, max_tokens=_LOOK_TOKENS, lora=name)
        text = "".join(run.text)
        yield "text", text[:200]
        yield "tokens a second", _rounded(run.tokens_per_second)
        if is_garbage(text) or not text.strip():
            raise BackendFailed("the answer with the adapter is empty or no text")

    def _closing(self) -> Findings:
        started = time.monotonic()
        self._backend.close()
        yield "ms", _ms(time.monotonic() - started)

    @property
    def _loaded(self) -> Capabilities:
        if self._capabilities is None:
            raise BackendFailed("no model is loaded")
        return self._capabilities

    def _build_long_prompt(self) -> str:
        """Return a long prompt; each one begins differently, so that no prompt cache is used.

        It fits the context even if each letter is a token.
        """
        words = min(self._loaded.context_length // 8, _MAX_PROMPT_WORDS)
        return f"{self._runs}{' walnut' * words}"

    def _run(
        self,
        prompt: str | tuple[int, ...],
        *,
        max_tokens: int,
        abort_at_token: int | None = None,
        abort_after_s: float | None = None,
        images: tuple[ChatImage, ...] = (),
        lora: str | None = None,
    ) -> RunTrace:
        self._runs += 1
        model_input: Prompt = prompt
        if isinstance(prompt, str) and (images or self._loaded.chat_template):
            model_input = Chat((Message("user", prompt, images=images),))
        return trace_run(
            self._backend,
            self._runs,
            model_input,
            max_tokens=max_tokens,
            abort_at_token=abort_at_token,
            abort_after_s=abort_after_s,
            lora=lora,
        )


def examine_trial(step: str, options: RkllmOptions) -> Iterator[tuple[str, str, Any]]:
    """Yield the findings of one of RKLLM's trials, as `Doctor.examine` does."""
    from engine.backends.rkllm.board.trials import run_trial

    yield step, BEGINS, False
    try:
        for finding in run_trial(step, options):
            yield (step, BEGINS, True) if finding is None else (step, *finding)
    except EngineError as error:
        yield step, FAILED, str(error)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else _rounded(seconds * 1000)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _unbuffer_c_stdout() -> None:
    """Turn off C's buffer of stdout: a crash would lose the output that explains it."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        unbuffered = 2
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, unbuffered, 0)


def main() -> None:
    """Examine the backend that stdin describes, for the parent given as argument."""
    die_with_parent(int(sys.argv[1]))
    # Ctrl-C reaches the whole process group, and the parent must finish the report first.
    ignore_signals()
    request = json.load(sys.stdin)
    if request["cpus"]:
        os.sched_setaffinity(0, request["cpus"])
    options = options_from_wire(request["backend"], request["options"])
    # Send the output of libraries to stderr, so that it does not mix with the findings.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _unbuffer_c_stdout()
    if request["trial"] and isinstance(options, RkllmOptions):
        findings = examine_trial(request["trial"], options)
    else:
        findings = Doctor(options).examine(request["steps"])
    for finding in findings:
        out.write(json.dumps(finding) + "\n")
        out.flush()
    # Skip the interpreter's own exit, during which the library may still crash.
    exit_now(0)


if __name__ == "__main__":
    main()
