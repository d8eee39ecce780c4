"""The answers that are generated to each prompt, and the best of them (R5, R10, R15)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine import GenerationRequest, Priority, SamplingParams
from engine.request import Prompt
from handler.completed_answer import CompletedAnswer
from handler.errors import InvalidRequest
from handler.openai.parameters import Parameters
from handler.request import TextRequest

# Of one call: all of them are made ready before the first one runs.
MAX_GENERATIONS = 2048


def check_generation_count(prompts: Sequence[Prompt], parameters: Parameters) -> None:
    """Find whether a call asks for more answers than one may. Raises InvalidRequest."""
    wanted = len(prompts) * parameters.candidates
    if wanted > MAX_GENERATIONS:
        raise InvalidRequest(
            f"prompt, n and best_of must ask for at most {MAX_GENERATIONS} answers together, "
            f"got {wanted}",
            "prompt",
        )


def build_requests(
    call_id: str,
    of_call: Callable[..., TextRequest],
    prompts: Sequence[Prompt],
    parameters: Parameters,
    priority: Priority,
    timeout_s: float | None = None,
) -> tuple[TextRequest, ...]:
    """Return a request for each candidate of each prompt, in the prompts' order.

    `of_call` makes one of its generation: what else is in it is the same for all.
    """
    found: list[TextRequest] = []
    for prompt in prompts:
        for candidate in range(parameters.candidates):
            number = len(found)
            generation = GenerationRequest(
                prompt=prompt,
                sampling=_seeded(parameters.sampling, candidate),
                request_id=call_id if not number else f"{call_id}-{number}",
                priority=priority,
                timeout_s=timeout_s,
            )
            found.append(of_call(generation=generation))
    return tuple(found)


def _seeded(sampling: SamplingParams, candidate: int) -> SamplingParams:
    """Return the sampling of one of several answers: with one seed they would be the same."""
    if sampling.seed is None or not candidate:
        return sampling
    return replace(sampling, seed=(sampling.seed + candidate) % 2**63)


def select_best(
    answers: Sequence[CompletedAnswer], parameters: Parameters
) -> list[CompletedAnswer]:
    """Return the choices among the candidates, the likeliest first where there is a choice."""
    n, candidates = parameters.n, parameters.candidates
    if candidates == n:
        return list(answers)
    chosen: list[CompletedAnswer] = []
    for first in range(0, len(answers), candidates):
        ranked = sorted(
            answers[first : first + candidates],
            key=lambda answer: _likeliness(answer, parameters.length_penalty),
            reverse=True,
        )
        chosen += ranked[:n]
    return chosen


def _likeliness(answer: CompletedAnswer, length_penalty: float) -> float:
    """Rank by the sum of log-probabilities over the length to the power `length_penalty`."""
    found = answer.hidden_logprobs or [each.logprob for each in answer.logprobs]
    if not found:
        return -math.inf
    total = sum(found)
    if total >= 0:
        return math.inf
    # By its logarithm, which is in the same order and overflows with no penalty.
    return length_penalty * math.log(len(found)) - math.log(-total)
