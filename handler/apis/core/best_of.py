"""Build a request for each candidate answer, and select the best answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from engine import GenerationRequest, SamplingParams
from engine.request import Prompt
from handler.apis.core.parameters import Parameters
from handler.apis.core.parsed_call import ParsedCall
from handler.errors import InvalidRequest
from handler.generation.completed_answer import CompletedAnswer
from handler.input.request import TextRequest

# Limit for one call, because all its requests are built before the first one runs.
MAX_GENERATIONS = 2048


def check_generation_count(prompts: Sequence[Prompt], parameters: Parameters) -> None:
    """Check the number of generations of a call. Raises InvalidRequest."""
    count = len(prompts) * parameters.candidates
    if count > MAX_GENERATIONS:
        raise InvalidRequest(
            f"prompt, n and best_of must ask for at most {MAX_GENERATIONS} answers together, "
            f"got {count}",
            "prompt",
        )


def build_requests(call: ParsedCall) -> tuple[TextRequest, ...]:
    """Return a request for each candidate of each prompt, in the prompts' order."""
    parameters, sampling = call.parameters, call.parameters.sampling
    requests: list[TextRequest] = []
    for prompt in call.prompts:
        for candidate in range(parameters.candidates):
            number = len(requests)
            generation = GenerationRequest(
                prompt=prompt,
                sampling=_with_own_seed(sampling, candidate) if candidate else sampling,
                request_id=call.id if not number else f"{call.id}-{number}",
                priority=call.priority,
                timeout_s=call.timeout_s,
            )
            request = TextRequest(
                generation=generation,
                streaming=parameters.streaming,
                validation=call.validates,
                options=call.options,
                warnings=call.warnings,
                returns_logprobs=parameters.logprobs is not None,
                reply_format=call.reply_format,
                reasoning_budget=call.reasoning_budget,
                constraint=call.constraint,
            )
            requests.append(request)
    return tuple(requests)


def _with_own_seed(sampling: SamplingParams, candidate: int) -> SamplingParams:
    """Return the sampling of a candidate: with the same seed all answers would be equal."""
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + candidate) % 2**63)


def select_best(
    answers: Sequence[CompletedAnswer], parameters: Parameters
) -> list[CompletedAnswer]:
    """Return the `n` likeliest candidates of each prompt."""
    n, candidates = parameters.n, parameters.candidates
    selected: list[CompletedAnswer] = []
    for first in range(0, len(answers), candidates):
        ranked = sorted(
            answers[first : first + candidates],
            key=lambda answer: _score(answer, parameters.length_penalty),
            reverse=True,
        )
        selected += ranked[:n]
    return selected


def _score(answer: CompletedAnswer, length_penalty: float) -> float:
    """Rank by the sum of log-probabilities divided by the length to the power `length_penalty`."""
    logprobs = answer.hidden_logprobs or [each.logprob for each in answer.logprobs]
    if not logprobs:
        return -math.inf
    total = sum(logprobs)
    if total >= 0:
        return math.inf
    # The logarithm of the quotient has the same order, and no penalty makes it overflow.
    return length_penalty * math.log(len(logprobs)) - math.log(-total)
