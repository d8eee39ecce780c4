"""MiniStack, an SQS server that checks receipt handles and keys, which a mock does not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from jobs.sqs.calls import sqs_client
from tests.ports import free_port
from tests.seaweed import KEY, SECRET
from tests.waiting import wait_for_server

# It needs another version of botocore, so it has its own environment.
PROGRAM = Path(__file__).with_name("servers") / ".venv" / "bin" / "ministack"
_START_S = 60.0


class MiniStack:
    """A server without queues; it accepts the same key as the S3 server."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid

    @cache  # noqa: B019 - a server is kept by its module, and a client takes long to create
    def client(self, key: str = KEY) -> Any:
        """Return the client with this key."""
        return sqs_client(
            f"{self.url}/queue",
            region_name="us-east-1",
            aws_access_key_id=key,
            aws_secret_access_key=SECRET,
        )


def make_queue(client: Any, name: str, max_receives: int = 0, **attributes: str) -> str:
    """Return the URL of a new queue, with a dead-letter queue if `max_receives` is not 0."""
    if name.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    if max_receives:
        stem, dot, kind = name.partition(".")
        dead = make_queue(client, f"{stem}-dead{dot}{kind}")
        arn = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
        policy = {
            "deadLetterTargetArn": arn["Attributes"]["QueueArn"],
            "maxReceiveCount": str(max_receives),
        }
        attributes["RedrivePolicy"] = orjson.dumps(policy).decode()
    url: str = client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return url


@contextmanager
def ministack(folder: Path) -> Iterator[MiniStack]:
    """Run a server that keeps its files in a folder."""
    if not PROGRAM.exists():
        pytest.fail("MiniStack is not installed: `make test` does it", pytrace=False)
    port = free_port()
    variables = {
        **os.environ,
        "GATEWAY_PORT": str(port),
        # The default is all addresses and three more services.
        "BIND_HOST": "127.0.0.1",
        "SERVICES": "sqs",
        "SFTP_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
        "AUTH": "true",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "LOG_LEVEL": "WARNING",
        "TMPDIR": str(folder),
    }
    log_path = folder / "ministack.log"
    with (
        log_path.open("wb") as log,
        subprocess.Popen([PROGRAM], stdout=log, stderr=log, cwd=folder, env=variables) as server,
    ):
        try:
            started = MiniStack(f"http://127.0.0.1:{port}", server.pid)
            wait_for_server(server, partial(_answers, started.client()), log_path, _START_S)
            yield started
        finally:
            server.kill()


def _answers(client: Any) -> bool:
    with suppress(BotoCoreError, ClientError):
        client.list_queues()
        return True
    return False
