"""Read recordings of RKLLM's library, and turn them into a script for the fake library.

docs/recordings.md has the format. A recording has one process; those of the processes that followed
it have .2, .3 and so on before the suffix.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from tests.fake_rkllm import quoted

FORMAT, VERSION = "rkllm-recording", 1
NORMAL, WAITING, FINISH, ERROR = range(4)
# The largest number in a script.
_MAX_NUMBER = 1_000_000_000
# A run that received an abort and then made no callback for so long had hung. A crash ends the
# process at once.
_HANG_US = 200_000


@dataclass(frozen=True, slots=True)
class Result:
    """A callback; each token is its id (None if it was left out), length and, if recorded, text."""

    time_us: int
    state: int
    is_caller_thread: bool
    tokens: list[list[Any]]
    details: dict[str, Any]


@dataclass(slots=True)
class RecordedRun:
    """A call of `rkllm_run` and its callbacks; `code` is None if it did not return."""

    time_us: int
    arguments: dict[str, Any]
    results: list[Result] = field(default_factory=list)
    late_results: list[Result] = field(default_factory=list)
    abort_times_us: list[int] = field(default_factory=list)
    return_us: int | None = None
    code: int | None = None
    cache_size: int | None = None
    hung: bool = False
    printed: list[str] = field(default_factory=list)

    @property
    def crashed(self) -> bool:
        """Whether the process ended in this call."""
        return self.return_us is None and not self.hung


@dataclass(slots=True)
class RecordedLoad:
    """A call of `rkllm_init` and the runs of its handle; `code` is None if it did not return."""

    time_us: int
    arguments: dict[str, Any]
    runs: list[RecordedRun] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    return_us: int | None = None
    code: int | None = None


@dataclass(slots=True)
class Recording:
    """The calls of one process."""

    header: dict[str, Any]
    loads: list[RecordedLoad] = field(default_factory=list)
    # Whether get_kv_cache_size failed; the outcome of clear_kv_cache: works, fails or lies.
    cache_size_fails: bool = False
    clear: str = "works"

    @property
    def runs(self) -> list[RecordedRun]:
        """The runs of all loads."""
        return [run for load in self.loads for run in load.runs]


def read_recordings(path: Path) -> list[Recording]:
    """Return the recordings of a process and of those that followed it. Raises ValueError."""
    paths = [path]
    for number in count(2):
        following = path.with_name(f"{path.stem}.{number}{path.suffix}")
        if not following.exists():
            return [read_recording(each) for each in paths]
        paths.append(following)
    raise AssertionError("unreachable")


def read_recording(path: Path) -> Recording:
    """Return the recording of one process. Raises ValueError, with the line's number."""
    lines = path.read_text(encoding="utf-8").splitlines()
    header, *events = [_parse_line(path, number, line) for number, line in enumerate(lines, 1)]
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f"{path} is not a recording: its first line has no format {FORMAT}")
    if header.get("version") != VERSION:
        raise ValueError(f"{path}: version must be {VERSION}, got {header.get('version')}")
    return _Reader(Recording(header)).read(events)


def _parse_line(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path}:{number}: {error}") from None


class _Reader:
    """Builds a recording from its events."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._names: dict[int, str] = {}
        self._runs: dict[int, RecordedRun] = {}
        self._active_run: RecordedRun | None = None
        self._was_cleared = False

    def read(self, events: Sequence[list[Any]]) -> Recording:
        """Read all events."""
        is_full = False
        last_us = 0
        for kind, *values in events:
            is_full = kind == "full"
            if not is_full:
                last_us = values[0]
                getattr(self, f"_read_{kind}")(*values)
        if (run := self._active_run) is not None:
            if is_full:
                # The end of this run is missing because the file has reached its limit.
                self._recording.loads[-1].runs.remove(run)
            last_result_us = run.results[-1].time_us if run.results else run.time_us
            was_aborted = any(time_us >= last_result_us for time_us in run.abort_times_us)
            run.hung = was_aborted and last_us - last_result_us >= _HANG_US
        return self._recording

    def _read_call(
        self, time_us: int, number: int, name: str, arguments: dict[str, Any] | None = None
    ) -> None:
        self._names[number] = name
        if name == "init":
            self._recording.loads.append(RecordedLoad(time_us, arguments or {}))
        elif name in ("run", "run_async") and arguments is not None:
            self._active_run = RecordedRun(time_us, arguments)
            self._runs[arguments["run"] or 0] = self._active_run
            self._recording.loads[-1].runs.append(self._active_run)
            self._was_cleared = False
        elif name == "abort" and self._active_run is not None:
            self._active_run.abort_times_us.append(time_us)

    def _read_return(
        self, time_us: int, number: int, code: int | None, results: dict[str, Any] | None = None
    ) -> None:
        match self._names[number]:
            case "init":
                load = self._recording.loads[-1]
                load.return_us, load.code = time_us, code
            case "run" | "run_async" if self._active_run is not None:
                self._active_run.return_us, self._active_run.code = time_us, code
                self._active_run = None
            case "clear_kv_cache":
                self._was_cleared = True
                if code:
                    self._recording.clear = "fails"
            case "get_kv_cache_size":
                self._read_cache_size(results)

    def _read_cache_size(self, results: dict[str, Any] | None) -> None:
        if results is None:
            self._recording.cache_size_fails = True
            return
        size = results["sizes"][0]
        if self._was_cleared:
            if size and self._recording.clear == "works":
                self._recording.clear = "lies"
        elif self._recording.runs:
            self._recording.runs[-1].cache_size = size

    def _read_result(
        self,
        time_us: int,
        number: int,
        state: int,
        is_caller_thread: int,
        tokens: list[list[Any]],
        details: dict[str, Any] | None = None,
    ) -> None:
        run = self._runs[number]
        result = Result(time_us, state, bool(is_caller_thread), tokens, details or {})
        (run.results if run.return_us is None else run.late_results).append(result)

    def _read_printed(self, time_us: int, lines: list[str]) -> None:
        load = self._recording.loads[-1]
        (load.runs[-1] if load.runs else load).printed += lines


def build_script(recordings: Sequence[Recording]) -> str:
    """Return a script that plays the recorded processes back, one after the other.

    Texts that were not recorded are replaced by letters of the same length in bytes.
    """
    return "\n".join(_build_lines(recordings)) + "\n"


def placeholder(index: int, length: int) -> bytes:
    """Return the text that stands for the token of an answer that was not recorded."""
    return bytes([ord("a") + index % 26]) * length


def _build_lines(recordings: Sequence[Recording]) -> Iterator[str]:
    if any(recording.cache_size_fails for recording in recordings):
        yield "cache_size fails"
    for outcome in {recording.clear for recording in recordings} - {"works"}:
        yield f"clear {outcome}"
    numbered = [
        (f"process={process} init={init}", load)
        for process, recording in enumerate(recordings, 1)
        for init, load in enumerate(recording.loads, 1)
    ]
    for position, load in numbered:
        yield _build_load(position, load)
    for position, load in numbered:
        for number, run in enumerate(load.runs, 1):
            yield f"answer {position} run={number}"
            yield from (f"  {line}" for line in _build_answer(run))


def _build_load(position: str, load: RecordedLoad) -> str:
    lines = " ".join(quoted(line) for line in load.printed)
    if load.return_us is None:
        return f"load {position} {lines} crashes"
    return f"load {position} us={load.return_us - load.time_us} returns={load.code} {lines}"


def _build_answer(run: RecordedRun) -> Iterator[str]:
    uses_other_threads = not all(result.is_caller_thread for result in run.results)
    yield f"thread {'alternate' if uses_other_threads else 'caller'}"
    # A run that was aborted is played to its recorded end. Another one ends at an abort.
    yield "abort ignored" if run.abort_times_us else "abort ms=0 finish"
    yield "cache told"
    if run.printed:
        yield f"print {' '.join(quoted(line) for line in run.printed)}"
    if run.cache_size is not None:
        yield f"cache_size {run.cache_size}"
    if not any(result.state == FINISH for result in run.results):
        yield "finish none"
    index = 0
    for result in run.results:
        if result.state == FINISH:
            yield from _build_statistics(result)
        yield _build_result(result, run.time_us, index)
        index += result.state in (NORMAL, WAITING)
    if run.late_results and run.return_us is not None:
        last = run.late_results[-1]
        late_ms = max(1, (last.time_us - run.return_us) // 1000)
        finish = "finish" if last.state == FINISH else ""
        yield f"late {len(run.late_results)} ms={late_ms} {finish}"
    if run.return_us is not None:
        yield f"ends at={_clamp(run.return_us - run.time_us)} returns={run.code}"
        return
    last_us = run.results[-1].time_us if run.results else run.time_us
    yield f"ends at={_clamp(last_us - run.time_us)} {'hangs' if run.hung else 'crashes'}"


def _build_statistics(result: Result) -> Iterator[str]:
    # In a script, a number with a sign is an offset, so negative ones cannot be expressed.
    numbers = " ".join(
        f"{name}={value}"
        for name, value in result.details.items()
        if value is not None and 0 <= value <= _MAX_NUMBER
    )
    if numbers:
        yield f"perf {numbers}"


def _build_result(result: Result, started_us: int, index: int) -> str:
    words = [f"result at={_clamp(result.time_us - started_us)} state={result.state}"]
    if not result.is_caller_thread:
        words.append("other")
    for name, word in (("hidden_states", "hidden"), ("logits", "logits")):
        if name in result.details:
            rows, width = result.details[name]
            words.append(f"{word} rows={max(rows, 0)} width={max(width, 0)}")
    for token_id, length, *text in result.tokens:
        if token_id is not None:
            words.append(f"id={token_id}")
        if length is None:
            words.append("null")
        elif text:
            words.append(quoted(text[0].encode("utf-8", "surrogateescape")))
        else:
            words.append(quoted(placeholder(index, length)))
    return " ".join(words)


def _clamp(number: int) -> int:
    return min(max(number, 0), _MAX_NUMBER)
