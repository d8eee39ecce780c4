"""The search for librkllmrt.so, and the checks before it is loaded."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from engine.backends.rkllm import library
from engine.errors import ModelLoadFailed
from tests.fake_rkllm import run

NAME = library.LIBRARY_NAME
NUMBERS = {"x86_64": 0x3E, "aarch64": 0xB7}


def elf(machine: int | None = None, *, big_endian: bool = False) -> bytes:
    """Return the header of a shared library for a machine, by default this one."""
    number = NUMBERS[platform.machine()] if machine is None else machine
    order: Literal["big", "little"] = "big" if big_endian else "little"
    ident = b"\x7fELF\x02" + (b"\x02" if big_endian else b"\x01") + b"\x01" + bytes(9)
    return ident + (3).to_bytes(2, order) + number.to_bytes(2, order) + bytes(44)


def put(folder: Path, content: bytes | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    path.write_bytes(elf() if content is None else content)
    return path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Move all search folders below a temporary folder, which has no library."""
    monkeypatch.setattr(
        library, "_USUAL_FOLDERS", tuple(str(tmp_path / name) for name in ("lib", "opt"))
    )
    monkeypatch.setattr(library, "_LDCONFIG", str(tmp_path / "ldconfig"))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return tmp_path


def loader_knows(places: Path, *paths: Path) -> None:
    lines = "".join(f"\t{path.name} (libc6,AArch64) => {path}\n" for path in paths)
    script = places / "ldconfig"
    script.write_text(f"#!/bin/sh\n[ $1 = -p ] && cat <<'end'\n9 libs found\n{lines}end\n")
    script.chmod(0o755)


def refusal(path: Path | str | None) -> str:
    with pytest.raises(ModelLoadFailed) as caught:
        library.find_library(None if path is None else str(path))
    assert "\n" not in caught.value.message
    return caught.value.message


# ---- the search ----


def test_configured_path_has_priority(
    places: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put(places / "lib")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(put(places / "path").parent))
    configured = put(tmp_path / "given")
    assert library.find_library(str(configured)) == configured
    other = configured.rename(configured.with_name("renamed.so.1"))
    assert library.find_library(str(other)) == other


def test_configured_folder_is_searched(places: Path) -> None:
    configured = put(places / "given")
    assert library.find_library(str(configured.parent)) == configured


def test_order_of_the_search(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opt = put(places / "opt")
    assert library.find_library(None) == opt
    lib = put(places / "lib")
    assert library.find_library(None) == lib
    cached = put(places / "cached")
    loader_knows(places, cached)
    assert library.find_library(None) == cached
    second = put(places / "second")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{places / 'none'}::{second.parent}:{places / 'lib'}")
    assert library.find_library(None) == second


def test_stale_loader_cache_entry_is_skipped(places: Path) -> None:
    loader_knows(places, places / "gone" / NAME, places / "librknnrt.so")
    lib = put(places / "lib")
    assert library.find_library(None) == lib


def test_link_is_followed(places: Path) -> None:
    real = put(places / "versions" / "1.3.0")
    (places / "lib").mkdir()
    (places / "lib" / NAME).symlink_to(real)
    assert library.find_library(None) == real


def test_path_below_the_working_folder(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The loader would search for a bare name in other folders.
    configured = put(places / "here")
    monkeypatch.chdir(configured.parent)
    assert library.find_library(NAME) == configured
    assert library.find_library(".") == configured


def test_missing_library_error_names_the_folders_and_the_source(places: Path) -> None:
    message = refusal(None)
    assert message.startswith("librkllmrt.so is not installed: set RKLLM_LIB_PATH, or put it into")
    assert str(places / "opt") in message
    assert "github.com/airockchip/rknn-llm" in message


def test_usual_folders_are_absolute() -> None:
    assert "/usr/lib" in library._USUAL_FOLDERS
    assert all(os.path.isabs(place) for place in library._USUAL_FOLDERS)


# Like an inaccessible folder, which does not exist for root: `stat` fails.
UNREADABLE = "a" * 300


def test_unreadable_folder_is_skipped(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readable = put(places / "opt")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(places / UNREADABLE))
    assert library.find_library(None) == readable


def test_unreadable_configured_path_error_gives_the_reason(places: Path) -> None:
    message = refusal(places / UNREADABLE)
    assert message.startswith(f"RKLLM_LIB_PATH: {places / UNREADABLE} cannot be read: File name")


def test_missing_configured_path_is_not_searched_for(places: Path) -> None:
    put(places / "lib")
    for configured, missing in (("none.so", "none.so"), ("opt", f"opt/{NAME}")):
        (places / "opt").mkdir(exist_ok=True)
        message = refusal(places / configured)
        assert message.startswith(f"RKLLM_LIB_PATH: there is no file {places / missing}; ")
        assert "github.com/airockchip/rknn-llm" in message


# ---- the checks ----


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"!<arch>\n" * 10, b"#!/bin/sh\n" * 9])
def test_file_that_is_no_shared_library_is_refused(places: Path, content: bytes) -> None:
    path = put(places / "lib", content)
    assert refusal(path) == f"RKLLM_LIB_PATH: {path} is not a shared library"
    assert refusal(None) == f"RKLLM_LIB_PATH: {path} is not a shared library"


def test_git_lfs_pointer_is_recognised(places: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7000000\n"
    message = refusal(put(places / "lib", pointer))
    assert message.endswith(": it is a Git LFS pointer, `git lfs pull` brings the library")


@pytest.mark.parametrize(
    ("machine", "big_endian", "name"),
    [
        (0x28, False, "armv7l"),
        (0xF3, False, "riscv64"),
        (0x03, False, "i686"),
        (0x15, True, "machine 0x15"),
        (0xB7 if platform.machine() == "x86_64" else 0x3E, False, ""),
    ],
)
def test_wrong_architecture_names_both(
    places: Path, machine: int, big_endian: bool, name: str
) -> None:
    path = put(places / "lib", elf(machine, big_endian=big_endian))
    message = refusal(path)
    assert message.startswith(f"RKLLM_LIB_PATH: {path} is for {name}")
    assert f"this machine is {platform.machine()}: " in message
    assert "a folder for each architecture" in message


def test_library_of_the_compiler_has_the_right_architecture(
    fake_library: Callable[[str], Path],
) -> None:
    assert library.find_library(str(fake_library("1.3"))) == fake_library("1.3")


def load_error(path: Path) -> str:
    with pytest.raises(ModelLoadFailed) as caught:
        library.load_library(path)
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith(f"RKLLM_LIB_PATH: {path} does not load: ")
    return caught.value.message


def test_missing_dependency_is_named(tmp_path: Path) -> None:
    source = tmp_path / "source.c"
    source.write_text("int needed(void);\nint has(void);\nint has(void) { return needed(); }\n")
    needed = tmp_path / "needed.c"
    needed.write_text("int needed(void);\nint needed(void) { return 1; }\n")
    dependency = tmp_path / "libgone.so"
    run("-shared", "-fPIC", str(needed), "-o", str(dependency))
    path = tmp_path / NAME
    # The linker must not drop the dependency although nothing of it is used.
    run("-shared", "-fPIC", str(source), "-Wl,--no-as-needed", str(dependency), "-o", str(path))
    dependency.unlink()
    message = load_error(path)
    assert "libgone.so" in message
    assert "a library that it needs is not installed (`ldd` names all of them)" in message


def test_too_old_system_is_named(tmp_path: Path) -> None:
    # A version of the C library that does not exist yet.
    (tmp_path / "map").write_text("GLIBC_9.99 { global: *; };\n")
    newer = tmp_path / "libnewer.c"
    newer.write_text("int newer(void);\nint newer(void) { return 1; }\n")
    older, target = tmp_path / "older", tmp_path / "libnewer.so"
    run(
        "-shared",
        "-fPIC",
        str(newer),
        f"-Wl,--version-script={tmp_path / 'map'}",
        "-o",
        str(target),
    )
    source = tmp_path / "source.c"
    source.write_text("int newer(void);\nint has(void);\nint has(void) { return newer(); }\n")
    path = tmp_path / NAME
    run("-shared", "-fPIC", str(source), str(target), f"-Wl,-rpath,{tmp_path}", "-o", str(path))
    older.write_text("GLIBC_2.2 { global: *; };\n")
    run("-shared", "-fPIC", str(newer), f"-Wl,--version-script={older}", "-o", str(target))
    message = load_error(path)
    assert "GLIBC_9.99" in message
    assert message.endswith("; this system is older than the one it was built for")


def test_truncated_library_is_refused(tmp_path: Path, fake_library: Callable[[str], Path]) -> None:
    path = tmp_path / NAME
    path.write_bytes(fake_library("1.3").read_bytes()[:100])
    library.check_machine(path)
    load_error(path)


def test_valid_library_is_loaded(fake_library: Callable[[str], Path]) -> None:
    assert library.load_library(fake_library("1.2")).rkllm_run
