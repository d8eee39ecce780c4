"""Remedies for files and folders of another user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common import private_files
from common.private_files import is_read_only, suggest_owner


@pytest.fixture(autouse=True)
def other_user(monkeypatch: pytest.MonkeyPatch) -> int:
    user = os.getuid() + 1000
    monkeypatch.setattr(os, "geteuid", lambda: user)
    return user


def test_suggest_owner_ends_with_the_command(tmp_path: Path, other_user: int) -> None:
    folder = tmp_path / "my jobs"
    folder.mkdir()
    assert suggest_owner(folder) == (
        f"change its owner, which is user {os.getuid()} (if a container mounts it, with its path "
        f"on the host): `sudo chown {other_user} '{folder}'`"
    )
    assert suggest_owner(folder, option="-R").endswith(f"`sudo chown -R {other_user} '{folder}'`")
    assert suggest_owner(tmp_path, suffix="*").endswith(f"`sudo chown {other_user} {tmp_path}*`")


@pytest.mark.parametrize("user", [0, os.getuid()])
def test_suggest_owner_is_silent_to_root_and_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert suggest_owner(tmp_path) == ""


def test_suggest_owner_is_silent_where_the_owner_has_no_access_either(tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir(mode=0o577)
    file.touch(mode=0o466)
    assert suggest_owner(folder) == suggest_owner(file) == suggest_owner(tmp_path / "none") == ""
    file.chmod(0o600)
    assert str(file) in suggest_owner(file)


def test_suggest_owner_is_silent_on_a_read_only_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_files, "is_read_only", lambda path: True)
    assert suggest_owner(tmp_path) == ""


@pytest.mark.parametrize("folder", ["/", "/opt", "/usr", "/var/lib", "/etc"])
def test_suggest_owner_is_silent_about_folders_of_the_system(folder: str) -> None:
    assert suggest_owner(Path(folder)) == ""


def test_suggest_owner_offers_a_mount_in_a_folder_of_the_system(
    monkeypatch: pytest.MonkeyPatch, other_user: int
) -> None:
    monkeypatch.setattr(Path, "is_mount", lambda path: path == Path("/var/lib"))
    assert f"`sudo chown {other_user} /var/lib`" in suggest_owner(Path("/var/lib"))


def test_is_read_only_reads_the_flags_of_the_mount(tmp_path: Path) -> None:
    assert is_read_only(Path("/proc/self/fd")) is False
    assert is_read_only(tmp_path) is False
    assert is_read_only(tmp_path / "none") is False
