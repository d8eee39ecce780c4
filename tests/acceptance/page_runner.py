"""Somebody who does what a page says, block after block, in a clone of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx2

from handler.models.default_model import DEFAULT_MODEL_NAME
from tests.acceptance.pages import ROOT, Block
from tests.ministack import make_queue, ministack
from tests.ports import free_port
from tests.seaweed import KEY, SECRET, seaweed
from tests.waiting import PATIENCE, wait_for_server

# All that is not run as it is written, by what is put in its place. The address and the ports are
# another server's on a machine that runs other tests too; the rest is an account with Amazon.
PUT_IN: Mapping[str, str] = {
    "127.0.0.1:8000": "127.0.0.1:{port}",
    "8001": "{other_port}",
    "https://sqs.eu-central-1.amazonaws.com/123456789012/prompts": "{queue}",
    "https://s3.eu-central-1.amazonaws.com": "{buckets}",
    '"accessId": "…"': '"accessId": "{key}"',
    '"accessSecret": "…"': '"accessSecret": "{secret}"',
    'runpod.api_key = "…"': 'runpod.api_key = "any"',
    'runpod.Endpoint("my-endpoint")': 'runpod.Endpoint("default")',
}
# Long runs cut short: what they print is no matter of tests.
PUT_IN_LONG: Mapping[str, str] = {"-m benchmarks": "-m benchmarks --quick --pairs 1"}
# The engine of a short run: it answers at once, under the name of the default model, with the texts
# that the README shows. A long run uses that model.
SCRIPT: Mapping[str, object] = {
    "answers": [
        {
            "when": "three fruits",
            "pieces": ["1.", " Bananas", "\n2.", " Oranges", "\n3.", " Grapes"],
        },
        {"when": "What is my e-mail", "pieces": ["I have noted ", "jo@exam", "ple.com", "."]},
        {},
    ],
    "slots": 4,
}
SERVE = "make serve"
BUCKETS = ("my-bucket", "my-results")
LIMIT_S = 120
LONG_LIMIT_S = 600
_START_S = 60.0 * PATIENCE

# What needs a server that is up; RunPod's clients find it by RUNPOD_ENDPOINT_BASE_URL.
_SERVED = (SERVE, "127.0.0.1:8000", "runpod.Endpoint")
_CLOUD = ("amazonaws.com", "s3://")
# A page may start its server with settings: `FAULTS_PER_REQUEST=on make serve`.
_SERVE_COMMAND = re.compile(rf"((?:[A-Z_]+=\S+ )*){SERVE}")
_FILE_NAME = re.compile(r"# ([\w-]+\.py)\n")
_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "sh": ("bash", "-euo", "pipefail", "-c"),
    "python": (sys.executable, "-c"),
    "javascript": ("node", "--input-type=module", "--eval"),
}


class Reader:
    """A page's reader: a folder that has all that a clone has, and a server once one is needed.

    Files that a block writes are there for the next one, and gone with the folder.
    """

    def __init__(self, folder: Path, stack: ExitStack, *, long: bool) -> None:
        self.folder = folder
        self._stack = stack
        self._put_in = {**PUT_IN, **(PUT_IN_LONG if long else {})}
        self._limit_s = LONG_LIMIT_S if long else LIMIT_S
        self._values = {"port": str(free_port()), "other_port": str(free_port())}
        # Two threads wait for each other where the machine is busy with other tests.
        self._variables = {"THREADS": "1"}
        if not long:
            (folder / "script.json").write_text(json.dumps(SCRIPT), encoding="utf-8")
            script = str(folder / "script.json")
            self._variables |= {"MODEL_PATH": script, "MODEL_NAME": DEFAULT_MODEL_NAME}
        self._has_cloud = False
        self._serves = False
        for path in ROOT.iterdir():
            if not path.name.startswith((".git", "jobs.sqlite3", "build")):
                (folder / path.name).symlink_to(path)
        (folder / "node_modules").symlink_to(ROOT / "tests" / "clients" / "node_modules")

    def run(self, block: Block) -> str:
        """Do what a block says; return what it printed."""
        if command := _SERVE_COMMAND.fullmatch(block.text.strip()):
            self._variables |= dict(each.split("=", 1) for each in command[1].split())
        if any(words in block.text for words in _SERVED):
            self._serve()
        if any(word in block.text for word in _CLOUD):
            self._rent_a_cloud()
        if command:
            return ""
        text = block.text
        for written, instead in self._put_in.items():
            if written in text:
                text = text.replace(written, instead.format(**self._values))
        if name := _FILE_NAME.match(text):
            (self.folder / name[1]).write_text(text, encoding="utf-8")
        with (
            (self.folder / "stderr.log").open("w") as log,
            subprocess.Popen(
                [*_COMMANDS[block.language], text],
                cwd=self.folder,
                env=self._environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            ) as process,
        ):
            try:
                output, _ = process.communicate(timeout=self._limit_s)
            finally:
                # What it has started in the background as well.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        said = (self.folder / "stderr.log").read_text()[-2000:]
        assert process.returncode == 0, f"{block}\n{block.text}\n{output[-2000:]}\n{said}"
        return output

    def ended(self, job: str) -> str:
        """Return how a job of the page's server has ended, when it has."""
        address = f"http://127.0.0.1:{self._values['port']}/status-sync/{job}"
        status: str = httpx2.get(address, timeout=self._limit_s).json()["status"]
        return status

    def _environment(self) -> dict[str, str]:
        # A make below this one's make would announce its folder on stdout.
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
        address = f"http://127.0.0.1:{self._values['port']}/v2"
        return kept | {"RUNPOD_ENDPOINT_BASE_URL": address} | self._variables

    def _serve(self) -> None:
        if not self._serves:
            self._stack.enter_context(
                _served(self.folder, self._environment(), self._values["port"])
            )
            self._serves = True

    def _rent_a_cloud(self) -> None:
        if self._has_cloud:
            return
        self._has_cloud = True
        queues, objects = self.folder / "queues", self.folder / "objects"
        queues.mkdir()
        objects.mkdir()
        buckets = self._stack.enter_context(seaweed(objects))
        for name in BUCKETS:
            buckets.client().create_bucket(Bucket=name)
        url = make_queue(self._stack.enter_context(ministack(queues)).client(), "prompts")
        self._values |= {"queue": url, "buckets": buckets.url, "key": KEY, "secret": SECRET}
        self._variables |= {
            "AWS_ENDPOINT_URL_S3": buckets.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "BATCH_POLL_S": "1",
        }


@contextmanager
def reader(folder: Path, *, long: bool = False) -> Iterator[Reader]:
    """Give somebody a folder to read a page in; end what they have started."""
    with ExitStack() as stack:
        yield Reader(folder, stack, long=long)


@contextmanager
def _served(folder: Path, environment: Mapping[str, str], port: str) -> Iterator[None]:
    """Run `make serve` as the page says it, on a free port."""
    with (
        (folder / "server.log").open("w") as log,
        subprocess.Popen(
            SERVE.split(),
            cwd=folder,
            env={**environment, "PORT": port, "DRAIN_S": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        ) as server,
    ):
        try:
            health = f"http://127.0.0.1:{port}/health"
            wait_for_server(server, partial(_answers, health), folder / "server.log", _START_S)
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)


def _answers(address: str) -> bool:
    with suppress(httpx2.TransportError):
        return bool(httpx2.get(address).json()["status"] == "ok")
    return False
