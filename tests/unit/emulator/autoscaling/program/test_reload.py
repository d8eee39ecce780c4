"""Which saved files restart the workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from watchfiles import Change

import emulator.autoscaling.program.reload
from emulator.autoscaling.program.reload import CodeFilter, CodeWatch
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("path", "restarts"),
    [
        ("/project/handler.py", True),
        ("/project/lib/model.py", True),
        ("/project/config.yaml", True),
        ("/project/.env", True),
        ("/project/result.json", False),
        ("/project/.venv/lib/x.py", False),
        ("/project/.venv/lib/python3.11/site-packages/x-1.dist-info", True),
        ("/project/.venv/lib/python3.11/site-packages/x-1.dist-info/RECORD", True),
        ("/project/__pycache__/handler.py", False),
        ("/project/.git/hooks/x.py", False),
    ],
)
def test_code_filter_lets_code_and_configuration_pass(path: str, restarts: bool) -> None:
    assert CodeFilter()(Change.modified, path) is restarts


async def test_code_watch_reports_saved_files_until_it_is_closed(tmp_path: Path) -> None:
    changes: list[Sequence[str]] = []
    watch = CodeWatch([tmp_path], changes.append)
    watch.start()

    def save() -> bool:
        # Saved again until it is noticed, because watching begins a moment after `start`.
        (tmp_path / "results.json").write_text("1")
        (tmp_path / "handler.py").write_text("x = 1")
        return bool(changes)

    try:
        await wait_until(save)
        assert changes[0] == ["handler.py"]
    finally:
        await watch.close()
    await CodeWatch([tmp_path], changes.append).close()


async def test_code_watch_reports_files_of_the_project_and_of_its_folders(tmp_path: Path) -> None:
    changes: list[Sequence[str]] = []
    source = tmp_path / "src"
    (tmp_path / "lib").mkdir()
    source.mkdir()
    watch = CodeWatch([source, tmp_path], changes.append)
    watch.start()

    def save() -> bool:
        for name in ("src/handler.py", "lib/model.py", ".env"):
            (tmp_path / name).write_text("x = 1")
        return {"handler.py", "model.py", ".env"} <= {name for names in changes for name in names}

    try:
        await wait_until(save)
    finally:
        await watch.close()


@pytest.mark.parametrize("works_without_folders", [True, False])
async def test_code_watch_watches_less_when_folders_cannot_be_watched(
    works_without_folders: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def awatch(
        *folders: Path, recursive: bool, **options: object
    ) -> AsyncIterator[set[tuple[Change, str]]]:
        if recursive or not works_without_folders:
            raise OSError("no more watches")
        yield {(Change.modified, str(folders[-1] / "handler.py"))}

    monkeypatch.setattr(emulator.autoscaling.program.reload, "awatch", awatch)
    changes: list[Sequence[str]] = []
    watch = CodeWatch([tmp_path], changes.append)
    watch.start()
    assert watch._task is not None
    await watch._task
    assert f"only files directly in {tmp_path} are watched" in caplog.text
    assert changes == ([["handler.py"]] if works_without_folders else [])
    assert ("are not noticed any more" in caplog.text) is not works_without_folders
    await watch.close()


@pytest.mark.parametrize(
    ("data", "restarts"),
    [("project/volume", False), ("project/vol", True), ("project", True), ("", True)],
)
def test_code_watch_leaves_out_the_data_of_the_handler(
    tmp_path: Path, data: str, restarts: bool
) -> None:
    # A volume that has the project in it does not turn the reload off.
    project = tmp_path / "link"
    (tmp_path / "project").mkdir()
    project.symlink_to(tmp_path / "project")
    watch = CodeWatch([project], lambda names: None, data=tmp_path / data)
    path = str(project / "volume" / "node.py")
    assert watch._filter(Change.modified, path) is restarts


async def test_code_watch_distinguishes_installed_packages_from_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator.autoscaling.program.reload, "_INSTALLED_AFTER_S", 0.01)
    changes: list[Sequence[str]] = []
    installed: list[bool] = []
    packages = tmp_path / ".venv" / "lib" / "site-packages"
    packages.mkdir(parents=True)
    watch = CodeWatch([tmp_path], changes.append, lambda: installed.append(True))
    watch.start()

    def install() -> bool:
        (packages / "x.py").write_text("x = 1")
        (packages / "x-1.dist-info").mkdir(exist_ok=True)
        (packages / "x-1.dist-info" / "RECORD").write_text("x.py")
        return bool(installed)

    try:
        await wait_until(install)
    finally:
        await watch.close()
    assert changes == []
