"""Format the doctor's findings as a Markdown report."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from common.product_version import describe_version
from common.terminal_text import escape_controls
from common.url_credentials import hide_credentials
from engine import BackendConfig
from engine.backends.options import options_to_wire
from engine.doctor.examiner import BEGINS, FAILED

# Step, name and value.
Finding = tuple[str, str, Any]

# Why an examination ended early: the user pressed Ctrl-C.
INTERRUPTED = "it was interrupted"
_NOT_MEASURED = "not seen"
# Growth up to this size may come from the allocator.
_MAX_GROWTH_MB = 4
_ANSI_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ANY_HOME = r"(?<![\w.-])(?:/(?:home|Users)/[\w.-]+|/root(?![\w.-]))"


@dataclass(slots=True)
class Examination:
    """The result of one examination.

    `trials` are the findings of the processes before it. `ended` is the reason if it ended early,
    otherwise "". `printed` are lines of stderr.
    """

    findings: list[Finding] = field(default_factory=list)
    trials: list[Finding] = field(default_factory=list)
    ended: str = ""
    printed: list[str] = field(default_factory=list)

    @property
    def was_interrupted(self) -> bool:
        """Whether the user ended it, so that nothing more is to be examined."""
        return self.ended == INTERRUPTED

    @property
    def step(self) -> str:
        """The step that started last."""
        return self.findings[-1][0] if self.findings else "start"

    @property
    def failures(self) -> list[Finding]:
        """The findings about failed steps."""
        return [each for each in (*self.findings, *self.trials) if each[1] == FAILED]

    @property
    def succeeded(self) -> bool:
        """Whether all steps succeeded."""
        return not self.ended and not self.failures


@dataclass(frozen=True, slots=True)
class Assumption:
    """A runtime property that the RKLLM engine relies on, and the finding that verifies it."""

    description: str
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
        lambda value: value <= _MAX_GROWTH_MB,
    ),
)
_ASSUMPTION_BY_FINDING = {(each.step, each.name): each for each in ASSUMPTIONS}


def format_report(backend: BackendConfig, examination: Examination) -> str:
    """Return the report as Markdown, with home directories replaced by `~`."""
    is_rkllm = backend.backend == "rkllm"
    options = _hide_secrets(options_to_wire(backend.options))
    parts = [
        "# What the doctor found",
        _format_values(
            "settings",
            [("version", describe_version()), ("ENGINE", backend.backend), *options.items()],
        ),
    ]
    findings_and_trials = (*examination.findings, *examination.trials)
    for step, findings in groupby(findings_and_trials, itemgetter(0)):
        lines = [
            _format_line(name, value) + (_format_mark(step, name, value) if is_rkllm else "")
            for _, name, value in findings
            if name != BEGINS
        ]
        if lines:
            parts.append(_format_section(step, lines))
    if is_rkllm:
        parts.append(
            _format_section("what is assumed of RKLLM", _format_assumptions(examination.findings))
        )
    printed = _format_code_block(examination.printed)
    if not examination.ended:
        parts += [_format_section("what was printed", [printed])] if printed else []
        printed = ""
    parts.append(_format_section("what failed", _format_failures(examination)))
    if printed:
        parts.append(f"What was printed, the last lines at the end:\n\n{printed}")
    return hide_homes("\n\n".join(parts) + "\n")


def _hide_secrets(options: dict[str, Any]) -> dict[str, Any]:
    """Return options without those of the openai engine that a report must not have."""
    if "urls" in options:
        urls = [hide_credentials(url) for url in options["urls"]]
        return options | {"urls": urls, "key": options["key"] and "***"}
    return options


def _format_section(title: str, lines: list[str]) -> str:
    return "\n".join([f"## {title[0].upper()}{title[1:]}", "", *lines])


def _format_values(title: str, values: list[tuple[str, Any]]) -> str:
    return _format_section(
        title, [_format_line(name, value) for name, value in values if value is not None]
    )


def _format_line(name: str, value: Any) -> str:
    return f"- {name}: {_format_value(value)}"


def _format_mark(step: str, name: str, value: Any) -> str:
    assumption = _ASSUMPTION_BY_FINDING.get((step, name))
    if assumption is None or value is None or assumption.holds(value):
        return ""
    return " — **not as assumed**"


def _format_assumptions(findings: list[Finding]) -> list[str]:
    values = {(step, name): value for step, name, value in findings}
    rows = ["| assumed | seen | verdict |", "|---|---|---|"]
    for each in ASSUMPTIONS:
        value = values.get((each.step, each.name))
        verdict = "" if value is None else "so" if each.holds(value) else "**not so**"
        rows.append(f"| {each.description} | {each.name}: {_format_value(value)} | {verdict} |")
    return rows


def _format_failures(examination: Examination) -> list[str]:
    lines = [f"- {step}: {_format_value(value)}" for step, _, value in examination.failures]
    if examination.ended:
        lines.append(f"- {examination.step}: {examination.ended}")
    return lines or ["Nothing: every step was done."]


def _format_value(value: Any) -> str:
    if value is None:
        return _NOT_MEASURED
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        value = (
            ", ".join(f"{name} {_format_number(each)}" for name, each in value.items()) or "none"
        )
    return _format_code(value) if isinstance(value, str) else _format_number(value)


def _format_number(value: Any) -> str:
    # Single-precision floats have about six significant digits.
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


def _format_code(text: str) -> str:
    """Return text as Markdown code, so that it contains no markup, mention or reference."""
    text = _escape_invisible(text) or "nothing"
    ticks = _backticks(text, min_count=1)
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{padding}{text}{padding}{ticks}"


def _format_code_block(lines: list[str]) -> str:
    visible = [_escape_invisible(line) for line in lines]
    ticks = _backticks("\n".join(visible), min_count=3)
    return "\n".join([f"{ticks}text", *visible, ticks]) if visible else ""


def _backticks(text: str, min_count: int) -> str:
    longest = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(longest + 1, min_count)


def _escape_invisible(text: str) -> str:
    return escape_controls(_ANSI_SEQUENCE.sub("", text))


def hide_homes(text: str) -> str:
    """Return a text with home folders as `~`: their names are those of persons."""
    return re.sub("|".join([*_own_home_patterns(), _ANY_HOME]), "~", text)


def _own_home_patterns() -> Iterator[str]:
    home = os.path.expanduser("~")
    for each in {home, os.path.realpath(home)} - {"/", "~"}:
        yield rf"{re.escape(each)}(?![\w.-])"
