"""What commands tell people."""

from __future__ import annotations

from rich.console import Console


def say(console: Console, text: str) -> None:
    """Tell a person something, as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
