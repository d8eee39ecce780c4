"""The check that finds tests which judge the wall clock."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from tools.wall_clock import find_wall_clock, main

DURATION = "an assertion about a measured duration"
LIMIT = "a limit of "


def findings(tmp_path: Path, body: str, head: str = "async def test_it():") -> list[str]:
    path = tmp_path / "test_it.py"
    path.write_text(f"LIMIT_S = 5\n{head}\n{indent(body, '    ')}\n")
    return [finding.text for finding in find_wall_clock(path)]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("begin = time.monotonic()\nrun()\nassert time.monotonic() - begin < 2", DURATION),
        ("begin = loop.time()\nrun()\ntook = loop.time() - begin\nassert took <= 5", DURATION),
        ("begin = time.perf_counter()\ntook = time.perf_counter() - begin\n"
         "times.append(took)\nshare = took / 3\nassert 1 > share", DURATION),
        ("begin = time.time()\nassert 1 <= time.time() - begin < 2", DURATION),
        ("begin = time.time()\nassert time.time() - begin == pytest.approx(1)", DURATION),
        ("async with asyncio.timeout(5):\n    await done.wait()", LIMIT),
        ("await asyncio.wait_for(done.wait(), 2.5)", LIMIT),
        ("await wait_until(is_done, within_s=3)", LIMIT),
        ("process.communicate(timeout=10)", LIMIT),
        ("await asyncio.wait_for(done.wait(), LIMIT_S)", LIMIT),
    ],
)  # fmt: skip
def test_judgement_of_the_clock_is_reported(body: str, text: str, tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, body)
    assert finding.startswith(text)


@pytest.mark.parametrize(
    "body",
    [
        # A minimum holds on a busy machine too, and so does a limit that must be reached.
        "begin = time.monotonic()\nrun()\nassert time.monotonic() - begin >= 2",
        "begin = time.process_time()\nrun()\nassert time.process_time() - begin < 2",
        "with pytest.raises(TimeoutError):\n    await asyncio.wait_for(done.wait(), 1)",
        "async with asyncio.timeout(30):\n    await done.wait()",
        "process.communicate(timeout=60)",
        "await asyncio.wait({task}, timeout=0.2)\nassert not task.done()",
        "engine = build(stall_timeout_s=2)\nassert engine.timeout_s - offset < 3",
        "batch.wait_for(lines, 6)",
        "assert not lock.acquire(timeout=0.1)",
    ],
)
def test_other_tests_are_not_reported(body: str, tmp_path: Path) -> None:
    assert findings(tmp_path, body) == []


@pytest.mark.parametrize(
    "head",
    ["async def test_it(clock):", "@pytest.mark.timing\ndef test_it():"],
    ids=["virtual", "timing"],
)
def test_virtual_time_and_tests_of_speed_may_judge_it(head: str, tmp_path: Path) -> None:
    body = "begin = time.monotonic()\nrun()\nassert time.monotonic() - begin < 2"
    assert findings(tmp_path, body, head) == []


def test_main_names_the_place_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    findings(tmp_path, "await asyncio.wait_for(done.wait(), 2.5)")
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith(f"{tmp_path}/test_it.py:3: a limit of 2.5 s")
