"""The engine host process, with a parent that does not read."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.hosts.frames import build_decoder, encode
from tests.conftest import ScriptFactory
from tests.prompt_counter import PromptCounter
from tests.waiting import WAIT_S, wait_until_blocking


class Child:
    """An engine host process, the parent's end of its socket, and a counter of its prompts."""

    def __init__(self, model: Path, prompts: PromptCounter) -> None:
        self.prompts = prompts
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(WAIT_S)
        command = [
            sys.executable,
            "-m",
            "engine.hosts.child",
            str(theirs.fileno()),
            str(os.getpid()),
        ]
        env = {**os.environ, **prompts.variables}
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=env)
        theirs.close()
        options = {"model_path": str(model)}
        self.send({"backend": "scripted", "options": options, "memory_mb": 0, "try_run": False})
        self.frames = self._frames()

    def send(self, message: dict[str, Any]) -> None:
        self.socket.sendall(encode(message))

    def run(self, run_id: int) -> None:
        self.send({"run": run_id, "prompt": f"p {run_id}", "sampling": {}, "buffered": False})

    def _frames(self) -> Iterator[dict[str, Any]]:
        decoder = build_decoder()
        while data := self.socket.recv(4_096):
            yield from decoder.feed(data)

    def wait_until_idle(self) -> None:
        """Wait until none of its threads has run between two polls."""
        context_switches = [""]

        def is_unchanged() -> bool:
            tasks = Path(f"/proc/{self.process.pid}/task").glob("*/status")
            context_switches.append(
                "".join(each.read_text().partition("ctxt_switches")[2] for each in tasks)
            )
            return context_switches[-1] == context_switches[-2]

        wait_until_blocking(is_unchanged)

    def close(self) -> int:
        self.socket.close()
        self.prompts.close()
        return self.process.wait(WAIT_S)


@pytest.fixture
def child(script: ScriptFactory, tmp_path: Path) -> Iterator[Child]:
    model = script({"pieces": ["bla "], "repeat": -1}, slots=2, context_length=2**31)
    child = Child(model, PromptCounter(tmp_path / "prompts"))
    yield child
    assert child.close() == 0


def test_aborted_run_ends_while_the_parent_does_not_read(child: Child) -> None:
    """Both runs wait for room in the queue; the aborted one must be woken."""
    assert next(child.frames)["messages"][0].keys() == {"loaded", "has_run"}
    for run_id in (1, 2):
        child.run(run_id)
        child.prompts.wait_for(1)
    child.wait_until_idle()
    child.send({"abort": 1})
    child.run(3)
    child.prompts.wait_for(1)
    assert child.prompts.counts.keys() == {"p 1", "p 2", "p 3"}
