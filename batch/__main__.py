"""`python -m batch`: batches of requests, from files and through queues."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if __name__ == "__main__":
    # Python puts the working folder first on the path: a handler.py there would hide our package.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from batch.cli.arguments import (
    COLLECT_EXITS,
    MERGE_EXITS,
    SUBMIT_EXITS,
    WORKER_EXITS,
    add_collect_arguments,
    add_merge_arguments,
    add_submit_arguments,
    add_worker_arguments,
)
from common.argument_parser import Parser

if TYPE_CHECKING:
    from rich.console import Console

    from batch.cli.answerers import Answerer
    from batch.input.shard import Shard
    from batch.settings import BatchSettings

_EXAMPLES = """\
examples:
  %(prog)s run -i requests.jsonl -o answers.jsonl
  %(prog)s submit -i requests.jsonl --queue-url URL --results s3://BUCKET/PREFIX
  %(prog)s worker --queue-url URL --results s3://BUCKET/PREFIX --until-empty
  %(prog)s run -i requests.jsonl -o answers.jsonl --shard 0/8
  %(prog)s merge -i requests.jsonl -o answers.jsonl --shards 8
  %(prog)s collect --results s3://BUCKET/PREFIX --batch NAME -o answers.jsonl

Settings are environment variables, such as MODEL_PATH and BATCH_TRIES: see docs/settings.md."""

_EXIT_CODES = """\
exit codes: 0 all lines are answered; 1 some lines failed and are in the error file;
2 refused (see the message); 3 interrupted: run the same command again to resume"""

# Number of new objects before a garbage collection. Lines leave no reference cycles behind, so
# frequent collections would free little.
_GC_THRESHOLD = 50_000
_MAX_CONCURRENCY = 10_000


class _Subcommand(NamedTuple):
    summary: str
    description: str
    exit_codes: str
    add_arguments: Callable[[argparse.ArgumentParser], None]


# Subcommands besides `run`. Each name is also its module in `batch.cli`, imported on use.
_SUBCOMMANDS = {
    "worker": _Subcommand(
        summary="answer the messages of an SQS queue",
        description="Answer the messages of an SQS queue. Any number of workers may share one "
        "queue.",
        exit_codes=WORKER_EXITS,
        add_arguments=add_worker_arguments,
    ),
    "submit": _Subcommand(
        summary="send a file of requests to an SQS queue",
        description="Send each line of a file to an SQS queue, for workers to answer.",
        exit_codes=SUBMIT_EXITS,
        add_arguments=add_submit_arguments,
    ),
    "collect": _Subcommand(
        summary="write the answers of a submitted batch to one file",
        description="Write the answers of a submitted batch to one file, in the order of its "
        "input.",
        exit_codes=COLLECT_EXITS,
        add_arguments=add_collect_arguments,
    ),
    "merge": _Subcommand(
        summary="put the answers of all shards of `run` together",
        description="Write the answers of all shards of `run --shard` to one file, in the order "
        "of the input, if every line has exactly one.",
        exit_codes=MERGE_EXITS,
        add_arguments=add_merge_arguments,
    ),
}


def main(argv: Sequence[str] | None = None, *, prog: str = "python -m batch") -> int:
    """Run the command and return its exit code.

    `argv` defaults to sys.argv[1:]; `prog` is the command's name in usage messages. Slow imports
    are inside the function, so that `--help` and usage errors are printed without them.
    """
    args = _create_parser(prog).parse_args(argv)

    from rich.console import Console

    from batch.settings import BatchSettings
    from common.setting_error import SettingError, exit_on_setting_error
    from handler.logs.configuration import configure_logging
    from handler.settings.shared_settings import read_settings

    settings = read_settings(BatchSettings)
    style = settings.log_format
    if style == "auto" and args.prints_messages:
        # The log shares stderr with the messages of the command, which are no JSON.
        style = "console"
    configure_logging(settings.log_level, style, texts=settings.log_texts)
    console = Console(stderr=True)
    try:
        return int(args.run(args, settings, console))
    except SettingError as error:
        exit_on_setting_error(error)


def _create_parser(prog: str) -> argparse.ArgumentParser:
    parser = Parser(
        prog=prog,
        description="Answer files of requests, on this machine or through an SQS queue.",
        epilog=_EXAMPLES,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="answer a file of requests",
        description="Answer each line of a file once: OpenAI batch requests or RunPod jobs.",
        epilog=_EXIT_CODES,
    )
    run.add_argument(
        "-i",
        "--input",
        required=True,
        help="input: a file, an s3:// or http(s):// address, or - for stdin",
    )
    run.add_argument(
        "-o", "--output", required=True, help="output: a file, an s3:// address, or - for stdout"
    )
    run.add_argument(
        "--errors", help="file for failed lines (default: OUTPUT with .errors in its name)"
    )
    run.add_argument(
        "--unordered",
        action="store_true",
        help="write answers in the order in which they were finished",
    )
    run.add_argument(
        "--force",
        action="store_true",
        help="start over: discard the journal and the output of an earlier run",
    )
    run.add_argument(
        "--shard",
        metavar="I/N",
        help="answer part I of N parts of the input, from 0, and number the output",
    )
    run.add_argument(
        "--shards",
        type=int,
        metavar="N",
        help="the same, with I from JOB_COMPLETION_INDEX, SLURM_ARRAY_TASK_ID or "
        "SKYPILOT_NODE_RANK",
    )
    remote = run.add_argument_group("answer with servers instead of an engine")
    remote.add_argument(
        "--server",
        dest="servers",
        action="append",
        metavar="URL",
        help="an OpenAI-compatible server, such as http://HOST:8000/v1; may be repeated",
    )
    remote.add_argument(
        "--key-env", metavar="NAME", help="the variable with the servers' key (default: none)"
    )
    remote.add_argument(
        "--concurrency", type=int, metavar="N", help="lines at a time, at most (default: 32)"
    )
    remote.add_argument(
        "--validate",
        action="store_true",
        help="check, redact and regenerate the answers as for an engine, also those to jobs",
    )
    run.set_defaults(run=_run, prints_messages=True)
    for name, subcommand in _SUBCOMMANDS.items():
        command = commands.add_parser(
            name,
            help=subcommand.summary,
            description=subcommand.description,
            epilog=subcommand.exit_codes,
        )
        subcommand.add_arguments(command)
        command.set_defaults(run=partial(_run_subcommand, name), prints_messages=name != "worker")
    return parser


def _run_subcommand(
    module_name: str, args: argparse.Namespace, settings: BatchSettings, console: Console
) -> int:
    # Import only this command's module: the others import libraries that it does not need.
    code: int = import_module(f"batch.cli.{module_name}").run(args, settings, console)
    return code


def _run(args: argparse.Namespace, settings: BatchSettings, console: Console) -> int:
    from batch.cli.output import print_message
    from batch.cli.run import REFUSED, RunArgs, RunCommand
    from batch.input.shard import ShardError

    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    try:
        shard = _find_shard(args)
    except ShardError as error:
        print_message(console, str(error))
        return REFUSED
    run_args = RunArgs(
        input=args.input,
        output=args.output if shard is None else shard.rename(args.output),
        errors=args.errors if shard is None or args.errors is None else shard.rename(args.errors),
        ordered=not args.unordered,
        force=args.force,
        shard=shard,
    )
    answerer = _build_answerer(args, settings)
    return RunCommand(run_args, settings, console, answerer).run()


def _build_answerer(args: argparse.Namespace, settings: BatchSettings) -> Answerer:
    """Return what answers the lines. Raises SettingError."""
    from batch.cli.answerers import DEFAULT_CONCURRENCY, EngineAnswerer, ServerAnswerer
    from common.setting_error import SettingError

    if not args.servers:
        for name in ("key_env", "concurrency", "validate"):
            if getattr(args, name):
                raise SettingError(f"--{name.replace('_', '-')} needs --server")
        return EngineAnswerer(settings)
    for url in args.servers:
        if not url.startswith(("http://", "https://")):
            raise SettingError(f"--server must begin with http:// or https://, got {url!r}")
    concurrency = args.concurrency or settings.batch_at_once or DEFAULT_CONCURRENCY
    if not 1 <= concurrency <= _MAX_CONCURRENCY:
        raise SettingError(f"--concurrency must be from 1 to {_MAX_CONCURRENCY:,}")
    key = _read_key(args.key_env)
    if args.validate:
        return EngineAnswerer(settings.for_servers(args.servers, key, concurrency))
    if unused := settings.find_set_checks():
        raise SettingError(
            f"{unused[0].upper()} needs --validate with --server, which keeps answers as they are"
        )
    return ServerAnswerer(settings, args.servers, key, concurrency)


def _read_key(variable: str | None) -> str | None:
    """Return the servers' key from a variable; None for none. Raises SettingError."""
    from common.setting_error import SettingError

    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise SettingError(f"--key-env: there is no variable {variable}")
    return key


def _find_shard(args: argparse.Namespace) -> Shard | None:
    """Return the part of the input that the options name; None for all of it. Raises ShardError."""
    from batch.input.shard import ShardError, check_output, find_shard, parse_shard

    if args.shard is None and args.shards is None:
        return None
    if args.shard is not None and args.shards is not None:
        raise ShardError("--shard and --shards exclude each other")
    check_output(args.output)
    if args.shard is not None:
        return parse_shard(args.shard)
    return find_shard(args.shards, os.environ)


if __name__ == "__main__":
    sys.exit(main())
