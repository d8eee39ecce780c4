"""Make the recorded calls again, on a library that replays the recording, and compare.

The calls go through the engine's `Runtime`, as those of the recorded process did. A replay plays
the callbacks of a run whatever its prompt says, so the prompts have the recorded lengths and other
texts. A run that crashed or hung has no end to compare: tests with an engine replay those.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from engine.backends.lora_adapters import LoraAdapter
from engine.backends.rkllm.abi.abi import Abi, bind
from engine.backends.rkllm.abi.structs import RKLLMInferMode
from engine.backends.rkllm.batching.batch import Batch, BatchedRequest
from engine.backends.rkllm.library import load_library
from engine.backends.rkllm.recording.recorder import Recorder
from engine.backends.rkllm.recording.recording_file import RecordingFile
from engine.backends.rkllm.runs.run import (
    IMAGE_TAG,
    ImageMarks,
    InitConfig,
    MultimodalPrompt,
    RuntimeInput,
    UserTurn,
)
from engine.backends.rkllm.runtime import Runtime
from engine.errors import BackendFailed, ModelLoadFailed
from engine.request import SamplingParams
from tests.fake_rkllm import write_script
from tests.fake_rkllm.replay import (
    NORMAL,
    WAITING,
    RecordedLoad,
    RecordedRun,
    Recording,
    build_script,
    read_recording,
)

_TEXT, _TOKEN = "x", 1
_ADAPTER = "adapter"
_MARKS = ImageMarks("<i>", "</i>", "<c>")
# As many numbers as an image token of the fake library has.
_IMAGE_NUMBERS = 8
_NO_LIMIT = 1_000_000


def repeat_recording(path: Path, abi: Abi, library: Path, folder: Path) -> tuple[Any, Any]:
    """Return the summaries of a recording, and of its calls made again on a library."""
    recording = read_recording(path)
    model = write_script(folder / f"{path.stem}.replay.rkllm", build_script([recording]))
    replayed = folder / f"{path.stem}.replayed.jsonl"
    header = {"texts": recording.header["texts"]}
    recorder = Recorder(RecordingFile(replayed, header), model, texts=header["texts"])
    runtime = Runtime(bind(load_library(library), abi), abi, recorder)
    try:
        for load in recording.loads:
            _repeat_load(runtime, load, model)
    finally:
        runtime.close()
        recorder.close()
    return summarise(recording), summarise(read_recording(replayed))


def summarise(recording: Recording) -> list[Any]:
    """Return what a replay repeats of a recording, for each load: all but times and printed lines.

    Aborts are seen in their consequences: the thread that aborts can be too late for a short run.
    """
    return [
        (load.code, [_summarise_run(run) for run in load.runs if run.return_us is not None])
        for load in recording.loads
    ]


def _summarise_run(run: RecordedRun) -> Any:
    arguments = {name: value for name, value in run.arguments.items() if name != "run"}
    arguments["prompts"] = [
        {name: value for name, value in prompt.items() if name not in ("ids", "text")}
        for prompt in run.arguments["prompts"]
    ]
    callbacks = [
        (result.state, result.is_caller_thread, result.tokens, result.details)
        for result in run.results
    ]
    return arguments, callbacks, run.code


def _repeat_load(runtime: Runtime, load: RecordedLoad, model: Path) -> None:
    config = InitConfig(
        model=model,
        context_length=load.arguments["max_context_len"],
        sampling=SamplingParams(),
        n_batch=load.arguments.get("n_batch", 1),
    )
    try:
        runtime.init(config)
    except ModelLoadFailed:
        return
    if any(run.arguments["lora"] for run in load.runs):
        runtime.load_adapters((LoraAdapter(_ADAPTER, model),))
    for run in load.runs:
        if run.return_us is not None:
            _repeat_run(runtime, run)


def _repeat_run(runtime: Runtime, run: RecordedRun) -> None:
    timer = _abort_timer(runtime, run)
    timer.start()
    try:
        if run.arguments["mode"] != RKLLMInferMode.RKLLM_INFER_GENERATE:
            _repeat_computation(runtime, run)
        elif len(run.arguments["prompts"]) > 1:
            _repeat_batch(runtime, run)
        else:
            _repeat_generation(runtime, run)
    except BackendFailed:
        # The recorded run failed too, or the comparison shows it.
        pass
    finally:
        timer.cancel()
        timer.join()


def _abort_timer(runtime: Runtime, run: RecordedRun) -> threading.Timer:
    """Return a timer that aborts a run which was aborted before its first token."""
    is_early = run.abort_times_us and _tokens_before_abort(run) == 0
    delay_us = run.abort_times_us[0] - run.time_us if is_early else 0
    return threading.Timer(delay_us / 1e6, runtime.abort if is_early else lambda: None)


def _repeat_computation(runtime: Runtime, run: RecordedRun) -> None:
    runtime.compute(
        [_TOKEN] * run.arguments["prompts"][0]["tokens"],
        RKLLMInferMode(run.arguments["mode"]),
        lambda result: None,
        keep_history=bool(run.arguments["keep_history"]),
        lora=_ADAPTER if run.arguments["lora"] else None,
    )


def _repeat_generation(runtime: Runtime, run: RecordedRun) -> None:
    last_token = _tokens_before_abort(run) if run.abort_times_us else 0
    tokens = iter(range(1, _NO_LIMIT))

    def on_piece(piece: bytes, token_id: int, logprob: object) -> bool:
        return next(tokens) == last_token

    runtime.run(
        _input_like(run.arguments["prompts"][0]),
        _sampling_of(run),
        run.arguments.get("max_new_tokens", _NO_LIMIT),
        on_piece,
        threading.Event(),
        keep_history=bool(run.arguments["keep_history"]),
    )


def _repeat_batch(runtime: Runtime, run: RecordedRun) -> None:
    # Prompts of one token after the first are those that fill the places of missing requests, or
    # requests: a run is the same for both.
    limit = run.arguments.get("max_new_tokens", _NO_LIMIT)
    last_token = _tokens_before_abort(run) if run.abort_times_us else 0

    def request_like(prompt: dict[str, Any]) -> BatchedRequest:
        tokens = iter(range(1, _NO_LIMIT))
        return BatchedRequest(
            [_TOKEN] * prompt["tokens"],
            SamplingParams(max_tokens=limit, lora=_ADAPTER if run.arguments["lora"] else None),
            _NO_LIMIT * 2,
            lambda piece, token_id, logprob: next(tokens) == last_token,
        )

    prompts = run.arguments["prompts"]
    runtime.run_batch(Batch([request_like(prompt) for prompt in prompts], len(prompts)))


def _sampling_of(run: RecordedRun) -> SamplingParams:
    return SamplingParams(lora=_ADAPTER if run.arguments["lora"] else None)


def _input_like(prompt: dict[str, Any]) -> RuntimeInput:
    """Return an input of the recorded kind and length."""
    if "images" in prompt:
        images, image_tokens = prompt["images"], prompt["image_tokens"]
        tags = IMAGE_TAG * images
        return MultimodalPrompt(
            text=tags + _TEXT * (prompt["bytes"] - len(tags)),
            embeddings=np.zeros((images * image_tokens, _IMAGE_NUMBERS), np.float32),
            images=images,
            image_tokens=image_tokens,
            image_size=prompt["image_size"][0],
            marks=_MARKS,
            tokens=0,
        )
    if "bytes" in prompt:
        return UserTurn(_TEXT * prompt["bytes"])
    return [_TOKEN] * prompt["tokens"]


def _tokens_before_abort(run: RecordedRun) -> int:
    return sum(
        result.state in (NORMAL, WAITING) and result.time_us <= run.abort_times_us[0]
        for result in run.results
    )


def recordings_of(path: Path) -> list[Path]:
    """Return the files of a recording: one for each process."""
    paths = path.parent.glob(f"{path.stem}*{path.suffix}")
    return sorted(paths, key=lambda each: (len(each.name), each.name))
