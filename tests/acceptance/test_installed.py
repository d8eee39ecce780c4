"""The installed package, beside packages and in a folder with modules of the names of its own.

Each of its commands must run, and a user's handler must find its own modules and packages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import yaml

from tests.acceptance.pages import blocks, pages
from tests.ports import free_port
from tests.waiting import wait_for_server

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".venv" / "bin" / "uv"
LOCKED = ROOT / "requirements" / "run.txt"
# The whole file shares one installation, which takes 15 s with a warm cache.
pytestmark = pytest.mark.timeout(300)
LIMIT_S = 120
# What an installation has below worker_rkllm/packages.
PACKAGES = ("batch", "common", "emulator", "engine", "handler", "jobs", "validation")
# Packages of the index that have the names of ours, and modules of the user's that do.
INDEX_PACKAGES = ("common", "validation")
USER_MODULES = ("common", "engine", "jobs")
# It answers where each name of ours leads to in its process.
USER_HANDLER = """\
import importlib, os, sys

import runpod

def handler(job):
    names = job["input"]["names"]
    modules = {name: importlib.import_module(name) for name in names}
    owners = {name: module.OWNER for name, module in modules.items()}
    ours = [path for path in sys.path if "worker_rkllm" in path]
    return {"owners": owners, "ours": ours, "PYTHONPATH": os.environ.get("PYTHONPATH")}

runpod.serverless.start({"handler": handler})
"""
OWNERS = {
    "common": "the folder",
    "engine": "the folder",
    "jobs": "the folder",
    "validation": "the index",
}
JOB_INPUT = {"names": [*OWNERS]}
JOB_OUTPUT: dict[str, object] = {"owners": OWNERS, "ours": [], "PYTHONPATH": None}
TEST = {"name": "finds_its_own", "input": JOB_INPUT, "expected_output": JOB_OUTPUT}
COMMANDS = ("run", "serve", "test", "reset", "batch", "doctor", "fetch-model")
DATA = (
    "validation/rules.yaml",
    "validation/intents.npz",
    "validation/options/examples.yaml",
    "emulator/console/static/index.html",
    "emulator/console/static/main.js",
    "emulator/console/static/playground/playground.js",
)


@dataclass(frozen=True, slots=True)
class Installation:
    """A clean virtual environment with the wheel, and a folder with files that could hide it."""

    wheel: Path
    environment: Path
    folder: Path

    def python(self) -> Path:
        return self.environment / "bin" / "python"

    def install(self, *arguments: str) -> None:
        uv("pip", "install", "--python", str(self.python()), *arguments)

    def uninstall(self, *names: str) -> None:
        uv("pip", "uninstall", "--python", str(self.python()), *names)

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
    # The prerequisite is the environment that runs this test, and not rebuilt meanwhile.
    run(["make", "--old-file", ".venv/.setup", "wheel", f"DIST={base}"], cwd=ROOT)
    [wheel] = base.glob("*.whl")
    uv("venv", "--python", str(ROOT / ".venv" / "bin" / "python"), str(environment))
    # Its own dependencies, at the locked versions.
    locked = ["--constraint", str(LOCKED), "--only-binary", ":all:"]
    result = Installation(wheel, environment, folder)
    result.install(*locked, str(wheel))
    for name in INDEX_PACKAGES:
        result.install(str(build_index_package(base, name)))
    folder.mkdir()
    for name in ("batch", "emulator"):
        (folder / f"{name}.py").write_text(f"raise SystemExit('the folder has its own {name}')\n")
    for name in USER_MODULES:
        (folder / f"{name}.py").write_text("OWNER = 'the folder'\n")
    (folder / "handler.py").write_text(USER_HANDLER)
    (folder / "tests.json").write_text(json.dumps({"tests": [TEST]}))
    return result


def run(command: list[str], cwd: Path | None = None) -> None:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def uv(*arguments: str) -> None:
    run([str(UV), "--quiet", *arguments])


def build_index_package(folder: Path, name: str) -> Path:
    """Write the wheel of a package of the index that has the name of one of ours."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    information = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", "OWNER = 'the index'\n")
        wheel.writestr(
            f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        files = (
            f"{name}/__init__.py",
            *(f"{information}/{each}" for each in ("METADATA", "WHEEL")),
        )
        lines = [f"{each},,\n" for each in (*files, f"{information}/RECORD")]
        wheel.writestr(f"{information}/RECORD", "".join(lines))
    return path


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


@pytest.mark.long
def test_run_answers_a_job_with_the_scripted_engine(installation: Installation) -> None:
    job = json.dumps({"input": {"prompt": "hello"}})
    done = installation.command("run", "--test_input", job, ENGINE="scripted")
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout.splitlines()[-1])
    assert output["choices"][0]["text"] == "hello"
    assert "numpy" not in done.stdout + done.stderr


@pytest.mark.long
def test_handler_finds_its_own_modules_and_the_packages_of_the_index(
    installation: Installation,
) -> None:
    done = installation.command("test")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 0 failed" in done.stdout


@pytest.mark.long
def test_run_answers_after_packages_of_the_same_names_were_removed(
    installation: Installation,
) -> None:
    installation.uninstall(*INDEX_PACKAGES)
    try:
        job = json.dumps({"input": {"prompt": "hello"}})
        done = installation.command("run", "--test_input", job, ENGINE="scripted")
    finally:
        for name in INDEX_PACKAGES:
            installation.install(str(installation.wheel.with_name(f"{name}-1.0-py3-none-any.whl")))
    assert done.returncode == 0, done.stderr


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
    settings = {"ENGINE": "scripted", "LOCAL_WORKER": "off", "JOB_DB": "jobs-of-this.db"}
    with serving(installation, "--workers", "1", **settings) as client:
        answer = client.post("/runsync", json={"input": {"prompt": "hello"}}).json()
        assert answer["status"] == "COMPLETED", answer
        assert answer["output"]["choices"][0]["text"] == "hello"


@pytest.mark.long
def test_server_runs_the_handler_of_the_folder_and_is_reset(installation: Installation) -> None:
    with serving(installation, "--handler", ".", "--db", ":memory:") as client:
        answer = client.post("/runsync", json={"input": JOB_INPUT}).json()
        assert answer.get("output") == JOB_OUTPUT, answer
        done = installation.command("reset", "--server", str(client.base_url))
        assert done.returncode == 0, done.stderr
        assert client.get(f"/status/{answer['id']}").status_code == 404


@contextmanager
def serving(
    installation: Installation, *arguments: str, **settings: str
) -> Iterator[httpx2.Client]:
    """Run `worker-rkllm serve` in the folder; the context is a client of it."""
    program = str(installation.environment / "bin" / "worker-rkllm")
    port = free_port()
    path = installation.folder / "server.log"
    with (
        path.open("w") as log,
        subprocess.Popen(
            [program, "serve", "--port", str(port), *arguments],
            cwd=installation.folder,
            env=installation.variables(**settings, DRAIN_S="1"),
            stdout=log,
            stderr=log,
        ) as server,
    ):
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S) as client:
                wait_until_healthy(client, server, path)
                yield client
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
        assert "`pip install runpod`" in sentence


@pytest.mark.long
def test_uvx_runs_the_wheel_without_an_installation(installation: Installation) -> None:
    done = subprocess.run(
        [
            *(str(UV), "tool", "run", "--quiet", "--python", str(installation.python())),
            *("--constraints", str(LOCKED), "--from", str(installation.wheel)),
            *("--with", str(installation.wheel.with_name("validation-1.0-py3-none-any.whl"))),
            *("worker-rkllm", "test"),
        ],
        cwd=installation.folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 0 failed" in done.stdout


@pytest.mark.long
def test_workflow_of_the_page_runs_as_printed(installation: Installation, tmp_path: Path) -> None:
    (page,) = (page for page in pages() if page.name == "handler.md")
    (text,) = (block.text for block in blocks(page) if "upload-artifact" in block.text)
    steps = yaml.safe_load(text)["jobs"]["handler"]["steps"]
    run(["python3", "-m", "venv", str(tmp_path / "environment")])
    project = tmp_path / "project"
    (project / "wheels").mkdir(parents=True)
    shutil.copy(installation.wheel, project / "wheels")
    (project / "requirements.txt").touch()
    handler = 'import runpod\n\nrunpod.serverless.start({"handler": lambda job: job["input"]})\n'
    (project / "handler.py").write_text(handler)
    test = {"name": "echoes", "input": {"x": 1}, "expected_output": {"x": 1}}
    (project / "tests.json").write_text(json.dumps({"tests": [test]}))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    variables = kept | {"PATH": f"{tmp_path / 'environment' / 'bin'}:{os.environ['PATH']}"}
    for command in (step["run"] for step in steps if "run" in step):
        done = subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=project,
            env=variables,
            capture_output=True,
            text=True,
            timeout=LIMIT_S * 2,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert 'tests="1" failures="0"' in (project / "results.xml").read_text()
