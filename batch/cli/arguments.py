"""The arguments of the commands besides `run`.

A separate module, so that `--help` does not import the AWS libraries.
"""

from __future__ import annotations

import argparse

WORKER_EXITS = """\
exit codes: 0 stopped by a signal, or the queue is empty (--until-empty); 2 refused (see
the message); 3 failed, or stopped by a second signal: unfinished messages return to the queue"""
SUBMIT_EXITS = """\
exit codes: 0 all lines are in the queue; 2 refused, nothing was sent (see the message);
3 interrupted: run the same command again to resume"""
COLLECT_EXITS = """\
exit codes: 0 all lines are answered; 1 some lines failed and are in the error file;
2 refused (see the message); 3 lines without an answer, or interrupted: nothing was written"""

MERGE_EXITS = """\
exit codes: 0 all lines are answered; 1 some lines failed and are in the error file;
2 refused (see the message); 3 lines without an answer, or a failure: nothing was written"""


def add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `worker` to its parser."""
    parser.add_argument("--queue-url", required=True, help="URL of the SQS queue, standard or FIFO")
    parser.add_argument("--results", required=True, help="where the answers go: s3://BUCKET/PREFIX")
    parser.add_argument("--until-empty", action="store_true", help="end when the queue is empty")


def add_submit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `submit` to its parser."""
    parser.add_argument(
        "-i",
        "--input",
        required=True,
        help="input: a file, an s3:// or http(s):// address, or - for stdin",
    )
    parser.add_argument("--queue-url", required=True, help="URL of the SQS queue, standard or FIFO")
    parser.add_argument("--results", required=True, help="where the answers go: s3://BUCKET/PREFIX")
    parser.add_argument("--batch", help="name of the batch (default: from the input's SHA-256)")
    parser.add_argument(
        "--again", action="store_true", help="send every line again that has no answer yet"
    )


def add_collect_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `collect` to its parser."""
    parser.add_argument(
        "--results", required=True, help="where the answers are: s3://BUCKET/PREFIX, as for submit"
    )
    parser.add_argument("--batch", required=True, help="name of the batch, as submit printed it")
    parser.add_argument(
        "-o", "--output", required=True, help="output: a file, an s3:// address, or - for stdout"
    )
    parser.add_argument(
        "--errors", help="file for failed lines (default: OUTPUT with .errors in its name)"
    )
    parser.add_argument("--wait", action="store_true", help="wait until every line has an answer")
    parser.add_argument("--force", action="store_true", help="replace an existing output")


def add_merge_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `merge` to its parser."""
    parser.add_argument("-i", "--input", required=True, help="the input of all shards")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        help="the output, as for `run`: answers.jsonl for the shards' answers-00000.jsonl",
    )
    parser.add_argument("--shards", type=int, required=True, metavar="N", help="how many there are")
    parser.add_argument(
        "--errors", help="file for failed lines (default: OUTPUT with .errors in its name)"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing output")
