"""`python -m batch`: batches of requests, from files and through queues."""

from __future__ import annotations

import argparse
import gc
import sys
from importlib import import_module

from rich.console import Console

from batch.run import Batch, Order
from batch.settings import BatchSettings
from handler.assembly import SettingError, leave
from handler.logs import configure_logging
from handler.settings import read_settings

_CODES = """exit codes: 0 all lines are answered; 1 some failed and are in the error file;
2 nothing was begun, and why is said; 3 stopped before the end: the same command goes on"""

# New objects between two looks for cycles: what a line leaves goes by itself.
_MOST_NEW = 50_000

# What goes through a queue: the module, which is imported when it is named, what the list says of
# it, and its own page.
_QUEUED = {
    "worker": (
        "worker_command",
        "answer what comes through a queue",
        "Answer the messages of a queue of SQS, beside as many others as one likes.",
    ),
    "submit": (
        "submit",
        "send a file of requests to a queue",
        "Send each line of a file to a queue of SQS, for workers to answer.",
    ),
    "collect": (
        "collect",
        "merge the answers of a queue's batch into one file",
        "Write the answers to a batch in the order of its input.",
    ),
}


def main() -> int:
    """Run the command and return its exit code."""
    given = _parser().parse_args()
    settings = read_settings(BatchSettings)
    configure_logging(settings.log_level, settings.log_format, texts=settings.log_texts)
    console = Console(stderr=True)
    try:
        return int(given.run(given, settings, console))
    except SettingError as error:
        leave(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="batch", description="Batches of requests.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="answer a file of requests",
        description="Answer each line of a file once: OpenAI batch lines or RunPod job inputs.",
        epilog=_CODES,
    )
    run.add_argument("-i", "--input", required=True, help="a file, s3://, http(s)://, or - (stdin)")
    run.add_argument("-o", "--output", required=True, help="a file, s3://, or - (stdout)")
    run.add_argument("--errors", help="where failed lines go (OUTPUT with .errors in its name)")
    run.add_argument(
        "--unordered", action="store_true", help="answers in the order in which they came"
    )
    run.add_argument("--force", action="store_true", help="drop what an earlier run has left")
    run.set_defaults(run=_run)
    for name, (module_name, told, description) in _QUEUED.items():
        command = commands.add_parser(name, help=told, description=description)
        if name in sys.argv[1:2]:
            module = import_module(f"batch.{module_name}")
            command.epilog = module.EXITS
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def _run(given: argparse.Namespace, settings: BatchSettings, console: Console) -> int:
    gc.freeze()
    gc.set_threshold(_MOST_NEW)
    order = Order(
        input=given.input,
        output=given.output,
        errors=given.errors,
        ordered=not given.unordered,
        force=given.force,
    )
    return Batch(order, settings, console).run()


if __name__ == "__main__":
    sys.exit(main())
