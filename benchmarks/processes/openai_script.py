"""The usual script for a file of prompts and a server: asyncio, a client, a semaphore.

`python -m benchmarks.processes.openai_script URL INPUT OUTPUT AT_ONCE`. It does not resume earlier
runs, and writes at the end.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI


async def answered(url: str, lines: list[dict[str, Any]], at_once: int) -> list[str]:
    """Request each line's answer; return the lines of the output."""
    limit = asyncio.Semaphore(at_once)
    async with AsyncOpenAI(base_url=url, api_key="none") as client:

        async def answer(line: dict[str, Any]) -> str:
            async with limit:
                found = await client.completions.create(**line["body"])
            body = found.model_dump(mode="json")
            return json.dumps({"custom_id": line["custom_id"], "response": {"body": body}})

        return await asyncio.gather(*(answer(line) for line in lines))


def main(url: str, given: Path, output: Path, at_once: int) -> None:
    """Read a file, request the answers, write a file."""
    lines = [json.loads(line) for line in given.read_text().splitlines()]
    answers = asyncio.run(answered(url, lines, at_once))
    output.write_text("".join(f"{each}\n" for each in answers))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
