"""The pipeline every door leads to: generate, collect, validate."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine import Delta, Engine, GenerationRequest, Slot
from engine.errors import EngineError
from handler.active_generation import ActiveGeneration, BlockedStream
from handler.completed_answer import CompletedAnswer
from handler.content_log import log_prompt
from handler.errors import InvalidRequest
from handler.offload import run_in_thread
from handler.request import TextRequest
from validation import Issue, Validator, Verdict


class Pipeline:
    """Joins an engine and a validator; holds nothing between requests.

    Jobs, the emulator, batches and the OpenAI routes all enter here, so what is tested through one
    of them is what runs in the others. `adapters` are the LoRAs of the model, by the names that
    requests have for them; `aliases` are further names of the model itself, which requests may use
    and answers do not have; `on_open` is called with each answer that has begun.
    """

    def __init__(
        self,
        engine: Engine,
        model_name: str,
        validator: Validator | None = None,
        adapters: Sequence[str] = (),
        on_open: Callable[[ActiveGeneration], object] = lambda running: None,
        aliases: Sequence[str] = (),
    ) -> None:
        self.engine = engine
        self.model_name = model_name
        self.adapters = adapters
        self.aliases = aliases
        self._validator = validator
        self._on_open = on_open

    async def open(
        self, request: TextRequest, slot: Slot | None = None, *, buffered: bool = False
    ) -> ActiveGeneration:
        """Start a request, on a slot of its own or one it brings, and wait for its first text.

        With `buffered`, the engine may deliver the text in one piece when the answer is complete:
        the caller does not read it earlier.

        Raises:
            EngineError: what kept it from starting.
            InvalidRequest: it cannot be told whether the request is blocked.
        """
        log_prompt(request)
        name = request.generation.sampling.lora or self.model_name
        if request.options.blockers and (refusal := await self._refuse(request)) is not None:
            return ActiveGeneration(request, BlockedStream(), [], name, self._validator, refusal)
        stream = await self.engine.generate(request.generation, slot, buffered=buffered)
        try:
            first: list[Delta] = await anext(stream, [])
        except BaseException:
            stream.abort()
            raise
        running = ActiveGeneration(request, stream, first, name, self._validator)
        self._on_open(running)
        return running

    async def _refuse(self, request: TextRequest) -> Verdict | None:
        """Return why a request is not to be answered; asked before anything is generated (R56)."""
        options, validator = request.options, self._validator
        if validator is None:
            return None
        if isinstance(request.generation.prompt, tuple):
            raise InvalidRequest(
                "prompt must be text where intents or terms are blocked, got token ids", "prompt"
            )
        prompt, said = request.prompt_text, request.user_text
        return await run_in_thread(len(said), lambda: validator.refuse(prompt, said, options))

    async def run(self, request: TextRequest, slot: Slot | None = None) -> CompletedAnswer:
        """Return the whole answer to a request, the better one of two where a verdict asks for it.

        Raises:
            EngineError: the request failed; a second try that fails is only a warning.
            InvalidRequest: it cannot be told whether the request is blocked.
        """
        started = time.monotonic()
        answer = await self._whole(request, slot)
        verdict = answer.verdict
        if verdict is None or not (verdict.retry and request.options.regenerate):
            return answer
        left_s = request.generation.timeout_s
        left_s = self.engine.request_timeout_s if left_s is None else left_s
        left_s -= time.monotonic() - started
        generation = _once_more(request.generation, left_s)
        if generation is None:
            return answer
        try:
            second = await self._whole(replace(request, generation=generation))
        except EngineError as error:
            warning = f"the answer was not generated again: {error.message}"
            return replace(answer, warnings=(*answer.warnings, warning))
        if len(_issues(second)) >= len(_issues(answer)):
            return replace(answer, discarded=second)
        return replace(second, discarded=answer)

    async def _whole(self, request: TextRequest, slot: Slot | None = None) -> CompletedAnswer:
        async with await self.open(request, slot, buffered=True) as running:
            return await running.whole()


def _issues(answer: CompletedAnswer) -> tuple[Issue, ...]:
    return answer.verdict.issues if answer.verdict is not None else ()


def _once_more(request: GenerationRequest, timeout_s: float) -> GenerationRequest | None:
    """Return the request for another answer; None where there is no time or no other answer."""
    sampling = request.sampling
    greedy = sampling.temperature == 0 or sampling.top_p == 0 or sampling.top_k == 1
    if greedy or timeout_s <= 0:
        return None
    if sampling.seed is not None:
        sampling = replace(sampling, seed=(sampling.seed + 1) % 2**63)
    return replace(request, sampling=sampling, timeout_s=timeout_s)
