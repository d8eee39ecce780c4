"""Records calls into the library and its callbacks."""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from engine.backends.rkllm.abi.abi import Functions, OnResult
from engine.backends.rkllm.abi.structs import LLMCallState, RKLLMInferMode, RKLLMInputType
from engine.backends.rkllm.recording.recording_file import RecordingFile

_NORMAL = int(LLMCallState.RKLLM_RUN_NORMAL)
_WAITING = int(LLMCallState.RKLLM_RUN_WAITING)
_FINISH = int(LLMCallState.RKLLM_RUN_FINISH)
_GENERATE = int(RKLLMInferMode.RKLLM_INFER_GENERATE)
_PROMPT_INPUT = int(RKLLMInputType.RKLLM_INPUT_PROMPT)
_TOKEN_INPUT = int(RKLLMInputType.RKLLM_INPUT_TOKEN)
_MULTIMODAL_INPUT = int(RKLLMInputType.RKLLM_INPUT_MULTIMODAL)
_INIT_FIELDS = (
    *("max_context_len", "max_new_tokens", "top_k", "top_p", "temperature", "repeat_penalty"),
    *("frequency_penalty", "presence_penalty", "ignore_eos_token"),
)
_EXTEND_FIELDS = ("base_domain_id", "enabled_cpus_mask", "n_batch")
_PERF_FIELDS = (
    *("prefill_time_ms", "prefill_tokens", "generate_time_ms", "generate_tokens"),
    "memory_usage_mb",
)

Arguments = dict[str, Any]


class Recorder:
    """Writes an event for each call, when it begins and when it returns, and for each callback.

    A call without a return is one that crashed or hung. The recorder reads only those fields of a
    result that the engine reads too: other fields may hold garbage.

    Args:
        file: receives the events.
        model: the model's path, which is left out of printed lines.
        texts: whether prompts, answers and token ids are recorded.
    """

    def __init__(self, file: RecordingFile, model: Path, *, texts: bool = False) -> None:
        self._file = file
        self._texts = texts
        self._hidden_names = {str(model): "MODEL"}
        home = os.path.expanduser("~")
        if len(home) > 1:
            self._hidden_names[home] = "~"
        self._calls = itertools.count(1)
        self._started_ns = time.monotonic_ns()
        self._n_batch = 1
        self._active_run: int | None = None
        self._run_thread = 0
        self._run_mode = _GENERATE

    def wrap(self, functions: Functions) -> Functions:
        """Return the functions, each of which records its calls."""
        return Functions(
            **{
                field.name: self._wrap_function(field.name, getattr(functions, field.name))
                for field in fields(functions)
            }
        )

    def wrap_callback(self, on_result: OnResult) -> OnResult:
        """Return a callback that records each result before it calls `on_result`."""

        def on_recorded_result(result: Any, number: int | None, state: int) -> int:
            self._record_result(result, number, state)
            return on_result(result, number, state)

        return on_recorded_result

    def close(self) -> None:
        """End the recording; later events are dropped."""
        self._file.close()

    def record_printed(self, lines: Sequence[str]) -> None:
        """Record the lines that the library printed during the load that has just ended."""
        for name, replacement in self._hidden_names.items():
            lines = [line.replace(name, replacement) for line in lines]
        if lines:
            self._write("printed", [*lines])

    def _wrap_function(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        describers: dict[str, Callable[..., Arguments]] = {
            "init": self._describe_init,
            "load_lora": lambda handle, adapter: {"scale": _round(adapter.scale)},
            "run": self._describe_run,
            "run_async": self._describe_run,
            "clear_kv_cache": lambda handle, keep, *_: {"keep_system_prompt": keep},
        }
        describe_arguments = describers.get(name)

        def call(*arguments: Any) -> Any:
            number = next(self._calls)
            described = describe_arguments(*arguments) if describe_arguments else {}
            self._write("call", number, name, *([described] if described else []))
            answer = function(*arguments)
            if name == "run":
                self._active_run = None
            code = answer if isinstance(answer, int) else None
            results: list[Any] = []
            if name == "get_kv_cache_size" and code == 0:
                results = [{"sizes": [*arguments[1][: self._n_batch]]}]
            self._write("return", number, code, *results)
            return answer

        return call

    def _describe_init(self, handle: Any, param: Any, callback: Any) -> Arguments:
        self._n_batch = max(int(param.extend_param.n_batch), 1)
        structs = ((param, _INIT_FIELDS), (param.extend_param, _EXTEND_FIELDS))
        return {
            name: _round(getattr(struct, name))
            for struct, names in structs
            for name in names
            if hasattr(struct, name)
        }

    def _describe_run(self, handle: Any, inputs: Any, infer: Any, number: int | None) -> Arguments:
        self._run_thread, self._run_mode = threading.get_ident(), int(infer.mode)
        self._active_run = number
        arguments: Arguments = {
            "run": number,
            "mode": self._run_mode,
            "prompts": [self._describe_prompt(inputs[index]) for index in range(self._n_batch)],
            "keep_history": infer.keep_history,
            "lora": bool(infer.lora_params),
        }
        if hasattr(infer, "max_new_tokens"):
            arguments["max_new_tokens"] = infer.max_new_tokens
        return arguments

    def _describe_prompt(self, prompt: Any) -> Arguments:
        if prompt.input_type == _TOKEN_INPUT:
            tokens = prompt.token_input
            described: Arguments = {"tokens": tokens.n_tokens}
            if self._texts:
                described["ids"] = tokens.input_ids[: tokens.n_tokens]
            return described
        if prompt.input_type == _MULTIMODAL_INPUT:
            return self._describe_multimodal(prompt.multimodal_input)
        if prompt.input_type != _PROMPT_INPUT:
            return {}
        text: bytes = prompt.prompt_input or b""
        described = {"bytes": len(text)}
        if self._texts:
            described["text"] = _decode(text)
        return described

    def _describe_multimodal(self, content: Any) -> Arguments:
        text: bytes = content.prompt or b""
        image = getattr(content, "image", content)
        described: Arguments = {
            "bytes": len(text),
            "images": image.n_image,
            "image_tokens": image.n_image_tokens,
            "image_size": [image.image_width, image.image_height],
        }
        if self._texts:
            described["text"] = _decode(text)
        return described

    def _record_result(self, result: Any, number: int | None, state: int) -> None:
        # The most frequent event: built without the JSON encoder, which takes three times as long.
        time_us = (time.monotonic_ns() - self._started_ns) // 1000
        sequences, details = "", ""
        # The struct of a callback that comes after its run is not read: the engine ignores it.
        is_late = number != self._active_run
        has_tokens = not is_late and state in (_NORMAL, _WAITING, _FINISH) and result
        if has_tokens and self._run_mode == _GENERATE:
            has_text = state == _NORMAL or (state == _WAITING and self._n_batch > 1)
            sequences = ",".join(
                self._describe_token(result[index], has_text=has_text)
                for index in range(1 if state == _FINISH else self._n_batch)
            )
        if has_tokens and (state == _FINISH or self._run_mode != _GENERATE):
            details = "," + json.dumps(self._describe_details(result.contents, state))
        is_caller = int(threading.get_ident() == self._run_thread)
        self._file.write(
            f'["result",{time_us},{number or 0},{state},{is_caller},[{sequences}]{details}]'
        )

    def _describe_token(self, output: Any, *, has_text: bool) -> str:
        token_id, text = output.token_id, output.text if has_text else None
        # A token id is as good as text.
        recorded_id = token_id if self._texts or token_id < 0 else "null"
        length = "null" if text is None else len(text)
        if self._texts and text is not None:
            return f"[{recorded_id},{length},{json.dumps(_decode(text))}]"
        return f"[{recorded_id},{length}]"

    def _describe_details(self, output: Any, state: int) -> Arguments:
        if state == _FINISH:
            return {name: _round(getattr(output.perf, name)) for name in _PERF_FIELDS}
        if self._run_mode == RKLLMInferMode.RKLLM_INFER_GET_LOGITS:
            logits = output.logits
            return {"logits": [logits.num_tokens, logits.vocab_size]}
        hidden = output.last_hidden_layer
        return {"hidden_states": [hidden.num_tokens, hidden.embd_size]}

    def _write(self, kind: str, *values: Any) -> None:
        time_us = (time.monotonic_ns() - self._started_ns) // 1000
        self._file.write(json.dumps([kind, time_us, *values], separators=(",", ":")))


def _decode(text: bytes) -> str:
    """Return text that the JSON encoder takes; bytes of incomplete characters are surrogates."""
    return text.decode("utf-8", "surrogateescape")


def _round(value: Any) -> Any:
    """Return a number with six digits; None if it is not finite, which JSON cannot express."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None
