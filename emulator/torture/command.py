"""`worker-rkllm torture`: a verdict on a client of a streaming API."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from common.argument_parser import Parser

if TYPE_CHECKING:
    from emulator.torture.shape import Shape

EXIT_RIGHT, EXIT_WRONG, EXIT_WRONG_USE = 0, 1, 2
# Some clients repeat a request for 40 s.
_DEFAULT_TIMEOUT_S = 90.0
_MAX_CLIENTS = 32
_EXAMPLES = """\
examples:
  %(prog)s --client "python my_client.py"
  %(prog)s --client "node my_client.mjs" --junit-xml verdicts.xml
  %(prog)s --client "python my_client.py" --shapes "end-in-text,bom"
  %(prog)s --list

The client sends one request to OPENAI_BASE_URL, ANTHROPIC_BASE_URL, OLLAMA_HOST or
RUNPOD_ENDPOINT_BASE_URL, prints exactly the text of the answer to its standard output and exits
with 0. If there is no whole answer, it exits with another code. It runs once for each shape.

exit codes: 0 all verdicts are right; 1 a verdict is wrong; 2 wrong use, see the message;
130 interrupted"""


def main(argv: Sequence[str] | None = None, *, prog: str = "python -m emulator torture") -> int:
    """Run the command and return its exit code.

    The imports are in the functions, so that `--help` is answered without them.
    """
    options = _parse(argv, prog)

    from common.setting_error import SettingError
    from emulator.handler_tests.command import run_until_signal

    if options.list:
        from emulator.torture.report import print_shapes

        with _closed_output_ignored():
            print_shapes(sys.stdout)
        return EXIT_RIGHT
    try:
        if options.junit_xml is not None:
            from emulator.handler_tests.junit import check_junit_file

            check_junit_file(options.junit_xml)
        if options.json is not None:
            from emulator.torture.report import check_json_file

            check_json_file(options.json)
        return run_until_signal(_torture(options))
    except SettingError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_WRONG_USE


@contextmanager
def _closed_output_ignored() -> Iterator[None]:
    """Print within the context, until the reader has ended, as `head` does after some lines."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes the output once more at its end, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(argv: Sequence[str] | None, prog: str) -> argparse.Namespace:
    parser = Parser(
        prog=prog,
        description="Run a client of a streaming API against broken and unusual streams, and judge "
        "what it printed.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--client", metavar="CMD", help="the client, as a command of the shell")
    parser.add_argument(
        "--shapes", metavar="NAMES", help="run these shapes only, separated by commas"
    )
    parser.add_argument("--list", action="store_true", help="print all shapes, and run nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts as JSON")
    parser.add_argument("--junit-xml", type=Path, metavar="FILE", help="write JUnit XML")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=_DEFAULT_TIMEOUT_S,
        metavar="S",
        help=f"a client that runs longer is hung, in seconds (default: {_DEFAULT_TIMEOUT_S:g})",
    )
    parser.add_argument(
        "--clients",
        type=_client_count,
        metavar="N",
        help="how many clients run at the same time (default: the number of CPUs)",
    )
    parser.add_argument("--verbose", action="store_true", help="print the log of the server")
    options = parser.parse_args(argv)
    if not options.list and not (options.client or "").strip():
        parser.error("--client is needed: the command that runs the client")
    return options


def _seconds(raw: str) -> float:
    try:
        seconds = float(raw)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("the timeout must be from 1 to 3600 seconds")
    return seconds


def _client_count(raw: str) -> int:
    try:
        count = int(raw)
    except ValueError:
        count = 0
    if not 1 <= count <= _MAX_CLIENTS:
        raise argparse.ArgumentTypeError(f"the number must be from 1 to {_MAX_CLIENTS}")
    return count


async def _torture(options: argparse.Namespace) -> int:
    # Imported only now, because it takes a second: wrong use is reported before that.
    from common.terminal_text import escape_lines
    from common.usable_cpus import count_usable_cpus
    from emulator.handler_tests.junit import write_junit_file
    from emulator.torture.client_process import ClientCommand
    from emulator.torture.report import VerdictReport, junit_case, write_json_file
    from emulator.torture.run import ClientNotUsable, examine_client, run_shapes
    from emulator.torture.server import run_shaped_server

    _configure_logging(is_verbose=options.verbose)
    command = ClientCommand(options.client, options.timeout)
    clients = options.clients or min(count_usable_cpus(), _MAX_CLIENTS)
    async with run_shaped_server(clients) as server:
        try:
            subject = await examine_client(command, server)
        except ClientNotUsable as error:
            sys.stderr.write(f"{escape_lines(str(error))}\n")
            return EXIT_WRONG_USE
        shapes = _select_shapes(subject.shapes(), options.shapes)
        report = VerdictReport(sys.stdout, sys.stderr, len(shapes))
        with report.showing_progress():
            results = await run_shapes(subject, shapes, server, report.start, report.add)
    with _closed_output_ignored():
        report.print_results(subject, results)
    if options.json is not None:
        write_json_file(options.json, subject, results)
    if options.junit_xml is not None:
        write_junit_file(options.junit_xml, subject.api, [junit_case(each) for each in results])
    return EXIT_RIGHT if all(each.is_right for each in results) else EXIT_WRONG


def _select_shapes(shapes: Sequence[Shape], names: str | None) -> Sequence[Shape]:
    """Return the shapes with these names. Raises SettingError if one is unknown."""
    from common.setting_error import SettingError
    from common.value_description import describe_value

    if names is None:
        return shapes
    by_name = {shape.name: shape for shape in shapes}
    # A shape that is named twice runs once.
    selected: dict[str, Shape] = {}
    for name in filter(None, (each.strip() for each in names.split(","))):
        if name not in by_name:
            raise SettingError(
                f"--shapes: {describe_value(name)} is not a shape of the client's API; the shapes "
                f"are {', '.join(by_name)}"
            )
        selected[name] = by_name[name]
    if not selected:
        raise SettingError("--shapes must name a shape, for example end-in-text")
    return list(selected.values())


def _configure_logging(*, is_verbose: bool) -> None:
    """Print the server's log only if the command is verbose."""
    import logging

    from handler.logs.configuration import configure_logging

    configure_logging("INFO", "auto")
    if not is_verbose:
        logging.getLogger().handlers = [logging.NullHandler()]
