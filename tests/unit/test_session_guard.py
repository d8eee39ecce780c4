"""A test session that is killed leaves no process running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import session_guard
from tests.waiting import wait_until_blocking

TEST = """
import subprocess, sys
def test_that_waits():
    code = "import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as child:
        print("pid", child.pid, flush=True)
        child.wait()
"""
CONFTEST = """
from tests import session_guard
def pytest_configure(config):
    session_guard.install(config)
"""
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=str)
def test_processes_of_a_killed_session_end(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_waits.py").write_text(TEST)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    del environment[session_guard.MARK]
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "--rootdir", "."]
    with subprocess.Popen(
        [*command, "test_waits.py"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as session:
        assert session.stdout is not None
        try:
            line = next(line for line in session.stdout if "pid " in line)
            child, mark = int(line.split()[-1]), str(session.pid)
            wait_until_blocking(lambda: child in session_guard.find_marked(mark))
            session.send_signal(number)
            session.wait()
        finally:
            session.kill()
    wait_until_blocking(lambda: not session_guard.find_marked(mark))
