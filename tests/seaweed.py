"""SeaweedFS, an S3 server that checks credentials, checksums and expiry, which a mock does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from handler.delivery.blobs.s3 import s3_client
from tests.ports import free_port
from tests.waiting import wait_for_server

# MiniStack accepts READER too.
KEY, READER, SECRET = "a-key", "test", "a-secret"
_ALLOWED = {KEY: ["Admin", "Read", "Write", "List", "Tagging"], READER: ["Read", "List"]}
_START_S = 60.0


class Seaweed:
    """A server without buckets."""

    def __init__(self, url: str) -> None:
        self.url = url

    @cache  # noqa: B019 - a server is kept by its module, and a client takes long to create
    def client(self, key: str = KEY, secret: str = SECRET) -> Any:
        """Return the client with these credentials."""
        return s3_client(
            self.url,
            region_name="us-east-1",
            aws_access_key_id=key,
            aws_secret_access_key=secret,
        )


@contextmanager
def seaweed(folder: Path) -> Iterator[Seaweed]:
    """Run a server that keeps its files in a folder."""
    identities = [
        {
            "name": key,
            "credentials": [{"accessKey": key, "secretKey": SECRET}],
            "actions": actions,
        }
        for key, actions in _ALLOWED.items()
    ]
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": identities}))
    numbers = {
        f"{part}.port{kind}": free_port()
        for part in ("s3", "master", "volume", "filer")
        for kind in ("", ".grpc")
    }
    port = numbers["s3.port"]
    # Iceberg and Lance have fixed ports, which would collide between two servers.
    unused = {"s3.port.iceberg": 0, "s3.port.lance": 0}
    ports = [f"-{name}={number}" for name, number in (numbers | unused).items()]
    command = [
        str(Path(sys.executable).with_name("weed")),
        "server",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-s3",
        f"-s3.config={config}",
        f"-dir={folder}",
        "-volume.max=200",
        "-master.volumeSizeLimitMB=32",
        *ports,
    ]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, env={**os.environ, "TMPDIR": str(folder)}
        ) as server,
    ):
        try:
            started = Seaweed(f"http://127.0.0.1:{port}")
            wait_for_server(server, partial(_answers, started.client()), folder / "log", _START_S)
            yield started
        finally:
            server.kill()
            server.wait()
            _remove_sockets(numbers.values())


def _remove_sockets(ports: Iterable[int]) -> None:
    """Remove the sockets of a server that was killed; it creates them in /tmp, named by port."""
    for port in ports:
        for socket in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108 - a fixed path
            socket.unlink(missing_ok=True)


def _answers(client: Any) -> bool:
    with suppress(BotoCoreError, ClientError):
        client.create_bucket(Bucket="ready")
        client.put_object(Bucket="ready", Key="ready", Body=b"ready")
        return True
    return False
