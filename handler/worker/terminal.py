"""Print a local job on a terminal: its text as it is generated, the verdict, the output."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TextIO

import orjson

from common.terminal_text import escape_json, replace_controls


class TerminalReport:
    """Prints one job in readable form.

    `add` prints the new text of each output that the job yields; `end` prints the rest.
    """

    def __init__(self, out: TextIO | None = None, errors: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._errors = errors or sys.stderr
        self._streamed = ""

    def add(self, output: Any) -> None:
        """Print the text of a partial output; `end` prints the final output."""
        if isinstance(output, str):
            # Events of a streamed OpenAI call.
            self._print(output)
        elif isinstance(output, dict) and output.get("choices") and "usage" not in output:
            self._print(output["choices"][0]["text"])

    def end(self, output: Any) -> None:
        """Print the remaining text, the verdict in one line, and the output as JSON."""
        final = output[-1] if isinstance(output, list) and output else output
        if isinstance(final, dict) and "error" in final:
            if self._streamed:
                self._out.write("\n")
            self._out.flush()
            self._errors.write(f"{replace_controls(str(final['error']))}\n")
            return
        if isinstance(final, dict) and "timings" in final:
            text = final["choices"][0]["text"]
            if not self._streamed:
                self._print(text)
            elif text != self._streamed:
                self._print("\n\nAfter sanitising:\n" + text)
            self._out.write(f"\n\n{summarize(final)}\n\n")
        elif self._streamed:
            self._out.write("\n\n")
        self._out.write(format_json(output) + "\n")
        self._out.flush()

    def _print(self, text: str) -> None:
        self._streamed += text
        self._out.write(replace_controls(text))
        self._out.flush()


def summarize(output: Mapping[str, Any]) -> str:
    """Return the verdict, the notices, the tokens and the time of a job's output in one line.

    The time excludes waiting for a slot and loading the model.
    """
    parts = []
    notices: list[str] = []
    if (validation := output.get("validation")) is not None:
        issues = " ".join(validation["issues"])
        parts += ["valid" if validation["valid"] else f"not valid: {issues}"]
        parts += [f"intent {validation['intent']}"]
        notices = [each["message"] for each in validation["details"]["notices"]]
    timings = output["timings"]
    duration_s = (timings["total_ms"] - timings["queue_ms"] - timings["load_ms"]) / 1000
    tokens = output["usage"]["output"]
    parts += [f"{tokens} token{'' if tokens == 1 else 's'} in {duration_s:.1f} s"]
    return replace_controls(" \u00b7 ".join([*parts, *(f"notice: {each}" for each in notices)]))


def format_json(value: Any, indent: str = "") -> str:
    """Format JSON with one line per object key, and arrays of plain values on one line."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        rows = [
            f"{inner}{_encode_json(str(key))}: {format_json(each, inner)}"
            for key, each in value.items()
        ]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        rows = [inner + format_json(each, inner) for each in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    if isinstance(value, list):
        return "[" + ", ".join(map(_encode_json, value)) + "]"
    return _encode_json(value)


def _encode_json(value: Any) -> str:
    return escape_json(orjson.dumps(value).decode())
