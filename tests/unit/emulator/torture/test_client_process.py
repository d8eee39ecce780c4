"""The client's command: its output, its end, and the end of all that it started."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from emulator.torture import client_process
from emulator.torture.client_process import ClientCommand
from emulator.torture.shaped_app import ShapedRequests
from emulator.torture.verdict import ClientRun
from tests.waiting import wait_until

TIMEOUT_S = 60


async def run(text: str, timeout_s: float = TIMEOUT_S, **variables: str) -> ClientRun:
    return await ClientCommand(text, timeout_s).run(variables, ShapedRequests(count=2))


async def test_command_gets_its_variables_and_its_output_is_kept() -> None:
    ended = await run('printf "%s" "$OPENAI_BASE_URL"; echo no >&2; exit 3', OPENAI_BASE_URL="ü")
    assert (ended.printed, ended.errors, ended.exit_code) == ("ü", "no\n", 3)
    assert ended.requests == 2


async def test_command_has_no_input() -> None:
    assert (await run("cat; echo end")).printed == "end\n"


async def test_command_ended_by_a_signal_has_its_number() -> None:
    assert (await run("kill -9 $$")).exit_code == -9


@pytest.mark.parametrize("end", ["exec sleep 60", "sleep 60"])
async def test_command_is_killed_with_its_children_when_its_time_is_over(
    tmp_path: Path, end: str
) -> None:
    pid_file = tmp_path / "pid"
    ended = await run(f"sleep 60 & echo $! > {shlex.quote(str(pid_file))}; echo a; {end}", 0.3)
    assert ended.exit_code is None
    assert ended.printed == "a\n"
    pid = int(pid_file.read_text())
    await wait_until(lambda: not is_running(pid), 10)


async def test_child_that_outlives_the_command_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    ended = await run(f"sleep 60 > /dev/null 2>&1 & echo $! > {shlex.quote(str(pid_file))}; echo a")
    assert (ended.exit_code, ended.printed) == (0, "a\n")
    await wait_until(lambda: not is_running(int(pid_file.read_text())), 10)


@pytest.mark.parametrize("start", ["", "setsid "])
async def test_run_ends_with_the_command_although_a_child_keeps_its_output_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.setattr(client_process, "_OUTPUT_TIMEOUT_S", 0.05)
    pid_file = tmp_path / "pid"
    script = f"{start}sleep 60 & echo $! > {shlex.quote(str(pid_file))}; echo a; exit 3"
    try:
        ended = await run(script)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
    assert (ended.exit_code, ended.printed) == (3, "a\n")
    assert ended.duration_s < TIMEOUT_S / 2


async def test_output_that_a_child_prints_after_the_end_of_the_command_is_kept() -> None:
    assert (await run("(sleep 0.1; echo late) & echo a")).printed == "a\nlate\n"


async def test_output_is_read_to_its_end_and_kept_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_process, "_MAX_OUTPUT_BYTES", 10)
    program = "import sys; sys.stdout.write('x' * 300_000)"
    ended = await run(f"{shlex.quote(sys.executable)} -I -S -c {shlex.quote(program)}")
    assert (ended.printed, ended.exit_code) == ("x" * 10, 0)


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"
