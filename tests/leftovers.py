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
from typing import Any, TypeVar

import pytest

# Loggers that a library configures when it is imported, which may happen in any test.
IMPORT_TIME_LOGGERS = frozenset(
    {
        # runpod sets both to WARNING, and imports the next two.
        *("urllib3", "uvicorn"),
        *("backoff", "paramiko"),
        *("py3langid", "py3langid.langid", "huggingface_hub"),
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
# Pools of threads that the process creates at their first use and keeps until it ends, and those of
# event loops that several tests share.
PROCESS_WIDE_THREADS = ("validate", "result", "sqs", "asyncio")
# Helpers that run until their parent ends.
PROCESS_WIDE_HELPERS = ("multiprocessing.resource_tracker", "engine.schema.trial_process")
# A process or thread that was told to end may need a moment.
EXIT_GRACE_S = float(os.environ.get("LEFTOVERS_GRACE_S", "5"))
_POLL_INTERVAL_S = 0.01
# What a program in Python may handle. SIGALRM belongs to pytest-timeout.
_HANDLED_SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD, signal.SIGWINCH),
)


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
        # Most are unconfigured, and there are hundreds, twice for each test.
        if isinstance(logger, logging.Logger) and (
            logger.handlers or logger.level or logger.disabled or not logger.propagate
        ):
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


@contextmanager
def restored_logger(name: str) -> Iterator[None]:
    """Restore one logger at the end, and leave changes of the others to those who made them."""
    logger = logging.getLogger(name)
    before = LoggerState.of(logger)
    try:
        yield
    finally:
        before.apply(logger)


def _read_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in IMPORT_TIME_VARIABLES}


def _read_signal_handlers() -> dict[signal.Signals, Any]:
    return {number: signal.getsignal(number) for number in _HANDLED_SIGNALS}


def _read_children() -> dict[int, str]:
    """Return the command lines of the running child processes by process id."""
    children = {}
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as file:
                pids = file.read().split()
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
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
    except OSError:
        return None
    # Z: it has ended, and its parent has not waited for it.
    if status.rpartition(")")[2].split()[0] == "Z":
        return None
    return command.replace(b"\0", b" ").decode(errors="replace")


def _read_threads() -> dict[int, threading.Thread]:
    return {
        thread.ident: thread
        for thread in threading.enumerate()
        if thread.ident is not None and not thread.daemon
    }


K = TypeVar("K")
V = TypeVar("V")


def _copy_changes(before: dict[K, V], after: dict[K, V], target: dict[K, V]) -> None:
    for key in before.keys() | after.keys():
        if key not in after:
            target.pop(key, None)
        elif key not in before or before[key] != after[key]:
            target[key] = after[key]


class ProcessState:
    """The state of this process at one moment, for a comparison with a later one."""

    def __init__(self) -> None:
        self._loggers = read_loggers()
        self._environment = _read_environment()
        self._folder = os.getcwd()
        self._signal_handlers = _read_signal_handlers()
        self._children = _read_children()
        self._threads = _read_threads()

    def accept_changes(self, before: ProcessState) -> None:
        """Take what has changed since `before` for a part of this state."""
        after = ProcessState()
        _copy_changes(before._loggers, after._loggers, self._loggers)
        _copy_changes(before._environment, after._environment, self._environment)
        _copy_changes(before._signal_handlers, after._signal_handlers, self._signal_handlers)
        _copy_changes(before._children, after._children, self._children)
        _copy_changes(before._threads, after._threads, self._threads)

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


# The state before the running test.
_before_test: list[ProcessState] = []


@pytest.fixture(autouse=True)
def no_leftovers() -> Iterator[None]:
    """Fail a test that changes what the next test finds.

    Fixtures of a wider scope, which outlive the test, are not compared.
    """
    before = ProcessState()
    _before_test.append(before)
    yield
    _before_test.remove(before)
    if leftovers := before.find_leftovers():
        before.restore()
        pytest.fail("the test left something behind:\n" + "\n".join(leftovers), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    """Accept what a fixture of a wider scope starts during a test that asks for it by name."""
    if fixturedef.scope == "function":
        return (yield)
    with outlives_test():
        return (yield)


@contextmanager
def outlives_test() -> Iterator[None]:
    """Accept what is started in this context, such as a process that several tests share."""
    if not _before_test:
        yield
        return
    before = ProcessState()
    yield
    for state in _before_test:
        state.accept_changes(before)
