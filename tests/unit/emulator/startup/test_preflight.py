"""The checks before the start, and their error messages."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.setting_error import SettingError
from emulator.settings.emulator_settings import EmulatorSettings
from emulator.startup.preflight import check_files, listening_sockets


def settings(folder: Path, **changes: object) -> EmulatorSettings:
    known = {"job_db": str(folder / "jobs.sqlite3"), **changes}
    return EmulatorSettings().model_copy(update=known)


@contextmanager
def locked(path: Path, content: str = "") -> Iterator[None]:
    with path.open("a") as file:
        file.write(content)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def refusal(folder: Path, **changes: object) -> str:
    before = sorted(folder.rglob("*"))
    with pytest.raises(SettingError) as refused:
        check_files(settings(folder, **changes))
    assert sorted(folder.rglob("*")) == before
    return str(refused.value)


def close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def test_listening_socket_accepts_connections_before_the_server_starts() -> None:
    (sock,) = sockets = listening_sockets("127.0.0.1", 0)
    with socket.create_connection(sock.getsockname(), timeout=5):
        close(sockets)


def test_host_name_with_several_addresses_has_one_port_for_all() -> None:
    sockets = listening_sockets("localhost", 0)
    assert len({sock.getsockname()[1] for sock in sockets}) == 1
    close(sockets)


def test_port_in_use_is_rejected_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError) as refused:
            listening_sockets("127.0.0.1", port)
    assert str(refused.value) == (
        f"port {port} on 127.0.0.1 is in use by another program; "
        "stop it or choose another port with --port or PORT"
    )


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_foreign_host_is_rejected_with_the_remedy(host: str) -> None:
    with pytest.raises(SettingError) as refused:
        listening_sockets(host, 0)
    assert host in str(refused.value)
    assert "--host or HOST" in str(refused.value)


def test_privileged_port_is_rejected_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(self: socket.socket, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("emulator.startup.preflight.socket.socket.bind", bind)
    with pytest.raises(SettingError) as refused:
        listening_sockets("127.0.0.1", 80)
    assert str(refused.value) == (
        "port 80 on 127.0.0.1 cannot be listened on (only root may listen below 1024); "
        "choose another port with --port or PORT"
    )


def test_unused_files_pass_and_nothing_is_created(tmp_path: Path) -> None:
    check_files(settings(tmp_path))
    check_files(settings(tmp_path, job_db=":memory:"))
    assert list(tmp_path.iterdir()) == []


def test_database_of_a_running_server_is_rejected_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite3"
    with locked(Path(f"{path}.lock"), str(os.getpid())):
        assert refusal(tmp_path) == (
            f"the job database {path} is in use by another server (process {os.getpid()}); "
            "stop it or choose another one with --db or JOB_DB"
        )


@pytest.mark.parametrize("owner", ["", "no number", "ended", "zombie"])
def test_database_of_another_container_is_rejected_without_its_process(
    owner: str, tmp_path: Path
) -> None:
    """The lock decides, because a process ID is useless if the process is not visible."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    if owner == "ended":
        process.wait()
    if owner in ("ended", "zombie"):
        owner = str(process.pid)
    with locked(tmp_path / "jobs.sqlite3.lock", owner):
        assert "in use by another server; stop it or" in refusal(tmp_path)
    process.wait()


def test_database_of_a_just_killed_server_passes(
    tmp_path: Path,
) -> None:
    (tmp_path / "jobs.sqlite3.lock").touch()
    with locked(tmp_path / "jobs.sqlite3"):
        check_files(settings(tmp_path))


def test_database_in_use_under_another_name_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with locked(tmp_path / "elsewhere" / "jobs.sqlite3"):
        (tmp_path / "jobs.sqlite3").hardlink_to(tmp_path / "elsewhere" / "jobs.sqlite3")
        assert "in use by another server; stop it or" in refusal(tmp_path)
    assert "it is a hard link" in refusal(tmp_path)


def test_open_files_of_another_user_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emulator.startup.preflight.os.geteuid", lambda: os.getuid() + 1)
    database, folder = tmp_path / "jobs.sqlite3", tmp_path / "kept"
    folder.mkdir(mode=0o755)
    for path, changes in ((database, {}), (folder, {"job_db": ":memory:", "batch_dir": folder})):
        path.touch()
        path.chmod(0o755)
        assert "belongs to another user and is open to others (mode 0755)" in refusal(
            tmp_path, **changes
        )
        path.chmod(0o700)
        check_files(settings(tmp_path, **changes))


def test_database_that_is_a_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "jobs.sqlite3").mkdir()
    assert "jobs.sqlite3 is a folder; choose another one with --db or JOB_DB" in refusal(tmp_path)


def test_database_without_its_folder_is_rejected(tmp_path: Path) -> None:
    message = refusal(tmp_path, job_db=str(tmp_path / "no" / "jobs.sqlite3"))
    assert (
        f"there is no folder {tmp_path / 'no'}; choose another one with --db or JOB_DB" in message
    )


def test_unwritable_folders_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write anywhere, so the answer of the system stands in for it.
    monkeypatch.setattr("emulator.startup.preflight.os.access", lambda path, mode: False)
    assert f"the folder {tmp_path} is not writable" in refusal(tmp_path)
    message = refusal(tmp_path, job_db=":memory:", batch_dir=tmp_path / "b")
    assert f"the batch folder {tmp_path / 'b'} cannot be created in {tmp_path}" in message
    assert "cannot be written" in refusal(tmp_path, job_db=":memory:", batch_dir=tmp_path)


@pytest.fixture
def other_user(monkeypatch: pytest.MonkeyPatch) -> int:
    """Another user than the owner of the files, who may write none of them."""
    user = os.getuid() + 1000
    monkeypatch.setattr("emulator.startup.preflight.os.geteuid", lambda: user)
    monkeypatch.setattr(
        "emulator.startup.preflight.os.access", lambda path, mode: mode in (os.F_OK, os.X_OK)
    )
    return user


def test_unwritable_paths_of_another_user_are_rejected_with_the_command(
    tmp_path: Path, other_user: int
) -> None:
    def ends_with(command: str, **changes: object) -> bool:
        return refusal(tmp_path, **changes).endswith(f": `sudo chown {command}`")

    assert ends_with(f"{other_user} {tmp_path}")
    new = {"job_db": ":memory:", "batch_dir": tmp_path / "a" / "b"}
    assert ends_with(f"{other_user} {tmp_path}", **new)
    assert ends_with(f"-R {other_user} {tmp_path}", job_db=":memory:", batch_dir=tmp_path)


def test_unwritable_database_of_another_user_is_rejected_with_the_command(
    tmp_path: Path, other_user: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.sqlite3"
    path.touch(mode=0o600)
    monkeypatch.setattr(
        "emulator.startup.preflight.os.access", lambda path, mode: mode != os.R_OK | os.W_OK
    )
    assert refusal(tmp_path) == (
        f"the job database {path} cannot be written; choose another one with --db or JOB_DB, or "
        f"change its owner, which is user {os.getuid()} (if a container mounts it, with its path "
        f"on the host): `sudo chown {other_user} {path}*`"
    )


def test_open_files_of_another_user_are_rejected_with_the_command(
    tmp_path: Path, other_user: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emulator.startup.preflight.os.access", lambda path, mode: True)
    path, folder = tmp_path / "jobs.sqlite3", tmp_path / "kept"
    path.touch(mode=0o644)
    folder.mkdir(mode=0o755)
    assert refusal(tmp_path).endswith(f"`sudo chown {other_user} {path}*`")
    message = refusal(tmp_path, job_db=":memory:", batch_dir=folder)
    assert message.endswith(f"`sudo chown -R {other_user} {folder}`")


@pytest.mark.usefixtures("other_user")
def test_unwritable_folders_of_a_read_only_mount_are_rejected_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emulator.startup.preflight.is_read_only", lambda path: path == tmp_path)
    assert refusal(tmp_path) == (
        f"the job database {tmp_path}/jobs.sqlite3 cannot be created: the folder {tmp_path} is not "
        "writable: it is mounted read-only; mount it writable or choose another one with --db or "
        "JOB_DB"
    )
    message = refusal(tmp_path, job_db=":memory:", batch_dir=tmp_path)
    assert message == (
        f"the batch folder {tmp_path} cannot be written: it is mounted read-only; mount it "
        "writable or choose another one with BATCH_DIR"
    )


def test_paths_below_a_folder_that_may_not_be_entered_are_rejected(
    tmp_path: Path, other_user: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    monkeypatch.setattr(
        "emulator.startup.preflight.os.access",
        lambda path, mode: closed not in Path(path).parents and (path, mode) != (closed, os.X_OK),
    )
    for changes in ({"job_db": str(closed / "a" / "b")}, {"batch_dir": closed / "a" / "b"}):
        message = refusal(tmp_path, **{"job_db": ":memory:", **changes})
        assert f"/a/b cannot be reached: the folder {closed} may not be entered; " in message
        assert message.endswith(f": `sudo chown {other_user} {closed}`")


def test_batch_folder_of_another_server_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    with locked(folder / "lock"):
        assert refusal(tmp_path, job_db=":memory:", batch_dir=folder) == (
            f"the batch folder {folder} is in use by another server; "
            "stop it or choose another one with BATCH_DIR"
        )


def test_batch_folder_that_is_a_file_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "b"
    file.touch()
    assert "is a file" in refusal(tmp_path, job_db=":memory:", batch_dir=file)
