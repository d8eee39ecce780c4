"""Our server as `python -m emulator` runs it: `PORT PARENT_PID [OPTION …]`.

In addition it exits with the benchmark. With `--event-per-token` each token becomes a server-sent
event, which otherwise happens only while the client keeps up with the model; this allows a
comparison with servers that always do it. With `--tell-aborts=FILE` it records when the slot of an
aborted stream is free, which clients cannot see.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import emulator.__main__
import handler.apis.openai.api
from benchmarks.client import HOST
from common.process_utils import die_with_parent
from engine.hooks import EngineEvent, RequestEnded
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.wire_format import DONE
from handler.generation.active_generation import ActiveGeneration

_ABORTS_FLAG = "--tell-aborts="


async def event_per_token(
    call: OpenAICall, running: ActiveGeneration, interval_s: float = 0.0, part_chars: int = 0
) -> AsyncGenerator[bytes, None]:
    """Yield the events of `handler.apis.openai.events.stream_events`, with one event per token."""
    opening = call.encode_opening(running.created)
    async for batch in running.batches(interval_s):
        yield opening + b"".join([call.encode_delta([delta]) for delta in batch])
        opening = b""
    yield opening + call.encode_closing(await running.build_answer()) + DONE


def record_aborts(path: Path) -> None:
    """Write a line for each aborted stream whose slot is free: CLOCK_MONOTONIC in nanoseconds."""
    module: Any = emulator.__main__
    build = module.build_engine
    file = path.open("ab", buffering=0)

    def on_event(event: EngineEvent) -> None:
        # The call that reports the end also releases the slot.
        if isinstance(event, RequestEnded) and event.aborted:
            file.write(b"%d\n" % time.monotonic_ns())

    def built(settings: Any) -> Any:
        engine = build(settings)
        engine.subscribe(on_event)
        return engine

    module.build_engine = built


def main() -> int:
    """Serve until SIGTERM."""
    port, parent, *flags = sys.argv[1:]
    die_with_parent(int(parent))
    if "--event-per-token" in flags:
        api: Any = handler.apis.openai.api
        api.stream_events = event_per_token
    for flag in flags:
        if flag.startswith(_ABORTS_FLAG):
            record_aborts(Path(flag.removeprefix(_ABORTS_FLAG)))
    sys.argv[1:] = ["--host", HOST, "--port", port]
    return emulator.__main__.main()


if __name__ == "__main__":
    sys.exit(main())
