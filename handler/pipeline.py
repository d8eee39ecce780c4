"""Generate, collect and validate one answer: the pipeline of all entry points."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine import Chat, Delta, Engine, Message, Slot, TokenStream
from engine.errors import EngineError
from engine.reply.reply_format import ReplyFormat
from engine.request import GenerationRequest, StopScope
from handler.errors import InvalidRequest
from handler.generation.active_generation import ActiveGeneration, BlockedStream
from handler.generation.completed_answer import CompletedAnswer
from handler.generation.content_log import log_prompt
from handler.generation.held_constraint import hold_constraint
from handler.generation.offload import run_in_thread
from handler.generation.reasoning_budget import BudgetedStream
from handler.input.request import TextRequest
from validation import Issue, Validator, Verdict

# Rules about the form of an answer. The model is given their messages for its second try.
_FORM_RULES = frozenset(
    {"schema_not_json", "schema_mismatch", "pattern_mismatch", "not_a_choice", "bad_word"}
)


class Pipeline:
    """Runs requests with one model's engine and a validator; keeps no state between requests.

    Jobs, the local server, batches and the OpenAI routes all use it, so tests through one of them
    cover the others. `adapters` are the names of the model's LoRA adapters in requests. `aliases`
    are further names of the model in requests; answers have `model_name`. `on_open` is called with
    each generation that has started. `stop_in_reasoning` is the setting of that name.
    """

    def __init__(
        self,
        engine: Engine,
        model_name: str,
        validator: Validator | None = None,
        adapters: Sequence[str] = (),
        on_open: Callable[[ActiveGeneration], object] = lambda generation: None,
        aliases: Sequence[str] = (),
        *,
        stop_in_reasoning: bool = False,
    ) -> None:
        self.engine = engine
        self.model_name = model_name
        self.adapters = adapters
        self.aliases = aliases
        self._validator = validator
        self._on_open = on_open
        self._stop_in_reasoning = stop_in_reasoning

    async def open(
        self, request: TextRequest, slot: Slot | None = None, *, buffered: bool = False
    ) -> ActiveGeneration:
        """Start a request, on `slot` or on the next free slot, and wait for its first text.

        With `buffered`, the engine may deliver the text in one piece when the answer is complete:
        the caller does not read it earlier.

        Raises:
            EngineError: the request failed before its first text.
            InvalidRequest: intents or terms are blocked, and the prompt is token ids, not text.
        """
        request = await hold_constraint(request, self.engine)
        log_prompt(request)
        model = request.generation.sampling.lora or self.model_name
        if request.options.blockers and (verdict := await self._check_blocked(request)) is not None:
            return ActiveGeneration(request, BlockedStream(), [], model, self._validator, verdict)
        stream = await self._start(request, slot, buffered=buffered)
        try:
            first_batch: list[Delta] = await anext(stream, [])
        except BaseException:
            stream.abort()
            raise
        capabilities = self.engine.capabilities
        generation = ActiveGeneration(
            request,
            stream,
            first_batch,
            model,
            self._validator,
            has_tokenizer=capabilities is None or capabilities.tokenize,
        )
        self._on_open(generation)
        return generation

    async def _start(
        self, request: TextRequest, slot: Slot | None, *, buffered: bool
    ) -> TokenStream | BudgetedStream:
        budget, capabilities = request.reasoning_budget, self.engine.capabilities
        # Some templates open the reasoning whatever their variables are.
        opens_reasoning = capabilities is None or capabilities.starts_in_reasoning
        must_not_think = opens_reasoning and request.disables_reasoning
        # The tokens of the reasoning are counted as they arrive.
        buffered = buffered and budget is None and not must_not_think
        generation = request.generation
        if generation.sampling.stop and request.reply_format is not None:
            generation = self._scope_stops(generation, request.reply_format)
        stream = await self.engine.generate(generation, slot, buffered=buffered)
        if must_not_think and stream.starts_in_reasoning:
            budget = 0
        if budget is None:
            return stream
        capabilities = self.engine.capabilities
        is_text = not isinstance(request.generation.prompt, tuple)
        if capabilities is None or not (
            is_text and capabilities.plain_prompts and capabilities.tokenize
        ):
            # A second run has to continue the first one, after the closing mark.
            stream.warnings += (
                "the budget of thinking tokens was ignored: it needs a text and a tokenizer",
            )
            return stream
        return BudgetedStream(self.engine, stream, budget)

    def _scope_stops(
        self, generation: GenerationRequest, reply_format: ReplyFormat
    ) -> GenerationRequest:
        """Return the request to the engine, with stop strings that count in the text alone."""
        sampling = generation.sampling
        counts_everywhere = sampling.stop_in_reasoning
        if counts_everywhere is None:
            counts_everywhere = self._stop_in_reasoning
        if counts_everywhere:
            return generation
        scope = StopScope(
            functions=tuple(reply_format.functions),
            tool_form=reply_format.tool_form,
            constrains_calls=reply_format.constrains_calls,
        )
        return replace(generation, sampling=replace(sampling, stop_scope=scope))

    async def _check_blocked(self, request: TextRequest) -> Verdict | None:
        """Return the verdict of a blocked request, or None. Runs before the generation."""
        options, validator = request.options, self._validator
        if validator is None:
            return None
        if isinstance(request.generation.prompt, tuple):
            raise InvalidRequest(
                "prompt must be text where intents or terms are blocked, got token ids", "prompt"
            )
        prompt, user_text = request.prompt_text, request.user_text
        return await run_in_thread(
            len(user_text), lambda: validator.check_request(prompt, user_text, options)
        )

    async def run(self, request: TextRequest, slot: Slot | None = None) -> CompletedAnswer:
        """Return the answer to a request.

        With `regenerate`, an answer whose verdict recommends it is generated once more; the answer
        with fewer issues is returned.

        Raises:
            EngineError: the request failed. A failed regeneration is only a warning.
            InvalidRequest: intents or terms are blocked, and the prompt is token ids, not text.
        """
        started_at = time.monotonic()
        request = await hold_constraint(request, self.engine)
        answer = await self._generate(request, slot)
        verdict = answer.verdict
        is_broken = answer.finish.grammar_break is not None
        may_regenerate = request.options.regenerate or is_broken
        if verdict is None or not (verdict.retry and may_regenerate):
            return answer
        remaining_s = request.generation.timeout_s
        remaining_s = self.engine.request_timeout_s if remaining_s is None else remaining_s
        remaining_s -= time.monotonic() - started_at
        second_request = _build_regeneration_request(request, answer, remaining_s)
        if second_request is None:
            return answer
        try:
            second = await self._generate(second_request)
        except EngineError as error:
            warning = f"the answer was not generated again: {error.message}"
            return replace(answer, warnings=(*answer.warnings, warning))
        if len(_list_issues(second)) >= len(_list_issues(answer)):
            return replace(answer, discarded=second)
        return replace(second, discarded=answer)

    async def _generate(self, request: TextRequest, slot: Slot | None = None) -> CompletedAnswer:
        async with await self.open(request, slot, buffered=True) as generation:
            return await generation.collect_answer()


def _list_issues(answer: CompletedAnswer) -> tuple[Issue, ...]:
    return answer.verdict.issues if answer.verdict is not None else ()


def _build_regeneration_request(
    request: TextRequest, answer: CompletedAnswer, timeout_s: float
) -> TextRequest | None:
    """Return the request for a second answer.

    If the prompt is a chat, the first answer and the problems of its form are added to it. Return
    None if no time remains, or if greedy sampling would generate the same answer again.
    """
    if timeout_s <= 0:
        return None
    sampling, prompt = request.generation.sampling, request.generation.prompt
    correction = _build_correction(answer)
    if isinstance(prompt, Chat) and correction and not prompt.continues_last:
        prompt = replace(prompt, messages=(*prompt.messages, *correction))
    elif sampling.temperature == 0 or sampling.top_p == 0 or sampling.top_k == 1:
        return None
    if sampling.seed is not None:
        sampling = replace(sampling, seed=(sampling.seed + 1) % 2**63)
    generation = replace(request.generation, prompt=prompt, sampling=sampling, timeout_s=timeout_s)
    return replace(request, generation=generation, original_prompt=request.generation.prompt)


def _build_correction(answer: CompletedAnswer) -> tuple[Message, ...]:
    """Return two turns for the chat: the answer, and the problems of its form.

    Without such problems there are no turns.
    """
    problems = [each.message for each in _list_issues(answer) if each.rule in _FORM_RULES]
    if not problems:
        return ()
    text = f"{' '.join(problems)} Answer again, with nothing but the corrected answer."
    return Message("assistant", answer.reply.text or answer.output), Message("user", text)
