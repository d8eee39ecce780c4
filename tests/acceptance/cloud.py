"""The batch commands on real servers of queues and buckets."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Protocol
from unittest import mock

from rich.console import Console

from batch.cli import collect, submit
from batch.cli.arguments import add_collect_arguments, add_submit_arguments, add_worker_arguments
from batch.settings import BatchSettings
from tests.integration.batch.runs import ROOT, environment
from tests.ministack import MiniStack, make_queue
from tests.seaweed import KEY, SECRET, Seaweed
from tests.waiting import wait_until_blocking

BUCKET = "batches"
LIMIT_S = 240
LEASE_S = 3
_POLL_S = 0.1
# Each kill of a worker counts as a receive of its messages, which are not to blame.
MAX_RECEIVES = 50

# The functions that add a command's arguments, by the name of its module.
ADD_ARGUMENTS = {
    "batch.cli.collect": add_collect_arguments,
    "batch.cli.submit": add_submit_arguments,
    "batch.cli.worker": add_worker_arguments,
}


class Command(Protocol):
    """A module with one of the commands."""

    __name__: str

    def run(
        self, arguments: argparse.Namespace, settings: BatchSettings, console: Console
    ) -> int: ...


@dataclass(frozen=True)
class CommandResult:
    """The exit code and stderr of a command."""

    returncode: int
    stderr: str


@dataclass(frozen=True)
class Cloud:
    """A queue server and a bucket server, with the settings that the commands need for them."""

    queues: MiniStack
    buckets: Seaweed
    model: Path
    name: str
    other_variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def results(self) -> str:
        return f"s3://{BUCKET}/{self.name}"

    def queue(self, max_receives: int = MAX_RECEIVES, kind: str = "") -> str:
        return make_queue(self.queues.client(), f"{self.name}{kind}", max_receives)

    def variables(self) -> dict[str, str]:
        return environment(
            self.model,
            AWS_ENDPOINT_URL_S3=self.buckets.url,
            AWS_ACCESS_KEY_ID=KEY,
            AWS_SECRET_ACCESS_KEY=SECRET,
            AWS_DEFAULT_REGION="us-east-1",
            BATCH_LEASE_S=str(LEASE_S),
            BATCH_POLL_S="1",
        ) | dict(self.other_variables)

    def run(self, *arguments: str | Path, **settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments),
            env=self.variables() | settings,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def run_in_process(self, batch_command: Command, *arguments: str | Path) -> CommandResult:
        """Run a command in this process, because starting another one takes longer."""
        parser, output = argparse.ArgumentParser(), StringIO()
        ADD_ARGUMENTS[batch_command.__name__](parser)
        parsed = parser.parse_args([*map(str, arguments)])
        with mock.patch.dict(os.environ, self.variables()):
            # The default session would keep the credentials that it was created with.
            with mock.patch("boto3.DEFAULT_SESSION", None):
                code = batch_command.run(parsed, BatchSettings(), Console(file=output))
        return CommandResult(code, output.getvalue())

    def submit(self, input_file: Path, url: str, *more: str) -> str:
        """Submit an input file; return the batch's name."""
        options = ["--queue-url", url, "--results", self.results, *more]
        result = self.run_in_process(submit, "-i", input_file, *options)
        assert result.returncode == 0, result.stderr
        return result.stderr.split()[1].rstrip(":")

    @contextmanager
    def worker(self, url: str, *more: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
        arguments = command("worker", "--queue-url", url, "--results", self.results, *more)
        with subprocess.Popen(
            arguments,
            env=self.variables() | settings,
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def answer_all(self, url: str, **settings: str) -> None:
        """Run a worker until the queue is empty."""
        with self.worker(url, "--until-empty", **settings) as process:
            _, stderr = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, stderr

    def collect(self, batch: str, out: Path, *more: str) -> CommandResult:
        options = ["--results", self.results, "--batch", batch, *more]
        return self.run_in_process(collect, "-o", out, *options)

    def keys(self, under: str = "") -> list[str]:
        """Return the keys of all objects below a prefix, once per version."""
        pages = self.buckets.client().get_paginator("list_object_versions")
        prefix = f"{self.name}/{under}"
        return [
            each["Key"].removeprefix(f"{self.name}/")
            for page in pages.paginate(Bucket=BUCKET, Prefix=prefix)
            for each in page.get("Versions", ())
        ]

    def count_answered(self, batch: str) -> int:
        return len(self.keys(f"{batch}/results/"))

    def wait_for(self, batch: str, answered: int) -> None:
        """Wait until this many lines have an answer."""
        wait_until_blocking(lambda: self.count_answered(batch) >= answered, LIMIT_S, _POLL_S)

    def get(self, key: str) -> bytes:
        response = self.buckets.client().get_object(Bucket=BUCKET, Key=f"{self.name}/{key}")
        body: bytes = response["Body"].read()
        return body

    def wait_for_dead_letters(self, url: str, messages: int) -> None:
        """Wait until this many messages are in the dead-letter queue."""
        client = self.queues.client()

        def dead() -> bool:
            # SQS moves messages to it during a receive.
            client.receive_message(QueueUrl=url, VisibilityTimeout=0)
            return sum(self.count_messages(f"{url}-dead")) >= messages

        wait_until_blocking(dead, LIMIT_S, _POLL_S)

    def wait_until_empty(self, url: str) -> None:
        """Wait until a queue has no messages, including leased ones."""
        wait_until_blocking(lambda: self.count_messages(url) == (0, 0), LIMIT_S, _POLL_S)

    def count_messages(self, url: str) -> tuple[int, int]:
        """Return the numbers of waiting and of leased messages."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        response = self.queues.client().get_queue_attributes(QueueUrl=url, AttributeNames=names)
        waiting, leased = (int(response["Attributes"][name]) for name in names)
        return waiting, leased


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "batch", *map(str, arguments)]
