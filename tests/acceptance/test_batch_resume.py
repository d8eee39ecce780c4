"""A killed batch is resumed by the same command, and each line is answered once.

Promises: output lines = input lines, each custom_id once, work redone <= lines under way, memory
that does not grow with the input.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ScriptFactory
from tests.integration.batch.runs import ROOT, call, command, environment, read, run, text, write
from tests.prompt_counter import PromptCounter

PEAK = Path(__file__).with_name("peak")
JUMPS = Path(__file__).with_name("jumps")
KILLS, MANY_KILLS = 3, 10
AT_ONCE = 8
LIMIT_S = 120


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[PromptCounter]:
    started = PromptCounter(tmp_path / "prompts")
    yield started
    started.close()


@contextmanager
def begun(
    model: Path, counter: PromptCounter, *arguments: str | Path, at_once: int = AT_ONCE
) -> Iterator[subprocess.Popen[str]]:
    """Start the command, its engine reports to the counter; kill it if it is left behind."""
    variables = environment(
        model,
        BATCH_AT_ONCE=str(at_once),
        **counter.variables,
    )
    with subprocess.Popen(
        command(*arguments), env=variables, cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.timeout(600)
def test_killed_at_random_points_and_answered_once(
    script: ScriptFactory, tmp_path: Path, counter: PromptCounter, scale: int
) -> None:
    lines, kills = (1_000, KILLS) if scale == 1 else (50_000, MANY_KILLS)
    model = script({"delay_ms": 0.2}, slots=4)
    given = write(tmp_path / "in.jsonl", (call(f"id {n}", f"p {n}") for n in range(lines)))
    out = tmp_path / "out.jsonl"
    chance = random.Random(lines)
    left = lines
    for _ in range(kills):
        with begun(model, counter, "-i", given, "-o", out) as process:
            wait_for = chance.randrange(1, left // kills)
            counter.wait_for(wait_for)
            process.send_signal(signal.SIGKILL)
            process.wait(LIMIT_S)
        counter.drain()
        left -= wait_for
        assert not out.exists()
    with begun(model, counter, "-i", given, "-o", out) as process:
        # Read while it runs: a pipe that nobody reads would hold the engine up.
        counter.wait_for(lines - len(counter.counts))
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said
    counter.drain()
    found = read(out)
    assert [line["custom_id"] for line in found] == [f"id {n}" for n in range(lines)]
    assert [text(line) for line in found] == [f"p {n}" for n in range(lines)]
    assert counter.counts.keys() == {f"p {n}" for n in range(lines)}
    # Before the process, its engine: each may have begun what was under way, and no more.
    redone = counter.counts.total() - lines
    assert 0 <= redone <= kills * AT_ONCE
    assert not out.with_name("out.jsonl.partial").exists()


@pytest.mark.long_except("15")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_what_is_under_way_finish(
    script: ScriptFactory, tmp_path: Path, counter: PromptCounter, number: signal.Signals
) -> None:
    model = script({"delay_ms": 5}, slots=4)
    given = write(tmp_path / "in.jsonl", (call(f"id {n}", f"p {n}") for n in range(200)))
    out = tmp_path / "out.jsonl"
    with begun(model, counter, "-i", given, "-o", out) as process:
        counter.wait_for(30)
        process.send_signal(number)
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 3
    counter.drain()
    done = counter.counts.total()
    assert (
        f"stopped by {number.name}; {done} of 200 lines are answered; run the same command" in said
    )
    assert not out.exists()
    ran = run(model, "-i", given, "-o", out)
    assert ran.returncode == 0, ran.stderr
    assert f"resuming: {done} of 200 lines are answered".encode() in ran.stderr
    assert [line["custom_id"] for line in read(out)] == [f"id {n}" for n in range(200)]


@pytest.mark.long_except("0-2")
@pytest.mark.parametrize(("at_once", "under_way"), [(0, 2), (5, 5)])
def test_as_many_lines_are_under_way_as_are_to_be(
    script: ScriptFactory, tmp_path: Path, counter: PromptCounter, at_once: int, under_way: int
) -> None:
    """As many as the engine has slots, where nobody says how many: more would wait for nothing."""
    model = script({"delay_ms": 1_000}, slots=2)
    given = write(tmp_path / "in.jsonl", (call(f"id {n}", "word") for n in range(20)))
    out = tmp_path / "out.jsonl"
    with begun(model, counter, "-i", given, "-o", out, at_once=at_once) as process:
        counter.wait_for(1)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT_S)
    waits = f"stopping: waiting for {under_way} lines under way, up to 600 s (REQUEST_TIMEOUT_S)"
    assert f"{waits}; Ctrl-C again ends at once\n" in said
    assert f"stopped by SIGTERM; {under_way} of 20 lines are answered" in said


def test_a_journal_of_another_input_is_not_gone_on_with(
    script: ScriptFactory, tmp_path: Path, counter: PromptCounter
) -> None:
    model = script({"delay_ms": 5}, slots=4)
    given = write(tmp_path / "in.jsonl", (call(f"id {n}") for n in range(200)))
    out = tmp_path / "out.jsonl"
    with begun(model, counter, "-i", given, "-o", out) as process:
        counter.wait_for(20)
        process.kill()
    write(given, [call("another")])
    ran = run(model, "-i", given, "-o", out)
    assert ran.returncode == 2
    journal = out.with_name("out.jsonl.partial")
    assert ran.stderr.decode() == (
        f"{journal} belongs to a run with another input; --force discards it\n"
    )
    assert journal.exists()
    assert run(model, "-i", given, "-o", out, "--force").returncode == 0
    assert [line["custom_id"] for line in read(out)] == ["another"]


def test_two_commands_do_not_share_an_output(
    script: ScriptFactory, tmp_path: Path, counter: PromptCounter
) -> None:
    model = script({"delay_ms": 5}, slots=4)
    given = write(tmp_path / "in.jsonl", (call(f"id {n}") for n in range(2_000)))
    out = tmp_path / "out.jsonl"
    with begun(model, counter, "-i", given, "-o", out) as process:
        counter.wait_for(20)
        ran = run(model, "-i", given, "-o", out)
        assert ran.returncode == 2
        assert b"another run is using" in ran.stderr
        assert process.poll() is None


def test_a_disk_that_fills_up_costs_nothing(script: ScriptFactory, tmp_path: Path) -> None:
    """The journal may grow to a limit and no further, as on a disk that is full."""
    model = script({"delay_ms": 0}, slots=4)
    given = write(tmp_path / "in.jsonl", (call(f"id {n}", f"p {n}") for n in range(300)))
    out = tmp_path / "out.jsonl"
    words = " ".join(f"'{word}'" for word in command("-i", given, "-o", out))
    ran = subprocess.run(
        ["bash", "-c", f"ulimit -f 40; trap '' XFSZ; exec {words}"],
        env=environment(model),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ran.returncode == 3
    assert "out.jsonl.partial: File too large; run the same command again to resume" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not out.exists()
    again = run(model, "-i", given, "-o", out)
    assert again.returncode == 0, again.stderr
    assert [text(line) for line in read(out)] == [f"p {n}" for n in range(300)]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_memory_does_not_grow_with_the_input(
    script: ScriptFactory, tmp_path: Path, scale: int
) -> None:
    most = 2_000 if scale == 1 else 50_000
    model = script({}, slots=8)

    def peak_mb(lines: int) -> float:
        given = write(tmp_path / "in.jsonl", (call(f"id {n}", "word " * 50) for n in range(lines)))
        told = {
            "PEAK": str(tmp_path / "peak"),
            "PYTHONPATH": os.pathsep.join((str(PEAK), str(ROOT))),
        }
        ran = run(model, "-i", given, "-o", tmp_path / "out.jsonl", "--force", variables=told)
        assert ran.returncode == 0, ran.stderr
        return float((tmp_path / "peak").read_text())

    few, many = peak_mb(most // 10), peak_mb(most)
    # What is kept of a line is a hash, a place and a length.
    assert many < few * 1.05 + 2, (few, many)


def test_a_clock_that_jumps_costs_nothing(script: ScriptFactory, tmp_path: Path) -> None:
    given = write(tmp_path / "in.jsonl", (call(f"id {n}", f"p {n}") for n in range(200)))
    out = tmp_path / "out.jsonl"
    told = {"PYTHONPATH": os.pathsep.join((str(JUMPS), str(ROOT)))}
    ran = run(script({}, slots=4), "-i", given, "-o", out, variables=told)
    assert (ran.returncode, b"Traceback" in ran.stderr) == (0, False), ran.stderr
    assert [text(line) for line in read(out)] == [f"p {n}" for n in range(200)]
