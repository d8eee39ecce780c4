"""A Python program of tests/acceptance/programs against this server: `example.py chat_requests.py`.

The placeholders are filled in. What the program prints after the answer is left out: a newline, and
for some a copy of the text.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TextIO

PROGRAMS = Path(__file__).parents[2] / "acceptance" / "programs"
PLACEHOLDERS = {
    "http://localhost:8000": os.environ["OPENAI_BASE_URL"],
    "sk-oracle-abc123def456ghi789jkl012mno345pqr678stu901vwx234yz": os.environ["OPENAI_API_KEY"],
    "llama-3-70b-bitnet": os.environ["TORTURE_MODEL"],
}
COPY = "\n\nFull response: "


class AnswerOutput(io.TextIOBase):
    """Writes the answer to a stream, without its last newline and without a copy of it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._held_newline = ""
        self._is_over = False

    def write(self, text: str, /) -> int:
        """Forward the text, except for a newline at its end: it may be the last one."""
        self._is_over |= text.startswith(COPY)
        if not self._is_over:
            held = self._held_newline + text
            answer = held.removesuffix("\n")
            self._held_newline = held[len(answer) :]
            self._stream.write(answer)
            self._stream.flush()
        return len(text)


def main() -> None:
    source = (PROGRAMS / sys.argv[1]).read_text()
    for placeholder, value in PLACEHOLDERS.items():
        source = source.replace(placeholder, value)
    with redirect_stdout(AnswerOutput(sys.stdout)):
        exec(compile(source, sys.argv[1], "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
