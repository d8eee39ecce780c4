"""The command `worker-rkllm`: it selects a part of the package, imports it and runs it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

from worker_rkllm.extras import missing_package_message
from worker_rkllm.import_path import put_own_packages_first

_DISTRIBUTION = "worker-rkllm"


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: its text in `--help`, its module, and arguments put before the user's."""

    help: str
    module: str
    arguments: tuple[str, ...] = ()


# Modules are imported on use, so that `--help` is fast.
COMMANDS = {
    "run": Command("run one local job, or take jobs from RunPod", "handler.__main__"),
    "serve": Command("serve the local RunPod and the OpenAI API", "emulator.__main__"),
    "test": Command("run the tests.json of a RunPod handler", "emulator.handler_tests.command"),
    "torture": Command("judge a client by broken streams", "emulator.torture.command"),
    "reset": Command("empty a running server's jobs", "emulator.handler_tests.reset"),
    "batch": Command("answer a file of requests, from disk or through a queue", "batch.__main__"),
    "doctor": Command("examine this machine's engine", "handler.__main__", ("doctor",)),
    "fetch-model": Command("download the default model", "worker_rkllm.fetch_model"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that the arguments name and return its exit code.

    All arguments after the subcommand's name are passed to it unchanged, including `--help`. If a
    package is missing, the error message says how to install it and the exit code is 2.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = _parser().parse_args(arguments[:1]).command
    command = COMMANDS[name]
    arguments[:1] = command.arguments
    put_own_packages_first()
    prog = f"{_DISTRIBUTION} {name}"
    # RunPod's SDK parses sys.argv.
    sys.argv = [prog, *arguments]
    try:
        return _load(command.module)(arguments, prog=prog)
    except ModuleNotFoundError as error:
        sentence = missing_package_message(error, name)
        if sentence is None:
            raise
        sys.stderr.write(sentence + "\n")
        return 2


class _Main(Protocol):
    """The function that runs a command; `prog` is its name in usage messages."""

    def __call__(self, argv: Sequence[str], *, prog: str) -> int: ...


def _load(module: str) -> _Main:
    """Import a module's `main`."""
    function: _Main = import_module(module).main
    return function


def _parser() -> argparse.ArgumentParser:
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:{width}}  {command.help}" for name, command in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog=_DISTRIBUTION,
        description="Serverless LLM workers for RKLLM and llama.cpp, and a local RunPod.",
        usage="%(prog)s [--help | --version] COMMAND [ARGUMENT ...]",
        epilog="commands:\n" + "\n".join(lines) + "\n\nDescribe one: worker-rkllm COMMAND --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{_DISTRIBUTION} {_version()}")
    parser.add_argument("command", choices=tuple(COMMANDS), metavar="COMMAND", help="see below")
    return parser


def _version() -> str:
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        # A source checkout.
        return "(not installed)"
