"""Worker processes that a test kills and replaces."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_PROGRAM = Path(__file__).with_name("sdk_worker.py")


class Workers:
    """Workers, one for each entry in a list of endpoints."""

    def __init__(self, port: int, endpoints: Iterable[str], log: Path) -> None:
        self._port = port
        self.log = log
        self._names = itertools.count(1)
        self._workers = [(endpoint, self._start(endpoint)) for endpoint in endpoints]

    def _start(self, endpoint: str) -> subprocess.Popen[bytes]:
        name = f"worker-{next(self._names)}"
        command = [sys.executable, "-S", "-E", str(_PROGRAM), str(self._port), endpoint, name]
        return subprocess.Popen(
            [*command, str(self.log)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill_one(self, rng: random.Random) -> None:
        """Kill one worker and start another under a new name."""
        at = rng.randrange(len(self._workers))
        endpoint, process = self._workers[at]
        process.send_signal(signal.SIGKILL)
        process.wait()
        self._workers[at] = (endpoint, self._start(endpoint))

    def replace_ended(self) -> None:
        """Replace the workers that have exited."""
        for at, (endpoint, process) in enumerate(self._workers):
            if process.poll() is not None:
                self._workers[at] = (endpoint, self._start(endpoint))

    def close(self) -> None:
        """Kill all workers."""
        for _, process in self._workers:
            process.kill()
            process.wait()

    def taken(self) -> dict[str, list[str]]:
        """Return the nonces of the results that the server accepted, by job."""
        results: dict[str, list[str]] = {}
        for line in self.log.read_text().splitlines() if self.log.exists() else ():
            event, job_id, nonce = line.split()
            if event == "taken":
                results.setdefault(job_id, []).append(nonce)
        return results
