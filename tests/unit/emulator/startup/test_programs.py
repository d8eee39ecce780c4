"""What the workers of a server run, for its log."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from common.setting_error import SettingError
from emulator.autoscaling.containers.container_engine import ContainerEngine
from emulator.autoscaling.containers.worker_image import WorkerImage
from emulator.autoscaling.program.interpreter import Interpreter
from emulator.autoscaling.program.volume import Volume
from emulator.autoscaling.program.worker_program import WorkerProgram, handler_program
from emulator.settings.emulator_settings import EmulatorSettings
from emulator.startup import programs
from emulator.startup.programs import describe_programs, warn_about_volume

PYTHON = Interpreter("/opt/python", "chosen")
HANDLERS = [handler_program(Path(f"/{name}/handler.py"), PYTHON) for name in ("a", "b")]


def settings(**changes: Any) -> EmulatorSettings:
    return EmulatorSettings(_env_file=None, **changes)


def test_rows_have_all_handlers_and_each_python_once() -> None:
    assert describe_programs(settings(workers=1), HANDLERS) == {
        "handler": "/a/handler.py, /b/handler.py",
        "workers": 1,
        "python": str(PYTHON),
    }


def test_rows_have_the_image_with_its_identity() -> None:
    image = WorkerImage(
        engine=ContainerEngine("/bin/docker"),
        reference="me/worker:1",
        image_id="sha256:0123456789abcdef",
        platform="linux/amd64",
    )
    program = WorkerProgram(command=(), image=image)
    assert describe_programs(settings(workers=2), [program]) == {
        "image": "me/worker:1 (sha256:0123456789ab, linux/amd64) in docker",
        "workers": 2,
    }


@pytest.mark.parametrize("has_handler", [False, True])
def test_python_without_a_handler_that_runs_in_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_handler: bool
) -> None:
    handler = tmp_path / "handler.py"
    handler.write_text("")
    image = WorkerImage(engine=ContainerEngine("/bin/docker"), reference="w")
    of_images = {"w": WorkerProgram(command=(), image=image)}
    monkeypatch.setattr(programs, "find_image_programs", lambda *_: of_images)
    chosen = settings(worker_python=sys.executable, job_db=":memory:")
    if has_handler:
        assert len(programs.find_programs(chosen, [f"h={handler}"], ["w"])[1]) == 2
        return
    with pytest.raises(SettingError, match=r"--python \(WORKER_PYTHON\) has no effect on --image"):
        programs.find_programs(chosen, [], ["w"])


@pytest.mark.parametrize(
    ("workers", "problem", "expected"),
    [
        (0, None, "VOLUME_DIR has no effect: the server starts no workers"),
        (1, "the kernel allows no mount", "the kernel allows no mount"),
        (1, None, ""),
    ],
)
def test_volume_without_effect_is_warned_about(
    caplog: pytest.LogCaptureFixture, workers: int, problem: str | None, expected: str
) -> None:
    caplog.set_level(logging.WARNING)
    program = WorkerProgram(command=("x",), volume=Volume(Path("/v"), problem))
    warn_about_volume(settings(workers=workers, volume_dir=Path("/v")), [program])
    assert [record.getMessage() for record in caplog.records] == [expected] * bool(expected)
