"""Detect which ABI a librkllmrt.so has, in a child process that may crash.

The library reports no version, and calling it with the structs of another version crashes the
process. So a child process reads the default parameters and interprets their fields with each
layout.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.child_processes import describe_exit, module_command
from engine.backends.rkllm import library
from engine.backends.rkllm.abi.abi import ABI_12, ABIS, CREATE_DEFAULT_PARAM, Abi
from engine.backends.rkllm.abi.version import find_version
from engine.errors import ModelLoadFailed

# Larger than every known struct: an unknown version must not write beyond the buffer.
_BUFFER_BYTES = 4096
_TIMEOUT_S = 60.0
_MODULE = "engine.backends.rkllm.abi.detect"
# Marks the report line, because the library may print anything to the same stream.
_REPORT_PREFIX = "evidence: "
_UPGRADE_HINT = "install librkllmrt.so 1.2.3 or 1.3.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The findings about a library.

    `missing` are functions that the library lacks. `objections` lists, for each layout, the
    implausible values; the list of a matching layout is empty. `version` is a string from the file,
    which is only a hint, or that of the file of Rockchip's whose content it has (`is_official`).
    """

    path: str
    missing: tuple[str, ...] = ()
    objections: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    version: str | None = None
    is_official: bool = False

    def describe(self) -> str:
        """Return the findings in one line, for logs and reports."""
        matching = [name for name, objections in self.objections.items() if not objections]
        mismatches = [
            f"not {name} ({'; '.join(objections)})"
            for name, objections in self.objections.items()
            if objections
        ]
        hint = f"version string {self.version}" if self.version else "no version string"
        if self.is_official:
            hint = f"Rockchip's file of version {self.version}"
        else:
            hint += ", not an official file"
        fit = f"default parameters fit {' and '.join(matching) or 'none'}"
        return "; ".join([fit, *mismatches, hint])


def choose_abi(evidence: Evidence, setting: str = "auto") -> Abi:
    """Return the ABI to use with a library; `setting` is RKLLM_ABI.

    Raises:
        ModelLoadFailed: the library is older or newer than the known versions, or contradicts the
            setting or itself. The message explains what to do.
    """
    if CREATE_DEFAULT_PARAM in evidence.missing:
        raise ModelLoadFailed(
            f"{evidence.path} is not librkllmrt.so, it has no {CREATE_DEFAULT_PARAM}: "
            f"{_UPGRADE_HINT}"
        )
    if evidence.missing:
        raise ModelLoadFailed(
            f"{evidence.path} is older than 1.2.1, it has no {evidence.missing[0]}: {_UPGRADE_HINT}"
        )
    matching = [abi for abi in ABIS.values() if evidence.objections.get(abi.name) == ()]
    if setting != "auto":
        if matching and ABIS[setting] not in matching:
            library_abi = _nearest(matching, evidence.version).name
            raise ModelLoadFailed(
                f"RKLLM_ABI is {setting}, and the library is {library_abi}: "
                f"{evidence.describe()}. Set RKLLM_ABI=auto or {library_abi}"
            )
        return ABIS[setting]
    if len({abi.param for abi in matching}) != 1:
        raise ModelLoadFailed(
            f"the ABI of {evidence.path} cannot be determined: {evidence.describe()}. "
            f"{_UPGRADE_HINT}, or set RKLLM_ABI to one of {', '.join(ABIS)} if you know it"
        )
    abi = _nearest(matching, evidence.version)
    hinted_abi = _abi_name(evidence.version)
    if hinted_abi is not None and ABIS[hinted_abi].param is not abi.param:
        raise ModelLoadFailed(
            f"{evidence.path} contradicts itself: {evidence.describe()}. "
            f"Set RKLLM_ABI to {abi.name} or {hinted_abi} if you know which it is"
        )
    return abi


def find_version_warning(evidence: Evidence, abi: Abi) -> str | None:
    """Return a warning if the library's version is not one that the ABI is known to be of.

    Versions with the same default parameters may differ in the input of a run.
    """
    version = evidence.version
    if version in abi.versions:
        return None
    if version is not None:
        return (
            f"{evidence.path} is of version {version}, which is not known to this program: it is "
            f"called as {abi.versions_text} is"
        )
    alike = [each.name for each in ABIS.values() if each.param is abi.param]
    if len(alike) == 1:
        return None
    return (
        f"{evidence.path} names no version: it is called as {abi.versions_text} is. If it is "
        f"another, set RKLLM_ABI to one of {', '.join(alike)}"
    )


def _nearest(abis: Sequence[Abi], version: str | None) -> Abi:
    """Return the oldest ABI that is not older than a version, or the newest; oldest first."""
    if version is not None:
        for abi in abis:
            if _numbers(version) <= _numbers(abi.versions[-1]):
                return abi
    return abis[-1]


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as 1.2.1b1, without its suffix."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _abi_name(version: str | None) -> str | None:
    """Return the ABI of the first version that has the same first two numbers, if there is one."""
    if version is None:
        return None
    name = ".".join(version.split(".")[:2])
    return name if name in ABIS else None


def inspect_library(path: Path, *, timeout_s: float = _TIMEOUT_S) -> Evidence:
    """Inspect a library in a child process, which is killed after `timeout_s`.

    Raises:
        ModelLoadFailed: the library does not load, or its `rkllm_createDefaultParam` crashes or
            hangs.
    """
    try:
        process = subprocess.run(
            module_command(_MODULE, str(path), str(os.getpid())),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelLoadFailed(
            f"{path} did not give its default parameters within {timeout_s:g} s: {_UPGRADE_HINT}"
        ) from None
    report_lines = [line for line in process.stdout.splitlines() if line.startswith(_REPORT_PREFIX)]
    if not report_lines:
        last_lines = " | ".join(process.stderr.splitlines()[-3:])
        raise ModelLoadFailed(
            f"{path} does not even give its default parameters, the process that read them "
            f"{describe_exit(process.returncode)}: {last_lines or 'no output'}. "
            f"{_UPGRADE_HINT.capitalize()}"
        )
    report = json.loads(report_lines[-1].removeprefix(_REPORT_PREFIX))
    if "error" in report:
        raise ModelLoadFailed(report["error"])
    return Evidence(
        path=report["path"],
        missing=tuple(report["missing"]),
        objections={name: tuple(values) for name, values in report["objections"].items()},
        fields=report["fields"],
        version=report["version"],
        is_official=report["is_official"],
    )


def inspect_in_process(path: Path) -> Evidence:
    """Inspect a library in this process, which the library may crash."""
    library_handle = library.load_library(path)
    missing = tuple(symbol for symbol in ABI_12.functions if not hasattr(library_handle, symbol))
    version, is_official = find_version(path.read_bytes())
    if missing:
        return Evidence(path=str(path), missing=missing, version=version, is_official=is_official)

    class ParamBuffer(ctypes.Structure):
        _fields_ = (("bytes", ctypes.c_uint8 * _BUFFER_BYTES),)

    create = library_handle[CREATE_DEFAULT_PARAM]
    create.restype, create.argtypes = ParamBuffer, ()
    buffer = bytes(create().bytes)
    params = {name: abi.param.from_buffer_copy(buffer) for name, abi in ABIS.items()}
    return Evidence(
        path=str(path),
        objections={name: tuple(_find_objections(param)) for name, param in params.items()},
        fields={name: _read_fields(param) for name, param in params.items()},
        version=version,
        is_official=is_official,
    )


def _find_objections(param: Any) -> list[str]:
    """Return the fields whose values cannot be defaults.

    Both layouts share the first 57 bytes; they differ in the offset of the extended parameters.
    The defaults of those are documented: 4 CPUs, and a mask of as many CPUs, or an empty mask if
    the runtime chooses.
    """
    extend = param.extend_param
    cpus, mask = extend.enabled_cpus_num, extend.enabled_cpus_mask
    checks = (
        ("max_context_len", 0 < param.max_context_len <= 1 << 20, param.max_context_len),
        ("top_p", 0 <= param.top_p <= 1, param.top_p),
        ("temperature", 0 <= param.temperature <= 10, param.temperature),
        ("mirostat", 0 <= param.mirostat <= 2, param.mirostat),
        ("base_domain_id", 0 <= extend.base_domain_id < 64, extend.base_domain_id),
        ("embed_flash", extend.embed_flash in (0, 1), extend.embed_flash),
        ("enabled_cpus_num", 1 <= cpus <= 32, cpus),
        ("enabled_cpus_mask", mask.bit_count() in (0, cpus), hex(mask)),
        ("n_batch", 0 <= extend.n_batch <= 64, extend.n_batch),
        ("use_cross_attn", extend.use_cross_attn in (0, 1), extend.use_cross_attn),
    )
    return [f"{name} would be {value}" for name, is_valid, value in checks if not is_valid]


def _read_fields(param: Any) -> dict[str, Any]:
    extend = param.extend_param
    names = ("max_context_len", "max_new_tokens", "top_k", "top_p", "temperature", "repeat_penalty")
    fields = {name: getattr(param, name) for name in names}
    for name in (
        "base_domain_id",
        "embed_flash",
        "enabled_cpus_num",
        "enabled_cpus_mask",
        "n_batch",
    ):
        fields[name] = getattr(extend, name)
    # JSON has no NaN.
    return {name: value if value == value else None for name, value in fields.items()}


def main() -> None:
    """Print the evidence about a library as one line of JSON.

    Arguments: the library's path and the parent's process id.
    """
    from common.process_utils import die_with_parent

    # If the library hangs, this process must not outlive its parent.
    die_with_parent(int(sys.argv[2]))
    try:
        report = asdict(inspect_in_process(Path(sys.argv[1])))
    except ModelLoadFailed as error:
        report = {"error": error.message}
    sys.stdout.write(f"\n{_REPORT_PREFIX}{json.dumps(report)}\n")


if __name__ == "__main__":
    main()
