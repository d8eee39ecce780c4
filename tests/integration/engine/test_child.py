"""The engine's process by itself, with a parent that does not read."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.hosts.frames import FrameDecoder, encode
from tests.conftest import ScriptFactory
from tests.prompt_counter import PromptCounter
from tests.waiting import WAIT_S, wait_until_blocking


class Child:
    """A process of the engine, the parent's end of its socket, and who sees what it is asked."""

    def __init__(self, model: Path, witness: PromptCounter) -> None:
        self.witness = witness
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(WAIT_S)
        words = [sys.executable, "-m", "engine.hosts.child", str(theirs.fileno()), str(os.getpid())]
        env = {**os.environ, **witness.variables}
        self.process = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=env)
        theirs.close()
        options = {"model_path": str(model)}
        self.send({"backend": "scripted", "options": options, "memory_mb": 0})
        self.frames = self._frames()

    def send(self, message: dict[str, Any]) -> None:
        self.socket.sendall(encode(message))

    def run(self, run_id: int) -> None:
        self.send({"run": run_id, "prompt": f"p {run_id}", "sampling": {}, "buffered": False})

    def _frames(self) -> Iterator[dict[str, Any]]:
        decoder = FrameDecoder()
        while data := self.socket.recv(4_096):
            yield from decoder.feed(data)

    def come_to_rest(self) -> None:
        """Return when none of its threads has run between two looks."""
        seen = [""]

        def same() -> bool:
            tasks = Path(f"/proc/{self.process.pid}/task").glob("*/status")
            seen.append("".join(each.read_text().partition("ctxt_switches")[2] for each in tasks))
            return seen[-1] == seen[-2]

        wait_until_blocking(same)

    def close(self) -> int:
        self.socket.close()
        self.witness.close()
        return self.process.wait(WAIT_S)


@pytest.fixture
def child(script: ScriptFactory, tmp_path: Path) -> Iterator[Child]:
    model = script({"pieces": ["bla "], "repeat": -1}, slots=2, context_length=2**31)
    found = Child(model, PromptCounter(tmp_path / "witness"))
    yield found
    assert found.close() == 0


def test_an_aborted_run_ends_though_nobody_reads_what_others_say(child: Child) -> None:
    """Both runs stand still for want of room; the one that is aborted has to get out of there."""
    assert next(child.frames)["messages"][0].keys() == {"loaded"}
    for run_id in (1, 2):
        child.run(run_id)
        child.witness.wait_for(1)
    child.come_to_rest()
    child.send({"abort": 1})
    child.run(3)
    child.witness.wait_for(1)
    assert child.witness.seen.keys() == {"p 1", "p 2", "p 3"}
