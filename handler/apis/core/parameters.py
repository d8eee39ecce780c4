"""The parameters of a call, as its API's reader understood them."""

from __future__ import annotations

from dataclasses import dataclass

from engine import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """How the answers of a call are sampled, and how many there are.

    `candidates` answers are generated for each prompt, and the best `n` of them are returned.
    `logprobs` is the number of alternatives per token; None means no logprobs. `prompt_logprobs`
    is the same for the tokens of the prompts. `draft_param` is the
    parameter that is refused if there is no draft model; None for a call without one, and for an
    API that ignores it then.
    """

    sampling: SamplingParams
    streaming: bool = False
    n: int = 1
    candidates: int = 1
    length_penalty: float = 1.0
    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    suffix: str = ""
    draft_param: str | None = None
