"""Clocks and CPUs that cost a board speed: governors, CPUs that are off, and small cores.

The figures are those of public reports. An RK3588 with Qwen3-1.7B gave 9.8 tokens/s with the
governor ondemand and 13.0 with performance, and 5.5 to 6.3 with all eight CPUs in the mask where
the runtime's own choice gave 12.4 to 12.9. Another RK3588 gave 7.7 tokens/s with TinyLlama where
the kernel does not scale the memory's clock, which `/sys/class/devfreq/dmc` does, and 23 with it, a
model in plain w8a8, and the governors at performance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.backends.rkllm.board.driver import read_driver

_ROOT = Path("/")
_CPUS = "sys/devices/system/cpu"
_DEVFREQ = "sys/class/devfreq"
# Big CPUs of one chip differ a little; small ones have about half of the capacity.
_BIG_SHARE = 0.75
# Governors with a clock that stays as it was set; Rockchip's scripts use `userspace`.
_FIXED_GOVERNORS = ("performance", "userspace")
# The chips for which the effect of a missing `dmc` was measured.
_DMC_CHIPS = ("rk3588", "rk3588s")


@dataclass(frozen=True, slots=True)
class Clocks:
    """What the kernel reports; names without a value are not in it.

    `governors` are by the part of the board, such as "CPUs 4-7", "NPU" and "memory". `slow_parts`
    are those of them whose clock changes with the load, small CPUs left out. `offline` and `small`
    are numbers of CPUs.
    """

    governors: dict[str, str]
    slow_parts: tuple[str, ...]
    offline: tuple[int, ...]
    small: tuple[int, ...]
    has_dmc: bool


def read_clocks(root: Path = _ROOT) -> Clocks:
    """Read the governors and the CPUs from the kernel; no part of it needs root."""
    small = _find_small_cpus(root)
    governors, slow = {}, []
    for cpus, governor in _read_cpu_governors(root).items():
        part = f"CPUs {format_cpus(cpus)}"
        governors[part] = governor
        if governor not in _FIXED_GOVERNORS and not small.issuperset(cpus):
            slow.append(part)
    for part, pattern in (("NPU", "*npu*"), ("memory", "dmc")):
        for path in sorted((root / _DEVFREQ).glob(f"{pattern}/governor")):
            governors[part] = governor = _read(path)
            if governor and governor not in _FIXED_GOVERNORS:
                slow.append(part)
    return Clocks(
        governors,
        tuple(slow),
        parse_cpus(_read(root / _CPUS / "offline")),
        tuple(sorted(small)),
        (root / _DEVFREQ / "dmc").exists(),
    )


def report_clocks(root: Path = _ROOT) -> Iterator[tuple[str, str]]:
    """Yield the doctor's findings about governors and CPUs that are off."""
    clocks = read_clocks(root)
    if clocks.governors:
        yield "governors", ", ".join(f"{part} {name}" for part, name in clocks.governors.items())
    if clocks.offline:
        yield "CPUs that are off", format_cpus(clocks.offline)


def find_speed_warning(cpu_mask: int, root: Path = _ROOT) -> str | None:
    """Return one sentence on all that costs this board speed; None without any, or elsewhere.

    `cpu_mask` is RKLLM_CPU_MASK, 0 for the runtime's own choice.
    """
    driver = read_driver(root)
    if driver.board is None:
        return None
    clocks, reasons = read_clocks(root), []
    if clocks.slow_parts:
        parts = ", ".join(f"{part} {clocks.governors[part]}" for part in clocks.slow_parts)
        reasons.append(f"governors that are not performance: {parts}")
    if not clocks.has_dmc and driver.chip in _DMC_CHIPS:
        reasons.append("a kernel without /sys/class/devfreq/dmc, which scales the memory's clock")
    if clocks.offline:
        reasons.append(f"CPUs that are off: {format_cpus(clocks.offline)}")
    if small := [cpu for cpu in clocks.small if cpu_mask >> cpu & 1]:
        reasons.append(f"small CPUs in RKLLM_CPU_MASK: {format_cpus(small)}")
    return f"this board is slower than it could be, by {'; '.join(reasons)}" if reasons else None


def parse_cpus(text: str) -> tuple[int, ...]:
    """Return the numbers in a list of the kernel, such as "0-2,7"; none of a damaged one."""
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            return ()
        cpus += range(int(first), int(last or first) + 1)
    return tuple(cpus)


def format_cpus(cpus: tuple[int, ...] | list[int]) -> str:
    """Return numbers in the form of the kernel, such as "0-2,7"."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _read_cpu_governors(root: Path) -> dict[tuple[int, ...], str]:
    """Return the governors by their CPUs; those with one governor are together if neighbours."""
    merged: list[tuple[tuple[int, ...], str]] = []
    policies = []
    for folder in (root / _CPUS / "cpufreq").glob("policy*"):
        cpus = parse_cpus(_read(folder / "related_cpus").replace(" ", ","))
        if cpus and (governor := _read(folder / "scaling_governor")):
            policies.append((cpus, governor))
    for cpus, governor in sorted(policies):
        if merged and merged[-1][1] == governor and _have_one_size(root, merged[-1][0], cpus):
            merged[-1] = ((*merged[-1][0], *cpus), governor)
        else:
            merged.append((cpus, governor))
    return dict(merged)


def _have_one_size(root: Path, first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    small = _find_small_cpus(root)
    return small.issuperset(first) == small.issuperset(second)


def _find_small_cpus(root: Path) -> set[int]:
    """Return the CPUs that are far slower than others; none where the kernel does not say."""
    capacities = {
        int(path.parent.name[3:]): int(text)
        for path in (root / _CPUS).glob("cpu[0-9]*/cpu_capacity")
        if (text := _read(path)).isdecimal()
    }
    min_capacity = _BIG_SHARE * max(capacities.values(), default=0)
    return {cpu for cpu, capacity in capacities.items() if capacity < min_capacity}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
