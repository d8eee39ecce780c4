"""Many requests one after the other, each of which knows exactly what it must get."""

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

# Every token says which request it is of. Only a FINISH tells how long a text was, so that an
# aborted one has it; of all else the dice decide.
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
# Short, for what is faulty waits them out; longer than a machine that is busy with other tests
# stands still, for what is not must never see them.
CLOCKS: dict[str, Any] = {
    "stall_timeout_s": 2.0 * PATIENCE,
    "abort_grace_s": 2.0 * PATIENCE,
    "prefill_timeout_s": 20.0 * PATIENCE,
}
BOUND_S = 60 * PATIENCE


def backend(model: Path, library: Path) -> BackendConfig:
    fields = {"model_path": str(model), "model_name": "fake", "lib_path": str(library)}
    return BackendConfig("rkllm", fields)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: its prompt, in the runtime's own tokens, and the number of tokens it asks for.

    `limit` is max_tokens; `stop_at` is the token whose beginning is a stop string.
    """

    prompt: Prompt
    prompt_tokens: int
    tokens: int
    limit: int | None = None
    stop_at: int | None = None
    cut_at: int | None = None
    fault: str | None = None

    @property
    def name(self) -> str:
        """The prompt as the runtime repeats it."""
        return self.prompt if isinstance(self.prompt, str) else " ".join(map(str, self.prompt))  # type: ignore[arg-type]

    def first(self, tokens: int) -> str:
        return "".join(f"{i}/{self.name} " for i in range(tokens))

    def request(self) -> GenerationRequest:
        stop = () if self.stop_at is None else (f"{self.stop_at}/{self.name}",)
        return GenerationRequest(
            prompt=self.prompt, sampling=SamplingParams(max_tokens=self.limit, stop=stop)
        )

    @property
    def end(self) -> tuple[str, FinishReason, int]:
        """The whole answer's text, why it ends and how many tokens it counts."""
        if self.stop_at is not None and self.stop_at < min(self.tokens, self.limit or self.tokens):
            return self.first(self.stop_at), FinishReason.STOP, self.stop_at + 1
        if self.limit is not None and self.limit <= self.tokens:
            return self.first(self.limit), FinishReason.LENGTH, self.limit
        return self.first(self.tokens), FinishReason.STOP, self.tokens


def asked(dice: random.Random, number: int, cut_off: float, faulty: float) -> Asked:
    """Make up a request."""
    tokens = dice.choice([0, 1, 2, dice.randrange(60), dice.randrange(60), dice.randrange(600)])
    if dice.random() < faulty:
        fault = dice.choice(list(FAULTS))
        tokens = max(tokens, 1)
        return Asked(f"fault {fault} r{number} {tokens}", 4, tokens, fault=fault)
    how: dict[str, Any] = {}
    if dice.random() < 0.3:
        how["limit"] = dice.randint(1, 40)
    if dice.random() < 0.3:
        how["stop_at"] = dice.randrange(40)
    if dice.random() < cut_off:
        how["cut_at"] = dice.randrange(tokens + 1)
    if dice.random() < 0.4:
        ids = (*(dice.randrange(2**20) for _ in range(dice.randrange(20))), number, tokens)
        return Asked(ids, len(ids), tokens, **how)
    kind = dice.choice(["", "late ", "slow "])
    words = "word " * dice.randrange(20)
    prompt = f"{kind}{words}r{number} {tokens}"
    return Asked(prompt, len(prompt.split()), tokens, **how)


async def serve(engine: Engine, one: Asked) -> None:
    """Run a request and hold what comes against what must."""
    text, reason, tokens = one.end
    got: list[str] = []
    failure: EngineError | None = None
    async with await engine.generate(one.request()) as stream:
        try:
            async for batch in stream:
                got += [delta.text for delta in batch]
                if one.cut_at is not None and len(got) >= one.cut_at:
                    break
        except EngineError as error:
            failure = error
    if one.fault is not None:
        assert type(failure) is FAULTS[one.fault]
        assert one.first(one.tokens).startswith("".join(got))
        return
    if failure is not None:
        raise AssertionError(f"it failed: {failure.message}") from failure
    if one.cut_at is not None and stream.result is None:
        assert text.startswith("".join(got))
        return
    assert stream.result is not None
    assert ("".join(got), stream.result.reason) == (text, reason)
    usage = stream.result.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (one.prompt_tokens, tokens)


async def serve_many(
    engine: Engine, count: int, *, seed: int, cut_off: float = 0, faulty: float = 0
) -> None:
    """Run so many requests in order, without a pause."""
    dice = random.Random(seed)
    for number in range(count):
        one = asked(dice, number, cut_off, faulty)
        try:
            async with asyncio.timeout(BOUND_S):
                await serve(engine, one)
        except BaseException as error:
            error.add_note(f"request {number} of seed {seed}: {one}")
            raise
    assert engine.failure is None
