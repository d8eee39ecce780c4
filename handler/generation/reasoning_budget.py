"""Limit how many tokens a model may think before it answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Self

from engine import (
    Chat,
    Delta,
    Engine,
    Finish,
    FinishReason,
    Message,
    Timings,
    TokenStream,
    Usage,
)
from engine.prompts.reasoning import REASONING_MARKS, THINK_CLOSE
from engine.request import Prompt


class BudgetedStream:
    """A stream of deltas whose reasoning ends after so many tokens.

    When the model is still thinking then, its run is stopped and a second one continues it after
    the closing mark. The engine has the prompt and the reasoning in its cache, so this takes little
    time. Tokens are counted as they arrive, those without text are not. Owned by the task that
    reads it.
    """

    def __init__(self, engine: Engine, stream: TokenStream, budget: int) -> None:
        self.starts_in_reasoning = stream.starts_in_reasoning
        self.warnings = stream.warnings
        self.result: Finish | None = None
        self._engine = engine
        self._stream = stream
        self._budget = budget
        self._is_answering = False
        # The reasoning so far, and the number of its tokens.
        self._output = ""
        self._tokens = 0
        # The prompt's tokens, once a second run has begun, and the output before that run.
        self._prompt_tokens: int | None = None
        self._is_ended = False
        self._is_aborted = False
        self._started_at = asyncio.get_running_loop().time()
        self._first_at: float | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Delta]:
        if self._is_ended:
            raise StopAsyncIteration
        batch: list[Delta] = await anext(self._stream, [])
        if not batch:
            self._is_ended = True
            self.result = self._merge_result(self._stream.result)
            raise StopAsyncIteration
        if self._first_at is None:
            self._first_at = asyncio.get_running_loop().time()
        if self._prompt_tokens is not None:
            return [self._shift(delta) for delta in batch]
        for index, delta in enumerate(batch):
            if self._is_answering:
                break
            if self._is_thinking and self._tokens >= self._budget:
                return [*batch[:index], *await self._end_reasoning()]
            self._output += delta.text
            self._tokens += 1
            self._is_answering = self._is_past_reasoning()
        return batch

    @property
    def _is_thinking(self) -> bool:
        return self.starts_in_reasoning or self._output.lstrip().startswith(tuple(REASONING_MARKS))

    def _is_past_reasoning(self) -> bool:
        """Return whether the model has written its closing mark, or begins without reasoning."""
        if self._is_thinking:
            return any(close in self._output for close in REASONING_MARKS.values())
        beginning = self._output.lstrip()
        return not any(mark.startswith(beginning) for mark in REASONING_MARKS)

    async def _end_reasoning(self) -> list[Delta]:
        """Stop the run and start one whose prompt has the reasoning and its closing mark.

        Returns the closing mark as a delta for the client.
        """
        first, request = self._stream, self._stream.request
        first.abort()
        await first.wait_ended()
        prompt = request.prompt
        rendered = await self._engine.render(prompt) if isinstance(prompt, Chat) else str(prompt)
        close = _find_close(rendered, self._output)
        end = "" if self._output.endswith("\n") or not self._output else "\n"
        end = f"{end}{close}\n\n"
        self._output += end
        text = prompt if isinstance(prompt, Chat) else rendered
        self._prompt_tokens = len(await self._engine.tokenize(text))
        max_tokens = request.sampling.max_tokens
        if max_tokens is not None:
            max_tokens -= self._tokens + 1
            if max_tokens <= 0:
                self._is_ended = True
                self.result = self._merge_result(
                    Finish(FinishReason.LENGTH, Usage(self._prompt_tokens + self._tokens, 0))
                )
                return [Delta(end)]
        timeout_s = request.timeout_s
        timeout_s = self._engine.request_timeout_s if timeout_s is None else timeout_s
        elapsed_s = asyncio.get_running_loop().time() - self._started_at
        self._stream = await self._engine.generate(
            replace(
                request,
                prompt=_continue_prompt(prompt, self._output),
                chat_template="off",
                sampling=replace(request.sampling, max_tokens=max_tokens),
                timeout_s=max(timeout_s - elapsed_s, 0.001),
            )
        )
        if self._is_aborted:
            self._stream.abort()
        return [Delta(end)]

    def _shift(self, delta: Delta) -> Delta:
        """Return a delta of the second run with its position in the whole output."""
        if delta.logprob is None:
            return delta
        offset = delta.logprob.offset + len(self._output)
        return Delta(delta.text, replace(delta.logprob, offset=offset))

    def _merge_result(self, finish: Finish | None) -> Finish | None:
        """Return the result of both runs: the reasoning is a part of the answer."""
        if finish is None or self._prompt_tokens is None:
            return finish
        usage = finish.usage
        reasoning_tokens = max(usage.prompt_tokens - self._prompt_tokens, 0)
        completion_tokens = usage.completion_tokens + reasoning_tokens
        now = asyncio.get_running_loop().time()
        first_at = now if self._first_at is None else self._first_at
        timings: Timings = finish.timings._replace(
            first_token_ms=1000 * (first_at - self._started_at),
            generate_ms=1000 * (now - first_at),
            total_ms=1000 * (now - self._started_at),
            tokens_per_second=completion_tokens / (now - first_at) if now > first_at else 0.0,
        )
        return Finish(
            finish.reason,
            Usage(self._prompt_tokens, completion_tokens),
            finish.stop_reason,
            timings,
            finish.grammar_break,
            finish.warnings,
        )

    def abort(self) -> None:
        """Stop the run now; has no effect after its end."""
        self._is_aborted = True
        self._stream.abort()


def _find_close(prompt: str, output: str) -> str:
    """Return the mark that closes the reasoning that a prompt or an output has opened."""
    for opening, close in REASONING_MARKS.items():
        if output.lstrip().startswith(opening) or prompt.rstrip().endswith(opening):
            return close
    return THINK_CLOSE


def _continue_prompt(prompt: Prompt, output: str) -> Prompt:
    """Return the prompt that continues an output."""
    if not isinstance(prompt, Chat):
        return str(prompt) + output
    *earlier, last = prompt.messages
    if prompt.continues_last:
        messages = (*earlier, replace(last, content=last.content + output))
    else:
        messages = (*prompt.messages, Message("assistant", output))
    return replace(prompt, messages=messages, continues_last=True)
