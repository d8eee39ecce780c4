"""Grammars are tried in another process, which they may crash."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.errors import BackendFailed
from engine.schema import trial_process
from engine.schema.trial import GrammarTrials, Notation
from tests.security.costly_requests import HOSTILE_GRAMMARS
from tests.waiting import wait_until_blocking

ROOT = Path(__file__).resolve().parents[4]
# They take all of the time of a trial.
_SLOW = {"chain in GBNF", "doubling in GBNF"}


@pytest.fixture(scope="module")
def trials() -> Iterator[GrammarTrials]:
    trials = GrammarTrials()
    yield trials
    trials.close()


def test_grammar_that_is_harmless_can_be_followed(
    trials: GrammarTrials, subtests: pytest.Subtests
) -> None:
    sql = 'root ::= "SELECT " name (", " name)* " FROM " name\nname ::= [a-z_]+'
    person = '{"type": "object", "properties": {"name": {"type": "string"}}}'
    harmless: list[tuple[Notation, str]] = [
        ("gbnf", sql),
        ("gbnf", 'root ::= item+\nitem ::= "- " [^\\n]+ "\\n"'),
        ("lark", "start: /[a-z0-9._-]+@[a-z0-9-]+\\.[a-z]{2,4}/"),
        ("lark", f"start: %json {person}"),
        ("lark", 'start: expr\nexpr: term ("+" term)*\nterm: /[0-9]+/ | "(" expr ")"'),
        ("lark", "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(300)) + '\nr300: "a"'),
        ("gbnf", "root ::= item root | item\nitem ::= [a-z]"),
        ("gbnf", 'root ::= "{" ws "}"\nws ::= ([ \\t\\n] ws)?'),
        ("schema", person),
        ("schema", json.dumps({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}})),
    ]
    for notation, text in harmless:
        with subtests.test(text[:60]):
            trial = trials.run(notation, text)
            assert trial.violation is None
            assert (trial.grammar == text) is (notation == "lark")


@pytest.mark.parametrize("part", range(6))
def test_hostile_grammar_ends_nothing_but_its_trial(
    trials: GrammarTrials, part: int, subtests: pytest.Subtests, scale: int
) -> None:
    # Some that need all of the time of a trial are for the long form.
    skipped = _SLOW if scale == 1 else set()
    for name, (notation, text) in [*HOSTILE_GRAMMARS.items()][part::6]:
        if name in skipped:
            continue
        with subtests.test(name):
            violation = trials.run(notation, text).violation
            assert violation is not None
            assert "\n" not in violation
            assert len(violation) <= 300
            assert trials.run("lark", "start: /[0-9]+/").violation is None


def test_panic_of_the_library_is_the_violation_of_its_grammar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Panic(BaseException):
        """As the library's own: no `Exception`."""

    def panic(rules: str) -> str:
        raise Panic("index out of bounds")

    monkeypatch.setattr("engine.schema.trial_process.LLMatcher.grammar_from_lark", panic)
    request = json.dumps(["lark", "start: /a/"]).encode() + b"\n"
    output = io.BytesIO()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(2 * request)))
    monkeypatch.setattr("sys.stdout", SimpleNamespace(buffer=output))
    monkeypatch.setattr("engine.schema.trial_process.signal.setitimer", lambda *_: None)
    trial_process.serve()
    assert [json.loads(line) for line in output.getvalue().splitlines()] == [
        ["", "the library failed: index out of bounds"]
    ] * 2


def test_trial_that_is_killed_from_outside_blames_no_grammar(
    trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = json.dumps

    def kill_and_send(request: list[str]) -> str:
        process = trials._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return send(request)

    assert trials.run("lark", "start: /a/").violation is None
    monkeypatch.setattr("engine.schema.trial.json.dumps", kill_and_send)
    with pytest.raises(BackendFailed, match="could not be tried: its process was killed by"):
        trials.run("lark", "start: /b/")
    monkeypatch.undo()
    assert trials.run("lark", "start: /b/").violation is None


def test_process_ends_with_the_one_that_started_it() -> None:
    program = (
        "from engine.schema.trial import TRIALS\n"
        "TRIALS.run('lark', 'start: /a/')\n"
        "print(TRIALS._process.pid, flush=True)\n"
        "input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        parent.kill()
    wait_until_blocking(lambda: _has_ended(pid))


def _has_ended(pid: int) -> bool:
    """Return whether a process has ended, even if its parent has not waited for it."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
