"""A start that cannot succeed: one sentence with the remedy, exit code 2, nothing started."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.processes import build_environment, run_emulator, server_command

LIMIT_S = 60
# From the end of the program's imports to its exit.
ALLOWED_S = 1.0
# Other programs may use the processor, so the fastest attempt counts.
ATTEMPTS = 4
# The address that documentation uses: no machine has it.
UNKNOWN_HOST = "192.0.2.1"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The exit code, stderr and duration of a refused start."""

    code: int
    stderr: str
    seconds: float


def start(settings: dict[str, str], *arguments: str, folder: Path) -> Refusal:
    """Start the server in a folder and wait until it exits."""
    began = time.monotonic()
    ran = subprocess.run(
        server_command(*arguments),
        env=build_environment(settings),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Refusal(ran.returncode, ran.stderr, time.monotonic() - began)


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def import_s(folder: Path) -> float:
    """Return how long a process takes that only imports what the checks need."""
    began = time.monotonic()
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import emulator.startup.preflight, emulator.autoscaling.worker_process, "
            "handler.logs.configuration",
        ],
        env=build_environment({}),
        cwd=folder,
        check=True,
        timeout=LIMIT_S,
    )
    return time.monotonic() - began


def sentence_of(refusal: Refusal) -> str:
    """Return the one sentence of a start that is refused."""
    assert refusal.code == 2, refusal.stderr
    assert "Traceback" not in refusal.stderr
    (sentence,) = refusal.stderr.splitlines()
    return sentence


@pytest.fixture
def settings(script: ScriptFactory) -> dict[str, str]:
    return {"MODEL_PATH": str(script({}))}


def test_port_in_use_is_one_sentence_with_the_remedy(
    settings: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        settings |= {"JOB_DB": "jobs.sqlite3"}
        stderr = sentence_of(start(settings, "--port", port, folder=folder))
    assert stderr == (
        f"port {port} on 127.0.0.1 is in use by another program; "
        "stop it or choose another port with --port or PORT"
    )
    assert list(folder.iterdir()) == []


def test_host_that_cannot_be_bound_is_one_sentence(
    settings: dict[str, str], tmp_path: Path
) -> None:
    stderr = sentence_of(start(settings, "--host", UNKNOWN_HOST, "--port", "0", folder=tmp_path))
    assert stderr.startswith(f"{UNKNOWN_HOST} is not an address of this machine; choose one")


async def test_database_in_use_is_one_sentence_and_the_other_server_goes_on(
    settings: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "jobs.sqlite3"
    settings |= {"JOB_DB": str(path)}
    async with run_emulator(settings, "--port", "0") as server:
        await server.wait_until_listening()
        before = files_in(tmp_path)
        stderr = sentence_of(start(settings, "--port", "0", folder=tmp_path))
        assert stderr == (
            f"the job database {path} is in use by another server (process {server.pid}); "
            "stop it or choose another one with --db or JOB_DB"
        )
        assert files_in(tmp_path) == before
        async with server.client() as client:
            answer = await client.post("/runsync", json={"input": {"prompt": "x"}})
            assert answer.json()["status"] == "COMPLETED"


def test_database_that_is_a_folder_is_one_sentence(
    settings: dict[str, str], tmp_path: Path
) -> None:
    database = tmp_path / "jobs.sqlite3"
    database.mkdir()
    stderr = sentence_of(start(settings, "--port", "0", "--db", str(database), folder=tmp_path))
    assert stderr == (
        f"the job database {database} is a folder; choose another one with --db or JOB_DB"
    )


def test_missing_folder_of_the_database_is_one_sentence(
    settings: dict[str, str], tmp_path: Path
) -> None:
    settings |= {"JOB_DB": str(tmp_path / "no" / "jobs.sqlite3")}
    stderr = sentence_of(start(settings, "--port", "0", folder=tmp_path))
    assert f"there is no folder {tmp_path / 'no'}; choose another one" in stderr
    assert not (tmp_path / "no").exists()


@pytest.mark.timing
def test_start_is_refused_soon_after_its_imports(settings: dict[str, str], tmp_path: Path) -> None:
    database = tmp_path / "jobs.sqlite3"
    database.mkdir()
    excess_s = []
    for _ in range(ATTEMPTS):
        imported_s = import_s(tmp_path)
        refusal = start(settings, "--port", "0", "--db", str(database), folder=tmp_path)
        sentence_of(refusal)
        excess_s.append(refusal.seconds - imported_s)
    assert min(excess_s) < ALLOWED_S


async def test_restart_after_a_kill_is_not_refused(
    settings: dict[str, str], tmp_path: Path
) -> None:
    settings |= {"JOB_DB": str(tmp_path / "jobs.sqlite3")}
    for _ in range(2):
        async with run_emulator(settings, "--port", "0") as server:
            await server.wait_until_listening()
            server.process.kill()


def test_open_address_without_keys_is_one_sentence_with_the_remedy(
    settings: dict[str, str], tmp_path: Path
) -> None:
    for address in ("0.0.0.0", "::"):  # noqa: S104 - which is what is refused
        arguments = ("--host", address, "--port", "0")
        refusal = start(settings, *arguments, folder=tmp_path)
        assert refusal.code == 2, refusal.stderr
        assert refusal.stderr == (
            f"HOST: other machines can reach {address}, and without API_KEYS they could use the "
            "server; set API_KEYS, or set ALLOW_NO_API_KEY=on if that is meant\n"
        )
    assert list(tmp_path.glob("jobs*")) == []


@pytest.mark.long_except("more0")
@pytest.mark.parametrize("more", [{"API_KEYS": "k"}, {"ALLOW_NO_API_KEY": "on"}])
async def test_open_address_is_served_with_keys_or_with_the_setting(
    settings: dict[str, str], more: dict[str, str]
) -> None:
    async with run_emulator(settings | more, "--host", "0.0.0.0", "--port", "0") as server:  # noqa: S104
        await server.wait_until_listening()
        async with server.client() as client:
            assert (await client.get("/health")).status_code == 200
