"""Run one local job without the SDK: the choice of the mode, and the printed output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from engine import AnyEngine
from handler.job.job_handler import JobHandler
from handler.worker.local import BadTestInput, is_local, read_job, run_local

ROOT = Path(__file__).parents[4]
JOB_TAKE = {"RUNPOD_WEBHOOK_GET_JOB": "http://127.0.0.1:1/job-take/$ID?gpu=none"}


@pytest.mark.parametrize(
    ("arguments", "environment", "local"),
    [
        ([], {}, True),
        ([], JOB_TAKE, False),
        (["--test_input", "{}"], JOB_TAKE, True),
        (["--test_input={}"], JOB_TAKE, True),
        (["--rp_log_level", "INFO"], {}, True),
        ([], {"RUNPOD_REALTIME_PORT": "9000"}, False),
        # The SDK's own server takes any number of jobs, so the engine must live on after one.
        (["--rp_serve_api"], {}, False),
        (["--rp_serve_api", "--rp_api_port", "1"], {}, False),
    ],
)
def test_is_local_follows_the_rule_of_the_sdk(
    arguments: list[str],
    environment: dict[str, str],
    local: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["handler", *arguments])
    for name in ("RUNPOD_WEBHOOK_GET_JOB", "RUNPOD_REALTIME_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_local() is local


class FakeEngine:
    """An engine that is closed once."""

    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


class FakeJobs:
    """A job handler with one output for `run` and, each kept or not, several for `stream`."""

    def __init__(self, output: Any, *outputs: tuple[Any, bool]) -> None:
        self._output = output
        self._outputs = outputs
        self.jobs: list[Mapping[str, Any]] = []

    async def run(self, job: Mapping[str, Any]) -> Any:
        self.jobs.append(job)
        return self._output

    async def stream(
        self, job: Mapping[str, Any], *, include_in_result: Callable[[bool], None]
    ) -> AsyncGenerator[Any, None]:
        self.jobs.append(job)
        for output, kept in self._outputs:
            include_in_result(kept)
            yield output


def run(jobs: FakeJobs, mode: str) -> int:
    engine = FakeEngine()
    code = run_local(cast("JobHandler", jobs), cast("AnyEngine", engine), mode)
    assert engine.closed == 1
    return code


@pytest.fixture(autouse=True)
def job_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    argument = ["--test_input", '{"input": {"prompt": "hi"}}']
    monkeypatch.setattr(sys, "argv", ["handler", *argument])


@pytest.mark.parametrize("mode", ["aggregate", "generator"])
def test_run_local_prints_one_line_of_json_with_what_is_kept(
    mode: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    # R45: a pointer to a bucket is all that is kept of a list whose parts went there.
    jobs = FakeJobs("pointer", ("a", False), ("b", False), ("pointer", True))
    assert run(jobs, mode) == 0
    out = capfdbinary.readouterr().out
    assert out.count(b"\n") == 1
    assert json.loads(out) == (["pointer"] if mode == "generator" else "pointer")
    assert [job["id"] for job in jobs.jobs] == ["local_test"]


@pytest.mark.parametrize("mode", ["aggregate", "generator"])
def test_run_local_of_a_failed_job_prints_its_error_and_exits_1(
    mode: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    # R50
    error = {"error": "no NPU", "refresh_worker": True}
    assert run(FakeJobs(dict(error), ("a", True), (dict(error), True)), mode) == 1
    assert json.loads(capfdbinary.readouterr().out) == {"error": "no NPU"}


def test_read_job_keeps_the_jobs_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["handler", '--test_input={"id": "mine", "input": {}}'])
    assert read_job() == {"id": "mine", "input": {}}


def test_read_job_takes_the_file_when_there_is_no_argument(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # R44
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["handler"])
    with pytest.raises(BadTestInput, match="no job: "):
        read_job()
    Path("test_input.json").write_text('{"input": {"prompt": "hi"}}')
    assert read_job() == {"id": "local_test", "input": {"prompt": "hi"}}


def test_only_the_engine_is_imported_before_its_model_loads() -> None:
    # The first token waits for the longer of the two: the imports and the load.
    program = (
        "import sys, handler.__main__; "
        "print(sys.modules.keys() & "
        "{'handler.composition', 'handler.logs.configuration', 'numpy', 'structlog'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, timeout=30, check=True, capture_output=True
    )
    assert done.stdout == b"set()\n"
