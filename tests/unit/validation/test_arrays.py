"""Import numpy on one thread, without a trace in the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Multiplies arrays that OpenBLAS would divide among threads.
PROGRAM = """
import os
from validation.arrays import import_numpy
numpy = import_numpy()
array = numpy.ones((500, 500))
array @ array
child = os.popen("echo $OPENBLAS_NUM_THREADS").read().strip()
print(os.environ.get("OPENBLAS_NUM_THREADS"), child or None, len(os.listdir("/proc/self/task")))
"""


def run_program(**variables: str) -> list[str]:
    environment = {key: value for key, value in os.environ.items() if "OPENBLAS_NUM" not in key}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.split()


def test_import_numpy_limits_threads_and_leaves_no_variable_to_children() -> None:
    assert run_program() == ["None", "None", "1"]


@pytest.mark.parametrize("count", ["1", "2"])
def test_import_numpy_keeps_a_users_variable(count: str) -> None:
    assert run_program(OPENBLAS_NUM_THREADS=count)[:2] == [count, count]
