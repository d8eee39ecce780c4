"""The files in deploy/, and the image's default build, against the settings that they name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from emulator.settings.emulator_settings import EmulatorSettings
from engine.backends.rkllm.board.device_lock import LOCK_FOLDERS
from engine.backends.rkllm.board.driver import read_driver
from tests.dockerfile import Instruction, all_instructions, default_build, outside_bases
from tests.unit.deploy.reading import read

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
SETTINGS = {name.upper(): field for name, field in EmulatorSettings.model_fields.items()}
COMPOSE: Mapping[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVER: Mapping[str, Any] = COMPOSE["services"]["server"]
UNIT = (DEPLOY / "worker-rkllm.service").read_text()
IMAGE = default_build(ROOT / "Dockerfile")
EMULATOR = default_build(ROOT / "Dockerfile", "emulator")
ALL_STAGES = all_instructions(ROOT / "Dockerfile")
# The keys of the compose specification that the file uses.
KEYS = set(
    "build command environment ports volumes devices user group_add read_only tmpfs cap_drop "
    "security_opt restart stop_grace_period".split()
)


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def of_the_unit(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.+)$", UNIT, re.M)


def of_the_image(name: str) -> list[str]:
    return [each.text for each in IMAGE if each.name == name]


def tracked_files() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in done.stdout.split("\0") if name]


def filled_in(value: str) -> str:
    """Return a value as compose substitutes it when only the required variables are set."""
    value = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value)
    return re.sub(r"\$\{(\w+):\?.*?\}", "given", value)


def test_the_compose_file_has_keys_that_there_are() -> None:
    assert set(COMPOSE) == {"services", "volumes"}
    assert set(SERVER) <= KEYS
    assert set(SERVER["environment"]) <= set(SETTINGS)
    arguments = {each.text.partition("=")[0] for each in ALL_STAGES if each.name == "ARG"}
    assert set(SERVER["build"]["args"]) <= arguments
    assert (DEPLOY / SERVER["build"]["context"] / "Dockerfile").is_file()
    named = {each.partition(":")[0] for each in SERVER["volumes"] if each[0] not in "./"}
    assert named == set(COMPOSE["volumes"])


def test_its_server_requires_a_key_and_binds_only_to_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = {name: filled_in(str(value)) for name, value in SERVER["environment"].items()}
    settings = read(EmulatorSettings, variables, monkeypatch)
    assert settings.keys() == ("given",)
    assert SERVER["ports"] == [f"127.0.0.1:{settings.port}:{settings.port}"]
    assert seconds(SERVER["stop_grace_period"]) > settings.drain_s


def test_its_server_writes_to_the_folder_that_the_image_creates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [variable] = [each for each in of_the_image("ENV") if each.startswith("JOB_DB=")]
    name, _, value = variable.partition("=")
    settings = read(EmulatorSettings, {name: value}, monkeypatch)
    folder = str(Path(settings.job_db).parent)
    assert SERVER["read_only"] is True
    assert f"jobs:{folder}" in SERVER["volumes"]
    assert any(
        f"install -d -o {of_the_image('USER')[0]} {folder}" in run for run in of_the_image("RUN")
    )


def test_its_server_reads_the_device_tree_where_docker_does_not_hide_it(tmp_path: Path) -> None:
    mounts = [each.split(":") for each in SERVER["volumes"]]
    [(folder, mode)] = [rest for source, *rest in mounts if source.startswith("/sys/firmware")]
    assert mode == "ro"
    # Docker's default masked paths, and with them all mounts below.
    assert not folder.startswith(("/proc", "/sys"))
    tree = tmp_path / folder.lstrip("/")
    tree.mkdir()
    (tree / "compatible").write_text("radxa,rock-5b\0rockchip,rk3588\0")
    assert read_driver(tmp_path).chip == "rk3588"


def test_its_server_shares_the_lock_on_the_npu_with_the_machine() -> None:
    assert f"/{LOCK_FOLDERS[0]}:/{LOCK_FOLDERS[0]}" in SERVER["volumes"]
    assert of_the_unit("ReadWritePaths") == [f"-/{LOCK_FOLDERS[0]}"]


def test_its_server_is_the_image_s_user_in_the_groups_of_the_devices() -> None:
    user, _, group = SERVER["user"].partition(":")
    assert [user] == of_the_image("USER")
    assert group.startswith("${RENDER_GID:?")
    # Compose refuses a list with the same group twice, and the two can be one group.
    assert SERVER["group_add"] == ["${VIDEO_GID:-44}"]


@pytest.mark.parametrize("render_group", ["44", "105"])
def test_compose_takes_the_file_where_there_is_one(render_group: str) -> None:
    program = shutil.which("docker-compose")
    if program is None:
        return
    variables = {"API_KEYS": "a", "MODEL": "m", "VIDEO_GID": "44", "RENDER_GID": render_group}
    done = subprocess.run(
        [program, "-f", DEPLOY / "compose.yaml", "config"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    server = yaml.safe_load(done.stdout)["services"]["server"]
    assert (server["user"], server["group_add"]) == (f"1000:{render_group}", ["44"])


def test_its_server_drops_all_privileges_and_keeps_all_cpus() -> None:
    assert SERVER["cap_drop"] == ["ALL"]
    assert SERVER["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cpus", "cpuset"} & set(SERVER)


def test_the_unit_waits_longer_than_the_server_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (DEPLOY / "worker-rkllm.env").read_text().splitlines()
    variables = dict(
        each.split("=", 1) for each in [*lines, *of_the_unit("Environment")] if each[0] != "#"
    )
    assert set(variables) <= set(SETTINGS)
    settings = read(EmulatorSettings, variables, monkeypatch)
    assert settings.backend == "rkllm"
    [state] = of_the_unit("StateDirectory")
    assert Path(settings.job_db).parent == Path("/var/lib", state)
    [limit] = of_the_unit("TimeoutStopSec")
    assert seconds(limit) > settings.drain_s


def test_systemd_takes_the_unit_where_there_is_one(tmp_path: Path) -> None:
    verifier = shutil.which("systemd-analyze")
    [command] = of_the_unit("ExecStart")
    program, _, arguments = command.partition(" ")
    assert program == f"{of_the_unit('WorkingDirectory')[0]}/.venv/bin/python"
    assert arguments == "-u -m emulator"
    if verifier is None:
        return
    unit = tmp_path / "worker-rkllm.service"
    unit.write_text(UNIT.replace(program, sys.executable))
    done = subprocess.run(
        [verifier, "verify", "--recursive-errors=no", unit],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_base_image_is_pinned_by_digest() -> None:
    dockerfiles = [each for each in tracked_files() if "dockerfile" in each.name.lower()]
    dockerfiles = [each for each in dockerfiles if each.suffix != ".py"]
    assert ROOT / "Dockerfile" in dockerfiles
    for path in dockerfiles:
        bases = outside_bases(path)
        assert bases, path
        for base in bases:
            assert re.fullmatch(r"\S+:\S+@sha256:[0-9a-f]{64}", base), (path, base)
    images = [each["image"] for each in COMPOSE["services"].values() if "image" in each]
    assert all("@sha256:" in each for each in images)


def test_the_image_runs_the_worker_as_nobody_s_root() -> None:
    assert of_the_image("CMD") == ['["python", "-u", "-m", "handler"]']
    assert of_the_image("USER") == ["1000"]
    assert of_the_image("HEALTHCHECK")[0].endswith(
        'CMD ["python", "-m", "emulator.status.healthcheck"]'
    )


def test_the_image_has_every_package_and_nothing_that_is_not_sent_to_its_build() -> None:
    sent = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = [
        source
        for each in ALL_STAGES
        if each.name == "COPY" and not each.text.startswith("--from=")
        for source in each.text.split()[:-1]
    ]
    assert all(any(each == one or each.startswith(f"{one}/") for one in sent) for each in copied)
    packages = {"common", "engine", "handler", "validation", "emulator", "jobs", "batch"}
    assert packages <= set(copied)


@pytest.mark.parametrize("build", [IMAGE, EMULATOR])
def test_images_have_the_version_of_the_project(build: Sequence[Instruction]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"VERSION={project['version']}" in [each.text for each in build if each.name == "ARG"]
    [labels] = [each.text for each in build if each.name == "LABEL"]
    names = re.findall(r"org\.opencontainers\.image\.(\w+)=", labels)
    assert names == ["title", "description", "version", "licenses"]
    assert f"licenses={project['license']}" in labels


def test_emulator_image_has_no_engine_and_the_same_user() -> None:
    texts = {
        name: [each.text for each in EMULATOR if each.name == name] for name in ("ENV", "USER")
    }
    assert "ENGINE=none JOB_DB=/data/jobs.sqlite3" in texts["ENV"]
    assert texts["USER"] == of_the_image("USER")
    settings = EmulatorSettings(engine="none")
    assert not settings.has_engine


def test_emulator_packages_are_those_that_its_server_imports() -> None:
    listed = (ROOT / "requirements/emulator.in").read_text()
    engine = ("xllamacpp", "numpy", "llguidance", "tokenizers", "huggingface-hub", "limits")
    assert not [name for name in engine if re.search(rf"^{name}\b", listed, re.M)]
    # The server starts although they are missing.
    program = (
        "import sys\n"
        f"for name in {[name.replace('-', '_') for name in engine]}: sys.modules[name] = None\n"
        "from emulator.app import create_app\n"
        "from emulator.settings.emulator_settings import EmulatorSettings\n"
        "from emulator.startup.components import build_components\n"
        "create_app(build_components(EmulatorSettings(engine='none', job_db=':memory:'), None))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
