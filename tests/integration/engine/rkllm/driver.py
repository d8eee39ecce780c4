"""Drive the fake library through the bindings, without the runtime class."""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engine.backends.rkllm.abi.abi import Abi, OnResult, bind
from engine.backends.rkllm.abi.structs import (
    LLMCallState,
    RKLLMInputType,
    RKLLMPerfStat,
    RKLLMTokenInput,
)
from engine.backends.rkllm.runs.run import ImageMarks, MultimodalPrompt, build_input_struct
from tests.fake_rkllm import EMBEDDING_WIDTH

NORMAL = LLMCallState.RKLLM_RUN_NORMAL
WAITING = LLMCallState.RKLLM_RUN_WAITING
FINISH = LLMCallState.RKLLM_RUN_FINISH
ERROR = LLMCallState.RKLLM_RUN_ERROR

Prompt = str | Sequence[int] | MultimodalPrompt

IMAGE_MARKS = ImageMarks("<vision>", "</vision>", "<pad>")


def images_prompt(text: str, *values: float) -> MultimodalPrompt:
    """Return a prompt with an image of two tokens for each value, of which its embeddings are."""
    embeddings = np.repeat(np.array(values, np.float32), 2 * EMBEDDING_WIDTH)
    return MultimodalPrompt(text, embeddings, len(values), 2, 28, IMAGE_MARKS, tokens=0)


class Result(NamedTuple):
    """A copy of one callback's result."""

    state: int
    text: bytes | None
    token_id: int
    userdata: int | None
    thread: int
    ns: int
    perf: RKLLMPerfStat
    rows: list[list[float]]


def read_rows(contents: Any) -> list[list[float]]:
    """Return the hidden states or the logits of a result."""
    hidden, logits = contents.last_hidden_layer, contents.logits
    for count, width, numbers in (
        (hidden.num_tokens, hidden.embd_size, hidden.hidden_states),
        (logits.num_tokens, logits.vocab_size, logits.logits),
    ):
        if numbers:
            return [numbers[i * width : (i + 1) * width] for i in range(count)]
    return []


class Driver:
    """One handle that records its callbacks; keywords are fields of RKLLMParam."""

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

    def replace_callback(self, on_result: OnResult) -> None:
        """Create a new handle with another callback."""
        self.destroy()
        self.callback = self.abi.init_callback(on_result)
        assert self.init() == 0

    def on_result(self, result: Any, userdata: int | None, state: int) -> int:
        contents = result.contents
        perf = RKLLMPerfStat.from_buffer_copy(contents.perf)
        thread, now = threading.get_native_id(), time.monotonic_ns()
        text, token_id, rows = contents.text, contents.token_id, read_rows(contents)
        self.results.append(Result(state, text, token_id, userdata, thread, now, perf, rows))
        self.first.set()
        return self.answer

    def input(
        self,
        prompt: Prompt,
        role: str = "user",
        thinking: bool = False,
    ) -> ctypes.Structure:
        if isinstance(prompt, MultimodalPrompt):
            struct: ctypes.Structure = build_input_struct(self.abi, prompt)[0]
            return struct
        input_struct = self.abi.input(role=role.encode(), enable_thinking=thinking)
        if isinstance(prompt, str):
            input_struct.input_type = RKLLMInputType.RKLLM_INPUT_PROMPT
            input_struct.prompt_input = prompt.encode()
        else:
            input_struct.input_type = RKLLMInputType.RKLLM_INPUT_TOKEN
            ids = (ctypes.c_int32 * len(prompt))(*prompt)
            input_struct.token_input = RKLLMTokenInput(ids, len(prompt))
        return input_struct

    def run(
        self,
        prompt: Prompt = "hi",
        *,
        userdata: int | None = None,
        role: str = "user",
        thinking: bool = False,
        **infer: Any,
    ) -> int:
        """Run to the end; keywords are fields of RKLLMInferParam."""
        run_input = self.input(prompt, role, thinking)
        return self.functions.run(self.handle, run_input, self.abi.infer_param(**infer), userdata)

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
        """Return the text of all runs."""
        return b"".join(result.text or b"" for result in self.results if result.state <= WAITING)

    @property
    def states(self) -> list[int]:
        return [result.state for result in self.results]

    def generate(self, prompt: Prompt = "hi", **options: Any) -> bytes:
        """Run a prompt; return its answer."""
        del self.results[:]
        assert self.run(prompt, **options) == 0
        return self.text

    def run_input(self, prompt: Prompt = "hi", **options: Any) -> dict[str, Any]:
        """Run a prompt; return the parsed `\\{seen}` of the script's answer."""
        report: dict[str, Any] = json.loads(self.generate(prompt, **options))
        return report


class RunningThread(threading.Thread):
    """A run on a separate thread."""

    def __init__(self, driver: Driver, prompt: str, options: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._task = driver, prompt, options
        self.status: int | None = None

    def run(self) -> None:
        driver, prompt, options = self._task
        self.status = driver.run(prompt, **options)

    def wait_for_end(self, within_s: float = 20) -> int | None:
        """Wait for the end of the run; return its status, None if it did not return."""
        self.join(within_s)
        return self.status
