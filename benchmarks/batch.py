"""A file of prompts: our `batch run` against the usual script.

Both process the same lines with the same engine and write a file. A measurement is a whole process,
from start to exit. Ours checks every line, loads the engine and writes a journal. The script checks
nothing, keeps all answers in memory until the end, and uses a running server, which is ours with
the same engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import Pairs, Table, min_budget
from benchmarks.options import Options, print_progress
from benchmarks.scripts import write_answer
from benchmarks.servers import run_server
from benchmarks.streams import settings

NAME = "batch"
_WORDS = "yes it is so and not otherwise"
_SLOTS = 8
_CONCURRENCY = 2 * _SLOTS
_LIMIT_S = 600
_ROOT = Path(__file__).resolve().parent.parent


def run(options: Options) -> list[Table]:
    """Answer a file with both commands in turns."""
    table = Table(title=NAME, ours="python -m batch run", peer="asyncio, openai, a semaphore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_answer(folder, _WORDS, slots=_SLOTS)
        env = settings("scripted", model, folder, "batch")
        output = folder / "out.jsonl"
        lines, of_peer = options.size(50_000, 300), options.size(2_000, 100)
        command = ["batch", "run", "--force", "-i", _input(folder, lines), "-o", str(output)]
        with run_server("emulator", env=env) as port:
            script = [
                "benchmarks.processes.openai_script",
                f"http://127.0.0.1:{port}/v1",
                _input(folder, of_peer),
                str(output),
                str(_CONCURRENCY),
            ]
            ours, peer = _turn(command, output, lines, env), _turn(script, output, of_peer, env)
            print_progress(f"{NAME}: {lines:,} lines and {of_peer:,}, {options.pairs} pairs")
            ours()
            peer()
            pairs = Pairs()
            for _ in range(options.pairs):
                pairs.add(ours(), peer())
    table.compare("a file answered, start to end", "lines/s", pairs, min_budget(5_000))
    return [table]


def _turn(
    command: Sequence[str], output: Path, lines: int, env: dict[str, str]
) -> Callable[[], float]:
    """Return a measurement of the lines per second of a whole process."""

    def measure() -> float:
        output.unlink(missing_ok=True)
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", *command],
            cwd=_ROOT,
            env={"PATH": os.environ["PATH"], **env},
            check=True,
            capture_output=True,
            timeout=_LIMIT_S,
        )
        seconds = time.perf_counter() - began
        answers = [json.loads(line) for line in output.read_text().splitlines()]
        assert [each["custom_id"] for each in answers] == [str(n) for n in range(lines)]
        texts = {each["response"]["body"]["choices"][0]["text"] for each in answers}
        assert texts == {_WORDS}, "an answer is not what was said"
        return lines / seconds

    return measure


def _input(folder: Path, lines: int) -> str:
    path = folder / f"{lines}.jsonl"
    with path.open("w") as file:
        for number in range(lines):
            body = {"model": "bench", "prompt": f"prompt number {number}", "max_tokens": 16}
            line = {"custom_id": str(number), "method": "POST", "url": "/v1/completions"}
            file.write(json.dumps(line | {"body": body}) + "\n")
    return str(path)
