"""Messages of the commands on stderr."""

from __future__ import annotations

from rich.console import Console

from common.terminal_text import escape_lines


def print_message(console: Console, text: str) -> None:
    """Print a message without markup or line wrapping, and with its control characters escaped.

    Messages contain ids, URLs and file names from users, and a terminal would execute control
    sequences in them.
    """
    console.print(escape_lines(text), markup=False, highlight=False, soft_wrap=True)
