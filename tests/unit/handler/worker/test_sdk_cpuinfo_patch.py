"""Replace the SDK's query for the processor's name."""

from __future__ import annotations

import importlib
import platform
import sys
from pathlib import Path

import pytest

from handler.worker import sdk_cpuinfo_patch

X86 = (
    "processor\t: 0\nmodel name\t: Some Processor @ 2.00GHz\nprocessor\t: 1\nmodel name\t: Other\n"
)
ARM = "processor\t: 0\nBogoMIPS\t: 48.00\nCPU part\t: 0xd05\n"


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (X86, "Some Processor @ 2.00GHz"),
        (ARM, platform.processor() or platform.machine()),
        (None, platform.processor() or platform.machine()),
    ],
)
def test_name(
    cpuinfo: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        path.write_text(cpuinfo)
    monkeypatch.setattr(sdk_cpuinfo_patch, "_CPUINFO", path)
    assert sdk_cpuinfo_patch.processor_name() == expected


def test_patched_cpuinfo_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def examine() -> None:
        raise AssertionError("it examined the processor")

    monkeypatch.setattr("cpuinfo.get_cpu_info", examine)
    sdk_cpuinfo_patch.patch_cpuinfo()
    from runpod.serverless.utils import rp_debugger

    # Whatever another test of this process has imported before.
    assert importlib.reload(rp_debugger).PROCESSOR == sdk_cpuinfo_patch.processor_name()


def test_patch_cpuinfo_does_nothing_without_cpuinfo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cpuinfo", None)
    sdk_cpuinfo_patch.patch_cpuinfo()
