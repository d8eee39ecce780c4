"""`python -m emulator reset`: empty the queue and the results of an endpoint."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from common.argument_parser import Parser
from emulator.handler_tests.command import (
    DEFAULT_SERVER,
    EXIT_PASSED,
    EXIT_WRONG_USE,
    add_server_options,
    read_api_key,
    run_until_signal,
)


def main(argv: Sequence[str] | None = None, *, prog: str = "python -m emulator reset") -> int:
    """Reset an endpoint of a running server; return 0, or 2 if the server did not do it."""
    parser = Parser(
        prog=prog,
        description="Cancel the waiting and running jobs of an endpoint of a running server, and "
        "remove all its results.",
    )
    add_server_options(parser)
    options = parser.parse_args(argv)

    from common.terminal_text import escape_lines
    from emulator.handler_tests.job_client import JobRequestFailed, open_client

    async def reset() -> int:
        server = options.server or DEFAULT_SERVER
        async with open_client(server, options.endpoint, read_api_key(options)) as client:
            removed = await client.reset()
        sys.stdout.write(f"removed {removed:,} job{'' if removed == 1 else 's'}\n")
        return EXIT_PASSED

    try:
        return run_until_signal(reset())
    except JobRequestFailed as error:
        sys.stderr.write(f"{escape_lines(str(error))}\n")
        return EXIT_WRONG_USE
