"""The benchmarks run to their end; these tests do not check their measurements."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 840


def run_benchmark(name: str, folder: Path) -> list[dict[str, Any]]:
    """Run the shortest form of a benchmark; return its tables."""
    file = folder / "figures.json"
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--pairs", "1"]
    done = subprocess.run(
        [*command, "--json", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result_tables: list[dict[str, Any]] = json.loads(file.read_bytes())
    return result_tables


@pytest.mark.timeout(LIMIT_S + 60)
def test_wire_measures_1_32_and_256_streams_on_both_routes(
    tmp_path: Path,
) -> None:
    """R57 has a row for each number of streams and each form."""
    [table] = run_benchmark("wire", tmp_path)

    assert (table["ours"], table["peer"]) == ("/v1/completions", "/v1/chat/completions")
    budgeted = [row["name"] for row in table["rows"] if row["budget"]]
    forms = ("coalesced", "one event per token", "20 tokens/s each")
    counts = ("1 stream", "32 streams", "256 streams")
    assert budgeted == [f"{count}, {form}" for form in forms for count in counts]
    assert all(row["ratio"]["median"] > 0 for row in table["rows"])


@pytest.mark.timeout(LIMIT_S + 60)
def test_llamacpp_measures_both_routes_and_a_chat_of_ten_turns(
    tmp_path: Path, default_model_path: Path
) -> None:
    both, chats = run_benchmark("llamacpp", tmp_path)

    rates = [row["name"] for row in both["rows"] if row["unit"] == "tokens/s"]
    assert rates == [
        f"{route}, {streams}, {form}"
        for route in ("completions", "chat")
        for streams in ("1 stream", "4 streams")
        for form in ("streamed", "whole")
    ]
    assert [row["unit"] for row in both["rows"]].count("ms") == 4
    assert [row["name"] for row in chats["rows"]][-1] == "turn 10 over turn 2"
    assert chats["rows"][-1]["budget"] == {"limit": 1.5, "kind": "at most", "of": "ours"}


@pytest.mark.timeout(LIMIT_S + 60)
def test_threads_are_compared_with_both_extremes_on_an_idle_and_a_busy_machine(
    tmp_path: Path, default_model_path: Path
) -> None:
    tables = run_benchmark("threads", tmp_path)

    assert [table["peer"] for table in tables] == ["asleep at once", "spinning on"]
    for table in tables:
        assert [row["name"] for row in table["rows"]] == [
            "1 stream, alone",
            "1 stream, beside a busy core",
        ]
        assert all(row["ratio"]["median"] > 0 for row in table["rows"])
