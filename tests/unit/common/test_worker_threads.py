"""Threads that run queued functions."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial

import pytest

from common.worker_threads import WorkerThreads
from tests.waiting import WAIT_S


def test_one_thread_runs_functions_in_order() -> None:
    done: list[int] = []
    threads = WorkerThreads(1, "one")
    for number in range(100):
        threads.put(partial(done.append, number))
    threads.close()
    assert done == list(range(100))


def test_zero_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one thread, got 0"):
        WorkerThreads(0, "none")


def test_several_threads_run_concurrently() -> None:
    """Wait until all threads have arrived."""
    together = threading.Barrier(3)
    names: set[str] = set()

    def meet() -> None:
        together.wait(WAIT_S)
        names.add(threading.current_thread().name)

    threads = WorkerThreads(3, "run")
    for _ in range(3):
        threads.put(meet)
    threads.close()
    assert names == {"run_0", "run_1", "run_2"}


@pytest.mark.parametrize("error", [IndexError, SystemExit])
def test_exception_is_logged_and_later_functions_run(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    done: list[str] = []
    threads = WorkerThreads(1, "one")
    threads.put(fail)
    threads.put(lambda: done.append("next"))
    threads.close()
    assert done == ["next"]
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is error


def test_close_waits_for_queued_functions() -> None:
    may, done = threading.Event(), threading.Event()

    def work() -> None:
        assert may.wait(WAIT_S)
        done.set()

    threads = WorkerThreads(1, "one")
    threads.put(work)
    closing = threading.Thread(target=threads.close)
    closing.start()
    assert not done.is_set()
    may.set()
    closing.join(WAIT_S)
    assert done.is_set()
    assert not closing.is_alive()


def test_idle_thread_holds_no_reference_to_the_last_function() -> None:
    """Otherwise the prompt of the last request would stay in memory until the next one."""

    class Held:
        def __init__(self, is_collected: threading.Event) -> None:
            self.is_collected = is_collected

        def __call__(self) -> None:
            """Do nothing."""

        def __del__(self) -> None:
            self.is_collected.set()

    is_collected = threading.Event()
    threads = WorkerThreads(1, "one")
    threads.put(Held(is_collected))
    assert is_collected.wait(WAIT_S)
    threads.close()


def test_stuck_thread_does_not_keep_the_process_from_ending() -> None:
    code = (
        "import threading, common.worker_threads as t; "
        "t.WorkerThreads(1, 'x').put(threading.Event().wait)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=WAIT_S)
