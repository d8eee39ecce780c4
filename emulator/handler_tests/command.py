"""`python -m emulator test`: run the tests of a handler, or replay a kept job."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shlex
import signal
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.argument_parser import Parser

if TYPE_CHECKING:
    from emulator.autoscaling.program.worker_program import WorkerProgram
    from emulator.handler_tests.runner import HandlerTestResult
    from emulator.settings.emulator_settings import EmulatorSettings
    from emulator.tests_file.reader import HandlerTests

DEFAULT_SERVER = "http://127.0.0.1:8000"
EXIT_PASSED, EXIT_FAILED, EXIT_WRONG_USE, EXIT_INTERRUPTED = 0, 1, 2, 130
_MAX_TIMEOUT_S = 24 * 3600
# Options, each with another that makes it useless.
_NO_EFFECT = (
    *(("python", other) for other in ("command", "image", "build")),
    *(("command", other) for other in ("image", "build")),
)
_EXAMPLES = """\
examples:
  %(prog)s                                 the handler and the tests of this folder
  %(prog)s src/handler.py --tests smoke.json --junit-xml results.xml
  %(prog)s --command "python -u handler.py" what a Docker image runs
  %(prog)s --build .                        the image of this folder's Dockerfile
  %(prog)s --job 6f1c…-u1                  send a kept job of a running server again
  %(prog)s --job 6f1c…-u1 --save greeting  add it to the tests file

exit codes: 0 all tests have passed; 1 a test has failed; 2 wrong use, see the message;
130 interrupted"""


class _StoreOnce(argparse.Action):
    """Store the value of an option, and refuse a second one, which argparse would use silently."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option_string} may be used once")
        setattr(namespace, self.dest, values)


def main(argv: Sequence[str] | None = None, *, prog: str = "python -m emulator test") -> int:
    """Run the command and return its exit code.

    The imports are in the functions, so that `--help` is answered without them.
    """
    options = _parse(argv, prog)

    from common.setting_error import SettingError
    from common.terminal_text import escape_lines
    from emulator.handler_tests.job_client import JobRequestFailed

    try:
        if options.job is not None:
            return run_until_signal(_replay(options))
        return _run_tests(options)
    except (SettingError, JobRequestFailed) as error:
        sys.stderr.write(f"{escape_lines(str(error))}\n")
        return EXIT_WRONG_USE
    except KeyboardInterrupt:
        # Before the signal handlers were installed: nothing runs yet.
        return EXIT_INTERRUPTED


def run_until_signal(work: Coroutine[Any, Any, int]) -> int:
    """Run a command's work and return its exit code; SIGINT, SIGTERM and SIGHUP cancel it.

    SIGHUP is sent when a terminal is closed. Without a handler it would leave the processes behind
    that the work has started.
    """
    from batch.cli.signals import StopSignals

    signals = StopSignals()

    async def run() -> int:
        with signals.handling(signal.SIGHUP):
            return await work

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        sys.stderr.write(f"stopped by {signals.first_signal}\n")
        return EXIT_INTERRUPTED


def add_server_options(parser: argparse._ActionsContainer) -> None:
    """Add the options that name a running server."""
    parser.add_argument(
        "--server", default=None, metavar="URL", help=f"its address (default: {DEFAULT_SERVER})"
    )
    parser.add_argument("--endpoint", metavar="NAME", help="its endpoint (default: its own)")
    parser.add_argument("--api-key", metavar="KEY", help="its key (default: $RUNPOD_API_KEY)")


def read_api_key(options: argparse.Namespace) -> str | None:
    """Return the key for the server: of the option, or of RunPod's variable."""
    return options.api_key or os.environ.get("RUNPOD_API_KEY") or None


def _parse(argv: Sequence[str] | None, prog: str) -> argparse.Namespace:
    parser = Parser(
        prog=prog,
        description="Run the tests of RunPod's tests.json against a handler, each as a job.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "path", nargs="?", type=Path, metavar="PATH", help="the handler's file or folder"
    )
    parser.add_argument("--handler", type=Path, metavar="PATH", help="the same as PATH")
    parser.add_argument(
        "--tests",
        type=Path,
        metavar="FILE",
        help="the tests (default: .runpod/tests.json or tests.json in the handler's folder or "
        "its project's, or else the input in test_input.json)",
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="the Python of the handler (default: WORKER_PYTHON, or its virtual environment)",
    )
    parser.add_argument(
        "--volume",
        type=Path,
        metavar="DIR",
        help="the folder that the handler has as /runpod-volume (default: VOLUME_DIR)",
    )
    parser.add_argument(
        "--command",
        type=_command,
        metavar="CMD",
        help="run this command as the worker instead of a Python file",
    )
    parser.add_argument(
        "--image",
        action=_StoreOnce,
        metavar="IMAGE",
        help="run this image's container as the worker, as RunPod does",
    )
    parser.add_argument(
        "--build", type=Path, metavar="DIR", help="build the image from this folder first"
    )
    parser.add_argument("--junit-xml", type=Path, metavar="FILE", help="write JUnit XML")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="S",
        help="limit of tests that set none, and of a replayed job, in seconds (default: 300)",
    )
    parser.add_argument("--verbose", action="store_true", help="print the log of the server")
    replay = parser.add_argument_group("replay a job of a running server")
    replay.add_argument("--job", metavar="ID", help="send this kept job again")
    replay.add_argument("--save", metavar="NAME", help="add it to the tests instead")
    add_server_options(replay)
    options = parser.parse_args(argv)
    _check(parser, options)
    return options


def _check(parser: Parser, options: argparse.Namespace) -> None:
    """Exit with 2 if options exclude each other."""
    if options.path is not None and options.handler is not None:
        parser.error("PATH and --handler are the same; give one of them")
    chosen = {name for name, value in vars(options).items() if value is not None}
    for useless, other in _NO_EFFECT:
        if {useless, other} <= chosen:
            parser.error(f"--{useless} has no effect on --{other}")
    if options.job is None:
        for name in chosen & {"save", "server", "endpoint", "api_key"}:
            parser.error(f"--{name.replace('_', '-')} needs --job")
        return
    for name in chosen & {"command", "image", "build", "python", "volume", "junit_xml"}:
        parser.error(f"--{name.replace('_', '-')} has no effect on --job")
    if options.save is not None and not options.save.strip():
        parser.error("--save needs a name")
    if options.save is None and options.tests is not None:
        parser.error("--tests has no effect on --job without --save")


def _run_tests(options: argparse.Namespace) -> int:
    from common.terminal_text import escape_lines
    from emulator.autoscaling.program.handler_file import find_handler_file, list_folders
    from emulator.autoscaling.program.image_program import find_image_programs
    from emulator.autoscaling.program.interpreter import find_interpreter
    from emulator.autoscaling.program.volume import open_volume
    from emulator.autoscaling.program.worker_program import command_program, handler_program
    from emulator.handler_tests.junit import check_junit_file
    from emulator.settings.emulator_settings import EmulatorSettings
    from emulator.tests_file.reader import read_tests_file
    from handler.settings.shared_settings import read_settings

    settings = read_settings(EmulatorSettings)
    python = options.python or settings.worker_python
    path = options.path or options.handler or options.build or Path()
    volume_dir = options.volume or settings.volume_dir
    volume = None
    if options.image is not None or options.build is not None:
        tests = read_tests_file(_choose_tests_file(options, list_folders(path.absolute())))
        changes = {"worker_build": options.build, "volume_dir": volume_dir, "worker_command": ""}
        images = [] if options.image is None else [options.image]
        settings = settings.model_copy(update={**changes, "worker_image": ""})
        (program,) = find_image_programs(settings, images).values()
        name = str(program.name)
    else:
        if options.command is not None:
            program = command_program(options.command, python)
            name = options.command
        else:
            path = find_handler_file(path)
            program = handler_program(path, find_interpreter(path, python))
            name = path.name
        volume = None if volume_dir is None else open_volume(volume_dir)
        program = replace(program, volume=volume)
        tests = read_tests_file(_choose_tests_file(options, list_folders(path.absolute())))
    if options.junit_xml is not None:
        check_junit_file(options.junit_xml)
    if volume is not None and volume.problem is not None:
        sys.stderr.write(f"warning: {escape_lines(volume.problem)}\n")
    return run_until_signal(_test(options, settings, program, tests, name))


def _choose_tests_file(options: argparse.Namespace, folders: Sequence[Path]) -> Path:
    from common.setting_error import SettingError
    from emulator.tests_file.reader import find_test_input, find_tests_file

    if options.tests is not None:
        chosen: Path = options.tests
        return chosen
    file = find_tests_file(folders) or find_test_input(folders)
    if file is None:
        raise SettingError(
            f"there is no tests file: {folders[-1]} has none of .runpod/tests.json, tests.json and "
            "test_input.json; name one with --tests"
        )
    return file


async def _test(
    options: argparse.Namespace,
    settings: EmulatorSettings,
    program: WorkerProgram,
    tests: HandlerTests,
    name: str,
) -> int:
    # Imported only now, because it takes a second: wrong use is reported before that.
    from common.terminal_text import escape_controls
    from emulator.handler_tests.job_client import open_client
    from emulator.handler_tests.junit import write_junit_file
    from emulator.handler_tests.local_server import run_local_server
    from emulator.handler_tests.report import ResultReport, junit_case
    from emulator.handler_tests.runner import HandlerTestRunner
    from emulator.tests_file.reader import DEFAULT_TIMEOUT_MS

    _configure_logging(settings, is_verbose=options.verbose)
    report = ResultReport(sys.stdout, sys.stderr, tests.tests)
    file = str(_relative_to_working_folder(tests.path))
    report.print_header(f"Testing {escape_controls(name)} with {escape_controls(file)}")
    results: list[HandlerTestResult] = []
    async with (
        report.showing_progress(),
        run_local_server(settings, program, tests.variables) as server,
        open_client(server.url, server.endpoint) as client,
    ):
        timeout_ms = int(options.timeout * 1000) if options.timeout else DEFAULT_TIMEOUT_MS
        runner = HandlerTestRunner(
            client,
            server,
            default_timeout_ms=timeout_ms,
            take_output=server.output.take_lines,
            on_start=report.start,
        )
        async for result in runner.run(tests.tests):
            report.add(result)
            results.append(result)
    report.print_summary()
    if options.junit_xml is not None:
        write_junit_file(options.junit_xml, tests.path.stem, [junit_case(each) for each in results])
    return EXIT_PASSED if all(each.has_passed for each in results) else EXIT_FAILED


def _relative_to_working_folder(path: Path) -> Path:
    folder = Path.cwd()
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def _configure_logging(settings: EmulatorSettings, *, is_verbose: bool) -> None:
    """Print the server's log only if the command is verbose."""
    from handler.logs.configuration import configure_logging

    configure_logging(settings.log_level, settings.log_format, texts=settings.log_texts)
    if not is_verbose:
        logging.getLogger().handlers = [logging.NullHandler()]


async def _replay(options: argparse.Namespace) -> int:
    from emulator.handler_tests.job_client import open_client
    from emulator.handler_tests.replay import replay_job
    from emulator.tests_file.editor import add_test
    from emulator.tests_file.reader import DEFAULT_TIMEOUT_MS
    from emulator.tests_file.saved_job import build_test

    # Before the request: a wrong path is reported even if the server does not run.
    tests_file = _find_save_file(options) if options.save is not None else None
    server = options.server or DEFAULT_SERVER
    async with open_client(server, options.endpoint, read_api_key(options)) as client:
        if tests_file is not None:
            add_test(tests_file, build_test(options.save, await client.get_request(options.job)))
            sys.stdout.write(f"the test {options.save} is in {tests_file}\n")
            return EXIT_PASSED
        timeout_s = options.timeout or DEFAULT_TIMEOUT_MS / 1000
        has_passed, text = await replay_job(client, options.job, timeout_s)
        sys.stdout.write(f"{text}\n")
        return EXIT_PASSED if has_passed else EXIT_FAILED


def _find_save_file(options: argparse.Namespace) -> Path:
    """Return the tests file to add to; it need not exist."""
    from common.setting_error import SettingError
    from emulator.autoscaling.program.handler_file import list_folders
    from emulator.tests_file.saved_job import find_file_to_extend

    if options.tests is not None:
        chosen: Path = options.tests
        return chosen
    path: Path = options.path or options.handler or Path()
    if not path.exists():
        raise SettingError(f"there is no file or folder {path}")
    return find_file_to_extend(list_folders(path.absolute()))


def _command(raw: str) -> str:
    try:
        words = shlex.split(raw)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"the command has wrong quotes: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError("the command is empty")
    return raw


def _seconds(raw: str) -> float:
    try:
        seconds = float(raw)
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds <= _MAX_TIMEOUT_S:
        raise argparse.ArgumentTypeError(f"must be a number of seconds up to {_MAX_TIMEOUT_S:,}")
    return seconds
