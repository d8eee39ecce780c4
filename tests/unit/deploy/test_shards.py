"""The shards of deploy/slurm and deploy/skypilot, with the variables that the schedulers set."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import SMALL_RULES, ScriptFactory

ROOT = Path(__file__).resolve().parents[3]
SLURM = ROOT / "deploy" / "slurm" / "batch.sh"
SKYPILOT = ROOT / "deploy" / "skypilot" / "batch.yaml"
TIMEOUT_S = 120
LINES = [
    {"custom_id": f"n{number}", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a"}}
    for number in range(9)
]


def task() -> dict[str, Any]:
    """Return SkyPilot's task."""
    loaded: dict[str, Any] = yaml.safe_load(SKYPILOT.read_text())
    return loaded


def test_array_of_slurm_has_as_many_tasks_as_there_are_shards() -> None:
    text = SLURM.read_text()
    [last] = re.findall(r"^#SBATCH --array=0-(\d+)$", text, re.M)
    [count] = re.findall(r"SHARDS:-(\d+)\}", text)
    assert int(last) + 1 == int(count)
    subprocess.run(["bash", "-n", str(SLURM)], check=True, timeout=TIMEOUT_S)


def test_task_of_skypilot_has_one_shard_for_each_node() -> None:
    assert '--shards "$SKYPILOT_NUM_NODES"' in task()["run"]
    assert task()["num_nodes"] > 1


@pytest.mark.long
@pytest.mark.parametrize("scheduler", ["slurm", "skypilot", "kubernetes"])
def test_tasks_of_a_scheduler_answer_all_lines(
    scheduler: str, script: ScriptFactory, tmp_path: Path
) -> None:
    count = 3
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    module = f"{shlex.quote(sys.executable)} -m worker_rkllm"
    variables = os.environ | {
        "PYTHONPATH": str(ROOT),
        "WORKER_RKLLM": module,
        "MODEL_PATH": str(script({})),
        "VALIDATION_RULES": str(SMALL_RULES),
        "INPUT": "in.jsonl",
        "OUTPUT": "out.jsonl",
        "SHARDS": str(count),
    }
    commands = {
        "slurm": ["bash", str(SLURM)],
        "skypilot": ["bash", "-c", task()["run"]],
        "kubernetes": ["bash", "-c", f"{module} batch run -i in.jsonl -o out.jsonl --shards 3"],
    }
    indexes = {
        "slurm": "SLURM_ARRAY_TASK_ID",
        "skypilot": "SKYPILOT_NODE_RANK",
        "kubernetes": "JOB_COMPLETION_INDEX",
    }
    for index in range(count):
        own = {indexes[scheduler]: str(index), "SKYPILOT_NUM_NODES": str(count)}
        subprocess.run(
            commands[scheduler],
            env=variables | own,
            cwd=tmp_path,
            check=True,
            capture_output=True,
            timeout=TIMEOUT_S,
        )
    merge = f"{module} batch merge -i in.jsonl -o out.jsonl --shards {count}"
    subprocess.run(
        ["bash", "-c", merge], env=variables, cwd=tmp_path, check=True, timeout=TIMEOUT_S
    )
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == [line["custom_id"] for line in LINES]
