"""Every fault of the runtime fails one request, in bounded time and with a clear error.

Under thread isolation that holds for all that neither kills nor wedges the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import Chat, Engine, EngineState, FinishReason, Message, TokenStream
from engine.backends.rkllm.abi.abi import ABI_12, ABI_13, ABI_131, Abi
from engine.errors import (
    BackendFailed,
    EngineCrashed,
    EngineDead,
    EngineError,
    EngineStalled,
    GenerationCancelled,
)
from engine.hooks import EngineEvent, HostLost
from engine.timeouts import Timeouts
from tests.conftest import SMALL_RULES
from tests.fake_rkllm import Call, read_log
from tests.fake_rkllm.odd import build_odd
from tests.fake_rkllm.tokenizer import write_tokenizer
from tests.integration.emulator.processes import run_emulator
from tests.integration.emulator.serving import RawConnection
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import (
    ask,
    child_pid,
    first_text,
    read,
    read_into,
    request,
)
from tests.waiting import run_ready_tasks, wait_until

ROOT = Path(__file__).resolve().parents[4]

only_processes = pytest.mark.parametrize("isolation", ["process"], indirect=True)
only_threads = pytest.mark.parametrize("isolation", ["thread"], indirect=True)
only_12 = pytest.mark.parametrize("abi", [ABI_12], ids=["abi1.2"])
only_13 = pytest.mark.parametrize("abi", [ABI_13, ABI_131], ids=lambda abi: f"abi{abi.name}")

NEXT = """
answer when="next"
  say "\\{i} " times=200
"""
NEXT_TEXT = "".join(f"{i} " for i in range(200))
FOREVER = 'answer\n  say "on " us=1000 times=10000000\n'
# Far above the real durations, for busy machines.
BOUND_S = 30


async def assert_next_request_succeeds(engine: Engine) -> None:
    async with asyncio.timeout(BOUND_S):
        text, finish = await ask(engine, "next")
    assert text == NEXT_TEXT
    assert finish.usage.completion_tokens == 200
    assert (engine.running, engine.state) == (0, EngineState.READY)


def calls(log: Path, *names: str) -> list[Call]:
    return [call for call in read_log(log) if call.name in names]


def assert_runs_do_not_overlap(log: Path) -> None:
    names = [call.name for call in calls(log, "rkllm_run", "run_end")]
    assert names == ["rkllm_run", "run_end"] * (len(names) // 2)


# ---- crashes ----


@only_processes
@pytest.mark.parametrize("token", [0, 1, 30])
async def test_segfault_at_a_token(rkllm_of: RkllmMaker, token: int) -> None:
    # R30
    events: list[EngineEvent] = []
    engine = rkllm_of(
        f'{NEXT}\nanswer\n  say "\\{{i}} " times={token}\n  crash "E RKNN: out of memory"\n',
        hooks=[events.append],
    )
    texts: list[str] = []
    async with await engine.generate(request("go")) as stream:
        with pytest.raises(EngineCrashed, match="was killed by SIGSEGV while") as caught:
            await read_into(stream, texts)
    assert "\n" not in caught.value.message
    assert "".join(f"{i} " for i in range(token)).startswith("".join(texts))
    await assert_next_request_succeeds(engine)
    assert engine.restarts == 1
    assert [event.dead for event in events if isinstance(event, HostLost)] == [False]


@pytest.mark.long
@only_processes
@only_13
@pytest.mark.parametrize("thread", ["foreign", "alternate"])
async def test_segfault_on_a_foreign_thread(rkllm_of: RkllmMaker, thread: str) -> None:
    engine = rkllm_of(f'{NEXT}\nanswer\n  thread {thread}\n  say "a"\n  crash\n')
    with pytest.raises(EngineCrashed, match="SIGSEGV"):
        await ask(engine)
    await assert_next_request_succeeds(engine)


@pytest.mark.long
@only_processes
async def test_crash_loop_ends_dead_with_the_last_words(rkllm_of: RkllmMaker) -> None:
    # R54
    engine = rkllm_of('init crashes "E RKNN: cannot map the model"')
    async with asyncio.timeout(60):
        with pytest.raises(EngineDead, match="crashed 5 times in a row") as caught:
            await engine.generate(request())
    assert "SIGSEGV" in caught.value.message
    assert "E RKNN: cannot map the model" in caught.value.message
    assert (engine.state, engine.restarts) == (EngineState.DEAD, 4)


@pytest.mark.long
@only_processes
@only_13
async def test_init_that_hangs_ends_dead(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of("init ms=600000", load_timeout_s=0.6)
    async with asyncio.timeout(60):
        with pytest.raises(EngineDead, match="LOAD_TIMEOUT_S"):
            await engine.generate(request())


@pytest.mark.long
@only_processes
async def test_failed_second_init_that_crashes(
    rkllm_of: RkllmMaker, call_log: Path, abi: Abi
) -> None:
    # rknn-llm#522: only the request that needed the reload fails.
    engine = rkllm_of(f"second_init crashes\n{NEXT}", sampling="reload")
    usual: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "top_k": 50}
    other = {"temperature": 1.5} if abi is ABI_12 else {"ignore_eos": True}
    assert (await ask(engine, "next", **usual))[0] == NEXT_TEXT
    with pytest.raises(EngineCrashed, match="SIGSEGV"):
        await ask(engine, "next", **{**usual, **other})
    assert (await ask(engine, "next", **usual))[0] == NEXT_TEXT
    assert engine.restarts == 1
    assert len(calls(call_log, "rkllm_init")) == 3


@only_processes
@only_12
async def test_host_killed_in_the_middle(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(NEXT + FOREVER)
    async with await engine.generate(request("go")) as stream:
        await first_text(stream)
        pid = child_pid(engine)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineCrashed, match="was killed by SIGKILL while"):
            await read(stream)
    await assert_next_request_succeeds(engine)
    assert child_pid(engine) != pid
    assert has_exited(pid)


# ---- hangs and aborts ----


async def test_hang_is_detected_and_aborted(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(f'{NEXT}\nanswer\n  say "a"\n  hang\n', stall_timeout_s=0.3)
    async with await engine.generate(request("go")) as stream:
        assert await first_text(stream) == "a"
        async with asyncio.timeout(BOUND_S):
            with pytest.raises(EngineStalled, match="STALL_TIMEOUT_S"):
                await anext(stream)
    await assert_next_request_succeeds(engine)
    assert engine.restarts == 0


@only_processes
@only_13
async def test_hang_that_ignores_the_abort_kills_the_host(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(
        f'{NEXT}\nanswer\n  say "a"\n  hang\n  abort ignored\n',
        stall_timeout_s=0.3,
        abort_grace_s=0.3,
    )
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(EngineStalled, match="STALL_TIMEOUT_S"):
            await ask(engine, "go")
    await assert_next_request_succeeds(engine)
    assert engine.restarts == 1


@only_processes
@only_12
async def test_hang_in_prefill_kills_the_host(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(
        f'{NEXT}\nanswer\n  prefill_ms 600000\n  say "a"\n',
        prefill_timeout_s=0.3,
        abort_grace_s=0.3,
    )
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(EngineStalled, match="PREFILL_TIMEOUT_S"):
            await ask(engine, "go")
    await assert_next_request_succeeds(engine)
    assert engine.restarts == 1


# Both checks of a template at the start wait for their limits, computing all the time.
@pytest.mark.long
@only_processes
@only_13
async def test_endless_template_kills_the_host(rkllm_of: RkllmMaker, tmp_path: Path) -> None:
    # The sandbox limits the size of a range, but not nested ranges.
    loop = "{% for i in range(99999) %}"
    write_tokenizer(tmp_path, loop * 3 + "{% endfor %}" * 3)
    engine = rkllm_of(
        'answer\n  say "\\{i} " times=200\n', prefill_timeout_s=0.3, abort_grace_s=0.3
    )
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(EngineStalled, match="PREFILL_TIMEOUT_S"):
            await ask(engine, Chat((Message("user", "hi"),)))
    await assert_next_request_succeeds(engine)
    assert engine.restarts == 1


@only_threads
@only_13
async def test_ignored_abort_in_thread_mode_stops_the_engine(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(
        'answer\n  say "on " us=1000 times=1200\n  abort ignored\n', abort_grace_s=0.2
    )
    async with await engine.generate(request("go")) as stream:
        await first_text(stream)
    async with asyncio.timeout(BOUND_S):
        await stream.wait_ended()
        with pytest.raises(EngineDead, match="ENGINE_ISOLATION=thread cannot restart it"):
            await engine.generate(request("next"))
    runner = engine._host._runner  # type: ignore[attr-defined]
    await wait_until(lambda: not runner._generations)


@only_processes
@only_13
async def test_ignored_abort_of_a_client_that_left(rkllm_of: RkllmMaker) -> None:
    # R31
    engine = rkllm_of(NEXT + FOREVER + "  abort ignored\n", abort_grace_s=0.3)
    async with await engine.generate(request("go")) as stream:
        await first_text(stream)
        pid = child_pid(engine)
    async with asyncio.timeout(BOUND_S):
        await stream.wait_ended()
    await assert_next_request_succeeds(engine)
    assert engine.restarts == 1
    assert has_exited(pid)


async def test_ignored_abort_of_a_run_that_ends_in_time(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    # After a stop string the runtime continues to its own end; no other run starts before that.
    engine = rkllm_of(
        f"""{NEXT}
        answer
          say "one stop" " more" us=2000 times=100
          abort ignored
        """
    )
    text, finish = await ask(engine, "go", stop=("stop",))
    assert (text, finish.usage.completion_tokens) == ("one ", 1)
    await assert_next_request_succeeds(engine)
    assert [call.values["said"] for call in calls(call_log, "run_end")] == ["200", "200"]
    assert_runs_do_not_overlap(call_log)
    assert engine.restarts == 0


async def test_slow_abort_delays_the_next_request(rkllm_of: RkllmMaker, call_log: Path) -> None:
    # R31
    engine = rkllm_of(NEXT + FOREVER + "  abort ms=300\n", abort_grace_s=10)
    async with await engine.generate(request("go")) as stream:
        await first_text(stream)
    assert engine.running == 1
    await assert_next_request_succeeds(engine)
    assert_runs_do_not_overlap(call_log)
    aborted, next_run = calls(call_log, "rkllm_abort")[0], calls(call_log, "rkllm_run")[1]
    assert next_run.ns - aborted.ns >= 300_000_000
    assert engine.restarts == 0


async def test_abort_before_the_run_has_started(rkllm_of: RkllmMaker) -> None:
    # An abort that arrives before the runtime is ready must not be lost.
    engine = rkllm_of(NEXT + FOREVER, abort_grace_s=5)
    async with asyncio.timeout(3 * BOUND_S):
        for turns in range(30):
            async with await engine.generate(request("go")) as stream:
                await run_ready_tasks(turns % 6)
            await stream.wait_ended()
            assert isinstance(stream.error, GenerationCancelled)
    await assert_next_request_succeeds(engine)
    assert engine.restarts == 0


async def test_cancelled_prefill_is_waited_out_without_a_reload(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    # Prefill cannot be interrupted, and a reload would read gigabytes again.
    engine = rkllm_of(
        f'{NEXT}\nanswer\n  prefill_ms 900\n  say "a"\n', prefill_timeout_s=30, abort_grace_s=0.2
    )
    async with await engine.generate(request("go")) as stream:
        await wait_until(lambda: call_log.exists() and calls(call_log, "rkllm_run"))
        stream.abort()
        # The cancelled request returns immediately.
        with pytest.raises(GenerationCancelled):
            await anext(stream)
    assert not calls(call_log, "run_end")
    assert engine.running == 1
    await assert_next_request_succeeds(engine)
    run, ended = calls(call_log, "rkllm_run", "run_end")[:2]
    assert ended.ns - run.ns >= 900_000_000
    assert engine.restarts == 0
    assert len(calls(call_log, "rkllm_init")) == 1
    assert_runs_do_not_overlap(call_log)


@only_13
async def test_prefill_timeout_is_reported_and_the_prefill_waited_out(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(
        f'{NEXT}\nanswer\n  prefill_ms 700\n  say "a"\n', prefill_timeout_s=0.2, abort_grace_s=10
    )
    await engine.ready()
    with pytest.raises(EngineStalled, match="PREFILL_TIMEOUT_S"):
        await ask(engine, "go")
    await assert_next_request_succeeds(engine)
    assert engine.restarts == 0


@only_12
async def test_cancelling_during_a_reload(rkllm_of: RkllmMaker, call_log: Path) -> None:
    engine = rkllm_of(f"init ms=200\n{NEXT}{FOREVER}", sampling="reload", abort_grace_s=0.1)
    async with await engine.generate(request("go", temperature=1.9)) as stream:
        await wait_until(lambda: len(calls(call_log, "rkllm_init")) >= 1 and destroyed(call_log))
    async with asyncio.timeout(BOUND_S):
        await stream.wait_ended()
    await assert_next_request_succeeds(engine)
    assert engine.restarts == 0
    # The cancelled run was never started.
    assert len(calls(call_log, "rkllm_run")) == 1


def destroyed(log: Path) -> bool:
    return bool(calls(log, "rkllm_destroy"))


# ---- errors, missing FINISH, threads ----


async def test_error_state(rkllm_of: RkllmMaker) -> None:
    # R30
    engine = rkllm_of(f'{NEXT}\nanswer\n  say "a" "b"\n  error "no reason"\n  returns 0\n')
    texts: list[str] = []
    async with await engine.generate(request("go")) as stream:
        with pytest.raises(BackendFailed, match="it reported an error") as caught:
            await read_into(stream, texts)
    assert "\n" not in caught.value.message
    assert "".join(texts) == "ab"
    await assert_next_request_succeeds(engine)
    assert engine.restarts == 0


async def test_no_finish_at_the_end(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(f'{NEXT}\nanswer\n  say "a" "b"\n  finish none\n')
    with pytest.raises(BackendFailed, match="without saying that it was done"):
        await ask(engine, "go")
    await assert_next_request_succeeds(engine)
    assert engine.restarts == 0


async def test_missing_finish_at_a_limit_known_to_the_library(rkllm_of: RkllmMaker) -> None:
    # The answer is complete, although FINISH is missing.
    engine = rkllm_of(f'{NEXT}\nanswer\n  say "x" times=100\n  finish none\n')
    text, end = await ask(engine, "go", max_tokens=5)
    assert (text, end.reason, end.usage.completion_tokens) == ("xxxxx", FinishReason.LENGTH, 5)
    await assert_next_request_succeeds(engine)
    assert engine.restarts == 0


@pytest.mark.parametrize("finish", ["finish", "no_finish"])
async def test_optional_finish_after_an_abort(rkllm_of: RkllmMaker, finish: str) -> None:
    engine = rkllm_of(NEXT + FOREVER + f"  abort {finish}\n")
    text, end = await ask(engine, (1, 2, 3), stop=("on on",))
    assert (text, end.usage.prompt_tokens, end.usage.completion_tokens) == ("", 3, 2)
    async with await engine.generate(request("go")) as stream:
        await first_text(stream)
    await assert_next_request_succeeds(engine)
    assert engine.restarts == 0


@pytest.mark.parametrize("thread", ["caller", "foreign", "alternate"])
async def test_callbacks_from_any_thread(rkllm_of: RkllmMaker, thread: str) -> None:
    engine = rkllm_of(
        f"""{NEXT}
        answer when="forever"
          thread {thread}
          say "\\{{i}} " us=500 times=10000000
        answer
          thread {thread}
          say "\\{{i}} " times=asked
        """
    )
    text, finish = await ask(engine, "1000")
    assert text == "".join(f"{i} " for i in range(1000))
    assert finish.usage.completion_tokens == 1000
    assert (await ask(engine, "forever", max_tokens=5))[0] == "0 1 2 3 4 "
    assert (await ask(engine, "forever", stop=("7",)))[0] == "0 1 2 3 4 5 6 "
    async with await engine.generate(request("forever")) as stream:
        await first_text(stream)
    await assert_next_request_succeeds(engine)
    assert engine.restarts == 0


LATE = """
answer when="whole"
  say "a"
  late 40 ms=200 finish
answer when="failed"
  error null
  late 40 ms=200 finish
answer when="forever"
  say "on " us=1000 times=10000000
  late 40 ms=200 finish
answer when="slow"
  say "\\{i} " us=1000 times=250
"""
SLOW_TEXT = "".join(f"{i} " for i in range(250))


@pytest.mark.parametrize("before", ["whole", "failed", "forever"])
async def test_late_callbacks_are_ignored(
    rkllm_of: RkllmMaker, call_log: Path, before: str
) -> None:
    # R31: after a return, an error and an abort, during the next answer.
    engine = rkllm_of(LATE)
    async with await engine.generate(request(before)) as stream:
        try:
            await first_text(stream)
        except (BackendFailed, StopAsyncIteration) as error:
            assert (before == "failed") == isinstance(error, BackendFailed)  # noqa: PT017
    text, finish = await ask(engine, "slow")
    assert text == SLOW_TEXT
    assert (finish.reason, finish.usage.completion_tokens) == ("stop", 250)
    # The late callbacks did arrive during the answer.
    runs = calls(call_log, "rkllm_run", "run_end", "late")
    assert [call.name for call in runs][:3] == ["rkllm_run", "run_end", "rkllm_run"]
    await wait_until(lambda: calls(call_log, "late"))
    assert engine.restarts == 0


# ---- no orphaned process, no handle freed twice ----


def has_exited(pid: int) -> bool:
    try:
        # A zombie process has no command line.
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


def find_inspecting_processes(library: Path) -> list[int]:
    """Return the processes that inspect a library."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"engine.backends.rkllm.abi.detect" in words and str(library).encode() in words:
            pids.append(int(entry.parent.name))
    return pids


PROGRAM = """
import asyncio, json, sys
from engine import BackendConfig, Engine, EngineConfig, GenerationRequest

async def main(options, isolation):
    backend = BackendConfig.from_wire("rkllm", json.loads(options))
    engine = Engine(EngineConfig(backend=backend, isolation=isolation))
    stream = await engine.generate(GenerationRequest(prompt="go"))
    await anext(stream)
    print(engine._host.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""
Starter = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """Return a function that starts small programs with an engine in separate process groups."""
    started = []

    def begin(model: Path, library: Path, isolation: str = "process") -> subprocess.Popen[bytes]:
        options = {
            "model_path": str(model),
            "model_name": "fake",
            "lib_path": str(library),
            "kv_reuse": False,
        }
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(options), isolation],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            # A killed process leaves its scratch folder behind.
            env={**os.environ, "TMPDIR": str(tmp_path)},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)


@pytest.mark.long_except("abi1.3.1-hang", 'abi1.2-say "b" us=1000 times=10000000')
@pytest.mark.parametrize("wedged", ["hang", 'say "b" us=1000 times=10000000'])
async def test_parent_killed_while_the_runtime_ignores_aborts(
    start: Starter, library: Path, model: Callable[[str], Path], wedged: str
) -> None:
    script = f'answer\n  say "a"\n  {wedged}\n  abort ignored\n'
    program = start(model(script), library)
    assert program.stdout is not None
    line = await asyncio.wait_for(asyncio.to_thread(program.stdout.readline), BOUND_S)
    pid = int(line)
    assert not has_exited(pid)
    program.kill()
    await wait_until(lambda: has_exited(pid))


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["process", "thread"])
async def test_parent_killed_while_a_library_is_inspected(
    start: Starter, model: Callable[[str], Path], tmp_path: Path, isolation: str
) -> None:
    library = build_odd(tmp_path / "hangs", "AT_13", "HANGS")
    program = start(model("answer\n"), library, isolation)
    await wait_until(lambda: find_inspecting_processes(library))
    program.kill()
    try:
        await wait_until(lambda: not find_inspecting_processes(library))
    finally:
        for pid in find_inspecting_processes(library):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.long
async def test_sigterm_frees_the_handle_once(
    fake_library: Callable[[str], Path],
    model: Callable[[str], Path],
    call_log: Path,
    isolation: str,
) -> None:
    # Rockchip's own server destroys it twice, which causes a double free.
    environment = {
        "ENGINE": "rkllm",
        "ENGINE_ISOLATION": isolation,
        "MODEL_PATH": str(model(FOREVER)),
        "RKLLM_LIB_PATH": str(fake_library("1.3")),
        # Otherwise the load would make runs too.
        "RKLLM_KV_REUSE": "off",
        "FAKE_RKLLM_LOG": str(call_log),
        "VALIDATION_RULES": str(SMALL_RULES),
    }
    async with run_emulator(environment, "--port", "0", grace_s=0.3) as server:
        await server.wait_until_listening()
        with await RawConnection.connect(server.port) as wire:
            await wire.post("/v1/completions", {"prompt": "x", "stream": True})
            assert (await wire.read_head())[0] == 200
            await wire.read_chunk()
            server.process.send_signal(signal.SIGTERM)
            assert await server.wait_for_exit() == 0
    names = [call.name for call in calls(call_log, "rkllm_init", "run_end", "rkllm_destroy")]
    assert names == ["rkllm_init", "run_end", "rkllm_destroy"]
    assert not calls(call_log, "refused", "crash")


@pytest.mark.parametrize("state", ["idle", "speaking", "after a failure"])
async def test_close_frees_the_handle_once(
    rkllm_of: RkllmMaker, call_log: Path, state: str
) -> None:
    engine = rkllm_of(f'{NEXT}\nanswer when="bad"\n  error null\n{FOREVER}')
    stream: TokenStream | None = None
    if state == "speaking":
        stream = await engine.generate(request("go"))
        await first_text(stream)
    elif state == "idle":
        await ask(engine, "next")
    else:
        with pytest.raises(EngineError):
            await ask(engine, "bad")
    async with asyncio.timeout(BOUND_S):
        await engine.close()
        await engine.close()
    assert len(calls(call_log, "rkllm_destroy")) == 1
    assert read_log(call_log)[-1].name == "rkllm_destroy"
    await wait_until(lambda: engine.running == 0)


@only_13
@only_processes
async def test_long_prefill_is_awaited_and_a_hanging_one_is_detected(rkllm_of: RkllmMaker) -> None:
    # Of 9,000 tokens in 400 s, with the default limit of 300 s, everything 100 times as fast.
    script = (
        'answer when="7 7 7"\n  prefill_ms 600000\n'
        'answer\n  prefill_ms 0 us_per_token=445\n  say "at last"\n'
    )
    limits = {
        "prefill_timeout_s": Timeouts().prefill_timeout_s / 100,
        "stall_timeout_s": Timeouts().stall_timeout_s / 100,
    }
    engine = rkllm_of(script, context_length=16_384, abort_grace_s=0.2, **limits)
    began = time.monotonic()
    text, _ = await ask(engine, tuple(range(9_000)))
    assert text == "at last"
    assert time.monotonic() - began >= 4
    with pytest.raises(EngineStalled, match=r"no first token came within 3 s"):
        await ask(engine, (7,) * 100)
