"""A host process that dies fails only its own requests, with a clear error."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO, Any

import pytest

from engine import EMBED, BackendConfig, Engine, EngineState, Priority
from engine.errors import (
    EngineCrashed,
    EngineDead,
    EngineError,
    EngineReplaced,
    EngineRestarting,
    EngineStalled,
    ModelLoadFailed,
)
from engine.hooks import EngineEvent, HostLoaded, HostLost
from engine.hosts.losses.restart_policy import MAX_FIRST_CRASHES
from engine.hosts.output_tail import OutputTail
from tests.conftest import EngineFactory, ScriptFactory
from tests.integration.engine.conftest import EngineMaker
from tests.integration.engine.support import (
    ask,
    child_pid,
    first_text,
    read,
    read_into,
    request,
    scripted,
)
from tests.waiting import wait_until

FOREVER = {"when": "forever", "pieces": ["on ", "and "], "repeat": -1, "delay_ms": 1}
SEGFAULT = {"when": "segfault", "pieces": ["one ", "two ", {"signal": "SIGSEGV"}, "three"]}
ECHO: dict[str, Any] = {}

only_processes = pytest.mark.parametrize("isolation", ["process"], indirect=True)


@only_processes
async def test_segfault_at_a_token(engine_of: EngineMaker) -> None:
    # R30
    engine = engine_of(SEGFAULT, ECHO, slots=1)
    async with await engine.generate(request("segfault")) as stream:
        texts: list[str] = []
        with pytest.raises(EngineCrashed, match="was killed by SIGSEGV while the request") as error:
            await read_into(stream, texts)
    assert "".join(texts) in ("", "one ", "one two ")
    assert "\n" not in error.value.message
    assert (await ask(engine, "next"))[0] == "next"
    assert (engine.restarts, engine.running) == (1, 0)


@only_processes
async def test_host_killed_during_four_streams_fails_all_of_them(engine_of: EngineMaker) -> None:
    events: list[EngineEvent] = []
    engine = engine_of(FOREVER, ECHO, slots=4, hooks=[events.append])
    streams = [await engine.generate(request("forever")) for _ in range(4)]
    for stream in streams:
        await first_text(stream)
    waiting = asyncio.create_task(ask(engine, "I can wait"))
    await wait_until(lambda: engine.waiting == 1)
    os.kill(child_pid(engine), signal.SIGKILL)
    for stream in streams:
        with pytest.raises(EngineCrashed, match="the engine process was killed by SIGKILL while"):
            await read(stream)
    assert (await waiting)[0] == "I can wait"
    assert engine.restarts == 1
    assert engine.state is EngineState.READY
    hosts = [event for event in events if isinstance(event, HostLoaded | HostLost)]
    assert [type(event) for event in hosts] == [HostLoaded, HostLost, HostLoaded]
    assert isinstance(hosts[1], HostLost)
    assert (hosts[1].dead, "SIGKILL" in hosts[1].reason) == (False, True)
    assert isinstance(hosts[2], HostLoaded)
    assert hosts[2].restarts == 1


@only_processes
async def test_host_killed_while_idle_is_restarted_before_the_next_request(
    engine_of: EngineMaker,
) -> None:
    engine = engine_of(ECHO)
    await engine.ready()
    os.kill(child_pid(engine), signal.SIGKILL)
    await wait_until(lambda: engine.state is EngineState.RESTARTING)
    await wait_until(lambda: engine.state is EngineState.READY)
    assert engine.restarts == 1
    assert (await ask(engine, "next"))[0] == "next"


@only_processes
async def test_host_killed_before_it_has_its_configuration_is_restarted(
    engine_of: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(ECHO)
    await engine.ready()
    start = subprocess.Popen
    killed: list[int] = []

    def start_and_kill(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = start(*args, **options)
        if not killed:
            killed.append(process.pid)
            process.kill()
            process.wait()
        return process

    monkeypatch.setattr(subprocess, "Popen", start_and_kill)
    os.kill(child_pid(engine), signal.SIGKILL)
    await wait_until(lambda: engine.restarts == 2)
    assert (await ask(engine, "next"))[0] == "next"


def no_memory(*args: Any, **options: Any) -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def no_descriptors(*args: Any, **options: Any) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def no_processes(*args: Any, **options: Any) -> None:
    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


def no_threads(*args: Any, **options: Any) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.long_except("first start-memory-process", "restart-threads-process")
@only_processes
@pytest.mark.parametrize(
    ("target", "refusal", "words"),
    [
        ("subprocess.Popen", no_memory, "Cannot allocate memory"),
        ("subprocess.Popen", no_processes, "Resource temporarily unavailable"),
        ("engine.hosts.child_process.socket.socketpair", no_descriptors, "Too many open files"),
        ("engine.hosts.output_tail.OutputTail.listen", no_threads, "can't start new thread"),
    ],
    ids=["memory", "processes", "descriptors", "threads"],
)
@pytest.mark.parametrize("loads", [0, 1], ids=["first start", "restart"])
async def test_start_that_the_system_refuses_is_repeated_until_it_succeeds(
    engine_of: EngineMaker, loads: int, target: str, refusal: Any, words: str
) -> None:
    engine = engine_of(ECHO)
    if loads:
        await engine.ready()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(target, refusal)
        if loads:
            os.kill(child_pid(engine), signal.SIGKILL)
            await wait_until(lambda: engine.state is EngineState.RESTARTING)
        waiting = asyncio.create_task(ask(engine, "next"))
        # More often than a model may crash during its first load.
        await wait_until(lambda: engine.restarts > 5)
        assert engine.state is EngineState.RESTARTING
        assert words in (engine.trouble or "")
    assert (await waiting)[0] == "next"
    assert engine.trouble is None


@only_processes
@pytest.mark.parametrize("copies", [(), (scripted(),)], ids=["alone", "with a copy"])
async def test_host_that_cannot_be_started_for_too_long_is_dead(
    engine_of: EngineMaker,
    monkeypatch: pytest.MonkeyPatch,
    copies: tuple[BackendConfig, ...],
) -> None:
    monkeypatch.setattr(subprocess, "Popen", no_memory)
    engine = engine_of(ECHO, copies=copies, down_limit_s=0.3)
    engine.spawn()
    async with asyncio.timeout(30):
        with pytest.raises(EngineDead, match=r"cannot be started: .*Cannot allocate memory"):
            await engine.ready()
    assert engine.state is EngineState.DEAD


@only_processes
async def test_requests_between_crash_and_restart_wait(engine_of: EngineMaker) -> None:
    engine = engine_of(ECHO, slots=4, load_ms=50)
    await engine.ready()
    os.kill(child_pid(engine), signal.SIGKILL)
    await wait_until(lambda: engine.state is EngineState.RESTARTING)
    answers = await asyncio.gather(*(ask(engine, str(number)) for number in range(8)))
    assert [text for text, _ in answers] == list(map(str, range(8)))


@only_processes
async def test_side_call_on_a_host_that_dies_fails(engine_of: EngineMaker) -> None:
    engine = engine_of(ECHO)
    await engine.ready()
    os.kill(child_pid(engine), signal.SIGSTOP)
    call = asyncio.create_task(engine.tokenize("x"))
    await asyncio.sleep(0.02)
    os.kill(child_pid(engine), signal.SIGKILL)
    with pytest.raises(EngineCrashed):
        await call
    assert await engine.tokenize("x")


@only_processes
async def test_host_that_closes_its_socket_but_lives_is_killed(engine_of: EngineMaker) -> None:
    engine = engine_of(ECHO)
    await engine.ready()
    pid = child_pid(engine)
    os.kill(pid, signal.SIGSTOP)
    engine._host._supervisor._connection._frame_socket._on_disconnected()  # type: ignore[attr-defined]
    assert (await ask(engine, "next"))[0] == "next"
    assert child_pid(engine) != pid
    assert engine.restarts == 1


@only_processes
@pytest.mark.parametrize("hangs_up", [True, False], ids=["hangs up", "keeps its socket"])
async def test_process_that_survives_sigkill_is_left_behind(
    engine_of: EngineMaker, monkeypatch: pytest.MonkeyPatch, hangs_up: bool
) -> None:
    # As a process that is stuck in a driver of the NPU.
    monkeypatch.setattr("engine.hosts.child_process._EXIT_GRACE_S", 0.0)
    monkeypatch.setattr("engine.hosts.child_process.KILL_TIMEOUT_S", 0.2)
    engine = engine_of(FOREVER, ECHO, slots=2, neighbour_grace_s=0.0)
    host: Any = engine._host
    async with await engine.generate(request("forever")) as stream:
        await first_text(stream)
        process, pid = host._supervisor._process, child_pid(engine)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(process, "kill", lambda: None)
            if hangs_up:
                host._supervisor._connection._frame_socket._on_disconnected()
            else:
                host.kill_stuck_run(stream.run_id, EngineStalled("the engine did not stop"))
            with pytest.raises(EngineCrashed):
                await read(stream)
            await wait_until(lambda: engine.state is EngineState.READY)
    assert (await ask(engine, "next"))[0] == "next"
    assert (engine.restarts, child_pid(engine) != pid) == (1, True)
    process.kill()
    process.wait()


@only_processes
async def test_restart_that_raises_ends_the_engine_instead_of_leaving_requests_waiting(
    engine_of: EngineMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_of(ECHO)
    await engine.ready()

    def no_watches(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("engine.hosts.child_connection.FrameSocket", no_watches)
    os.kill(child_pid(engine), signal.SIGKILL)
    await wait_until(lambda: engine.state is not EngineState.READY)
    with pytest.raises(EngineDead, match=r"cannot be restarted: .*No space left on device"):
        await ask(engine, "next")
    assert "the engine cannot be restarted" in caplog.text


async def test_restarts_of_a_model_that_cannot_be_loaded_any_more_have_growing_intervals(
    engine_factory: EngineFactory, script: ScriptFactory, caplog: pytest.LogCaptureFixture
) -> None:
    path = script(ECHO)
    engine = engine_factory(scripted(path), isolation="process")
    await engine.ready()
    path.write_text("{")
    os.kill(child_pid(engine), signal.SIGKILL)
    await wait_until(lambda: engine.restarts >= 4)
    pauses = [record.args[2] for record in caplog.records if "restarting in" in record.msg]  # type: ignore[index]
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    path.write_bytes(script(ECHO).read_bytes())
    assert (await ask(engine, "fine"))[0] == "fine"


@only_processes
async def test_engine_is_never_in_state_loading_after_it_was_loaded(
    engine_of: EngineMaker,
) -> None:
    deaf = {"when": "deaf", "pieces": ["x"], "prefill_ms": 60_000, "deaf_prefill": True}
    engine = engine_of(deaf, ECHO, slots=2, abort_grace_s=0.1)
    await engine.ready()
    states: list[EngineState] = []
    engine._host.on_change(lambda: states.append(engine.state))
    async with await engine.generate(request("deaf")) as stream:
        stream.abort()
    await wait_until(lambda: engine.restarts == 1)
    assert (await ask(engine, "next"))[0] == "next"
    assert set(states) == {EngineState.RESTARTING, EngineState.READY}


@only_processes
async def test_crash_loop_ends_with_an_error_with_the_last_output(engine_of: EngineMaker) -> None:
    # R54
    events: list[EngineEvent] = []
    engine = engine_of(load_signal="SIGSEGV", hooks=[events.append])
    requests = [asyncio.create_task(engine.generate(request())) for _ in range(3)]
    for failed in await asyncio.gather(*requests, return_exceptions=True):
        assert type(failed) is EngineDead
        assert "crashed 5 times in a row while it loaded the model for the first" in failed.message
        assert "SIGSEGV" in failed.message
        assert not failed.message.endswith("last output: none")
    assert engine.state is EngineState.DEAD
    assert (engine.restarts, engine.running, engine.waiting) == (4, 0, 0)
    assert [event.dead for event in events if isinstance(event, HostLost)] == [False] * 4 + [True]
    with pytest.raises(EngineDead):
        await engine.generate(request())


@only_processes
async def test_last_output_is_reported_when_the_process_ends_before_it_is_read(
    engine_of: EngineMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    collect = OutputTail._collect
    was_complete: property = vars(OutputTail)["is_complete"]
    has_ended = threading.Event()

    def collect_late(last_words: OutputTail, pipe: IO[bytes]) -> None:
        assert has_ended.wait(30)
        collect(last_words, pipe)

    def is_complete(last_words: OutputTail) -> bool:
        # This is only called after the process has ended.
        has_ended.set()
        return bool(was_complete.__get__(last_words))

    monkeypatch.setattr(OutputTail, "_collect", collect_late)
    monkeypatch.setattr(OutputTail, "is_complete", property(is_complete))
    engine = engine_of(SEGFAULT, ECHO, slots=1)
    with pytest.raises(EngineCrashed):
        await ask(engine, "segfault")
    assert "its last output: Fatal Python error: Segmentation fault" in caplog.text


@only_processes
async def test_engine_that_never_finished_a_request_is_dead_after_some_crashes(
    engine_of: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R75: the runtime may report that it loaded a model that it cannot run.
    monkeypatch.setattr("engine.hosts.losses.restart_policy.MAX_BACKOFF_S", 0.01)
    engine = engine_of({"pieces": [{"signal": "SIGSEGV"}]}, slots=1)
    # At the last start, the engine tries a run of its own.
    for number in range(MAX_FIRST_CRASHES - 1):
        with pytest.raises(EngineCrashed):
            await ask(engine, f"segfault {number}")
    error = await engine.wait_until_dead()
    assert "crashed 5 times in a row and has not finished one request since" in error.message
    assert "SIGSEGV" in error.message


@only_processes
async def test_crashes_in_a_row_never_end_an_engine_that_has_finished_a_request(
    engine_of: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A client of such requests must not end the engine for others. Each is another one, because the
    # same one is refused.
    monkeypatch.setattr("engine.hosts.losses.restart_policy.MAX_BACKOFF_S", 0.01)
    engine = engine_of(SEGFAULT, ECHO, slots=1)
    assert (await ask(engine, "fine"))[0] == "fine"
    for number in range(8):
        with pytest.raises(EngineCrashed):
            await ask(engine, f"segfault {number}")
    assert (await ask(engine, "fine"))[0] == "fine"
    assert engine.restarts == 8


async def test_engine_is_dead_when_no_restart_succeeds_within_the_limit(
    engine_factory: EngineFactory, script: ScriptFactory, fast_restarts: None
) -> None:
    path = script(ECHO)
    engine = engine_factory(scripted(path), isolation="process", down_limit_s=0.5)
    failed = asyncio.create_task(engine.wait_until_dead())
    await ask(engine, "fine")
    path.write_bytes(script(ECHO, load_signal="SIGSEGV").read_bytes())
    os.kill(child_pid(engine), signal.SIGKILL)
    async with asyncio.timeout(30):
        error = await failed
    assert type(error) is EngineDead
    assert "could not be started again within 0.5 s (ENGINE_DOWN_EXIT_S)" in error.message
    assert "SIGSEGV" in error.message
    assert engine.state is EngineState.DEAD


@only_processes
async def test_interactive_requests_are_refused_when_a_restart_takes_long_and_jobs_wait(
    engine_of: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.hosts.losses.restart_policy.FIRST_BACKOFF_S", 30.0)
    monkeypatch.setattr("engine.availability.SHORT_RESTART_S", 0.2)
    engine = engine_of(ECHO, slots=1)
    await engine.ready()
    engine._host._load_s = 0.0  # type: ignore[attr-defined]
    os.kill(child_pid(engine), signal.SIGKILL)
    await wait_until(lambda: "restarting in" in (engine.trouble or ""))
    job = asyncio.create_task(ask(engine, "later"))
    # Requests that were waiting by then, and later ones.
    for _ in range(2):
        with pytest.raises(EngineRestarting, match=r"the engine is restarting in .* SIGKILL") as no:
            await ask(engine, "now", priority=Priority.INTERACTIVE)
        assert isinstance(no.value.details["retry_after_s"], int)
        assert 1 <= no.value.details["retry_after_s"] <= 31
        with pytest.raises(EngineRestarting):
            await engine.tokenize("now")
    assert engine.rejects_interactive
    assert not job.done()
    job.cancel()


@only_processes
async def test_crash_after_an_abort_by_a_client_is_not_counted(
    engine_of: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The run does not stop immediately, and the process dies first.
    slow = {"when": "slow", "pieces": ["x", {"hang_s": 60, "deaf": True}]}
    engine = engine_of(slow, FOREVER, ECHO, slots=2)
    async with await engine.generate(request("forever")) as neighbour:
        await first_text(neighbour)
        stream = await engine.generate(request("slow"))
        await first_text(stream)
        stream.abort()
        os.kill(child_pid(engine), signal.SIGKILL)
        with pytest.raises(EngineReplaced, match="running beside another one"):
            await read(neighbour)
    assert engine._host._supervisor.losses.policy.crashes_in_a_row == 0  # type: ignore[attr-defined]
    assert (await ask(engine, "fine"))[0] == "fine"


@only_processes
async def test_finished_requests_reset_the_crash_count(engine_of: EngineMaker) -> None:
    engine = engine_of(SEGFAULT, ECHO, slots=1)
    for number in range(7):
        with pytest.raises(EngineCrashed):
            await ask(engine, f"segfault {number}")
        if number % 3 == 2:
            assert (await ask(engine, "fine"))[0] == "fine"
    assert engine.restarts == 7
    assert engine.state is not EngineState.DEAD


@only_processes
async def test_embeddings_reset_the_crash_count(engine_of: EngineMaker) -> None:
    engine = engine_of(SEGFAULT, slots=1)
    for number in range(6):
        with pytest.raises(EngineCrashed):
            await ask(engine, f"segfault {number}")
        assert len(await engine.compute(EMBED, ["fine"], Priority.JOB)) == 1
    assert (engine.restarts, engine.state) == (6, EngineState.READY)


async def kill_host(engine: Engine) -> None:
    await engine.ready()
    before = engine.restarts
    os.kill(child_pid(engine), signal.SIGKILL)
    await wait_until(lambda: engine.restarts > before)


@only_processes
async def test_long_uptime_resets_the_crash_count(
    engine_of: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.hosts.losses.restart_policy.STEADY_S", 0.0)
    engine = engine_of(ECHO)
    for _ in range(6):
        await kill_host(engine)
    assert (await ask(engine, "fine"))[0] == "fine"


@only_processes
async def test_killed_host_does_not_count_as_long_lived(
    engine_of: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.hosts.losses.restart_policy.STEADY_S", 0.0)
    engine = engine_of(ECHO, load_ms=600_000, load_timeout_s=0.5)
    async with asyncio.timeout(60):
        with pytest.raises(EngineDead, match="LOAD_TIMEOUT_S"):
            await engine.generate(request())


async def test_load_that_fails_after_a_crash_is_retried(
    engine_factory: EngineFactory, script: ScriptFactory, fast_restarts: None
) -> None:
    # The memory of an NPU is not free at once when a process that had it is killed.
    path = script(ECHO)
    lost: list[EngineEvent] = []
    engine = engine_factory(scripted(path), isolation="process", hooks=[lost.append])
    await engine.ready()
    fine = path.read_bytes()
    path.write_bytes(script(ECHO, load_error="no memory for the model").read_bytes())
    os.kill(child_pid(engine), signal.SIGKILL)
    await wait_until(lambda: sum(isinstance(event, HostLost) for event in lost) >= 2)
    path.write_bytes(fine)
    assert (await ask(engine, "fine"))[0] == "fine"
    reasons = [event.reason for event in lost if isinstance(event, HostLost)]
    assert "SIGKILL" in reasons[0]
    assert "no memory for the model" in reasons[1]


async def load_error(engine: Engine) -> EngineError:
    async with asyncio.timeout(30):
        with pytest.raises(ModelLoadFailed) as caught:
            await engine.generate(request())
        with pytest.raises(ModelLoadFailed):
            await engine.ready()
    assert engine.state is EngineState.DEAD
    assert (engine.running, engine.restarts) == (0, 0)
    # Permanently: a retry would read the same file.
    assert engine.failure is not None
    return caught.value


async def test_missing_file_is_named(
    engine_factory: EngineFactory, tmp_path: Path, isolation: str
) -> None:
    engine = engine_factory(scripted(tmp_path / "gone.json"), isolation=isolation)
    error = await load_error(engine)
    assert "MODEL_PATH" in error.message
    assert "gone.json" in error.message


async def test_bad_script_is_named(
    engine_factory: EngineFactory, tmp_path: Path, isolation: str
) -> None:
    (tmp_path / "bad.json").write_text('{"answers": [{"when": "("}]}')
    error = await load_error(engine_factory(scripted(tmp_path / "bad.json"), isolation=isolation))
    assert "bad.json is not a script" in error.message


async def test_backend_that_refuses_to_load(engine_of: EngineMaker) -> None:
    error = await load_error(engine_of(load_error="no memory today"))
    assert error.message == "no memory today"


async def test_backend_that_raises_while_loading(engine_of: EngineMaker) -> None:
    # A number of slots that no pool of threads can have.
    for _ in range(3):
        error = await load_error(engine_of(slots=0))
        assert "the engine did not load" in error.message
        assert "at least one thread, got 0" in error.message


@only_processes
async def test_interrupt_of_the_process_group_does_not_end_the_host(
    engine_of: EngineMaker,
) -> None:
    engine = engine_of(FOREVER, slots=1)
    async with await engine.generate(request("forever")) as stream:
        await first_text(stream)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            os.kill(child_pid(engine), number)
        for _ in range(5):
            assert await first_text(stream)
    assert engine.restarts == 0


@only_processes
async def test_packages_in_the_working_folder_are_not_imported(
    engine_of: EngineMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("engine", "orjson"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('somebody else')")
    monkeypatch.chdir(tmp_path)
    assert (await ask(engine_of(ECHO), "mine"))[0] == "mine"


@only_processes
async def test_restarts_leave_no_files_open(engine_of: EngineMaker) -> None:
    engine = engine_of(SEGFAULT, ECHO, slots=1)
    await ask(engine, "warm up")

    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = open_files()
    for number in range(4):
        with pytest.raises(EngineCrashed):
            await ask(engine, f"segfault {number}")
        await ask(engine, "fine")
    assert open_files() == before
