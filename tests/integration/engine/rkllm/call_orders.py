"""The table "Order of calls" in docs/rkllm.md, and the calls of a log as words of its patterns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.fake_rkllm import Call, read_log

PAGE = Path(__file__).resolve().parents[4] / "docs" / "rkllm.md"
_COLUMNS = 5
_WORD = re.compile(r"…|[a-z_]+(?:\[[a-z,]+\])?")
_MODES = {"0": "", "1": "hidden", "2": "logits"}
_CALLS = {
    "rkllm_init",
    "rkllm_destroy",
    "rkllm_load_lora",
    "rkllm_clear_kv_cache",
    "rkllm_run_async",
    "rkllm_set_chat_template",
    "rkllm_set_function_tools",
    "refused",
    "crash",
}


class CallOrder(NamedTuple):
    """A row of the table."""

    name: str
    pattern: str
    status: str
    source: str
    use: str

    @property
    def is_used(self) -> bool:
        """Whether this worker makes the calls."""
        return self.use.startswith("yes")

    @property
    def is_crashing(self) -> bool:
        """Whether users report that the order fails."""
        return self.status.startswith("reported as crashing")

    def occurs_in(self, calls: list[str]) -> bool:
        """Return whether calls contain the order; one that begins with init must be all of them."""
        regex, text = _regex(self.pattern), "".join(f"{call} " for call in calls)
        is_complete = self.pattern.startswith("init ") and self.pattern.endswith(" destroy")
        return bool(re.fullmatch(regex, text) if is_complete else re.search(regex, text))


def read_orders() -> dict[str, CallOrder]:
    """Return the rows of the table by their names."""
    section = PAGE.read_text(encoding="utf-8").split("\n## Order of calls\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert all(len(row) == _COLUMNS for row in cells), cells
    return {row[0]: CallOrder(row[0], row[1].strip("`"), *row[2:]) for row in cells}


def read_calls(log: Path) -> dict[int, list[str]]:
    """Return the calls of each process in order, with the properties that the patterns name."""
    calls: dict[int, list[str]] = {}
    for call in read_log(log):
        made = calls.setdefault(call.pid, [])
        word = _word(call)
        if call.name == "init_failed":
            made[-1] = "init[failed]"
        elif call.name == "rkllm_abort" and [word] == made[-1:]:
            # An abort is repeated until it has an effect.
            continue
        elif word is not None:
            made.append(word)
    return {pid: made for pid, made in calls.items() if made}


def _word(call: Call) -> str | None:
    values = call.values
    match call.name:
        case "rkllm_run":
            return f"run[{','.join(_run_properties(values))}]"
        case "run_end":
            return "end[empty]" if values["said"] == "0" else "end"
        case "rkllm_abort":
            return "abort[callback]" if values["inside_callback"] == "1" else "abort[thread]"
        case name if name in _CALLS:
            return name.removeprefix("rkllm_")
    return None


def _run_properties(values: dict[str, str]) -> Iterator[str]:
    properties = [
        _MODES[values["mode"]],
        "history" if values["history"] == "1" else "",
        "save" if values["saves"] == "1" else "",
        "lora" if values["lora"] != "-" else "",
        "batch" if values["places"] != "1" else "",
    ]
    yield from filter(None, properties)
    if not any(properties):
        yield "plain"
    if values["history"] == "0":
        yield "fresh"


def _regex(pattern: str) -> str:
    """Return a pattern as a regular expression for words that each end with a space."""
    parts = re.split(f"({_WORD.pattern})", pattern)
    return "".join(
        f"(?:{_word_regex(part)})" if _WORD.fullmatch(part) else part.replace(" ", "")
        for part in parts
    )


def _word_regex(word: str) -> str:
    if word == "…":
        return r"(?:(?!init|destroy)\S+ )*"
    name, _, properties = word.rstrip("]").partition("[")
    required = "".join(rf"(?=[^\]]*\b{each}\b)" for each in properties.split(",") if each)
    return rf"{name}\[{required}[^\]]*\] " if required else rf"{name}(?:\[[^\]]*\])? "
