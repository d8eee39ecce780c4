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


async def request_answers(url: str, lines: list[dict[str, Any]], concurrency: int) -> list[str]:
    """Request each line's answer; return the lines of the output."""
    limit = asyncio.Semaphore(concurrency)
    async with AsyncOpenAI(base_url=url, api_key="none") as client:

        async def answer(line: dict[str, Any]) -> str:
            async with limit:
                response = await client.completions.create(**line["body"])
            body = response.model_dump(mode="json")
            return json.dumps({"custom_id": line["custom_id"], "response": {"body": body}})

        return await asyncio.gather(*(answer(line) for line in lines))


def main(url: str, input_path: Path, output: Path, concurrency: int) -> None:
    """Read a file, request the answers, write a file."""
    lines = [json.loads(line) for line in input_path.read_text().splitlines()]
    answers = asyncio.run(request_answers(url, lines, concurrency))
    output.write_text("".join(f"{each}\n" for each in answers))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
