"""The stand-in driven through the bindings alone."""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engine.backends.rkllm.abi import Abi, OnResult, bind
from engine.backends.rkllm.structs import (
    LLMCallState,
    RKLLMInputType,
    RKLLMPerfStat,
    RKLLMTokenInput,
)

NORMAL = LLMCallState.RKLLM_RUN_NORMAL
WAITING = LLMCallState.RKLLM_RUN_WAITING
FINISH = LLMCallState.RKLLM_RUN_FINISH
ERROR = LLMCallState.RKLLM_RUN_ERROR


class Result(NamedTuple):
    """One callback, copied."""

    state: int
    text: bytes | None
    token_id: int
    userdata: int | None
    thread: int
    ns: int
    perf: RKLLMPerfStat
    rows: list[list[float]]


def rows_of(contents: Any) -> list[list[float]]:
    """The hidden states or the logits, whichever there are."""
    hidden, logits = contents.last_hidden_layer, contents.logits
    for count, width, numbers in (
        (hidden.num_tokens, hidden.embd_size, hidden.hidden_states),
        (logits.num_tokens, logits.vocab_size, logits.logits),
    ):
        if numbers:
            return [numbers[i * width : (i + 1) * width] for i in range(count)]
    return []


class Driver:
    """One handle and what came back through its callback; keywords are fields of RKLLMParam."""

    def __init__(self, library: Path, abi: Abi, model: Path, **param: Any) -> None:
        self.abi = abi
        self.functions = bind(ctypes.CDLL(str(library)), abi)
        self.results: list[Result] = []
        self.first = threading.Event()
        self.answer = 0
        self.handle = ctypes.c_void_p()
        self.param = self.functions.createDefaultParam()
        self.param.model_path = os.fsencode(model)
        for name, value in param.items():
            setattr(self.param, name, value)
        self.callback = abi.init_callback(self.on_result)
        self.status = self.init()

    def init(self) -> int:
        return self.functions.init(self.handle, self.param, self.callback)

    def listen(self, on_result: OnResult) -> None:
        """Begin again with another callback."""
        self.destroy()
        self.callback = self.abi.init_callback(on_result)
        assert self.init() == 0

    def on_result(self, result: Any, userdata: int | None, state: int) -> int:
        contents = result.contents
        perf = RKLLMPerfStat.from_buffer_copy(contents.perf)
        thread, now = threading.get_native_id(), time.monotonic_ns()
        text, token_id, rows = contents.text, contents.token_id, rows_of(contents)
        self.results.append(Result(state, text, token_id, userdata, thread, now, perf, rows))
        self.first.set()
        return self.answer

    def input(
        self, prompt: str | Sequence[int], role: str = "user", thinking: bool = False
    ) -> ctypes.Structure:
        made = self.abi.input(role=role.encode(), enable_thinking=thinking)
        if isinstance(prompt, str):
            made.input_type = RKLLMInputType.RKLLM_INPUT_PROMPT
            made.prompt_input = prompt.encode()
        else:
            made.input_type = RKLLMInputType.RKLLM_INPUT_TOKEN
            ids = (ctypes.c_int32 * len(prompt))(*prompt)
            made.token_input = RKLLMTokenInput(ids, len(prompt))
        return made

    def run(
        self,
        prompt: str | Sequence[int] = "hi",
        *,
        userdata: int | None = None,
        role: str = "user",
        thinking: bool = False,
        **infer: Any,
    ) -> int:
        """One run from beginning to end; keywords are fields of RKLLMInferParam."""
        given = self.input(prompt, role, thinking)
        return self.functions.run(self.handle, given, self.abi.infer_param(**infer), userdata)

    def start(self, prompt: str = "hi", **options: Any) -> RunningThread:
        thread = RunningThread(self, prompt, options)
        thread.start()
        return thread

    def abort(self) -> int:
        return self.functions.abort(self.handle)

    def destroy(self) -> int:
        return self.functions.destroy(self.handle)

    @property
    def text(self) -> bytes:
        """Everything that was said, of all runs."""
        return b"".join(result.text or b"" for result in self.results if result.state <= WAITING)

    @property
    def states(self) -> list[int]:
        return [result.state for result in self.results]

    def asked(self, prompt: str | Sequence[int] = "hi", **options: Any) -> bytes:
        """What is said to a prompt."""
        del self.results[:]
        assert self.run(prompt, **options) == 0
        return self.text

    def seen(self, prompt: str | Sequence[int] = "hi", **options: Any) -> dict[str, Any]:
        """What the runtime saw of a prompt, if the script says `\\{seen}`."""
        report: dict[str, Any] = json.loads(self.asked(prompt, **options))
        return report


class RunningThread(threading.Thread):
    """A run on a thread of its own."""

    def __init__(self, driver: Driver, prompt: str, options: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._task = driver, prompt, options
        self.status: int | None = None

    def run(self) -> None:
        driver, prompt, options = self._task
        self.status = driver.run(prompt, **options)

    def ended(self, within_s: float = 20) -> int | None:
        """Wait for its end and return its status, None if there is none."""
        self.join(within_s)
        return self.status
