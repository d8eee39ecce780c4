"""`--help` and wrong arguments of every command: an answer at once, and nothing is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The engine, its libraries, the SDK and the web server; each takes a second or a model.
_HEAVY = ("runpod", "xllamacpp", "starlette", "uvicorn", "pydantic", "boto3", "engine.engine")
# Runs a module as `python -m` does and then names the heavy ones that were imported.
_RUN = """
import atexit, os, runpy, sys
heavy = sys.argv[1].split()
module = sys.argv[2]
sys.argv[1:] = sys.argv[3:]
@atexit.register
def told():
    sys.stdout.flush()
    os.write(1, ("\\nLOADED:" + " ".join(each for each in heavy if each in sys.modules)).encode())
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
# CPU time: the wall clock depends on what else the machine does.
_MAX_CPU_S = 2.0

# A command, and words that its help must have.
HELPS = [
    ("handler", ["--test_input", "--rp_serve_api", "--rp_api_port", "doctor", "examples:"]),
    ("handler doctor", ["report"]),
    ("emulator", ["--host", "--port", "default: 8000", "--worker-command", "examples:"]),
    ("emulator test", ["--tests", "--command", "--junit-xml", "--job", "--save", "exit codes"]),
    ("emulator torture", ["--client", "--shapes", "--list", "--json", "--junit-xml", "exit codes"]),
    ("emulator reset", ["--endpoint", "--server", "--api-key"]),
    ("batch", ["run", "submit", "worker", "collect", "examples:"]),
    ("batch run", ["--input", "--output", "--unordered", "--shard", "exit codes"]),
    ("batch merge", ["--input", "--shards", "exit codes"]),
    ("batch submit", ["--queue-url", "--results", "exit codes"]),
    ("batch worker", ["--queue-url", "--until-empty", "exit codes"]),
    ("batch collect", ["--batch", "--wait", "exit codes"]),
    ("handler.models.default_model", ["Fetch the default model"]),
    ("emulator.status.healthcheck", ["/health"]),
]
WRONG = [
    ("handler --test_inpt {}", "did you mean --test_input?"),
    ("handler --rp_serve_ap", "did you mean --rp_serve_api?"),
    ("handler docter", "invalid choice: 'docter'"),
    ("handler doctor --verbose", "unrecognized arguments: --verbose"),
    ("emulator --prot 5", "did you mean --port?"),
    ("emulator --port 99999", "from 0 to 65535"),
    ("emulator serve", "unrecognized arguments: serve"),
    ("emulator test --tets x", "did you mean --tests?"),
    ("emulator torture --clint x", "did you mean --client?"),
    ("emulator reset all", "unrecognized arguments: all"),
    ("batch", "required: COMMAND"),
    ("batch rn", "invalid choice: 'rn'"),
    ("batch run --inptu x", "did you mean --input?"),
    ("batch submit --qeue-url x", "did you mean --queue-url?"),
    ("batch worker --until-emtpy", "did you mean --until-empty?"),
    ("batch collect --bacth x", "did you mean --batch?"),
    ("handler.models.default_model --force", "unrecognized arguments: --force"),
    ("emulator.status.healthcheck --url x", "unrecognized arguments: --url x"),
]


def run(command: str) -> tuple[int, str, str]:
    """Run a command and return its code, stdout and stderr; it must load nothing heavy."""
    before = os.times().children_user
    done = subprocess.run(
        [sys.executable, "-c", _RUN, " ".join(_HEAVY), *command.split()],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "COLUMNS"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert os.times().children_user - before < _MAX_CPU_S
    out, _, loaded = done.stdout.rpartition("\nLOADED:")
    assert loaded == ""
    return done.returncode, out, done.stderr


@pytest.mark.parametrize(("command", "words"), HELPS)
def test_help_is_printed_without_heavy_imports(command: str, words: list[str]) -> None:
    code, out, err = run(f"{command} --help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: python -m {command}")
    for word in words:
        assert word in out


@pytest.mark.parametrize(("command", "sentence"), WRONG)
def test_wrong_arguments_exit_with_code_2_and_a_hint(command: str, sentence: str) -> None:
    code, out, err = run(command)
    assert (code, out) == (2, "")
    assert err.startswith("usage: python -m ")
    assert sentence in err


def test_help_has_every_option_of_the_sdk() -> None:
    from runpod import serverless

    _, out, _ = run("handler --help")
    options = [
        name
        for action in serverless.parser._actions
        for name in action.option_strings
        if name.startswith("--") and name != "--help"
    ]
    assert "--test_input" in options
    for name in options:
        assert name in out
