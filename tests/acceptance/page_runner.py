"""Runs the blocks of a page in order, in a folder like a clone of the repository."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx2

from handler.models.default_model import DEFAULT_MODEL_NAME
from tests.acceptance.pages import ROOT, Block
from tests.fork_server.client import PYTHON_PATH
from tests.ministack import make_queue, ministack
from tests.ports import free_port
from tests.seaweed import KEY, SECRET, seaweed
from tests.waiting import PATIENCE, wait_for_server

# Text of the pages that is replaced before it runs: the address and ports, which other tests on the
# machine may use, and names that would need an account with Amazon.
REPLACEMENTS: Mapping[str, str] = {
    "127.0.0.1:8000": "127.0.0.1:{port}",
    "8001": "{other_port}",
    "https://sqs.eu-central-1.amazonaws.com/123456789012/prompts": "{queue}",
    "https://s3.eu-central-1.amazonaws.com": "{buckets}",
    '"accessId": "…"': '"accessId": "{key}"',
    '"accessSecret": "…"': '"accessSecret": "{secret}"',
    'runpod.api_key = "…"': 'runpod.api_key = "any"',
    'runpod.Endpoint("my-endpoint")': 'runpod.Endpoint("default")',
}
# Shorten the benchmarks, whose output the tests do not check.
REPLACEMENTS_LONG: Mapping[str, str] = {"-m benchmarks": "-m benchmarks --quick --pairs 1"}
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

# Blocks with these texts need a server; RunPod's clients find it by RUNPOD_ENDPOINT_BASE_URL.
_NEEDS_SERVER = (SERVE, "127.0.0.1:8000", "runpod.Endpoint")
_NEEDS_CLOUD = ("amazonaws.com", "s3://")
# A page may start its server with settings: `FAULTS_PER_REQUEST=on make serve`.
_SERVE_COMMAND = re.compile(rf"((?:[A-Z_]+=\S+ )*){SERVE}")
# A job that is answered at once, and a program that reads its output.
_RUN_HANDLER = re.compile(r"\.venv/bin/python (-m handler .+?) \| (.+)\n")
_FILE_NAME = re.compile(r"# ([\w-]+\.py)\n")
_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "sh": ("bash", "-euo", "pipefail", "-c"),
    "python": (sys.executable, "-c"),
    "javascript": ("node", "--input-type=module", "--eval"),
}


class PageRunner:
    """Runs blocks in a folder with the files of a clone; starts a server when a block needs one.

    The files that a block writes stay for the next blocks.
    """

    def __init__(self, folder: Path, stack: ExitStack, *, long: bool) -> None:
        self.folder = folder
        self._stack = stack
        self._replacements = {**REPLACEMENTS, **(REPLACEMENTS_LONG if long else {})}
        self._limit_s = LONG_LIMIT_S if long else LIMIT_S
        self._values = {"port": str(free_port()), "other_port": str(free_port())}
        # Two threads would wait for each other on a machine that is busy with other tests.
        self._variables = {"THREADS": "1"}
        if not long:
            (folder / "script.json").write_text(json.dumps(SCRIPT), encoding="utf-8")
            script = str(folder / "script.json")
            self._variables |= {"MODEL_PATH": script, "MODEL_NAME": DEFAULT_MODEL_NAME}
            self._variables |= {"PYTHONPATH": PYTHON_PATH}
        self._has_cloud = False
        self._is_serving = False
        self._is_long = long
        for path in ROOT.iterdir():
            if not path.name.startswith((".git", "jobs.sqlite3", "build")):
                (folder / path.name).symlink_to(path)
        (folder / "node_modules").symlink_to(ROOT / "tests" / "clients" / "node_modules")

    def run(self, block: Block) -> str:
        """Run a block; return its output."""
        if serve := _SERVE_COMMAND.fullmatch(block.text.strip()):
            self._variables |= dict(each.split("=", 1) for each in serve[1].split())
        if any(words in block.text for words in _NEEDS_SERVER):
            self._start_server()
        if any(word in block.text for word in _NEEDS_CLOUD):
            self._start_cloud()
        if serve:
            return ""
        text = block.text
        for old, new in self._replacements.items():
            if old in text:
                text = text.replace(old, new.format(**self._values))
        if name := _FILE_NAME.match(text):
            (self.folder / name[1]).write_text(text, encoding="utf-8")
        command = [*_COMMANDS[block.language], text]
        handler_output = None
        if not self._is_long and (pipe := _RUN_HANDLER.fullmatch(text)):
            # The tests fork a process for the first command faster than a shell starts one.
            handler_output = self._run_handler(shlex.split(pipe[1]))
            command[-1] = pipe[2]
        with (
            (self.folder / "stderr.log").open("w") as log,
            subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment(),
                stdin=None if handler_output is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            ) as process,
        ):
            try:
                output, _ = process.communicate(handler_output, timeout=self._limit_s)
            finally:
                # The block may have started background processes.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        stderr = (self.folder / "stderr.log").read_text()[-2000:]
        assert process.returncode == 0, f"{block}\n{block.text}\n{output[-2000:]}\n{stderr}"
        return output

    def _run_handler(self, arguments: Sequence[str]) -> str:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=self._limit_s,
            check=True,
        ).stdout

    def final_status(self, job: str) -> str:
        """Wait until a job of the page's server has ended; return its status."""
        address = f"http://127.0.0.1:{self._values['port']}/status-sync/{job}"
        status: str = httpx2.get(address, timeout=self._limit_s).json()["status"]
        return status

    def _environment(self) -> dict[str, str]:
        # A make below this one's make would announce its folder on stdout.
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
        address = f"http://127.0.0.1:{self._values['port']}/v2"
        return kept | {"RUNPOD_ENDPOINT_BASE_URL": address} | self._variables

    def _start_server(self) -> None:
        if not self._is_serving:
            # The tests fork a process for this command faster than `make` starts one.
            command = SERVE.split() if self._is_long else [sys.executable, "-m", "emulator"]
            environment = self._environment()
            # A variable of RunPod's clients, which keeps a program from being forked.
            del environment["RUNPOD_ENDPOINT_BASE_URL"]
            self._stack.enter_context(
                _run_server(command, self.folder, environment, self._values["port"])
            )
            self._is_serving = True

    def _start_cloud(self) -> None:
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
def open_page_runner(folder: Path, *, long: bool = False) -> Iterator[PageRunner]:
    """Yield a runner for a page in this folder; end its servers afterwards."""
    with ExitStack() as stack:
        yield PageRunner(folder, stack, long=long)


@contextmanager
def _run_server(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], port: str
) -> Iterator[None]:
    """Run `make serve` as on the page, or the command that it runs, on a free port."""
    with (
        (folder / "server.log").open("w") as log,
        subprocess.Popen(
            command,
            cwd=folder,
            env={**environment, "PORT": port, "DRAIN_S": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        ) as server,
    ):
        try:
            health = f"http://127.0.0.1:{port}/health"
            wait_for_server(server, partial(_is_healthy, health), folder / "server.log", _START_S)
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)


def _is_healthy(address: str) -> bool:
    with suppress(httpx2.TransportError):
        return bool(httpx2.get(address).json()["status"] == "ok")
    return False
