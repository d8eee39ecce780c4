"""A queue, a bucket and the commands between them, on real servers."""

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
# Kills count as receives, and none of these messages is at fault.
MANY_RECEIVES = 50

# By the names of the commands' modules.
ADD_ARGUMENTS = {
    "batch.cli.collect": add_collect_arguments,
    "batch.cli.submit": add_submit_arguments,
    "batch.cli.worker": add_worker_arguments,
}


class Command(Protocol):
    """A module with one of the commands."""

    __name__: str

    def run(self, given: argparse.Namespace, settings: BatchSettings, console: Console) -> int: ...


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it said."""

    returncode: int
    stderr: str


@dataclass(frozen=True)
class Cloud:
    """A server of queues and one of buckets, and what a command needs to know of them."""

    queues: MiniStack
    buckets: Seaweed
    model: Path
    name: str
    other: Mapping[str, str] = field(default_factory=dict)

    @property
    def results(self) -> str:
        return f"s3://{BUCKET}/{self.name}"

    def queue(self, max_receives: int = MANY_RECEIVES, kind: str = "") -> str:
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
        ) | dict(self.other)

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

    def here(self, command: Command, *arguments: str | Path) -> Ran:
        """Run a command in this process: starting one takes longer than most of them."""
        parser, said = argparse.ArgumentParser(), StringIO()
        ADD_ARGUMENTS[command.__name__](parser)
        given = parser.parse_args([*map(str, arguments)])
        with mock.patch.dict(os.environ, self.variables()):
            # It would keep the credentials that it was first made with.
            with mock.patch("boto3.DEFAULT_SESSION", None):
                code = command.run(given, BatchSettings(), Console(file=said))
        return Ran(code, said.getvalue())

    def submit(self, given: Path, url: str, *more: str) -> str:
        """Send a file, and return the batch's name."""
        words = ["--queue-url", url, "--results", self.results, *more]
        ran = self.here(submit, "-i", given, *words)
        assert ran.returncode == 0, ran.stderr
        return ran.stderr.split()[1].rstrip(":")

    @contextmanager
    def worker(self, url: str, *more: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
        words = command("worker", "--queue-url", url, "--results", self.results, *more)
        with subprocess.Popen(
            words,
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

    def work(self, url: str, **settings: str) -> None:
        """Answer all that is in a queue."""
        with self.worker(url, "--until-empty", **settings) as process:
            _, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, said

    def collect(self, batch: str, out: Path, *more: str) -> Ran:
        words = ["--results", self.results, "--batch", batch, *more]
        return self.here(collect, "-o", out, *words)

    def keys(self, under: str = "") -> list[str]:
        """Return the versions of all answers, by their keys."""
        pages = self.buckets.client().get_paginator("list_object_versions")
        prefix = f"{self.name}/{under}"
        return [
            each["Key"].removeprefix(f"{self.name}/")
            for page in pages.paginate(Bucket=BUCKET, Prefix=prefix)
            for each in page.get("Versions", ())
        ]

    def answered(self, batch: str) -> int:
        return len(self.keys(f"{batch}/results/"))

    def wait_for(self, batch: str, answered: int) -> None:
        """Return when so many lines have an answer."""
        wait_until_blocking(lambda: self.answered(batch) >= answered, LIMIT_S)

    def get(self, key: str) -> bytes:
        found = self.buckets.client().get_object(Bucket=BUCKET, Key=f"{self.name}/{key}")
        body: bytes = found["Body"].read()
        return body

    def wait_until_dead(self, url: str, messages: int) -> None:
        """Return when so many messages are in a queue's dead-letter queue."""
        client = self.queues.client()

        def dead() -> bool:
            # SQS moves them when somebody asks for one.
            client.receive_message(QueueUrl=url, VisibilityTimeout=0)
            return sum(self.left(f"{url}-dead")) >= messages

        wait_until_blocking(dead, LIMIT_S)

    def wait_until_empty(self, url: str) -> None:
        """Return when a queue has no message, leased ones included."""
        wait_until_blocking(lambda: self.left(url) == (0, 0), LIMIT_S)

    def left(self, url: str) -> tuple[int, int]:
        """Return how many messages wait and how many are leased."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        said = self.queues.client().get_queue_attributes(QueueUrl=url, AttributeNames=names)
        waiting, leased = (int(said["Attributes"][name]) for name in names)
        return waiting, leased


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "batch", *map(str, arguments)]
