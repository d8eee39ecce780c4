"""Count the CPU time of each test with its processes, and fail a suite that costs too much.

A limit on a duration fails where another program takes the processor; a limit on CPU time does not.
On CI, a test, a file or the suite over its budget fails the session, with a list of the dearest.
A fixture of a wider scope counts for its file, or for the suite if the session shares it.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import pytest

from tests.fork_server.client import server_pids

TEST_BUDGET_S, FILE_BUDGET_S, SUITE_BUDGET_S = 3.0, 15.0, 600.0
# Files, or tests, that may cost more, with the reason; at most ten.
EXEMPT: dict[str, str] = {
    "tests/acceptance/test_batch_workers.py": "runs two cloud servers, and kills workers",
    "tests/acceptance/test_crashes.py": "kills all processes of a server, and starts them again",
    "tests/acceptance/test_documentation.py": "runs the README, with each of its commands",
    "tests/acceptance/test_job_local.py": "runs each command that answers a job",
    "tests/acceptance/test_sdk2_workers.py": "its workers import another environment's SDK",
    "tests/integration/handler/test_doctor_recording.py": "the doctor makes all its runs",
}
MAX_EXEMPT = 10
_LISTED = 20
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The CPU time of some work on the machine that the budgets were set on, while its two cores ran the
# suite in four processes and nothing else. The work is to compute, to fill new memory, and to make
# objects. A slower machine gets longer budgets, up to a factor, and so does one whose cores others
# use too: the same work takes up to a third more CPU time then. It is done before each eighth file.
_REFERENCE_WORK_S = 0.0385
_MAX_FACTOR = 2.5
_FILES_PER_SAMPLE = 8
SHARED = "fixtures of the session"
OVERHEAD = "collection, fork servers and pytest"


def cpu_time_s(*, with_fork_servers: bool = False) -> float:
    """Return the CPU time of this process and of its descendants, also of those that have ended.

    What a fork server imports is for all tests, and not for the one that needs it first.
    """
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    skipped = set() if with_fork_servers else server_pids
    return sum(each.ru_utime + each.ru_stime for each in usages) + sum(
        map(_process_time_s, _running_descendants(skipped))
    )


def _running_descendants(skipped: Set[int]) -> Iterator[int]:
    pending = [os.getpid()]
    while pending:
        pid = pending.pop()
        children = [each for each in _read_children(pid) if each not in skipped]
        yield from children
        pending += children


def _read_children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                children += map(int, file.read().split())
    except OSError:  # the process has ended
        pass
    return children


def _process_time_s(pid: int) -> float:
    """Return the CPU time of a process and of its ended children (proc(5), /proc/pid/stat)."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS_PER_S


def measure_slowness() -> float:
    """Return how many times as long as on the reference machine some work takes."""
    started_s = time.thread_time()
    sum(number * number % 7 for number in range(60_000))
    memory = bytearray(6_000_000)
    for start in range(0, len(memory), 4_096):
        memory[start] = 1
    bytes(memory)
    json.loads(json.dumps({f"k{number}": [number, str(number)] for number in range(8_000)}))
    return (time.thread_time() - started_s) / _REFERENCE_WORK_S


def mean_slowness(samples: Sequence[float]) -> float:
    """Return the factor on all budgets: at least 1, and bounded."""
    return min(max(fmean(samples or (1.0,)), 1.0), _MAX_FACTOR)


@dataclass
class Costs:
    """CPU seconds by test and by file; `suite` has what belongs to no file."""

    tests: Counter[str] = field(default_factory=Counter)
    fixtures: Counter[str] = field(default_factory=Counter)
    suite: Counter[str] = field(default_factory=Counter)

    def add(self, other: Costs) -> None:
        self.tests.update(other.tests)
        self.fixtures.update(other.fixtures)
        self.suite.update(other.suite)

    @property
    def files(self) -> Counter[str]:
        """The costs of each file: of its tests and of their shared fixtures."""
        files = Counter(self.fixtures)
        for name, cost_s in self.tests.items():
            files[name.partition("::")[0]] += cost_s
        return files

    @property
    def folders(self) -> Counter[str]:
        """The costs of each folder that has files with tests."""
        folders: Counter[str] = Counter()
        for name, cost_s in self.files.items():
            folders[name.rpartition("/")[0]] += cost_s
        return folders

    @property
    def total_s(self) -> float:
        """The cost of all tests and fixtures.

        Without collection and the fork servers, whose cost depends on whether bytecode is there.
        """
        return sum(self.files.values()) + self.suite[SHARED]

    @property
    def overhead_s(self) -> float:
        return float(self.suite[OVERHEAD])

    def find_overruns(self, slowness: float = 1.0) -> list[str]:
        """Return a sentence for each test, file or suite over its budget."""
        overruns = [
            f"{name} takes {cost_s:.1f} s of CPU time, and a {kind} may take "
            f"{budget_s * slowness:.1f}"
            for kind, budget_s, costs in (
                ("test", TEST_BUDGET_S, self.tests),
                ("file", FILE_BUDGET_S, self.files),
            )
            for name, cost_s in costs.most_common()
            if cost_s > budget_s * slowness and not is_exempt(name)
        ]
        if self.total_s > SUITE_BUDGET_S * slowness:
            overruns.append(
                f"the suite takes {self.total_s:.0f} s of CPU time, and may take "
                f"{SUITE_BUDGET_S * slowness:.0f}"
            )
        return overruns


def is_exempt(name: str) -> bool:
    """Return whether a test, its file, or a file is exempt."""
    return name in EXEMPT or name.partition("::")[0] in EXEMPT


class CpuBudget:
    """Counts in each process that runs tests, and judges in the one that reports."""

    def __init__(self, *, enforced: bool) -> None:
        self._enforced = enforced
        self._costs = Costs()
        self._fixtures_s = 0.0
        self._depth = 0
        self._overruns: list[str] = []
        self._file = ""
        self._files = 0
        self._samples: list[float] = []
        self._slowness = 1.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        file = item.nodeid.partition("::")[0]
        if file != self._file:
            if self._files % _FILES_PER_SAMPLE == 0:
                self._samples.append(measure_slowness())
            self._file = file
            self._files += 1
        started_s, self._fixtures_s = cpu_time_s(), 0.0
        try:
            return (yield)
        finally:
            cost_s = cpu_time_s() - started_s - self._fixtures_s
            self._costs.tests[item.nodeid] += max(cost_s, 0.0)  # type: ignore[assignment]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[Any]:
        # The innermost setup of a wider scope is part of the outermost one.
        if fixturedef.scope == "function" or self._depth:
            return (yield)
        self._depth += 1
        started_s = cpu_time_s()
        try:
            return (yield)
        finally:
            self._depth -= 1
            cost_s = max(cpu_time_s() - started_s, 0.0)
            self._fixtures_s += cost_s
            if fixturedef.scope == "session":
                self._costs.suite[SHARED] += cost_s  # type: ignore[assignment]
            else:
                file = request.node.nodeid.partition("::")[0]
                self._costs.fixtures[file] += cost_s  # type: ignore[assignment]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        counts = getattr(node, "workeroutput", {}).get("cpu_costs")
        if counts is not None:
            *costs, samples = counts
            self._costs.add(Costs(*map(Counter, costs)))
            self._samples += samples

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is None and session.config.getoption("dist", "no") != "no":
            # This process only distributes tests, and the costs of the others are counted by them.
            usage = resource.getrusage(resource.RUSAGE_SELF)
            own_s = usage.ru_utime + usage.ru_stime
        else:
            own_s = max(cpu_time_s(with_fork_servers=True) - self._costs.total_s, 0.0)
        self._costs.suite[OVERHEAD] += own_s  # type: ignore[assignment]
        if output is not None:
            costs = self._costs
            counts = [dict(each) for each in (costs.tests, costs.fixtures, costs.suite)]
            output["cpu_costs"] = [*counts, self._samples]
            return
        self._slowness = mean_slowness(self._samples)
        self._overruns = self._costs.find_overruns(self._slowness)
        if self._enforced and self._overruns and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        if self._overruns:
            terminalreporter.section("more CPU time than the budget", red=self._enforced)
            for line in self._overruns:
                write(line)
        if self._overruns or terminalreporter.config.getoption("--cpu"):
            terminalreporter.section("CPU time")
            costs = self._costs
            for listed in (costs.folders, costs.files, costs.tests, costs.suite):
                for name, cost_s in listed.most_common(_LISTED):
                    write(f"{cost_s:7.2f} s  {name}")
        write(
            f"CPU time: {self._costs.total_s:.0f} s of {SUITE_BUDGET_S * self._slowness:.0f} s, "
            f"and {self._costs.overhead_s:.0f} s to collect and to start (this machine: "
            f"{self._slowness:.2f} times the time of the reference)"
        )
