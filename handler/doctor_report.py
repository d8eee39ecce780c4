"""What the doctor found, as Markdown that a person can post."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from engine import BackendConfig
from engine.doctor import BEGINS, FAILED
from handler.terminal_text import escape_controls

# Step, name, value.
Finding = tuple[str, str, Any]

_NOT_SEEN = "not seen"
# More than an allocator's own ups and downs.
_GROWTH_MB = 4
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_OTHERS_HOMES = r"(?<![\w.-])(?:/(?:home|Users)/[\w.-]+|/root(?![\w.-]))"


@dataclass(slots=True)
class Examination:
    """All that came of one: `ended` is what ended it before its time, `printed` lines of stderr."""

    findings: list[Finding] = field(default_factory=list)
    ended: str = ""
    printed: list[str] = field(default_factory=list)

    @property
    def step(self) -> str:
        """The step that was last begun."""
        return self.findings[-1][0] if self.findings else "start"

    @property
    def failures(self) -> list[Finding]:
        """The steps that failed, as the findings that say so."""
        return [finding for finding in self.findings if finding[1] == FAILED]

    @property
    def whole(self) -> bool:
        """Whether every step was done."""
        return not self.ended and not self.failures


@dataclass(frozen=True, slots=True)
class Assumption:
    """What the RKLLM engine is built on, and the finding that shows whether it is so."""

    told: str
    step: str
    name: str
    holds: Callable[[Any], bool]


ASSUMPTIONS = (
    Assumption(
        "Callbacks come on the thread that called `rkllm_run`.",
        "first run",
        "callbacks on the calling thread",
        lambda value: value is True,
    ),
    Assumption(
        "The runtime counts as many tokens as it calls back for, or one less.",
        "first run",
        "callbacks beyond the runtime's count",
        lambda value: value in (0, 1),
    ),
    Assumption(
        "`max_tokens` of 5 brings exactly 5 callbacks (with 1.2, where it takes an abort, more of "
        "them do no harm).",
        "limit of 5 tokens",
        "callbacks beyond the limit",
        lambda value: value == 0,
    ),
    Assumption(
        "A prompt that begins with the last one and its answer is read from there (not with "
        "`RKLLM_KV_REUSE=off` or `RKLLM_N_BATCH`).",
        "next turn",
        "tokens reused",
        lambda value: value > 0,
    ),
    Assumption(
        "An abort does not interrupt prefill.",
        "abort in prefill",
        "prefill interrupted",
        lambda value: value is False,
    ),
    Assumption(
        "Resident memory does not grow from run to run.",
        "afterwards",
        "growth over these runs, MB",
        lambda value: value <= _GROWTH_MB,
    ),
)
_ASSUMED = {(each.step, each.name): each for each in ASSUMPTIONS}


def report(backend: BackendConfig, examination: Examination) -> str:
    """Return the whole page, home directories in it shown as ~."""
    assumes = backend.backend == "rkllm"
    parts = [
        "# What `python -m handler doctor` found",
        _section("settings", [("ENGINE", backend.backend), *backend.options.items()]),
    ]
    for step, findings in groupby(examination.findings, itemgetter(0)):
        lines = [
            _line(name, value) + (_mark(step, name, value) if assumes else "")
            for _, name, value in findings
            if name != BEGINS
        ]
        if lines:
            parts.append(_titled(step, lines))
    if assumes:
        parts.append(_titled("what is assumed of RKLLM", _assumptions(examination.findings)))
    words = _fenced(examination.printed)
    if not examination.ended:
        parts += [_titled("what was printed", [words])] if words else []
        words = ""
    parts.append(_titled("what failed", _failures(examination)))
    if words:
        parts.append(f"What was printed, its last words at the end:\n\n{words}")
    return _without_homes("\n\n".join(parts) + "\n")


def _titled(title: str, lines: list[str]) -> str:
    return "\n".join([f"## {title[0].upper()}{title[1:]}", "", *lines])


def _section(title: str, values: list[tuple[str, Any]]) -> str:
    return _titled(title, [_line(name, value) for name, value in values if value is not None])


def _line(name: str, value: Any) -> str:
    return f"- {name}: {_shown(value)}"


def _mark(step: str, name: str, value: Any) -> str:
    assumption = _ASSUMED.get((step, name))
    if assumption is None or value is None or assumption.holds(value):
        return ""
    return " — **not as assumed**"


def _assumptions(findings: list[Finding]) -> list[str]:
    seen = {(step, name): value for step, name, value in findings}
    rows = ["| assumed | seen | verdict |", "|---|---|---|"]
    for each in ASSUMPTIONS:
        value = seen.get((each.step, each.name))
        verdict = "" if value is None else "so" if each.holds(value) else "**not so**"
        rows.append(f"| {each.told} | {each.name}: {_shown(value)} | {verdict} |")
    return rows


def _failures(examination: Examination) -> list[str]:
    lines = [f"- {step}: {_shown(value)}" for step, _, value in examination.failures]
    if examination.ended:
        lines.append(f"- {examination.step}: {examination.ended}")
    return lines or ["Nothing: every step was done."]


def _shown(value: Any) -> str:
    if value is None:
        return _NOT_SEEN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        value = ", ".join(f"{name} {_number(each)}" for name, each in value.items()) or "none"
    return _code(value) if isinstance(value, str) else _number(value)


def _number(value: Any) -> str:
    # C's floats have more digits than meaning.
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


def _code(text: str) -> str:
    """Return text as code, so that nothing in it is Markdown, a mention or a reference."""
    text = _visible(text) or "nothing"
    ticks = _ticks(text, least=1)
    room = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{room}{text}{room}{ticks}"


def _fenced(lines: list[str]) -> str:
    shown = [_visible(line) for line in lines]
    ticks = _ticks("\n".join(shown), least=3)
    return "\n".join([f"{ticks}text", *shown, ticks]) if shown else ""


def _ticks(text: str, least: int) -> str:
    longest = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(longest + 1, least)


def _visible(text: str) -> str:
    return escape_controls(_ANSI.sub("", text))


def _without_homes(text: str) -> str:
    return re.sub("|".join([*_own_homes(), _OTHERS_HOMES]), "~", text)


def _own_homes() -> Iterator[str]:
    home = os.path.expanduser("~")
    for each in {home, os.path.realpath(home)} - {"/", "~"}:
        yield rf"{re.escape(each)}(?![\w.-])"
