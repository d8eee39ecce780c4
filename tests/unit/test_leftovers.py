"""A test that leaves something behind fails with a sentence that names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Importing the plugins of other packages takes most of the time of a short run.
NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

# Each test leaves one thing behind; the last one finds nothing of it.
LEAKING_TESTS = """
import logging, os, signal, subprocess, sys, threading

import pytest

@pytest.fixture(scope="session")
def server():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.communicate()

@pytest.mark.parametrize("number", [1, 2])
def test_shared_fixture(request, number):
    assert request.getfixturevalue("server").poll() is None

def test_logger():
    logging.getLogger("some.library").setLevel(logging.ERROR)

def test_handler():
    logging.getLogger().addHandler(logging.StreamHandler())

def test_disabled():
    logging.getLogger("some.other").disabled = True

def test_set_variable():
    os.environ["LEFT_BEHIND"] = "yes"

def test_removed_variable():
    del os.environ["KEPT"]

def test_folder(tmp_path):
    os.chdir(tmp_path)

def test_signal():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)

def test_process():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)  # left behind"])

def test_thread():
    threading.Thread(target=threading.Event().wait, args=(2,), name="left-behind").start()

def test_clean(monkeypatch, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("LEFT_BEHIND", "no")
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_finds_nothing():
    assert logging.getLogger("some.library").level == logging.NOTSET
    assert not logging.getLogger("some.other").disabled
    assert "LEFT_BEHIND" not in os.environ
    assert os.environ["KEPT"] == "yes"
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
"""
SENTENCES = {
    "test_logger": "the logger 'some.library' was changed: level ERROR",
    "test_handler": "the logger 'root' was changed: level WARNING, handlers ['StreamHandler']",
    "test_disabled": "disabled True, propagate True; before: level NOTSET",
    "test_set_variable": "the environment variable LEFT_BEHIND was set to 'yes'",
    "test_removed_variable": "the environment variable KEPT was removed",
    "test_folder": "the working folder was changed to ",
    "test_signal": "the handler of SIGUSR1 was changed to <Handlers.SIG_IGN: 1>",
    "test_process": "# left behind",
    "test_thread": "the thread 'left-behind' is still running",
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of a pytest run over the tests above."""
    folder = tmp_path_factory.mktemp("leaking")
    (folder / "test_leaking.py").write_text(LEAKING_TESTS)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.leftovers",
            "--rootdir",
            ".",
            ".",
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KEPT": "yes", "LEFTOVERS_GRACE_S": "0.2"}
        | NO_PLUGINS,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert "13 passed, 9 errors" in done.stdout, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("test", SENTENCES)
def test_no_leftovers_fails_a_test_with_a_sentence_that_names_the_leftover(
    report: str, test: str
) -> None:
    _, _, after = report.partition(f"ERROR at teardown of {test} _")
    message, _, _ = after.partition("_ ERROR at teardown")
    assert "the test left something behind:" in message
    assert SENTENCES[test] in message


@pytest.mark.parametrize("test", ["test_clean", "test_finds_nothing", "test_shared_fixture"])
def test_no_leftovers_passes_a_test_that_cleans_up(report: str, test: str) -> None:
    assert f"ERROR at teardown of {test}" not in report
