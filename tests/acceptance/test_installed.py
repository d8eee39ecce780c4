"""The installed package, in a clean environment and a folder with modules of the same names."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from tests.ports import free_port
from tests.waiting import wait_for_server

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".venv" / "bin" / "uv"
# The whole file shares one installation, which takes 15 s with a warm cache.
pytestmark = pytest.mark.timeout(300)
LIMIT_S = 120
# What an installation has below worker_rkllm/packages.
PACKAGES = ("batch", "common", "emulator", "engine", "handler", "jobs", "validation")
COMMANDS = ("run", "serve", "test", "reset", "batch", "doctor", "fetch-model")
DATA = (
    "validation/rules.yaml",
    "validation/intents.npz",
    "validation/options/examples.yaml",
    "emulator/console/static/index.html",
    "emulator/console/static/main.js",
)


@dataclass(frozen=True, slots=True)
class Installation:
    """A clean virtual environment with the wheel, and a folder with files that could hide it."""

    wheel: Path
    environment: Path
    folder: Path

    def python(self) -> Path:
        return self.environment / "bin" / "python"

    def variables(self, **settings: str) -> Mapping[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "RUNPOD_LOG_LEVEL": "ERROR",
            **settings,
        }

    def command(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run `worker-rkllm` in the folder."""
        return self.program(str(self.environment / "bin" / "worker-rkllm"), *arguments, **settings)

    def program(self, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.variables(**settings),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=False,
        )


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    base = tmp_path_factory.mktemp("installed")
    environment, folder = base / "environment", base / "folder"
    uv(["build", "--quiet", "--wheel", "--out-dir", str(base), str(ROOT)])
    [wheel] = base.glob("*.whl")
    python = ROOT / ".venv" / "bin" / "python"
    uv(["venv", "--quiet", "--python", str(python), str(environment)])
    # Its own dependencies, at the locked versions.
    locked = ["--constraint", str(ROOT / "requirements" / "run.txt"), "--only-binary", ":all:"]
    target = str(environment / "bin" / "python")
    uv(["pip", "install", "--quiet", "--python", target, *locked, str(wheel)])
    folder.mkdir()
    for name in PACKAGES:
        (folder / f"{name}.py").write_text(f"raise SystemExit('the folder has its own {name}')\n")
    return Installation(wheel, environment, folder)


def uv(arguments: list[str]) -> None:
    done = subprocess.run([UV, *arguments], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-2000:]


def test_wheel_contains_the_data_files_and_its_types(installation: Installation) -> None:
    names = set(zipfile.ZipFile(installation.wheel).namelist())
    below = "worker_rkllm/packages"
    assert {f"{below}/{package}/py.typed" for package in PACKAGES} <= names
    assert {f"{below}/{path}" for path in DATA} <= names
    in_repository = {
        path if path.startswith("worker_rkllm/") else f"{below}/{path}"
        for path in subprocess.run(
            ["git", "ls-files", *PACKAGES, "worker_rkllm"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        if (ROOT / path).is_file()
    }
    assert in_repository <= names
    at_the_top = {name.partition("/")[0] for name in names}
    [information] = at_the_top - {"worker_rkllm"}
    assert re.fullmatch(r"worker_rkllm-.*\.dist-info", information)


def test_version_is_the_distributions(installation: Installation) -> None:
    done = installation.command("--version")
    assert done.returncode == 0
    assert re.fullmatch(r"worker-rkllm \d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(installation: Installation, name: str) -> None:
    done = installation.command(name, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


def test_run_answers_a_job_with_the_scripted_engine(installation: Installation) -> None:
    job = json.dumps({"input": {"prompt": "hello"}})
    done = installation.command("run", "--test_input", job, ENGINE="scripted")
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout.splitlines()[-1])
    assert output["choices"][0]["text"] == "hello"
    assert "numpy" not in done.stdout + done.stderr


@pytest.mark.long
def test_run_answers_a_job_of_the_folder_with_a_model(
    installation: Installation, model_path: Path
) -> None:
    job = {"input": {"prompt": "Hello", "sampling_params": {"max_tokens": 8}}}
    (installation.folder / "test_input.json").write_text(json.dumps(job))
    done = installation.command("run", MODEL_PATH=str(model_path))
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout.splitlines()[-1])
    assert 0 < output["usage"]["output"] <= 8


@pytest.mark.long
def test_batch_answers_a_file(installation: Installation) -> None:
    (installation.folder / "in.jsonl").write_text('{"input": {"prompt": "hello"}}\n')
    done = installation.command(
        "batch", "run", "-i", "in.jsonl", "-o", "out.jsonl", ENGINE="scripted"
    )
    assert done.returncode == 0, done.stderr
    assert "hello" in (installation.folder / "out.jsonl").read_text()


@pytest.mark.long
def test_doctor_examines_the_engine(installation: Installation) -> None:
    done = installation.command("doctor", ENGINE="scripted")
    assert done.returncode == 0, done.stdout
    assert "Nothing: every step was done." in done.stdout


@pytest.mark.long
def test_server_answers_and_its_launched_worker_too(installation: Installation) -> None:
    start = [str(installation.environment / "bin" / "worker-rkllm"), "serve"]
    port = free_port()
    variables = {"ENGINE": "scripted", "LOCAL_WORKER": "off", "JOB_DB": "jobs-of-this.db"}
    arguments = ["--port", str(port), "--workers", "1"]
    with (
        (installation.folder / "server.log").open("w") as log,
        subprocess.Popen(
            [*start, *arguments],
            cwd=installation.folder,
            env=installation.variables(**variables, DRAIN_S="1"),
            stdout=log,
            stderr=log,
        ) as server,
    ):
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
                wait_until_healthy(client, server, installation.folder / "server.log")
                answer = client.post(
                    "/runsync", json={"input": {"prompt": "hello"}}, timeout=LIMIT_S
                ).json()
            log_text = (installation.folder / "server.log").read_text()
            assert answer["status"] == "COMPLETED", f"{answer}\n{log_text}"
            assert answer["output"]["choices"][0]["text"] == "hello"
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)


def wait_until_healthy(client: httpx2.Client, server: subprocess.Popen[bytes], log: Path) -> None:
    def is_healthy() -> bool:
        try:
            return bool(client.get("/health").status_code == 200)
        except httpx2.TransportError:
            return False

    wait_for_server(server, is_healthy, log, LIMIT_S)


@pytest.mark.long
def test_missing_sdk_is_one_sentence_with_its_installation(
    installation: Installation,
) -> None:
    without = "import sys; sys.modules['runpod'] = None; from worker_rkllm.cli import main; "
    for arguments in (["run"], ["serve", "--workers", "1", "--port", "0"]):
        program = f"{without}sys.exit(main({arguments}))"
        done = installation.program(
            str(installation.python()),
            "-P",
            "-c",
            program,
            ENGINE="scripted",
            # Without an address of jobs it would answer a local one, which needs no SDK.
            RUNPOD_WEBHOOK_GET_JOB="http://127.0.0.1:1/job",
        )
        assert done.returncode == 2, done.stderr
        [sentence] = done.stderr.splitlines()
        assert "`pip install worker-rkllm`" in sentence
