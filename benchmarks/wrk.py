"""wrk as a client, whose own cost is small compared with that of the server.

A client in Python needs as much time per request as the servers here, which hides them: on two
cores both sides of a comparison then look alike.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.client import HOST, WrongAnswer

# Time that wrk needs in addition to its duration, to connect, to stop and to report.
_MORE_S = 30.0
_ANSWER_S = 30
# The figures as JSON, because wrk's own report is rounded.
_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [==[%s]==]
done = function(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format(
        '\\n{"requests": %%d, "bytes": %%d, "us": %%d, "p50_us": %%d, "p99_us": %%d, '
        .. '"status": %%d, "socket": %%d}\\n',
        summary.requests, summary.bytes, summary.duration,
        latency:percentile(50), latency:percentile(99),
        errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
"""


class WrkMissing(RuntimeError):
    """wrk is not installed; the message says how to install it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The responses of a server under load, and their latencies.

    `refused` are responses with a status of 400 and above, `broken` connections that failed.
    """

    requests: int
    seconds: float
    megabytes: float
    p50_ms: float
    p99_ms: float
    refused: int
    broken: int

    @property
    def rate(self) -> float:
        """Responses per second."""
        return self.requests / self.seconds


def check_installed() -> None:
    """Raise WrkMissing if wrk is not installed."""
    if shutil.which("wrk") is None:
        raise WrkMissing(
            "wrk, the HTTP load generator, is needed as the client: `apt-get install wrk` on "
            "Debian and Ubuntu, `brew install wrk` on macOS"
        )


class Wrk:
    """A running wrk with `connections` connections, each with one request at a time."""

    def __init__(self, process: asyncio.subprocess.Process, script: Path, seconds: int) -> None:
        self._process = process
        self._script = script
        self._limit_s = seconds + _MORE_S

    @classmethod
    async def start(
        cls, port: int, path: str, body: Mapping[str, Any], *, clients: int, seconds: int
    ) -> Wrk:
        """Start to post a body to a path of this machine."""
        with tempfile.NamedTemporaryFile("w", suffix=".lua", delete=False) as file:
            file.write(_SCRIPT % json.dumps(body))
        process = await asyncio.create_subprocess_exec(
            *("wrk", "--threads", "1", "--connections", str(clients), "--latency"),
            *("--duration", f"{seconds}s", "--timeout", f"{_ANSWER_S}s", "--script", file.name),
            f"http://{HOST}:{port}{path}",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        return cls(process, Path(file.name), seconds)

    def stop(self) -> None:
        """End the load early; the figures are still reported."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    async def wait(self) -> Load:
        """Wait for the end and return the figures. Raises WrongAnswer, TimeoutError."""
        try:
            async with asyncio.timeout(self._limit_s):
                output, _ = await self._process.communicate()
        finally:
            await self.close()
        try:
            figures: dict[str, int] = json.loads(output[output.rfind(b"{") :])
        except ValueError:
            raise WrongAnswer(f"wrk said {output.decode(errors='replace')[-300:]!r}") from None
        return Load(
            requests=figures["requests"],
            seconds=figures["us"] / 1e6,
            megabytes=figures["bytes"] / 1e6,
            p50_ms=figures["p50_us"] / 1e3,
            p99_ms=figures["p99_us"] / 1e3,
            refused=figures["status"],
            broken=figures["socket"],
        )

    async def close(self) -> None:
        """Kill it, if it is still running."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._script.unlink(missing_ok=True)


async def load(
    port: int, path: str, body: Mapping[str, Any], *, clients: int, seconds: int
) -> Load:
    """Load a path of this machine; every response must be successful.

    Raises:
        WrongAnswer: a request was rejected, or a connection broke.
        TimeoutError: wrk did not end in time.
    """
    wrk = await Wrk.start(port, path, body, clients=clients, seconds=seconds)
    load_result = await wrk.wait()
    if load_result.refused or load_result.broken or not load_result.requests:
        raise WrongAnswer(
            f"{path}: {load_result.refused} of {load_result.requests} answers were refusals, "
            f"{load_result.broken} connections broke"
        )
    return load_result
