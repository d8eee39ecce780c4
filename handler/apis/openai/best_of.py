"""Build a request for each candidate answer, and select the best answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine import GenerationRequest, Priority, SamplingParams
from engine.request import Prompt
from handler.apis.openai.parameters import Parameters
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


def build_requests(
    call_id: str,
    create_request: Callable[..., TextRequest],
    prompts: Sequence[Prompt],
    parameters: Parameters,
    priority: Priority,
    timeout_s: float | None = None,
) -> tuple[TextRequest, ...]:
    """Return a request for each candidate of each prompt, in the prompts' order.

    `create_request` makes a request from a `generation`; its other fields are the same for all.
    """
    requests: list[TextRequest] = []
    for prompt in prompts:
        for candidate in range(parameters.candidates):
            number = len(requests)
            generation = GenerationRequest(
                prompt=prompt,
                sampling=_with_own_seed(parameters.sampling, candidate),
                request_id=call_id if not number else f"{call_id}-{number}",
                priority=priority,
                timeout_s=timeout_s,
            )
            requests.append(create_request(generation=generation))
    return tuple(requests)


def _with_own_seed(sampling: SamplingParams, candidate: int) -> SamplingParams:
    """Return the sampling of a candidate: with the same seed all answers would be equal."""
    if sampling.seed is None or not candidate:
        return sampling
    return replace(sampling, seed=(sampling.seed + candidate) % 2**63)


def select_best(
    answers: Sequence[CompletedAnswer], parameters: Parameters
) -> list[CompletedAnswer]:
    """Return the `n` likeliest candidates of each prompt; all, unsorted, if there are only `n`."""
    n, candidates = parameters.n, parameters.candidates
    if candidates == n:
        return list(answers)
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
