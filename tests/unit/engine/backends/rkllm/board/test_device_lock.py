"""The lock on the NPU, in fake root folders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engine.backends import open_shared_files
from engine.backends.options import RkllmOptions, ScriptedOptions
from engine.backends.rkllm.board import device_lock
from engine.backends.rkllm.board.device_lock import find_device, open_device, require_device
from engine.errors import IS_TRANSIENT, ModelLoadFailed

ROOT = Path(__file__).resolve().parents[6]
# Locks the files named by its arguments in order, as another server does, and waits.
HOLDER = """
import sys
from engine.backends.rkllm.board.device_lock import open_device, require_device
require_device(open_device(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def other_server(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run another process that has locked a file."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


@pytest.fixture(autouse=True)
def own_descriptors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the files of each test, which the server keeps open for its whole life."""
    opened: dict[Path, tuple[int, ...]] = {}
    monkeypatch.setattr(device_lock, "_descriptors", opened)
    yield
    for descriptors in opened.values():
        for each in descriptors:
            os.close(each)


def board(root: Path, driver: str = "RKNPU", node: str = "renderD129") -> Path:
    """Build a root folder with a graphics card and an NPU that are render nodes."""
    for name, target in (("renderD128", "panthor"), (node, driver)):
        device = root / "sys/class/drm" / name / "device"
        device.mkdir(parents=True)
        (device / "driver").symlink_to(f"../../bus/platform/drivers/{target}")
        (root / "dev/dri").mkdir(parents=True, exist_ok=True)
        (root / "dev/dri" / name).touch()
    return root


def test_find_device_returns_the_render_node_of_the_npu(tmp_path: Path) -> None:
    assert find_device(board(tmp_path)) == tmp_path / "dev/dri/renderD129"


def test_find_device_prefers_the_node_of_an_older_driver(tmp_path: Path) -> None:
    (board(tmp_path) / "dev/rknpu").touch()
    assert find_device(tmp_path) == tmp_path / "dev/rknpu"


def test_find_device_returns_none_without_an_npu(tmp_path: Path) -> None:
    assert find_device(tmp_path) is None
    assert find_device(board(tmp_path, driver="amdgpu")) is None
    assert open_device(root=tmp_path) == ()


def test_find_device_returns_none_where_the_node_is_not_in_the_container(tmp_path: Path) -> None:
    board(tmp_path)
    (tmp_path / "dev/dri/renderD129").unlink()
    assert find_device(tmp_path) is None


def test_open_device_locks_the_node_and_a_file_that_all_users_may_open(tmp_path: Path) -> None:
    (board(tmp_path) / "run/lock").mkdir(parents=True)
    umask = os.umask(0o077)
    try:
        descriptors = open_device(root=tmp_path)
    finally:
        os.umask(umask)
    files = [Path(os.readlink(f"/proc/self/fd/{each}")) for each in descriptors]
    assert files == [tmp_path / "dev/dri/renderD129", tmp_path / "run/lock/rknpu.lock"]
    assert files[1].stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", ["dev/dri/renderD129", "run/lock/rknpu.lock"])
def test_each_of_both_files_excludes_another_server(tmp_path: Path, name: str) -> None:
    (board(tmp_path) / "run/lock").mkdir(parents=True)
    with other_server(tmp_path / name) as holder:
        with pytest.raises(ModelLoadFailed) as caught:
            require_device(open_device(root=tmp_path))
        assert caught.value.message == (
            f"the NPU ({tmp_path / name}) is in use by process {holder.pid}, and two servers on "
            "one NPU can crash the kernel: stop the other one, or set RKLLM_DEVICE_LOCK=off to "
            "run both"
        )
        assert caught.value.details[IS_TRANSIENT] is True
    require_device(open_device(root=tmp_path))


def test_holder_of_another_pid_namespace_is_named_as_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_lock, "_read_flocks", lambda: iter(()))
    with other_server(tmp_path / "lock"):
        with pytest.raises(ModelLoadFailed, match="in use by another process or container, and"):
            require_device(open_device(str(tmp_path / "lock")))


def test_lock_is_kept_while_a_process_that_inherited_it_lives(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    # The server's engine process may outlive it for a moment, or hang in the driver.
    program = HOLDER.replace(
        "sys.stdin.read()",
        "import os, subprocess\n"
        "subprocess.Popen(['sleep', '600'], pass_fds=open_device(sys.argv[1]), stdout=1)\n"
        "os._exit(0)",
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    ) as server:
        server.wait(60)
        # The process that took the lock has ended, so its id would mislead.
        with pytest.raises(ModelLoadFailed, match="in use by another process or container, and"):
            require_device(open_device(str(path)))
        os.killpg(server.pid, 9)
        assert server.stdout is not None
        # The end of the output: the process that inherited it has ended.
        server.stdout.read()
    require_device(open_device(str(path)))


def test_open_device_returns_the_same_descriptors_each_time(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first = open_device(path)
    require_device(first)
    assert open_device(path) == first
    require_device(open_device(path))


def test_device_that_cannot_be_locked_is_only_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    descriptors = open_device(str(tmp_path / "none" / "lock"))
    assert descriptors == ()
    require_device(descriptors)
    assert "cannot be locked against other servers" in caplog.text


def test_lock_file_is_not_opened_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    assert open_device(str(tmp_path / "lock")) == ()
    assert not (tmp_path / "target").exists()


def test_open_shared_files_opens_none_if_the_lock_is_off_or_the_backend_another(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "lock")
    options = RkllmOptions(model_path="m.rkllm", model_name="m", device_path=path)
    unlocked = replace(options, device_lock=False)
    assert open_shared_files(unlocked) == (unlocked, ())
    assert open_shared_files(ScriptedOptions()) == (ScriptedOptions(), ())
    shared, files = open_shared_files(options)
    assert len(files) == 1
    assert shared == replace(options, device_files=files)
