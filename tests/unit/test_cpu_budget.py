"""The plugin that counts the CPU time of tests."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests import cpu_budget
from tests.cpu_budget import Costs, cpu_time_s

BURN = "import time\nwhile time.process_time() < {seconds}: pass"


def test_cpu_time_has_that_of_running_and_ended_children() -> None:
    before_s = cpu_time_s()
    subprocess.run([sys.executable, "-c", BURN.format(seconds=0.2)], check=True)
    ended_s = cpu_time_s()
    assert ended_s - before_s >= 0.15
    code = BURN.format(seconds=0.2) + "\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert cpu_time_s() - ended_s >= 0.15
        child.kill()


def test_waiting_costs_nothing() -> None:
    before_s = cpu_time_s()
    time.sleep(0.2)
    assert cpu_time_s() - before_s < 0.15


@pytest.mark.parametrize(
    ("tests", "fixtures", "sentences"),
    [
        ({"a.py::test_1": 2.9, "a.py::test_2": 2.9}, {}, []),
        ({"a.py::test_1": 3.1}, {}, ["a.py::test_1 takes 3.1 s of CPU time, and a test may"]),
        ({f"a.py::test_{n}": 1.0 for n in range(14)}, {"a.py": 2.0}, ["a.py takes 16.0 s"]),
        ({f"{n}.py::test": 2.5 for n in range(241)}, {}, ["the suite takes 602 s"]),
    ],
    ids=["within", "test", "file", "suite"],
)
def test_overrun_is_one_sentence(
    tests: dict[str, float], fixtures: dict[str, float], sentences: list[str]
) -> None:
    costs = Costs()
    costs.tests.update(tests)
    costs.fixtures.update(fixtures)
    overruns = costs.find_overruns()
    assert len(overruns) == len(sentences)
    assert all(map(str.startswith, overruns, sentences))
    # A machine that needs twice the time for the reference has twice the budget.
    assert costs.find_overruns(slowness=2) == []


def test_exempt_file_may_cost_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cpu_budget.EXEMPT, "a.py", "its reason")
    costs = Costs()
    costs.tests["a.py::test_1"] = 20
    assert costs.find_overruns() == []


def test_few_files_are_exempt_and_each_has_a_reason() -> None:
    assert len(cpu_budget.EXEMPT) <= cpu_budget.MAX_EXEMPT
    assert all(cpu_budget.EXEMPT.values())


@pytest.mark.parametrize(
    ("samples", "factor"), [([], 1), ([0.5, 0.7], 1), ([1, 2], 1.5), ([90.0], 2.5)]
)
def test_budgets_grow_with_the_slowness_of_the_machine(samples: list[float], factor: float) -> None:
    assert cpu_budget.mean_slowness(samples) == factor
    assert cpu_budget.measure_slowness() > 0
