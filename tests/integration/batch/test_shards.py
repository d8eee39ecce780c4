"""Parts of one input, each by a process of its own, put together again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ScriptFactory
from tests.integration.batch.runs import ROOT, TIMEOUT_S, call, environment, read, run, write
from tests.integration.batch.test_buckets import environment_of, get, put
from tests.seaweed import Seaweed, seaweed


@pytest.fixture
def model(script: ScriptFactory) -> Path:
    return script({"when": "fails", "pieces": [{"error": "it was asked to fail"}]}, {}, slots=4)


def merge(*arguments: str | Path, **settings: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "batch", "merge", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
        capture_output=True,
        cwd=ROOT,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_shards_are_merged_in_the_order_of_the_input(model: Path, tmp_path: Path) -> None:
    lines = [call(f"n{number}", "it fails" if number == 3 else "word") for number in range(7)]
    source = write(tmp_path / "in.jsonl", lines)
    out = tmp_path / "answers.jsonl"
    merged = ("-i", source, "-o", out, "--shards", "2")
    first = run(model, "-i", source, "-o", out, "--shard", "0/2")
    assert first.returncode == 0, first.stderr
    missing = merge(*merged)
    assert missing.returncode == 3
    assert missing.stderr.decode() == (
        "4 of 7 lines have no answer: 4, 5, 6, 7; nothing was written. Run again, with --shard: "
        "1/2\n"
    )
    assert not out.exists()
    second = run(model, "-i", source, "-o", out, "--shards", "2", SLURM_ARRAY_TASK_ID="1")
    assert second.returncode == 1, second.stderr
    done = merge(*merged)
    assert done.returncode == 1, done.stderr
    notes = [
        json.loads((tmp_path / f".answers-0000{index}.jsonl.finished").read_bytes())["tokens"]
        for index in range(2)
    ]
    prompt = sum(note["prompt_tokens"] for note in notes)
    completion = sum(note["completion_tokens"] for note in notes)
    assert min(prompt, completion) >= 6
    assert done.stderr.decode() == (
        "6 of 7 lines answered, in 2 shards\n"
        f"tokens: {prompt} prompt, {completion} completion\n"
        f"failed lines are in {tmp_path}/answers.errors.jsonl\n"
    )
    assert [line["custom_id"] for line in read(out)] == ["n0", "n1", "n2", "n4", "n5", "n6"]
    assert [line["custom_id"] for line in read(tmp_path / "answers.errors.jsonl")] == ["n3"]
    # The same command again would overwrite the output.
    assert merge(*merged).returncode == 2


@pytest.mark.long
def test_job_lines_of_all_shards_have_ids_of_their_own(model: Path, tmp_path: Path) -> None:
    lines = [{"input": {"prompt": f"word {number}"}} for number in range(5)]
    source, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    for index in range(8):
        done = run(model, "-i", source, "-o", out, "--shard", f"{index}/8")
        assert done.returncode == 0, done.stderr
    assert merge("-i", source, "-o", out, "--shards", "8").returncode == 0
    assert [line["id"] for line in read(out)] == [f"line-{number}" for number in range(1, 6)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with seaweed(tmp_path_factory.mktemp("seaweed")) as server:
        server.client().create_bucket(Bucket="lines")
        yield server


@pytest.mark.long
def test_killed_shards_are_resumed_and_merged_from_a_bucket(
    script: ScriptFactory, server: Seaweed, tmp_path: Path
) -> None:
    """Eight shards at once, two of which are killed in the middle and started again."""
    count = 8
    model = script({"pieces": [{"text": "slow", "delay_ms": 20}]}, slots=2)
    client = server.client()
    lines = [call(f"n{number}") for number in range(400)]
    source, out = put(client, "in.jsonl", lines), "s3://lines/answers.jsonl"
    variables = environment(model, PYTHONPATH=str(ROOT)) | environment_of(server)

    def start(index: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "batch", "run", "-i", source, "-o", out]
        return subprocess.Popen(
            [*command, "--shards", str(count)],
            env=variables | {"JOB_COMPLETION_INDEX": str(index)},
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )

    processes = [start(index) for index in range(count)]
    for index in (2, 5):
        journal = tmp_path / f"answers-{index:05}.jsonl.partial"
        while not journal.exists() or journal.read_bytes().count(b"\n") < 10:
            assert processes[index].poll() is None
        processes[index].kill()
        processes[index].wait()
        processes[index] = start(index)
    assert [process.wait(TIMEOUT_S) for process in processes] == [0] * count
    # A scheduler that repeats a finished part does no harm.
    assert start(3).wait(TIMEOUT_S) == 0
    merged = merge("-i", source, "-o", out, "--shards", str(count), **environment_of(server))
    assert merged.returncode == 0, merged.stderr
    answers = get(client, "answers.jsonl")
    assert [answer["custom_id"] for answer in answers] == [line["custom_id"] for line in lines]
    assert json.dumps(answers).count('"slow"') == len(lines)
