"""The faults that the fake library injects, and the misuse that it detects."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGABRT, SIGSEGV
from typing import Any

import pytest

from engine.backends.rkllm.abi.abi import Abi
from engine.backends.rkllm.abi.structs import RKLLMResult
from tests.fake_rkllm import read_log
from tests.integration.engine.rkllm.conftest import DriverFactory, ProcessFactory
from tests.integration.engine.rkllm.driver import (
    FINISH,
    NORMAL,
    Driver,
    RunningThread,
)
from tests.integration.engine.rkllm.processes import ProcessForker
from tests.waiting import wait_until_blocking

pytestmark = pytest.mark.long

# Far above the real duration, for busy machines.
BOUND_MS = 8000


def aborted(driver: Driver, run: RunningThread) -> float:
    """Abort after the first callback; return how many ms the run took to end."""
    assert driver.first.wait(20)
    begin = time.monotonic()
    assert driver.abort() == 0
    assert run.wait_for_end() == 0
    return (time.monotonic() - begin) * 1000


# ---- aborts ----


@pytest.mark.parametrize("end", ["finish", "no_finish"])
def test_abort_ends_the_run(driver: DriverFactory, end: str) -> None:
    d = driver(f'answer\n  say "a" us=1000 times=100000\n  abort ms=0 {end}\n')
    assert aborted(d, d.start()) < BOUND_MS
    assert (d.states[-1] == FINISH) == (end == "finish")


def test_slow_abort_continues_meanwhile(driver: DriverFactory) -> None:
    d = driver('answer\n  say "a" us=5000 times=100000\n  abort ms=200\n')
    run = d.start()
    assert d.first.wait(20)
    before = len(d.results)
    assert 195 < aborted(d, run) < BOUND_MS
    assert len(d.results) > before + 3


def test_abort_takes_up_to_five_ms_by_default(driver: DriverFactory) -> None:
    d = driver('answer\n  say "a"\n  hang\n')
    assert aborted(d, d.start()) < BOUND_MS


def test_ignored_abort(driver: DriverFactory) -> None:
    d = driver('answer\n  say "a" us=1000 times=300\n  abort ignored\n')
    aborted(d, d.start())
    assert d.text == b"a" * 300


def test_hang_generates_nothing_until_it_is_aborted(driver: DriverFactory) -> None:
    d = driver('answer\n  say "a"\n  hang\n  say "b"\n')
    run = d.start()
    assert d.first.wait(20)
    assert run.wait_for_end(0.1) is None
    aborted(d, run)
    assert d.text == b"a"


# One that hears the abort would otherwise take longer than a test may.
@pytest.mark.parametrize(("prefill", "min_s"), [("300", 0.3), ("900000 hears", 0)])
def test_abort_in_prefill(driver: DriverFactory, prefill: str, min_s: float) -> None:
    d = driver(f'answer\n  prefill_ms {prefill}\n  say "a"\n  abort ms=0 no_finish\n')
    begin = time.monotonic()
    run = d.start()
    # -1 until the run has started.
    wait_until_blocking(lambda: d.abort() == 0)
    assert run.wait_for_end() == 0
    assert time.monotonic() - begin > min_s
    assert d.results == []


def test_abort_without_a_run_does_nothing(driver: DriverFactory) -> None:
    d = driver('answer\n  say "a" times=3\n')
    assert d.abort() == -1
    assert d.generate() == b"aaa"


def test_abort_inside_the_callback_is_logged(driver: DriverFactory, call_log: Path) -> None:
    d = driver('answer\n  say "a" times=1000000\n')

    class Aborting(list[Any]):
        def append(self, result: Any) -> None:
            super().append(result)
            if len(self) == 5:
                d.abort()

    d.results = Aborting()
    d.run()
    assert 5 <= len(d.results) < 1_000_000
    values = [call.values for call in read_log(call_log) if call.name == "rkllm_abort"]
    assert values == [{"running": "1", "inside_callback": "1"}]


# ---- late callbacks, freed memory ----


def test_late_callbacks_come_after_the_run(driver: DriverFactory) -> None:
    d = driver('answer\n  thread caller\n  say "a"\n  late 3 ms=60 finish\n')
    d.run(userdata=5)
    assert d.states == [NORMAL, FINISH]
    wait_until_blocking(lambda: len(d.results) >= 5)
    assert [r.state for r in d.results[2:]] == [NORMAL, NORMAL, FINISH]
    assert {r.userdata for r in d.results} == {5}
    assert d.results[2].thread != d.results[0].thread


def test_no_late_callbacks_after_destroy(driver: DriverFactory) -> None:
    d = driver('answer\n  say "a"\n  late 1000 ms=100000\n')
    d.run()
    d.destroy()
    d.handle.value = None
    count = len(d.results)
    time.sleep(0.25)
    assert len(d.results) == count


def test_text_does_not_outlive_the_callback(driver: DriverFactory) -> None:
    d = driver('answer\n  thread caller\n  say "twenty bytes of text"\n  finish null\n')
    places: list[int] = []
    kept: list[bytes] = []

    def on_result(result: Any, userdata: int | None, state: int) -> int:
        place = ctypes.addressof(result.contents) + RKLLMResult.text.offset
        if state == NORMAL:
            places.append(ctypes.c_void_p.from_address(place).value or 0)
        else:
            # Immediately, before that memory is reused.
            kept.append(ctypes.string_at(places[0], 20))
        return 0

    d.replace_callback(on_result)
    d.run()
    # The allocator may have overwritten the first bytes.
    assert kept[0].endswith(b"!!!!")


# ---- crashes and failed loads ----


def test_crash_at_a_token_prints_the_last_words(process: ProcessFactory) -> None:
    died = process('answer\n  say "a" "b"\n  crash "E RKNN: out of memory"\n')
    assert died.signal is SIGSEGV
    assert "E RKNN: out of memory" in died.error


@pytest.mark.parametrize("thread", ["caller", "foreign", "alternate"])
def test_crash_on_any_thread(process: ProcessFactory, thread: str) -> None:
    assert process(f"answer\n  thread {thread}\n  crash\n").signal is SIGSEGV


def test_init_can_fail_crash_and_be_slow(driver: DriverFactory, process: ProcessFactory) -> None:
    begin = time.monotonic()
    d = driver("init ms=100 fails=-7")
    assert (d.status, d.handle.value) == (-7, None)
    assert time.monotonic() - begin >= 0.1
    died = process('init crashes "cannot map the model"', "")
    assert died.signal is SIGSEGV
    assert "cannot map the model" in died.error


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"", "not an rkllm model"),
        (b"\0RKLLM" * 1000, "not an rkllm model"),
    ],
    ids=["missing", "empty", "binary"],
)
def test_bad_model_file(
    forker: ProcessForker, library: Path, abi: Abi, tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "bad.rkllm"
    if content is not None:
        path.write_bytes(content)
    died = forker.run(library, abi.name, path, "print(d.status, d.handle.value)")
    assert (died.signal, died.output) == (None, "-1 None\n")
    assert f"bad.rkllm: {why}" in died.error


def test_context_beyond_the_model_fails(process: ProcessFactory) -> None:
    died = process("context 4096\nanswer", "print(d.status)", max_context_len=8192)
    assert died.output.endswith("-1\n")
    assert "max_context[8192] must be less than the model's max_context_limit[4096]" in died.error


SECOND = "print(d.status, d.status or d.destroy(), d.init())"


def test_second_init_can_have_another_outcome(process: ProcessFactory) -> None:
    assert process("chatter none\nsecond_init works", SECOND).output == "0 0 0\n"
    assert process("chatter none\nsecond_init fails", SECOND).output == "0 0 -1\n"
    assert process("chatter none\ninit fails times=1", SECOND).output == "-1 -1 0\n"
    # The behaviour of 1.3.0 (rknn-llm#522).
    assert process("chatter none\ninit fails\nsecond_init crashes", SECOND).signal is SIGSEGV


def test_chatter_goes_to_the_configured_stream(process: ProcessFactory) -> None:
    for where in ("stdout", "stderr", "none"):
        died = process(f"chatter {where}\nanswer", "")
        assert ("rkllm-runtime version" in died.output) == (where == "stdout")
        assert ("rkllm-runtime version" in died.error) == (where == "stderr")


# ---- misuse ----

SLOW = 'answer\n  say "a" us=100000 times=100\n'
IN_BACKGROUND = "t = d.start(); d.first.wait(); "
INFER = "i = d.abi.infer_param(); "


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("d.destroy(); d.destroy()", "rkllm_destroy: double free or corruption"),
        ("d.destroy(); d.run()", "rkllm_run: double free or corruption"),
        ("d.destroy(); d.abort()", "rkllm_abort: double free or corruption"),
        (IN_BACKGROUND + "d.run()", "rkllm_run: another run is under way on this handle"),
        (IN_BACKGROUND + "d.destroy()", "rkllm_destroy: a run is under way"),
        ("d.handle = None; d.run()", "LLMHandle is NULL"),
        ("d.handle = 4096; d.run()", "LLMHandle is 0x1000, where there is no memory"),
        ("d.param.model_path = None; d.init()", "RKLLMParam.model_path is NULL"),
        ("d.param.top_k = -1; d.init()", "RKLLMParam.top_k is -1"),
        ("d.param.top_p = float('nan'); d.init()", "RKLLMParam.top_p is nan"),
        ("d.param.temperature = 1e20; d.init()", "RKLLMParam.temperature is 1e+20"),
        ("d.param.max_context_len = 0; d.init()", "RKLLMParam.max_context_len is 0"),
        ("d.param.extend_param.n_batch = 0; d.init()", "RKLLMExtendParam.n_batch is 0"),
        ("d.param.extend_param.reserved[9] = 1; d.init()", "RKLLMExtendParam.reserved is 1"),
        ("d.callback = type(d.callback)(); d.init()", "callback is NULL"),
        ("d.run(role='user', mode=7)", "RKLLMInferParam.mode is 7"),
        ("d.run(keep_history=77)", "RKLLMInferParam.keep_history is 77"),
        ("d.run([-5])", "RKLLMTokenInput.input_ids is -5"),
        ("d.run([])", "RKLLMTokenInput.n_tokens is 0"),
        (INFER + "d.functions.run(d.handle, d.abi.input(), i, 0)", "RKLLMInput.role is NULL"),
        (
            INFER + "d.functions.run(d.handle, d.abi.input(role=b'user'), i, 0)",
            "RKLLMInput.prompt_input is NULL",
        ),
        (
            "d.run(images_prompt('<image>', 1, 2))",
            "RKLLMMultiModalInput.prompt has 1 <image>, not 2",
        ),
        ("d.run(images_prompt('<image>', 1e9))", "RKLLMMultiModalInput.image_embed is 1e+09"),
        ("d.run(images_prompt('none'))", "RKLLMMultiModalInput.n_image is 0"),
        ("d.functions.run(d.handle, d.input('a'), None, 0)", "RKLLMInferParam is NULL"),
        ("d.functions.set_chat_template(d.handle, None, b'', b'')", "system_prompt is NULL"),
        ("d.answer = 3; d.run()", "the callback returned 3"),
    ],
)
def test_mistakes_end_the_process(process: ProcessFactory, program: str, why: str) -> None:
    died = process(SLOW, program)
    assert died.signal is SIGABRT
    assert "fake_rkllm: " in died.error
    assert why in died.error


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("1.3", "1.2"), ("1.3.1", "1.2"), ("1.2", "1.3"), ("1.2", "1.3.1")],
)
def test_wrong_abi_is_detected(
    forker: ProcessForker,
    fake_library: Callable[[str], Path],
    model: Callable[[str], Path],
    right: str,
    wrong: str,
) -> None:
    # rknn-llm#509: the real library segfaults.
    died = forker.run(fake_library(right), wrong, model("answer"), "d.run()")
    assert died.signal is SIGABRT
    assert "fake_rkllm: " in died.error
