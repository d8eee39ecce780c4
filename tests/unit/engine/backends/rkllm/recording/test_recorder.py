"""The events of a recording, with functions that stand for the library."""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from engine.backends.rkllm.abi.abi import ABI_12, ABI_13, ABIS, Functions, OnResult
from engine.backends.rkllm.abi.structs import (
    LLMResultCallback,
    RKLLMPerfStat,
    RKLLMResult,
    RKLLMResultLogits,
)
from engine.backends.rkllm.recording.recorder import Recorder
from engine.backends.rkllm.recording.recording_file import RecordingFile
from engine.backends.rkllm.runs.run import UserTurn, build_input_array
from tests.integration.engine.rkllm.driver import images_prompt
from tests.waiting import PATIENCE

NORMAL, WAITING, FINISH, ERROR = range(4)
SECRET = "the secret prompt"


def functions_of(**functions: Callable[..., Any]) -> Functions:
    """Return a library whose other functions return 0."""

    def succeed(*arguments: Any) -> int:
        return 0

    return Functions(**{each.name: functions.get(each.name, succeed) for each in fields(Functions)})


class Recording:
    """A recorder and the events in its file."""

    def __init__(self, path: Path, *, texts: bool = False) -> None:
        self.file = RecordingFile(path, {})
        self.recorder = Recorder(self.file, Path("/models/tiny.rkllm"), texts=texts)

    @property
    def events(self) -> list[list[Any]]:
        """All events, with times replaced by None."""
        lines = self.file.path.read_text().splitlines()[1:]
        return [[kind, None, *rest] for kind, _, *rest in map(json.loads, lines)]

    def of_kind(self, kind: str) -> list[list[Any]]:
        return [event[2:] for event in self.events if event[0] == kind]


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path / "board.jsonl")


def init(functions: Functions, n_batch: int = 1) -> None:
    param = ABI_13.param(max_context_len=4096, temperature=0.7)
    param.extend_param.n_batch = n_batch
    functions.init(ctypes.c_void_p(), param, None)


def run(functions: Functions, prompt: UserTurn | list[int], n_batch: int = 1, **infer: Any) -> int:
    inputs, _keep_alive = build_input_array(ABI_13, [prompt], n_batch)
    return functions.run(ctypes.c_void_p(), inputs, ABI_13.infer_param(**infer), 7)


def begin_run(
    recording: Recording, on_result: OnResult = lambda *_: 0, n_batch: int = 1, **infer: Any
) -> OnResult:
    """Begin a run that stays active, on this thread; return its recorded callback."""
    functions = recording.recorder.wrap(functions_of())
    init(functions, n_batch)
    inputs, _keep_alive = build_input_array(ABI_13, [[1]], n_batch)
    functions.run_async(ctypes.c_void_p(), inputs, ABI_13.infer_param(**infer), 7)
    return recording.recorder.wrap_callback(on_result)


def result(**values: Any) -> Any:
    return ctypes.pointer(RKLLMResult(**values))


def test_call_is_recorded_before_and_after_it(recording: Recording) -> None:
    before_call: list[list[Any]] = []

    def destroy(handle: Any) -> int:
        before_call.extend(recording.events)
        return -3

    assert recording.recorder.wrap(functions_of(destroy=destroy)).destroy(ctypes.c_void_p()) == -3
    assert before_call == [["call", None, 1, "destroy"]]
    assert recording.events[1:] == [["return", None, 1, -3]]


def test_init_is_recorded_with_its_parameters(recording: Recording) -> None:
    init(recording.recorder.wrap(functions_of()), n_batch=2)
    number, name, arguments = recording.of_kind("call")[0]
    assert (number, name) == (1, "init")
    assert (arguments["max_context_len"], arguments["n_batch"]) == (4096, 2)
    assert arguments["temperature"] == 0.7
    assert "model_path" not in arguments


def test_run_is_recorded_without_its_prompt(recording: Recording) -> None:
    functions = recording.recorder.wrap(functions_of())
    run(functions, UserTurn(SECRET), max_new_tokens=5)
    run(functions, [4711, 4712], keep_history=1, mode=2)
    text, tokens = [arguments for _, _, arguments in recording.of_kind("call")]
    assert text == {
        "run": 7,
        "mode": 0,
        "prompts": [{"bytes": len(SECRET)}],
        "keep_history": 0,
        "lora": False,
        "max_new_tokens": 5,
    }
    assert (tokens["prompts"], tokens["mode"], tokens["keep_history"]) == ([{"tokens": 2}], 2, 1)
    assert "secret" not in recording.file.path.read_text()


def test_run_of_1_2_has_no_limit(recording: Recording) -> None:
    inputs, _keep_alive = build_input_array(ABI_12, [[1]], 1)
    functions = recording.recorder.wrap(functions_of())
    functions.run(ctypes.c_void_p(), inputs, ABI_12.infer_param(), 1)
    assert "max_new_tokens" not in recording.of_kind("call")[0][2]


def test_prompt_is_recorded_on_request(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "board.jsonl", texts=True)
    functions = recording.recorder.wrap(functions_of())
    run(functions, UserTurn(SECRET))
    run(functions, [4711, 4712])
    prompts = [arguments["prompts"] for _, _, arguments in recording.of_kind("call")]
    assert prompts == [
        [{"bytes": len(SECRET), "text": SECRET}],
        [{"tokens": 2, "ids": [4711, 4712]}],
    ]


def test_images_are_recorded_as_sizes(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "board.jsonl", texts=True)
    prompt = images_prompt("<image> or <image>?", 1, 2)
    for abi in ABIS.values():
        inputs, _keep_alive = build_input_array(abi, [prompt], 1)
        functions = recording.recorder.wrap(functions_of())
        functions.run(ctypes.c_void_p(), inputs, abi.infer_param(), 1)
    assert [arguments["prompts"] for _, _, arguments in recording.of_kind("call")] == [
        [
            {
                "bytes": len(prompt.text),
                "images": 2,
                "image_tokens": 2,
                "image_size": [28, 28],
                "text": prompt.text,
            }
        ]
    ] * len(ABIS)


def test_cache_sizes_are_recorded(recording: Recording) -> None:
    def get_kv_cache_size(handle: Any, sizes: Any) -> int:
        sizes[0], sizes[1] = 12, 13
        return 0

    functions = recording.recorder.wrap(functions_of(get_kv_cache_size=get_kv_cache_size))
    init(functions, n_batch=2)
    functions.get_kv_cache_size(ctypes.c_void_p(), (ctypes.c_int * 256)())
    assert recording.of_kind("return")[-1] == [2, 0, {"sizes": [12, 13]}]


def test_result_is_recorded_without_its_text(recording: Recording) -> None:
    answers = []

    def on_result(native_result: Any, number: int | None, state: int) -> int:
        answers.append((number, state))
        return 2

    recorded = begin_run(recording, on_result)
    assert recorded(result(text="Grüße".encode(), token_id=4711), 7, NORMAL) == 2
    recorded(result(text=None, token_id=-1), 7, NORMAL)
    recorded(result(token_id=4711), 7, WAITING)
    assert answers == [(7, NORMAL), (7, NORMAL), (7, WAITING)]
    assert recording.of_kind("result") == [
        [7, NORMAL, 1, [[None, 7]]],
        [7, NORMAL, 1, [[-1, None]]],
        [7, WAITING, 1, [[None, None]]],
    ]


def test_text_of_a_result_is_recorded_on_request(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "board.jsonl", texts=True)
    recorded = begin_run(recording)
    recorded(result(text=b'a"\xc3', token_id=4711), 7, NORMAL)
    assert recording.of_kind("result") == [[7, NORMAL, 1, [[4711, 3, 'a"\udcc3']]]]
    assert 'a"\udcc3'.encode("utf-8", "surrogateescape") == b'a"\xc3'


def test_finish_is_recorded_with_statistics(recording: Recording) -> None:
    perf = RKLLMPerfStat(12.345678, 5, float("nan"), 9, 512.25)
    begin_run(recording)(result(token_id=-1, perf=perf), 7, FINISH)
    assert recording.of_kind("result") == [
        [
            *(7, FINISH, 1, [[-1, None]]),
            {
                "prefill_time_ms": 12.3457,
                "prefill_tokens": 5,
                "generate_time_ms": None,
                "generate_tokens": 9,
                "memory_usage_mb": 512.25,
            },
        ]
    ]


@pytest.mark.parametrize("state", [NORMAL, FINISH, ERROR])
def test_result_without_a_struct_is_recorded(recording: Recording, state: int) -> None:
    null = ctypes.POINTER(RKLLMResult)()
    begin_run(recording)(null, 7, state)
    assert recording.of_kind("result") == [[7, state, 1, []]]


def test_error_is_recorded_without_reading_the_struct(recording: Recording) -> None:
    # The library does not document what the struct of an error holds.
    garbage = ctypes.cast(8, ctypes.POINTER(RKLLMResult))
    begin_run(recording)(garbage, 7, ERROR)
    assert recording.of_kind("result") == [[7, ERROR, 1, []]]


@pytest.mark.parametrize("state", [NORMAL, FINISH])
def test_late_result_is_recorded_without_reading_the_struct(
    recording: Recording, state: int
) -> None:
    recorded = recording.recorder.wrap_callback(lambda *_: 0)
    run(recording.recorder.wrap(functions_of()), UserTurn("hi"))
    recorded(ctypes.cast(8, ctypes.POINTER(RKLLMResult)), 7, state)
    assert recording.of_kind("result") == [[7, state, 1, []]]


def test_thread_of_a_result_is_recorded(recording: Recording) -> None:
    recorded = recording.recorder.wrap_callback(lambda *_: 0)

    def call_back(*arguments: Any) -> int:
        recorded(result(token_id=1), 7, NORMAL)
        thread = threading.Thread(target=recorded, args=(result(token_id=1), 7, NORMAL))
        thread.start()
        thread.join()
        return 0

    run(recording.recorder.wrap(functions_of(run=call_back)), UserTurn("hi"))
    assert [is_caller for _, _, is_caller, _ in recording.of_kind("result")] == [1, 0]


def test_result_of_a_batch_has_a_token_for_each_sequence(recording: Recording) -> None:
    recorded = begin_run(recording, n_batch=2)
    both = (RKLLMResult * 2)(RKLLMResult(b"ab", 5), RKLLMResult(None, -1))
    recorded(ctypes.cast(both, ctypes.POINTER(RKLLMResult)), 7, NORMAL)
    assert recording.of_kind("result") == [[7, NORMAL, 1, [[None, 2], [-1, None]]]]


def test_logits_are_recorded_as_sizes(recording: Recording) -> None:
    recorded = begin_run(recording, mode=2)
    recorded(result(logits=RKLLMResultLogits(None, 260, 2)), 7, NORMAL)
    assert recording.of_kind("result") == [[7, NORMAL, 1, [], {"logits": [2, 260]}]]


def test_printed_lines_are_recorded_without_the_path_of_the_model(recording: Recording) -> None:
    recording.recorder.record_printed([])
    recording.recorder.record_printed(["E rkllm: cannot load /models/tiny.rkllm"])
    assert recording.of_kind("printed") == [[["E rkllm: cannot load MODEL"]]]


def test_closed_recorder_records_nothing(recording: Recording) -> None:
    recording.recorder.close()
    init(recording.recorder.wrap(functions_of()))
    assert recording.events == []


@pytest.mark.parametrize("texts", [False, True])
def test_recording_a_result_takes_microseconds(tmp_path: Path, texts: bool) -> None:
    plain = LLMResultCallback(lambda *_: 0)
    recorded = LLMResultCallback(begin_run(Recording(tmp_path / "board.jsonl", texts=texts)))
    token = result(text=b" token", token_id=4711)

    def fastest_us(callback: Any) -> float:
        """Return the fastest of several rounds, which other processes slow down least."""
        times = []
        for _ in range(20):
            started = time.perf_counter()
            for _ in range(100):
                callback(token, 7, NORMAL)
            times.append((time.perf_counter() - started) * 1e4)
        return min(times)

    overhead_us = fastest_us(recorded) - fastest_us(plain)
    assert overhead_us < 40 * PATIENCE
