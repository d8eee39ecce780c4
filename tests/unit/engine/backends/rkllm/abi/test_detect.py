"""Detection of a library's ABI: the evidence and the choice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.backends.rkllm.abi.abi import ABI_12, ABI_13, ABI_131, Abi
from engine.backends.rkllm.abi.detect import (
    Evidence,
    choose_abi,
    find_version_warning,
    inspect_library,
)
from engine.errors import ModelLoadFailed
from tests.fake_rkllm import run
from tests.fake_rkllm.odd import build_odd

Builder = Callable[[str], Path]
UPGRADE = "install librkllmrt.so 1.2.3 or 1.3.1"


def refusal(path: Path, setting: str = "auto", **options: float) -> str:
    with pytest.raises(ModelLoadFailed) as caught:
        choose_abi(inspect_library(path, **options), setting)
    assert "\n" not in caught.value.message
    assert str(path) in caught.value.message or setting != "auto"
    return caught.value.message


# ---- known versions ----


@pytest.mark.parametrize(
    ("abi", "version"), [(ABI_12, "1.2.3"), (ABI_13, "1.3.0"), (ABI_131, "1.3.1")]
)
def test_known_versions_are_detected(fake_library: Builder, abi: Any, version: str) -> None:
    evidence = inspect_library(fake_library(abi.name))
    assert choose_abi(evidence) is abi
    assert evidence.missing == ()
    assert evidence.version == version
    assert evidence.fields[abi.name]["max_context_len"] == 512
    assert evidence.fields[abi.name]["enabled_cpus_num"] == 4
    description = evidence.describe()
    fits, other = ("1.2", "1.3") if abi is ABI_12 else ("1.3 and 1.3.1", "1.2")
    assert description.startswith(f"default parameters fit {fits}; not {other} (")
    assert find_version_warning(evidence, abi) is None
    assert description.endswith(f"; version string {version}, not an official file")


@pytest.mark.parametrize(
    ("version", "abi", "warning"),
    [
        ("1.2.1", ABI_12, None),
        ("1.2.2", ABI_12, None),
        ("1.2.9", ABI_12, "is of version 1.2.9, which is not known to this program"),
        ("1.3.0", ABI_13, None),
        ("1.3.1", ABI_131, None),
        ("1.3.2", ABI_131, "is of version 1.3.2, which is not known to this program"),
        ("2.0.0", ABI_131, "which is not known to this program: it is called as 1.3.1 is"),
        (None, ABI_131, "names no version: it is called as 1.3.1 is. If it is another, set"),
    ],
)
def test_other_versions_of_a_layout_are_detected(
    tmp_path: Path, version: str | None, abi: Abi, warning: str | None
) -> None:
    defines = [] if version is None else [f'VERSION="{version}"']
    path = build_odd(tmp_path, "AT_12" if abi is ABI_12 else "AT_13", *defines)
    evidence = inspect_library(path)
    assert choose_abi(evidence) is abi
    assert evidence.version == version
    hint = "no version string" if version is None else f"version string {version}"
    assert evidence.describe().endswith(f"; {hint}, not an official file")
    if warning is None:
        assert find_version_warning(evidence, abi) is None
    else:
        assert warning in (find_version_warning(evidence, abi) or "")


@pytest.mark.parametrize(
    ("version", "missing"), [("1.2.0", "rkllm_get_kv_cache_size"), ("1.1", "rkllm_clear_kv_cache")]
)
@pytest.mark.parametrize("setting", ["auto", "1.2", "1.3"])
def test_older_versions_are_refused_by_their_symbols(
    fake_library: Builder, version: str, missing: str, setting: str
) -> None:
    # With any setting: the functions that they lack are called.
    path = fake_library(version)
    message = refusal(path, setting)
    assert message == f"{path} is older than 1.2.1, it has no {missing}: {UPGRADE}"


# ---- the RKLLM_ABI setting ----


@pytest.mark.parametrize("name", ["1.2", "1.3", "1.3.1"])
def test_matching_abi_setting_is_used(fake_library: Builder, name: str) -> None:
    assert choose_abi(inspect_library(fake_library(name)), name).name == name


@pytest.mark.parametrize(("name", "setting"), [("1.2", "1.3"), ("1.3", "1.2"), ("1.3.1", "1.2")])
def test_wrong_abi_setting_is_refused(fake_library: Builder, name: str, setting: str) -> None:
    message = refusal(fake_library(name), setting)
    assert message.startswith(f"RKLLM_ABI is {setting}, and the library is {name}: ")
    assert f"default parameters fit {name[:3]}" in message
    assert message.endswith(f". Set RKLLM_ABI=auto or {name}")


# ---- contradictions ----


@pytest.mark.parametrize(("name", "version"), [("1.2", "1.3.0"), ("1.3", "1.2.1")])
def test_contradicting_version_string_is_refused(tmp_path: Path, name: str, version: str) -> None:
    path = build_odd(tmp_path, f"AT_{name.replace('.', '')}", f'VERSION="{version}"')
    message = refusal(path)
    assert message.startswith(f"{path} contradicts itself: default parameters fit {name}")
    advice = f"Set RKLLM_ABI to {name} or {version[:3]} if you"
    assert f"version string {version}, not an official file. {advice}" in message
    # The setting overrides the version string.
    assert choose_abi(inspect_library(path), name).name == name
    assert refusal(path, version[:3]).startswith(
        f"RKLLM_ABI is {version[:3]}, and the library is {name}"
    )


@pytest.mark.parametrize(("at", "abi"), [("AT_12", ABI_12), ("AT_13", ABI_131)])
def test_empty_cpu_mask_is_valid(tmp_path: Path, at: str, abi: Abi) -> None:
    # The library's own default is not known from any board.
    assert choose_abi(inspect_library(build_odd(tmp_path, at, "NO_MASK"))) is abi


def test_library_without_matching_layout_is_refused(tmp_path: Path) -> None:
    path = build_odd(tmp_path, "AT=100")
    message = refusal(path)
    assert message.startswith(
        f"the ABI of {path} cannot be determined: default parameters fit none"
    )
    assert "not 1.2 (" in message
    assert "not 1.3 (" in message
    assert f". {UPGRADE}, or set RKLLM_ABI to one of 1.2, 1.3, 1.3.1 if you know it" in message
    # There is no evidence for another ABI.
    assert choose_abi(inspect_library(path), "1.3") is ABI_13


def test_garbage_matches_no_layout(tmp_path: Path) -> None:
    evidence = inspect_library(build_odd(tmp_path))
    assert [bool(each) for each in evidence.objections.values()] == [True, True, True]


def test_library_matching_both_layouts_is_refused(tmp_path: Path) -> None:
    path = build_odd(tmp_path, "AT_12", "AT_13")
    message = refusal(path)
    assert (
        "default parameters fit 1.2 and 1.3 and 1.3.1; no version string, not an official file"
        in message
    )
    assert "or set RKLLM_ABI to one of 1.2, 1.3, 1.3.1 if you know it" in message
    for setting in ("1.2", "1.3", "1.3.1"):
        assert choose_abi(inspect_library(path), setting).name == setting


def test_abi_is_chosen_without_loading_the_library() -> None:
    fits: dict[str, tuple[str, ...]] = {"1.2": ("top_p would be 5",), "1.3": ()}
    evidence = Evidence(path="lib", objections=fits, version="1.3.0")
    assert choose_abi(evidence) is ABI_13
    assert evidence.describe() == (
        "default parameters fit 1.3; not 1.2 (top_p would be 5); version string 1.3.0, "
        "not an official file"
    )


# ---- libraries that misbehave ----


@pytest.mark.parametrize("what", ["PRINTS", "PRINTS_AT_END", "DIES_AT_END"])
def test_library_that_prints_or_crashes_at_exit(tmp_path: Path, what: str) -> None:
    # Its own output may precede, follow or interrupt our report.
    assert choose_abi(inspect_library(build_odd(tmp_path, "AT_13", what))) is ABI_131


def test_library_that_crashes_is_refused(tmp_path: Path) -> None:
    path = build_odd(tmp_path, "AT_13", "DIES")
    message = refusal(path)
    assert message.startswith(
        f"{path} does not even give its default parameters, the process that read them was killed "
        "by SIGSEGV: "
    )
    assert "E RKNN: failed to open rknpu module" in message
    assert "nstall librkllmrt.so 1.2.3 or 1.3.1" in message


def test_library_that_exits_is_refused(tmp_path: Path) -> None:
    message = refusal(build_odd(tmp_path, "AT_13", "LEAVES"))
    assert "the process that read them exited with code 3: no output" in message


def test_library_that_hangs_is_refused(tmp_path: Path) -> None:
    path = build_odd(tmp_path, "AT_13", "HANGS")
    message = refusal(path, timeout_s=1.0)
    assert message == f"{path} did not give its default parameters within 1 s: {UPGRADE}"


def test_unrelated_library_is_refused(tmp_path: Path) -> None:
    # Every board also has librknnrt.so in the same folder.
    source, path = tmp_path / "other.c", tmp_path / "librknnrt.so"
    source.write_text("int rknn_init(void);\nint rknn_init(void) { return 0; }\n")
    run("-shared", "-fPIC", str(source), "-o", str(path))
    message = refusal(path)
    assert message == f"{path} is not librkllmrt.so, it has no rkllm_createDefaultParam: {UPGRADE}"


def test_library_that_does_not_load(tmp_path: Path) -> None:
    path = tmp_path / "librkllmrt.so"
    path.write_bytes(b"no library at all")
    assert refusal(path).startswith(f"RKLLM_LIB_PATH: {path} does not load: ")


def test_packages_in_the_working_folder_are_not_imported(
    fake_library: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("engine", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('somebody else')")
    monkeypatch.chdir(tmp_path)
    assert choose_abi(inspect_library(fake_library("1.3"))) is ABI_13


def test_only_the_default_parameters_are_called(
    fake_library: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "calls.log"
    monkeypatch.setenv("FAKE_RKLLM_LOG", str(log))
    inspect_library(fake_library("1.2"))
    assert [line.split()[3] for line in log.read_text().splitlines()] == [
        "rkllm_createDefaultParam"
    ]
