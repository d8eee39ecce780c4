"""The peer for jobs: the SDK's own local server. `PORT PARENT_PID ANSWER [--stream]`.

This is the server of `python handler.py --rp_serve_api`, with a handler without work: it returns
the content of the file ANSWER, so that both sides send the same bytes. With `--stream` ANSWER is
`{"chunks": […], "gap_s": …}`, and the handler is a generator that yields the chunks at that pace.
Its dozen log lines per job are disabled.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from benchmarks.client import HOST
from common.process_utils import die_with_parent


def main() -> None:
    """Serve until killed."""
    port, parent, path, *flags = sys.argv[1:]
    die_with_parent(int(parent))
    answer = json.loads(Path(path).read_bytes())
    os.environ.update(RUNPOD_LOG_LEVEL="ERROR", UVICORN_LOG_LEVEL="warning")
    sys.argv[1:] = ["--rp_serve_api", "--rp_api_host", HOST, "--rp_api_port", port]

    # The SDK reads its log level at import.
    import runpod

    def return_answer(job: dict[str, Any]) -> Any:
        # The SDK removes keys from the returned value.
        return dict(answer)

    async def streamed(job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        for chunk in answer["chunks"]:
            await asyncio.sleep(answer["gap_s"])
            yield chunk

    runpod.serverless.start({"handler": streamed if "--stream" in flags else return_answer})


if __name__ == "__main__":
    main()
