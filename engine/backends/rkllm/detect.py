"""Which ABI a librkllmrt.so has, found out where a wrong guess costs nothing.

The library tells no version, and calling it with another version's structs is a segfault. So a
process of its own asks for the default parameters and looks at their fields through each layout.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.backends.rkllm import library
from engine.backends.rkllm.abi import ABI_12, ABIS, CREATE_DEFAULT_PARAM, Abi
from engine.errors import ModelLoadFailed

# Room for a struct larger than any that is known: an unknown version must not write beyond it.
_BUFFER_BYTES = 4096
_TIMEOUT_S = 60.0
_MODULE = "engine.backends.rkllm.detect"
# Before the report, for the library itself may print what it likes where it likes.
_REPORT_PREFIX = "evidence: "
# Like "rkllm-runtime version: 1.2.3"; what else is in the binary may say anything.
_VERSION = re.compile(rb"rkllm[\w .-]{0,24}?version:? ?v?(\d+\.\d+\.\d+)", re.IGNORECASE)
_UPGRADE_HINT = "install librkllmrt.so 1.2.3 or 1.3.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was seen of a library.

    `objections` says for each layout what speaks against it, nothing for one that fits; `version`
    is a string found in the file, a hint and no more.
    """

    path: str
    missing: tuple[str, ...] = ()
    objections: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    version: str | None = None

    def told(self) -> str:
        """Return it in one line, for logs and reports."""
        fits = [name for name, objections in self.objections.items() if not objections]
        against = [
            f"not {name} ({'; '.join(objections)})"
            for name, objections in self.objections.items()
            if objections
        ]
        hint = f"version string {self.version}" if self.version else "no version string"
        return "; ".join([f"default parameters fit {' and '.join(fits) or 'none'}", *against, hint])


def choose_abi(evidence: Evidence, asked: str = "auto") -> Abi:
    """Return the ABI to use with a library; `asked` is RKLLM_ABI.

    Raises:
        ModelLoadFailed: the library is older or newer than what is known, contradicts what was
            asked for or itself; the message says what to do.
    """
    if CREATE_DEFAULT_PARAM in evidence.missing:
        raise ModelLoadFailed(
            f"{evidence.path} is not librkllmrt.so, it has no {CREATE_DEFAULT_PARAM}: {_UPGRADE}"
        )
    if evidence.missing:
        raise ModelLoadFailed(
            f"{evidence.path} is older than 1.2.1, it has no {evidence.missing[0]}: {_UPGRADE}"
        )
    fits = [name for name, objections in evidence.objections.items() if not objections]
    if asked != "auto":
        if fits and asked not in fits:
            raise ModelLoadFailed(
                f"RKLLM_ABI is {asked}, and the library is {fits[0]}: {evidence.told()}. "
                f"Set RKLLM_ABI=auto or {fits[0]}"
            )
        return ABIS[asked]
    if len(fits) != 1:
        raise ModelLoadFailed(
            f"it cannot be told which ABI {evidence.path} has: {evidence.told()}. {_UPGRADE}, or "
            f"set RKLLM_ABI to one of {', '.join(ABIS)} if you know it"
        )
    hinted = _abi_name(evidence.version)
    if hinted is not None and hinted != fits[0]:
        raise ModelLoadFailed(
            f"{evidence.path} contradicts itself: {evidence.told()}. "
            f"Set RKLLM_ABI to {fits[0]} or {hinted} if you know which it is"
        )
    return ABIS[fits[0]]


def _abi_name(version: str | None) -> str | None:
    if version is None:
        return None
    name = ".".join(version.split(".")[:2])
    return name if name in ABIS else None


def inspect_library(path: Path) -> Evidence:
    """Look at a library in a process of its own.

    Raises:
        ModelLoadFailed: it does not load, or kills or hangs whoever asks for its defaults.
    """
    root = str(Path(__file__).resolve().parents[3])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            # Without the working folder on the path: its packages are not ours.
            [sys.executable, "-P", "-m", _MODULE, str(path), str(os.getpid())],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelLoadFailed(
            f"{path} did not give its default parameters within {_TIMEOUT_S:g} s: {_UPGRADE}"
        ) from None
    reports = [line for line in done.stdout.splitlines() if line.startswith(_REPORT_PREFIX)]
    if not reports:
        words = " | ".join(done.stderr.splitlines()[-3:])
        raise ModelLoadFailed(
            f"{path} does not even give its default parameters, whoever asks {_death(done)}: "
            f"{words or 'it said nothing'}. {_UPGRADE.capitalize()}"
        )
    found = json.loads(reports[-1].removeprefix(_REPORT_PREFIX))
    if "error" in found:
        raise ModelLoadFailed(found["error"])
    return Evidence(
        path=found["path"],
        missing=tuple(found["missing"]),
        objections={name: tuple(each) for name, each in found["objections"].items()},
        fields=found["fields"],
        version=found["version"],
    )


def _describe_exit(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"is killed by {signal.Signals(-done.returncode).name}"
    return f"exits with code {done.returncode}"


def inspect_in_process(path: Path) -> Evidence:
    """Look at a library in this process, which it may kill."""
    loaded = library.load_library(path)
    missing = tuple(symbol for symbol in ABI_12.functions if not hasattr(loaded, symbol))
    version = _find_version(path)
    if missing:
        return Evidence(path=str(path), missing=missing, version=version)

    class Room(ctypes.Structure):
        _fields_ = (("bytes", ctypes.c_uint8 * _BUFFER_BYTES),)

    create = loaded[CREATE_DEFAULT_PARAM]
    create.restype, create.argtypes = Room, ()
    room = bytes(create().bytes)
    params = {name: abi.param.from_buffer_copy(room) for name, abi in ABIS.items()}
    return Evidence(
        path=str(path),
        objections={name: tuple(_find_objections(param)) for name, param in params.items()},
        fields={name: _read_fields(param) for name, param in params.items()},
        version=version,
    )


def _find_objections(param: Any) -> list[str]:
    """Return what cannot be a default in these fields.

    Both layouts share the first 57 bytes; what tells them apart is where the extended parameters
    stand. Their defaults are documented: 4 CPUs, and a mask that names as many, or none where the
    runtime chooses.
    """
    extend = param.extend_param
    cpus, mask = extend.enabled_cpus_num, extend.enabled_cpus_mask
    looks = (
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
    return [f"{name} would be {value}" for name, fine, value in looks if not fine]


def _read_fields(param: Any) -> dict[str, Any]:
    extend = param.extend_param
    names = ("max_context_len", "max_new_tokens", "top_k", "top_p", "temperature", "repeat_penalty")
    found = {name: getattr(param, name) for name in names}
    for name in (
        "base_domain_id",
        "embed_flash",
        "enabled_cpus_num",
        "enabled_cpus_mask",
        "n_batch",
    ):
        found[name] = getattr(extend, name)
    # JSON has no NaN.
    return {name: value if value == value else None for name, value in found.items()}


def _find_version(path: Path) -> str | None:
    found = _VERSION.search(path.read_bytes())
    return found.group(1).decode() if found else None


def main() -> None:
    """Print the evidence about a library as JSON on one line; arguments: its path, our parent."""
    from engine.hosts.process_utils import die_with_parent

    # A library that hangs must not outlive whoever wanted to know.
    die_with_parent(int(sys.argv[2]))
    try:
        report = asdict(inspect_in_process(Path(sys.argv[1])))
    except ModelLoadFailed as error:
        report = {"error": error.message}
    sys.stdout.write(f"\n{_REPORT}{json.dumps(report)}\n")


if __name__ == "__main__":
    main()
