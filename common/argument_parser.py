"""An argument parser that refuses unknown arguments with a suggestion.

Only the standard library is imported here, so that `--help` responds immediately.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """An argument parser that suggests the option that an unknown one resembles.

    Options must be written in full. Unknown arguments print the usage and exit with 2.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(*args, **options)

    def parse_known_args(  # type: ignore[override] # the base class has overloads
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse, and exit with 2 if an argument is unknown."""
        arguments = list(sys.argv[1:] if args is None else args)
        if self._subparsers is None:
            # First, because the error "a value is missing" would hide a misspelled option.
            known = self._option_string_actions
            if misspelled := [
                each
                for each in arguments
                if each[:2] == "--" and each != "--" and each.partition("=")[0] not in known
            ]:
                self._exit_unrecognized(misspelled)
        parsed, unknown = super().parse_known_args(arguments, namespace)
        if unknown:
            self._exit_unrecognized(unknown)
        return parsed, unknown

    def _exit_unrecognized(self, unknown: Sequence[str]) -> NoReturn:
        options = list(self._option_string_actions)
        name = unknown[0].partition("=")[0]
        similar = get_close_matches(name, options, n=1, cutoff=0.6)
        suggestion = f" (did you mean {similar[0]}?)" if similar else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{suggestion}")
