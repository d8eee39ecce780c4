"""The file of a user's handler, and the endpoint that is named after its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.setting_error import SettingError
from emulator.autoscaling.program.handler_file import find_handler_file, list_folders, name_endpoint


def test_find_handler_file_returns_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").touch()
    monkeypatch.chdir(tmp_path)
    assert find_handler_file(Path("own.py")) == tmp_path / "own.py"


@pytest.mark.parametrize(
    "name",
    ["handler.py", "rp_handler.py", "src/handler.py", "runpod_handler.py", ".runpod/handler.py"],
)
def test_find_handler_file_finds_the_usual_names_in_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert find_handler_file(tmp_path) == tmp_path / name


def test_find_handler_file_prefers_the_names_of_runpods_templates(tmp_path: Path) -> None:
    (tmp_path / "handler.py").touch()
    (tmp_path / "runpod_handler.py").touch()
    assert find_handler_file(tmp_path) == tmp_path / "handler.py"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["app/worker.py"], "app/worker.py"),
        # As in RunPod's worker for vLLM, whose handler.py has the function and no start.
        (["app/worker.py", "handler.py"], "app/worker.py"),
        (["handler.py"], "handler.py"),
        (["app/worker.py", "handler.py", "rp_handler.py"], "app/worker.py"),
    ],
)
def test_dockerfile_names_the_file_where_the_usual_names_do_not(
    tmp_path: Path, files: list[str], expected: str
) -> None:
    (tmp_path / "app").mkdir()
    for name in files:
        (tmp_path / name).touch()
    (tmp_path / "Dockerfile").write_text("COPY app /\nCMD python -u /worker.py")
    assert find_handler_file(tmp_path) == tmp_path / expected


def test_file_with_a_usual_name_that_starts_the_worker_comes_before_the_dockerfile(
    tmp_path: Path,
) -> None:
    (tmp_path / "handler.py").write_text('runpod.serverless.start({"handler": handler})')
    (tmp_path / "server.py").touch()
    (tmp_path / "Dockerfile").write_text("COPY server.py /\nCMD python /server.py")
    assert find_handler_file(tmp_path) == tmp_path / "handler.py"


@pytest.mark.parametrize(
    ("command", "kind"),
    [("/start.sh", "a shell script"), ("python -m worker", "no Python file of the folder")],
)
def test_command_of_the_dockerfile_that_cannot_be_used_is_in_the_error(
    tmp_path: Path, command: str, kind: str
) -> None:
    (tmp_path / "Dockerfile").write_text(f"CMD {command}")
    with pytest.raises(SettingError) as caught:
        find_handler_file(tmp_path)
    assert f"its Dockerfile starts {command}, which is {kind}; " in str(caught.value)
    assert str(caught.value).endswith("other programs are started with --worker-command")


@pytest.mark.parametrize(
    ("files", "path", "problem"),
    [
        ([], ".", "has none of handler.py, rp_handler.py"),
        (["handler.py", "rp_handler.py"], ".", "has handler.py, rp_handler.py; name one of them"),
        ([], "missing.py", "there is no file"),
        (["worker.sh"], "worker.sh", "must be a Python file"),
    ],
)
def test_find_handler_file_explains_the_problem(
    tmp_path: Path, files: list[str], path: str, problem: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(SettingError, match=problem):
        find_handler_file(tmp_path / path)


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/home/me/my-worker/handler.py", "my-worker"),
        ("/home/me/my worker (2)/handler.py", "my-worker-2"),
        ("/home/me/project/src/handler.py", "project"),
        ("/home/me/project/.runpod/handler.py", "project"),
        ("/handler.py", "handler"),
        ("/ü/handler.py", "handler"),
    ],
)
def test_name_endpoint_uses_the_name_of_the_folder(path: str, endpoint: str) -> None:
    assert name_endpoint(Path(path)) == endpoint


@pytest.mark.parametrize(
    ("path", "folders"),
    [
        ("handler.py", ["."]),
        ("src/handler.py", ["src", "."]),
        ("src", ["src", "."]),
        (".runpod/handler.py", [".runpod", "."]),
        ("lib/handler.py", ["lib"]),
    ],
)
def test_list_folders_has_the_project_after_the_handlers_own(
    tmp_path: Path, path: str, folders: list[str]
) -> None:
    (tmp_path / "src").mkdir()
    assert list_folders(tmp_path / path) == [tmp_path / folder for folder in folders]


def test_list_folders_takes_the_folder_of_the_dockerfile_for_the_project(tmp_path: Path) -> None:
    source = tmp_path / "app" / "src"
    source.mkdir(parents=True)
    (source / "worker.py").touch()
    (source / "other.py").touch()
    (tmp_path / "Dockerfile").write_text("COPY app /app\nCMD python /app/src/worker.py")
    assert list_folders(source / "worker.py") == [source, tmp_path]
    assert list_folders(source / "other.py") == [source, tmp_path / "app"]
