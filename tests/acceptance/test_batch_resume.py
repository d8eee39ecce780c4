"""The same command resumes a killed batch, and answers each line once.

Promises: the output has the lines of the input, each custom_id once; a resumed run repeats only the
lines that were running; memory does not grow with the input.
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
KILLS, LONG_KILLS = 1, 10
CONCURRENCY = 8
LIMIT_S = 120


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[PromptCounter]:
    counter = PromptCounter(tmp_path / "prompts")
    yield counter
    counter.close()


@contextmanager
def running_batch(
    model: Path, counter: PromptCounter, *arguments: str | Path, concurrency: int = CONCURRENCY
) -> Iterator[subprocess.Popen[str]]:
    """Run the command with a counter of its prompts; kill it at the end if it still runs."""
    variables = environment(
        model,
        BATCH_AT_ONCE=str(concurrency),
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
def test_lines_have_one_answer_each_when_the_command_is_killed_at_random_points(
    script: ScriptFactory, tmp_path: Path, counter: PromptCounter, scale: int
) -> None:
    lines, kills = (300, KILLS) if scale == 1 else (50_000, LONG_KILLS)
    model = script({"delay_ms": 0.2}, slots=4)
    input_file = write(tmp_path / "in.jsonl", (call(f"id {n}", f"p {n}") for n in range(lines)))
    out = tmp_path / "out.jsonl"
    rng = random.Random(lines)
    remaining = lines
    for _ in range(kills):
        with running_batch(model, counter, "-i", input_file, "-o", out) as process:
            wait_for = rng.randrange(1, remaining // kills)
            counter.wait_for(wait_for)
            process.send_signal(signal.SIGKILL)
            process.wait(LIMIT_S)
        counter.drain()
        remaining -= wait_for
        assert not out.exists()
    with running_batch(model, counter, "-i", input_file, "-o", out) as process:
        # Read while it runs: the engine blocks when the counter's pipe is full.
        counter.wait_for(lines - len(counter.counts))
        _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, stderr
    counter.drain()
    output = read(out)
    assert [line["custom_id"] for line in output] == [f"id {n}" for n in range(lines)]
    assert [text(line) for line in output] == [f"p {n}" for n in range(lines)]
    assert counter.counts.keys() == {f"p {n}" for n in range(lines)}
    # Each killed run may have generated only the lines that were running.
    redone = counter.counts.total() - lines
    assert 0 <= redone <= kills * CONCURRENCY
    assert not out.with_name("out.jsonl.partial").exists()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_lets_running_lines_finish(
    script: ScriptFactory, tmp_path: Path, counter: PromptCounter, number: signal.Signals
) -> None:
    model = script({"delay_ms": 5}, slots=4)
    input_file = write(tmp_path / "in.jsonl", (call(f"id {n}", f"p {n}") for n in range(200)))
    out = tmp_path / "out.jsonl"
    with running_batch(model, counter, "-i", input_file, "-o", out) as process:
        counter.wait_for(30)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 3
    counter.drain()
    done = counter.counts.total()
    assert (
        f"stopped by {number.name}; {done} of 200 lines are answered; run the same command"
        in stderr
    )
    assert not out.exists()
    result = run(model, "-i", input_file, "-o", out)
    assert result.returncode == 0, result.stderr
    assert f"resuming: {done} of 200 lines are answered".encode() in result.stderr
    assert [line["custom_id"] for line in read(out)] == [f"id {n}" for n in range(200)]


@pytest.mark.long
@pytest.mark.parametrize(("concurrency", "expected"), [(0, 2), (5, 5)])
def test_concurrency_is_the_setting_or_the_number_of_slots(
    script: ScriptFactory, tmp_path: Path, counter: PromptCounter, concurrency: int, expected: int
) -> None:
    """The default of 0 is one line per slot of the engine."""
    model = script({"delay_ms": 1_000}, slots=2)
    input_file = write(tmp_path / "in.jsonl", (call(f"id {n}", "word") for n in range(20)))
    out = tmp_path / "out.jsonl"
    with running_batch(
        model, counter, "-i", input_file, "-o", out, concurrency=concurrency
    ) as process:
        counter.wait_for(1)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=LIMIT_S)
    waits = f"stopping: waiting for {expected} lines under way, up to 600 s (REQUEST_TIMEOUT_S)"
    assert f"{waits}; Ctrl-C again ends at once\n" in stderr
    assert f"stopped by SIGTERM; {expected} of 20 lines are answered" in stderr


@pytest.mark.long
def test_journal_of_another_input_is_refused(
    script: ScriptFactory, tmp_path: Path, counter: PromptCounter
) -> None:
    model = script({"delay_ms": 5}, slots=4)
    input_file = write(tmp_path / "in.jsonl", (call(f"id {n}") for n in range(200)))
    out = tmp_path / "out.jsonl"
    with running_batch(model, counter, "-i", input_file, "-o", out) as process:
        counter.wait_for(20)
        process.kill()
    write(input_file, [call("another")])
    result = run(model, "-i", input_file, "-o", out)
    assert result.returncode == 2
    journal = out.with_name("out.jsonl.partial")
    assert result.stderr.decode() == (
        f"{journal} belongs to a run with another input; --force discards it\n"
    )
    assert journal.exists()
    assert run(model, "-i", input_file, "-o", out, "--force").returncode == 0
    assert [line["custom_id"] for line in read(out)] == ["another"]


@pytest.mark.long
def test_second_command_for_the_same_output_is_refused(
    script: ScriptFactory, tmp_path: Path, counter: PromptCounter
) -> None:
    model = script({"delay_ms": 5}, slots=4)
    input_file = write(tmp_path / "in.jsonl", (call(f"id {n}") for n in range(1_000)))
    out = tmp_path / "out.jsonl"
    with running_batch(model, counter, "-i", input_file, "-o", out) as process:
        counter.wait_for(20)
        result = run(model, "-i", input_file, "-o", out)
        assert result.returncode == 2
        assert b"another run is using" in result.stderr
        assert process.poll() is None


@pytest.mark.long
def test_batch_resumes_after_a_full_disk(script: ScriptFactory, tmp_path: Path) -> None:
    """A file size limit for the journal has the effect of a full disk."""
    model = script({"delay_ms": 0}, slots=4)
    input_file = write(tmp_path / "in.jsonl", (call(f"id {n}", f"p {n}") for n in range(300)))
    out = tmp_path / "out.jsonl"
    words = " ".join(f"'{word}'" for word in command("-i", input_file, "-o", out))
    full_disk = subprocess.run(
        ["bash", "-c", f"ulimit -f 40; trap '' XFSZ; exec {words}"],
        env=environment(model),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert full_disk.returncode == 3
    assert (
        "out.jsonl.partial: File too large; run the same command again to resume"
        in full_disk.stderr
    )
    assert "Traceback" not in full_disk.stderr
    assert not out.exists()
    resumed = run(model, "-i", input_file, "-o", out)
    assert resumed.returncode == 0, resumed.stderr
    assert [text(line) for line in read(out)] == [f"p {n}" for n in range(300)]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_memory_does_not_grow_with_the_input(
    script: ScriptFactory, tmp_path: Path, scale: int
) -> None:
    max_lines = 2_000 if scale == 1 else 50_000
    model = script({}, slots=8)

    def peak_mb(lines: int) -> float:
        input_file = write(
            tmp_path / "in.jsonl", (call(f"id {n}", "word " * 50) for n in range(lines))
        )
        variables = {
            "PEAK": str(tmp_path / "peak"),
            "PYTHONPATH": os.pathsep.join((str(PEAK), str(ROOT))),
        }
        result = run(
            model, "-i", input_file, "-o", tmp_path / "out.jsonl", "--force", variables=variables
        )
        assert result.returncode == 0, result.stderr
        return float((tmp_path / "peak").read_text())

    small_mb, large_mb = peak_mb(max_lines // 10), peak_mb(max_lines)
    # For each line the command keeps a hash, an offset and a length.
    assert large_mb < small_mb * 1.05 + 2, (small_mb, large_mb)


@pytest.mark.long
def test_batch_completes_despite_clock_jumps(script: ScriptFactory, tmp_path: Path) -> None:
    input_file = write(tmp_path / "in.jsonl", (call(f"id {n}", f"p {n}") for n in range(200)))
    out = tmp_path / "out.jsonl"
    variables = {"PYTHONPATH": os.pathsep.join((str(JUMPS), str(ROOT)))}
    result = run(script({}, slots=4), "-i", input_file, "-o", out, variables=variables)
    assert (result.returncode, b"Traceback" in result.stderr) == (0, False), result.stderr
    assert [text(line) for line in read(out)] == [f"p {n}" for n in range(200)]
