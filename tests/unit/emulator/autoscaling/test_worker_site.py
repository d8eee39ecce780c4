"""The site module of a launched Python: old SDKs keep each worker's state in its own folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from emulator.autoscaling.worker_process import worker_environment

# As SDK 1.7 to 1.9 have it, shortened.
WORKER_STATE = """\
import os

class JobsProgress(set):
    _STATE_DIR = os.getcwd()
    _STATE_FILE = os.path.join(_STATE_DIR, ".runpod_jobs.pkl")

    def save(self):
        open(self._STATE_FILE, "wb").close()
"""
SAVE = """\
from runpod.serverless.modules.worker_state import JobsProgress
JobsProgress().save()
print(JobsProgress._STATE_FILE)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a handler's packages."""
    modules = tmp_path / "packages" / "runpod" / "serverless" / "modules"
    modules.mkdir(parents=True)
    (modules / "worker_state.py").write_text(WORKER_STATE)
    return tmp_path


def run(project: Path, program: str, name: str, state: Path | None = None) -> str:
    """Run a program as a launched worker runs it; return what it prints."""
    packages = {"PYTHONPATH": str(project / "packages")}
    environment = dict(worker_environment("http://x", "e", name, None, variables=packages))
    environment["WORKER_RKLLM_STATE_DIR"] = str(state or project / name)
    result = subprocess.run(
        [sys.executable, "-S", "-c", f"import sitecustomize\n{program}"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.strip()


def test_each_worker_keeps_its_jobs_in_a_folder_of_its_own(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    files = [run(project, SAVE, name) for name in ("w1", "w2", "w1")]
    assert files == [str(project / name / ".runpod_jobs.pkl") for name in ("w1", "w2", "w1")]
    assert all(Path(file).exists() for file in files)
    assert not (project / ".runpod_jobs.pkl").exists()
    assert (project / "w1").stat().st_mode & 0o777 == 0o700


def test_client_of_sdk_1_6_calls_this_server(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("RUNPOD_ENDPOINT_BASE_URL", raising=False)
    # As SDK 1.6 has it: it reads no variable, and imports its own modules first.
    (project / "packages" / "runpod" / "__init__.py").write_text(
        "import runpod.serverless.modules.worker_state\n"
        'endpoint_url_base = "https://api.runpod.ai/v2"\n'
    )
    program = "import runpod; print(runpod.endpoint_url_base)"
    assert run(project, program, "w1") == "http://x/v2"
    assert run(project, SAVE, "w1") == str(project / "w1" / ".runpod_jobs.pkl")
    monkeypatch.setenv("RUNPOD_ENDPOINT_BASE_URL", "http://mine/v2")
    assert run(project, program, "w1") == "http://mine/v2"


def test_folder_of_another_user_is_not_used(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The file is a pickle, which is a program.
    monkeypatch.delenv("PYTHONPATH", raising=False)
    link = project / "link"
    link.symlink_to(project)
    assert run(project, SAVE, "w1", link) == str(project / ".runpod_jobs.pkl")


def test_sitecustomize_of_the_user_still_runs(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (project / "packages" / "sitecustomize.py").write_text("print('of the user')\n")
    assert run(project, "import sitecustomize", "w1") == "of the user"


def test_packages_own_worker_runs_without_the_site_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    environment = worker_environment("http://x", "e", "w1", None, is_own_worker=True)
    assert not {"PYTHONPATH", "WORKER_RKLLM_STATE_DIR"} & environment.keys()
    monkeypatch.setenv("PYTHONPATH", "/mine")
    environment = worker_environment("http://x", "e", "w1", None)
    assert environment["PYTHONPATH"].split(os.pathsep)[1:] == ["/mine"]
