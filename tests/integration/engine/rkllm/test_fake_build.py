"""Builds of the fake library: older versions, other version strings, and invalid scripts."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from signal import SIGABRT

import pytest

from engine.backends.rkllm.abi.abi import ABI_12, ABI_13, Abi, MissingSymbols, bind
from engine.backends.rkllm.abi.version import find_version
from tests.fake_rkllm import build, quoted
from tests.integration.engine.rkllm.conftest import ProcessFactory

pytestmark = pytest.mark.long

SINCE_1_2_1 = {
    "rkllm_get_kv_cache_size",
    "rkllm_set_function_tools",
    "rkllm_set_cross_attn_params",
}
SINCE_1_2_0 = {"rkllm_clear_kv_cache", "rkllm_set_chat_template"}


@pytest.mark.parametrize(
    ("version", "missing"), [("1.2.0", SINCE_1_2_1), ("1.1", SINCE_1_2_1 | SINCE_1_2_0)]
)
@pytest.mark.parametrize("abi", [ABI_12, ABI_13], ids=lambda abi: f"as{abi.name}")
def test_older_versions_lack_symbols(
    fake_library: Callable[[str], Path], abi: Abi, version: str, missing: set[str]
) -> None:
    with pytest.raises(MissingSymbols, match="rkllm_get_kv_cache_size") as caught:
        bind(ctypes.CDLL(str(fake_library(version))), abi)
    assert set(caught.value.symbols) == missing


@pytest.mark.parametrize(
    ("version", "full_version"),
    [("1.2", "1.2.3"), ("1.3", "1.3.0"), ("1.3.1", "1.3.1"), ("1.2.0", "1.2.0"), ("1.1", "1.1.4")],
)
def test_version_is_in_the_library(
    fake_library: Callable[[str], Path], version: str, full_version: str
) -> None:
    content = fake_library(version).read_bytes()
    assert find_version(content) == (full_version, False)
    # The log's format has no number.
    assert b"rkllm-runtime version: " + full_version.encode() not in content


@pytest.mark.parametrize("version", ["1.2", "1.1"])
def test_version_can_be_overridden(tmp_path: Path, version: str) -> None:
    library = build(version, tmp_path, VERSION="9.8.7")
    assert find_version(library.read_bytes()).version == "9.8.7"


def test_second_build_in_a_folder_reuses_the_first(tmp_path: Path) -> None:
    first = build("1.1", tmp_path)
    written = first.stat().st_mtime_ns
    assert build("1.1", tmp_path) == first
    assert first.stat().st_mtime_ns == written
    assert first.name == "librkllmrt.so"


def test_missing_compiler_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(RuntimeError, match="apt-get install gcc"):
        build("1.2", tmp_path)


def test_compile_error_is_in_the_message(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="expected identifier"):
        build("1.1", tmp_path, rkllm_run=1)


def test_quoted_is_exact() -> None:
    assert quoted('"ü\n') == r'"\x22\xc3\xbc\x0a"'


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("speak", ":2: what is speak here?"),
        ("answer\n  speak", ":3: what is speak here?"),
        ("context 10\nanswer\n  context 10", ":4: what is context here?"),
        ("answer\n  say", ":3: what is to be said?"),
        ('answer\n  say "a', ":3: a quote is not closed"),
        ('answer\n  say "\\q"', ":3: unknown escape \\q"),
        ('answer\n  say "\\x00"', ":3: unknown escape \\x"),
        ('answer\n  say "\\{who}"', ":3: unknown placeholder at: \\{who}"),
        ('answer\n  say "a" times=x', ":3: x is no number between 0 and 1e+09"),
        ("answer\n  thread mine", ":3: one of caller, foreign, ... is missing"),
        ("answer\n  late 0", ":3: 0 is no number between 1 and 1e+09"),
        ('answer when="\\{i}"', ":2: no placeholders here"),
        ('answer\n  returns 1 "a"', ":3: what is a text here?"),
    ],
)
@pytest.mark.parametrize("abi", [ABI_12], ids=["abi1.2"])
def test_mistake_in_a_script_is_named(process: ProcessFactory, script: str, why: str) -> None:
    died = process(script)
    assert died.signal is SIGABRT
    assert f"model-1.rkllm{why}" in died.error
