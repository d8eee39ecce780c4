"""The lock between vision encoders and runs: each instance stands for an engine process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from engine.backends import open_shared_files
from engine.backends.options import RkllmOptions
from engine.backends.rkllm.board import encoder_lock
from engine.backends.rkllm.board.encoder_lock import (
    EncoderLock,
    hold_for_load,
    open_encoder_files,
)
from engine.errors import IS_TRANSIENT, BackendFailed, ModelLoadFailed
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[6]
TIMEOUT_S = 10 * PATIENCE
# Holds the lock of the files named by its arguments, as an engine process does.
HOLDER = """
import sys
from engine.backends.rkllm.board.encoder_lock import EncoderLock
lock = EncoderLock([int(each) for each in sys.argv[2:]])
with getattr(lock, sys.argv[1])(lambda: False):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the files of each test, which the server keeps open for its whole life."""
    opened: list[int] = []
    monkeypatch.setattr(encoder_lock, "_files", opened)
    yield
    for each in opened:
        os.close(each)


def make_lock() -> EncoderLock:
    return EncoderLock(open_encoder_files())


def can_hold(hold: Callable[[Callable[[], bool]], AbstractContextManager[None]]) -> bool:
    """Return whether a lock can be held without waiting."""
    is_waiting = False

    def cancel() -> bool:
        nonlocal is_waiting
        is_waiting = True
        return True

    with hold(cancel):
        return not is_waiting


def never() -> bool:
    return False


def test_encoder_lock_lets_runs_share_the_npu_and_keeps_encoders_alone() -> None:
    first, second = make_lock(), make_lock()
    with first.hold_for_run(never):
        assert can_hold(second.hold_for_run)
        assert not can_hold(second.hold_for_encoder)
    with first.hold_for_encoder(never):
        assert not can_hold(second.hold_for_run)
        assert not can_hold(second.hold_for_encoder)
    assert can_hold(second.hold_for_encoder)


def test_encoder_lock_lets_a_waiting_encoder_go_before_later_runs() -> None:
    running, encoding, later = make_lock(), make_lock(), make_lock()
    waits, has_npu, done = threading.Event(), threading.Event(), threading.Event()

    def note_wait() -> bool:
        waits.set()
        return False

    def encode() -> None:
        with encoding.hold_for_encoder(note_wait):
            has_npu.set()
            done.wait(TIMEOUT_S)

    thread = threading.Thread(target=encode)
    with running.hold_for_run(never):
        thread.start()
        assert waits.wait(TIMEOUT_S)
        assert not can_hold(later.hold_for_run)
        assert not has_npu.is_set()
    assert has_npu.wait(TIMEOUT_S)
    done.set()
    thread.join()
    assert can_hold(later.hold_for_run)


def test_encoder_lock_of_a_cancelled_wait_blocks_no_other() -> None:
    first, second, third = make_lock(), make_lock(), make_lock()
    with first.hold_for_run(never):
        assert not can_hold(second.hold_for_encoder)
        assert can_hold(third.hold_for_run)


@pytest.mark.parametrize("hold", ["hold_for_run", "hold_for_encoder"])
def test_encoder_lock_is_released_when_its_process_is_killed(hold: str) -> None:
    files = open_encoder_files()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, hold, *map(str, files)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        pass_fds=files,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        lock = make_lock()
        assert can_hold(lock.hold_for_run) == (hold == "hold_for_run")
        assert not can_hold(lock.hold_for_encoder)
        process.kill()
    assert can_hold(lock.hold_for_encoder)


def test_encoder_lock_gives_up_after_its_longest_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_lock, "MAX_WAIT_S", 0.0)
    first, second = make_lock(), make_lock()
    with ExitStack() as held:
        held.enter_context(first.hold_for_run(never))
        with (
            pytest.raises(BackendFailed, match=r"^the NPU did not become free within 0 s"),
            second.hold_for_encoder(never),
        ):
            pass
        with (
            pytest.raises(ModelLoadFailed, match=r"^the NPU did not become free") as caught,
            hold_for_load(second, is_encoder=True),
        ):
            pass
        assert caught.value.details == {IS_TRANSIENT: True}
        # What waited and gave up holds nothing.
        assert can_hold(make_lock().hold_for_run)


def test_encoder_lock_closes_its_files() -> None:
    lock = make_lock()
    before = len(os.listdir("/proc/self/fd"))
    del lock
    assert len(os.listdir("/proc/self/fd")) == before - 2


def test_open_shared_files_opens_the_encoder_lock_once_for_a_server_with_an_encoder() -> None:
    options = RkllmOptions(model_path="m", model_name="m", device_lock=False)
    assert open_shared_files(options) == (options, ())
    options = replace(options, encoder_lock=True)
    files = open_encoder_files()
    assert open_shared_files(options) == (replace(options, encoder_files=files), files)
    assert open_encoder_files() == files
