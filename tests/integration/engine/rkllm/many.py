"""Run many random requests in sequence and compare each answer with the expected one."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import BackendConfig, Engine, FinishReason, GenerationRequest, SamplingParams
from engine.errors import BackendFailed, EngineCrashed, EngineError, EngineStalled
from engine.request import Prompt
from tests.waiting import PATIENCE

# Every token contains its request's number. The length of a text is known only from FINISH, so
# aborts have a FINISH too; everything else is random.
SCRIPT = r"""
answer when="fault crash"
  say "\{i}/\{prompt} " times=asked
  crash "E RKNN: no more"
answer when="fault hang"
  say "\{i}/\{prompt} " times=asked
  hang
answer when="fault deaf"
  say "\{i}/\{prompt} " times=asked
  hang
  abort ignored
answer when="fault error"
  say "\{i}/\{prompt} " times=asked
  error null
answer when="fault unfinished"
  say "\{i}/\{prompt} " times=asked
  finish none
answer when="late"
  say "\{i}/\{prompt} " times=asked
  late 5 ms=20 finish
  abort finish
answer when="slow"
  say "\{i}/\{prompt} " us=50 times=asked
  abort finish
answer when="r"
  say "\{i}/\{prompt} " times=asked
  abort finish
answer
  say "\{i}/\{prompt} " times=asked
"""
FAULTS: dict[str, type[EngineError]] = {
    "crash": EngineCrashed,
    "hang": EngineStalled,
    "deaf": EngineStalled,
    "error": BackendFailed,
    "unfinished": BackendFailed,
}
# Short, because failing requests wait for the whole time; longer than the pauses of a machine
# that is busy with other tests, because valid requests must never time out.
TIMEOUTS: dict[str, Any] = {
    "stall_timeout_s": 2.0 * PATIENCE,
    "abort_grace_s": 2.0 * PATIENCE,
    "prefill_timeout_s": 20.0 * PATIENCE,
}
TIMEOUT_S = 60 * PATIENCE


def backend(model: Path, library: Path) -> BackendConfig:
    fields = {"model_path": str(model), "model_name": "fake", "lib_path": str(library)}
    return BackendConfig.from_wire("rkllm", fields)


@dataclass(frozen=True, slots=True)
class ExpectedRequest:
    """One request: its prompt, as tokens of the runtime, and the number of tokens it requests.

    `limit` is max_tokens; `stop_at` is the token whose beginning is a stop string.
    """

    prompt: Prompt
    prompt_tokens: int
    tokens: int
    limit: int | None = None
    stop_at: int | None = None
    abort_after: int | None = None
    fault: str | None = None

    @property
    def name(self) -> str:
        """The prompt as the runtime returns it."""
        return self.prompt if isinstance(self.prompt, str) else " ".join(map(str, self.prompt))  # type: ignore[arg-type]

    def first_tokens(self, tokens: int) -> str:
        return "".join(f"{i}/{self.name} " for i in range(tokens))

    def request(self) -> GenerationRequest:
        stop = () if self.stop_at is None else (f"{self.stop_at}/{self.name}",)
        return GenerationRequest(
            prompt=self.prompt, sampling=SamplingParams(max_tokens=self.limit, stop=stop)
        )

    @property
    def expected_result(self) -> tuple[str, FinishReason, int]:
        """The expected text, finish reason and number of tokens."""
        if self.stop_at is not None and self.stop_at < min(self.tokens, self.limit or self.tokens):
            return self.first_tokens(self.stop_at), FinishReason.STOP, self.stop_at + 1
        if self.limit is not None and self.limit <= self.tokens:
            return self.first_tokens(self.limit), FinishReason.LENGTH, self.limit
        return self.first_tokens(self.tokens), FinishReason.STOP, self.tokens


def random_request(
    rng: random.Random, number: int, abort_share: float, fault_share: float
) -> ExpectedRequest:
    """Return a random request."""
    tokens = rng.choice([0, 1, 2, rng.randrange(60), rng.randrange(60), rng.randrange(600)])
    if rng.random() < fault_share:
        fault = rng.choice(list(FAULTS))
        tokens = max(tokens, 1)
        return ExpectedRequest(f"fault {fault} r{number} {tokens}", 4, tokens, fault=fault)
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        options["limit"] = rng.randint(1, 40)
    if rng.random() < 0.3:
        options["stop_at"] = rng.randrange(40)
    if rng.random() < abort_share:
        options["abort_after"] = rng.randrange(tokens + 1)
    if rng.random() < 0.4:
        ids = (*(rng.randrange(2**20) for _ in range(rng.randrange(20))), number, tokens)
        return ExpectedRequest(ids, len(ids), tokens, **options)
    kind = rng.choice(["", "late ", "slow "])
    padding = "word " * rng.randrange(20)
    prompt = f"{kind}{padding}r{number} {tokens}"
    return ExpectedRequest(prompt, len(prompt.split()), tokens, **options)


async def check_request(engine: Engine, expected: ExpectedRequest) -> None:
    """Run a request and compare its answer with the expected one."""
    text, reason, tokens = expected.expected_result
    received: list[str] = []
    failure: EngineError | None = None
    async with await engine.generate(expected.request()) as stream:
        try:
            async for batch in stream:
                received += [delta.text for delta in batch]
                if expected.abort_after is not None and len(received) >= expected.abort_after:
                    break
        except EngineError as error:
            failure = error
    if expected.fault is not None:
        assert type(failure) is FAULTS[expected.fault]
        assert expected.first_tokens(expected.tokens).startswith("".join(received))
        return
    if failure is not None:
        raise AssertionError(f"it failed: {failure.message}") from failure
    if expected.abort_after is not None and stream.result is None:
        assert text.startswith("".join(received))
        return
    assert stream.result is not None
    assert ("".join(received), stream.result.reason) == (text, reason)
    usage = stream.result.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (expected.prompt_tokens, tokens)


async def check_requests(
    engine: Engine, count: int, *, seed: int, abort_share: float = 0, fault_share: float = 0
) -> None:
    """Run this number of requests in sequence without a pause."""
    rng = random.Random(seed)
    for number in range(count):
        expected = random_request(rng, number, abort_share, fault_share)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await check_request(engine, expected)
        except BaseException as error:
            error.add_note(f"request {number} of seed {seed}: {expected}")
            raise
    assert engine.failure is None
