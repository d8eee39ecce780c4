"""Parse the command line: print `--help`, and refuse unknown arguments with a suggestion.

Only the standard library is imported here, so that `--help` responds immediately.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.argument_parser import Parser

_WORKER_EXAMPLES = """\
examples:
  %(prog)s                                          answer test_input.json, or serve RunPod
  %(prog)s --test_input '{"input":{"prompt":"Hi"}}'  answer one job
  %(prog)s --rp_serve_api --rp_api_port 8001         serve RunPod's own local API
  %(prog)s doctor                                   report what this machine's engine does

With RUNPOD_WEBHOOK_GET_JOB set, as in RunPod's cloud, the worker takes jobs from there. Otherwise
it answers one job and exits. Settings are environment variables, such as MODEL_PATH: see
docs/settings.md."""
_DOCTOR = """\
Load the model as the worker would, run a few prompts in a process of its own, and print a report of
what the engine supports. Settings are environment variables, such as MODEL_PATH: see
docs/settings.md."""


@dataclass(frozen=True, slots=True)
class DoctorArguments:
    """The arguments of the command `doctor`.

    `record` is the file of a recording, `gguf` the model to compare with, and `bundle` the file
    that gets the report and the recordings; None without one.
    """

    record: Path | None = None
    record_text: bool = False
    gguf: Path | None = None
    bundle: Path | None = None


def parse_doctor(argv: Sequence[str] | None, prog: str) -> DoctorArguments | None:
    """Check the worker's arguments; return those of the command `doctor`, None for another command.

    The SDK reads its own options from sys.argv later; they are checked here and stay in sys.argv.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is not None:
        sys.argv = [prog, *arguments]
    if arguments[:1] == ["doctor"]:
        return _parse_doctor_options(arguments[1:], prog)
    _worker_parser(prog).parse_args(arguments)
    return None


def _parse_doctor_options(arguments: Sequence[str], prog: str) -> DoctorArguments:
    # The installed command has its name already.
    prog = prog if prog.endswith(" doctor") else f"{prog} doctor"
    parser = Parser(prog=prog, description=_DOCTOR)
    parser.add_argument(
        "--record",
        metavar="FILE",
        type=Path,
        help="record the calls and callbacks of RKLLM's library to a new file, without texts",
    )
    parser.add_argument("--record-text", action="store_true", help="record prompts and answers too")
    parser.add_argument(
        "--bundle",
        metavar="FILE.zip",
        type=Path,
        help="write the report, recordings without texts, and what the library printed into a file",
    )
    parser.add_argument(
        "--compare",
        metavar="GGUF",
        type=Path,
        help="also run this model, in GGUF format, on the fastest CPUs, and say which is faster",
    )
    options = parser.parse_args(arguments)
    if options.compare is not None and not options.compare.is_file():
        parser.error(f"--compare: there is no file {options.compare}")
    if options.record_text and options.record is None:
        parser.error("--record-text needs --record FILE")
    if options.bundle is not None and options.record is not None:
        parser.error("--bundle has the recordings: leave out --record")
    return DoctorArguments(options.record, options.record_text, options.compare, options.bundle)


def _worker_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="The RunPod worker: it takes jobs and answers each with one JSON.",
        epilog=_WORKER_EXAMPLES,
    )
    parser.add_argument(
        "command",
        nargs="?",
        choices=["doctor"],
        help="report what the engine does on this machine and exit",
    )
    sdk = parser.add_argument_group("options of RunPod's SDK")
    sdk.add_argument("--test_input", metavar="JSON", help="answer this job and exit")
    sdk.add_argument(
        "--rp_log_level",
        metavar="LEVEL",
        help="the SDK's log level: ERROR, WARN, INFO or DEBUG",
    )
    sdk.add_argument("--rp_debugger", action="store_true", help="print the SDK's timings")
    sdk.add_argument("--rp_serve_api", action="store_true", help="serve the SDK's local API")
    sdk.add_argument("--rp_api_port", type=int, metavar="PORT", help="its port (default: 8000)")
    sdk.add_argument("--rp_api_host", metavar="HOST", help="its address (default: localhost)")
    sdk.add_argument(
        "--rp_api_concurrency", type=int, metavar="N", help="its processes (default: 1)"
    )
    return parser
