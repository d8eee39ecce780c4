"""Helpers of the engine's integration tests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from engine import BackendConfig, Delta, Engine, Finish, GenerationRequest, TokenStream
from engine.request import Priority, Prompt, SamplingParams


def scripted(path: Path | None = None) -> BackendConfig:
    return BackendConfig.from_wire("scripted", {} if path is None else {"model_path": str(path)})


def request(
    prompt: Prompt = "hello there",
    *,
    timeout_s: float | None = None,
    priority: Priority = Priority.JOB,
    **sampling: Any,
) -> GenerationRequest:
    return GenerationRequest(
        prompt=prompt,
        sampling=SamplingParams(**sampling),
        timeout_s=timeout_s,
        priority=priority,
    )


async def read(stream: TokenStream) -> list[Delta]:
    async with asyncio.timeout(60):
        return [delta async for batch in stream for delta in batch]


async def read_into(stream: TokenStream, texts: list[str]) -> None:
    """Read to the end or to a failure, and keep the texts before it."""
    async with asyncio.timeout(60):
        async for batch in stream:
            texts += [delta.text for delta in batch]


async def ask(engine: Engine, prompt: Prompt = "hello there", **options: Any) -> tuple[str, Finish]:
    """Run one request to its end, and return its text and finish."""
    async with await engine.generate(request(prompt, **options)) as stream:
        deltas = await read(stream)
    assert stream.result is not None
    return "".join(delta.text for delta in deltas), stream.result


async def first_text(stream: TokenStream) -> str:
    """Wait for the first text of a stream."""
    async with asyncio.timeout(30):
        return "".join(delta.text for delta in await anext(stream))


def child_pid(engine: Engine) -> int:
    pid: int | None = engine._host.pid  # type: ignore[attr-defined]
    assert pid is not None
    return pid
