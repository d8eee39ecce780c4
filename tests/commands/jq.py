"""`jq FILTER`: jq itself, from its wheel, for the suite on a system without the program.

It reads JSON values from stdin and prints each result indented by two spaces, as jq does. Invalid
JSON and an invalid filter end it with exit code 5 and 3, which are jq's own.
"""

from __future__ import annotations

import argparse
import json
import sys

# Only where the system has no jq is there such a package.
import jq  # type: ignore[import-not-found,unused-ignore]


def main() -> int:
    """Run the filter over stdin and return the exit code."""
    parser = argparse.ArgumentParser(prog="jq")
    parser.add_argument("-r", "--raw-output", action="store_true")
    parser.add_argument("-c", "--compact-output", action="store_true")
    parser.add_argument("filter", nargs="?", default=".")
    options = parser.parse_args()
    try:
        program = jq.compile(options.filter)
    except ValueError as error:
        sys.stderr.write(f"jq: error: {error}\n")
        return 3
    layout = {"separators": (",", ":")} if options.compact_output else {"indent": 2}
    try:
        for value in program.input_text(sys.stdin.read()):
            is_raw = options.raw_output and isinstance(value, str)
            text = value if is_raw else json.dumps(value, ensure_ascii=False, **layout)
            sys.stdout.write(f"{text}\n")
    except ValueError as error:
        sys.stderr.write(f"jq: error: {error}\n")
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main())
