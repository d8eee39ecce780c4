"""Messages of the commands on stderr."""

from __future__ import annotations

from rich.console import Console


def say(console: Console, text: str) -> None:
    """Print a message as it is, without markup or line wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
