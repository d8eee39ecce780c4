"""Compare the state of the test process before and after a test.

A test that leaves a logger level, an environment variable or a process behind makes another test
fail, in an order that chance decides. So the test that leaves something behind fails itself, with a
sentence that names it, and its leftovers are removed before the next test.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Loggers that a library configures when it is imported, which may happen in any test.
IMPORT_TIME_LOGGERS = frozenset(
    {
        # runpod sets both to WARNING, and imports the next two.
        *("urllib3", "uvicorn"),
        *("backoff", "paramiko"),
        "py3langid.langid",
        *("LiteLLM", "LiteLLM Proxy", "LiteLLM Router"),
    }
)
# Variables that a library sets when it is imported or when it runs for the first time.
IMPORT_TIME_VARIABLES = frozenset(
    {
        # pytest names the current test and its phase in it.
        "PYTEST_CURRENT_TEST",
    }
)
# Pools of one thread or a few that the process creates at their first use and keeps until it ends.
PROCESS_WIDE_THREADS = ("validate", "result")
# Helpers of the standard library that run until their parent ends.
PROCESS_WIDE_HELPERS = ("multiprocessing.resource_tracker",)
# A process or thread that was told to end may need a moment.
EXIT_GRACE_S = float(os.environ.get("LEFTOVERS_GRACE_S", "5"))
_POLL_INTERVAL_S = 0.01


@dataclass(frozen=True, slots=True)
class LoggerState:
    """What a test can change in one logger."""

    level: int = logging.NOTSET
    handlers: tuple[logging.Handler, ...] = ()
    disabled: bool = False
    propagate: bool = True

    @classmethod
    def of(cls, logger: logging.Logger) -> LoggerState:
        """Return a logger's state, without NullHandlers and the handlers of pytest."""
        handlers = tuple(
            each
            for each in logger.handlers
            if type(each) is not logging.NullHandler
            and not type(each).__module__.startswith("_pytest.")
        )
        return cls(logger.level, handlers, bool(logger.disabled), logger.propagate)

    def apply(self, logger: logging.Logger) -> None:
        """Give a logger this state."""
        logger.setLevel(self.level)
        for handler in set(LoggerState.of(logger).handlers) ^ set(self.handlers):
            if handler in self.handlers:
                logger.addHandler(handler)
            else:
                logger.removeHandler(handler)
        logger.disabled = self.disabled
        logger.propagate = self.propagate

    def __str__(self) -> str:
        handlers = [type(each).__name__ for each in self.handlers]
        return (
            f"level {logging.getLevelName(self.level)}, handlers {handlers}, "
            f"disabled {self.disabled}, propagate {self.propagate}"
        )


_UNCONFIGURED = LoggerState()


def read_loggers() -> dict[str, LoggerState]:
    """Return the state of each configured logger by name; the root logger's name is `root`."""
    states = {"root": LoggerState.of(logging.root)}
    # A copy: a thread that is still running may add a logger.
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            state = LoggerState.of(logger)
            if state != _UNCONFIGURED:
                states[name] = state
    return states


def restore_loggers(before: dict[str, LoggerState]) -> None:
    """Give all loggers the state that `read_loggers` returned."""
    for name in before.keys() | read_loggers().keys():
        before.get(name, _UNCONFIGURED).apply(logging.getLogger(None if name == "root" else name))


@contextmanager
def restored_loggers() -> Iterator[None]:
    """Restore all loggers at the end, for tests that configure logging."""
    before = read_loggers()
    try:
        yield
    finally:
        restore_loggers(before)


def _read_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in IMPORT_TIME_VARIABLES}


def _read_signal_handlers() -> dict[signal.Signals, Any]:
    # SIGALRM belongs to pytest-timeout.
    numbers = set(signal.Signals) - {signal.SIGALRM}
    return {number: signal.getsignal(number) for number in numbers}


def _read_children() -> dict[int, str]:
    """Return the command lines of the running child processes by process id."""
    children = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            pids = (task / "children").read_text().split()
        except OSError:  # the thread has ended
            continue
        for pid in map(int, pids):
            command = _read_command(pid)
            if command is not None:
                children[pid] = command
    return children


def _read_command(pid: int) -> str | None:
    """Return the command line of a process; None if it has ended."""
    try:
        # Empty for a process that has ended and that its parent has not waited for.
        command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
    except OSError:
        return None
    return command.replace(b"\0", b" ").decode(errors="replace") or None


def _read_threads() -> dict[int, threading.Thread]:
    return {
        thread.ident: thread
        for thread in threading.enumerate()
        if thread.ident is not None and not thread.daemon
    }


class ProcessState:
    """The state of this process at one moment, for a comparison with a later one."""

    def __init__(self) -> None:
        self._loggers = read_loggers()
        self._environment = _read_environment()
        self._folder = os.getcwd()
        self._signal_handlers = _read_signal_handlers()
        self._children = _read_children()
        self._threads = _read_threads()

    def find_leftovers(self) -> list[str]:
        """Return a sentence for each difference between this state and the present one.

        Waits a while for processes and threads that are ending.
        """
        return [
            *self._find_logger_changes(),
            *self._find_environment_changes(),
            *self._find_folder_change(),
            *self._find_signal_changes(),
            *self._find_running(),
        ]

    def restore(self) -> None:
        """Undo the differences, but for threads, which cannot be ended from outside."""
        restore_loggers(self._loggers)
        for key in _read_environment().keys() - self._environment.keys():
            del os.environ[key]
        os.environ.update(self._environment)
        os.chdir(self._folder)
        for number, handler in self._signal_handlers.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)
        for pid in _read_children().keys() - self._children.keys():
            os.kill(pid, signal.SIGKILL)

    def _find_logger_changes(self) -> Iterator[str]:
        after = read_loggers()
        if after == self._loggers:
            return
        for name in sorted(after.keys() | self._loggers.keys()):
            old = self._loggers.get(name, _UNCONFIGURED)
            new = after.get(name, _UNCONFIGURED)
            if new != old and name not in IMPORT_TIME_LOGGERS:
                yield f"the logger {name!r} was changed: {new}; before: {old}"

    def _find_environment_changes(self) -> Iterator[str]:
        after = _read_environment()
        for key in sorted(after.keys() | self._environment.keys()):
            if key not in after:
                yield f"the environment variable {key} was removed"
            elif key not in self._environment:
                yield f"the environment variable {key} was set to {after[key]!r}"
            elif after[key] != self._environment[key]:
                yield f"the environment variable {key} was changed to {after[key]!r}"

    def _find_folder_change(self) -> Iterator[str]:
        if (folder := os.getcwd()) != self._folder:
            yield f"the working folder was changed to {folder}"

    def _find_signal_changes(self) -> Iterator[str]:
        for number, handler in _read_signal_handlers().items():
            if handler != self._signal_handlers[number]:
                yield f"the handler of {number.name} was changed to {handler!r}"

    def _find_running(self) -> list[str]:
        deadline = time.monotonic() + EXIT_GRACE_S
        while (running := [*self._new_children(), *self._new_threads()]) and (
            time.monotonic() < deadline
        ):
            time.sleep(_POLL_INTERVAL_S)
        return running

    def _new_children(self) -> Iterator[str]:
        for pid, command in _read_children().items():
            is_helper = any(name in command for name in PROCESS_WIDE_HELPERS)
            if pid not in self._children and not is_helper:
                yield f"the process {pid} is still running: {command}"

    def _new_threads(self) -> Iterator[str]:
        for ident, thread in _read_threads().items():
            is_helper = thread.name.rpartition("_")[0] in PROCESS_WIDE_THREADS
            if self._threads.get(ident) is not thread and not is_helper:
                yield f"the thread {thread.name!r} is still running"


@pytest.fixture(autouse=True)
def no_leftovers() -> Iterator[None]:
    """Fail a test that changes what the next test finds.

    Fixtures of a wider scope exist before this one and end after it, so they are not compared.
    """
    before = ProcessState()
    yield
    if leftovers := before.find_leftovers():
        before.restore()
        pytest.fail("the test left something behind:\n" + "\n".join(leftovers), pytrace=False)
