"""The NPU's load, clock and temperature, as its driver and the kernel report them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")
# Only root can read them; 0.9.8 writes a number for each core, and older ones a single number.
_LOAD_FILES = ("sys/kernel/debug/rknpu/load", "proc/debug/rknpu/load")
_PERCENT = re.compile(r"(\d+)\s*%")
_SAMPLE_S = 0.1


@dataclass(frozen=True, slots=True)
class NpuState:
    """The state at one moment; `load` has a ratio of 0 to 1 for each core."""

    load: tuple[float, ...] = ()
    clock_hz: float | None = None
    temperature_celsius: float | None = None


def read_npu(root: Path = _ROOT) -> NpuState:
    """Read the state; None stands for a value that the system does not have, or hides from this
    user."""
    text = next(filter(None, (_read(root / path) for path in _LOAD_FILES)), "")
    load = tuple(int(percent) / 100 for percent in _PERCENT.findall(text))
    clocks = (_read_number(path) for path in (root / "sys/class/devfreq").glob("*npu*/cur_freq"))
    return NpuState(load, next(clocks, None), _read_temperature(root))


def _read_temperature(root: Path) -> float | None:
    for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        if "npu" in _read(zone / "type"):
            # In thousandths of a degree.
            number = _read_number(zone / "temp")
            return None if number is None else number / 1000
    return None


class NpuWatch:
    """The highest values of several readings, which a thread of its own takes."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self.highest = NpuState()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Read the state again and again until the block ends, and once at its end."""
        ended = threading.Event()
        thread = threading.Thread(target=self._watch, args=(ended,), name="npu-watch")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _watch(self, ended: threading.Event) -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(_SAMPLE_S)
            self._add(read_npu(self._root))

    def _add(self, state: NpuState) -> None:
        before = self.highest
        load = tuple(map(max, before.load, state.load)) if before.load else state.load
        self.highest = NpuState(
            load,
            _higher(before.clock_hz, state.clock_hz),
            _higher(before.temperature_celsius, state.temperature_celsius),
        )


def _higher(first: float | None, second: float | None) -> float | None:
    known = [number for number in (first, second) if number is not None]
    return max(known, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _read_number(path: Path) -> float | None:
    text = _read(path)
    return float(text) if text.lstrip("-").isdecimal() else None
