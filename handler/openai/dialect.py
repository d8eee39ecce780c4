"""How the families of routes differ, as one table: OpenAI's, the oracle's, the model server's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One family's word where the source documents disagree; everything else is shared.

    `usage_unasked` puts the totals on a stream's last chunk where `stream_options` says nothing
    (R22). `role_in_every_delta` is S1's (R36). `stop_in_stream` keeps the stop string in streamed
    text, and allows no other wish (R25). `best_of_is_one` does not let `n` raise `best_of` (R15).
    `one_logprob` takes `logprobs` of 1 alone, and only without streaming (R13). `named_errors` has
    errors with a name for their code instead of the HTTP status (R53). `refuses_draft` lets nobody
    set up a draft model that there is not, nor in two manners at a time (R17); others are warned.
    """

    name: str
    max_stops: int = 16
    model_required: bool = False
    usage_unasked: bool = False
    role_in_every_delta: bool = False
    stop_in_stream: bool = False
    best_of_is_one: bool = False
    one_logprob: bool = False
    top_p_above_zero: bool = False
    # Of requests that ignore the end of the sequence: most tokens, and how many where unset (R10).
    most_without_eos: int | None = None
    named_errors: bool = False
    refuses_draft: bool = False


OPENAI = Dialect(name="openai", usage_unasked=True)
ORACLE = Dialect(name="oracle", role_in_every_delta=True, named_errors=True)
OVMS = Dialect(
    name="ovms",
    max_stops=4,
    model_required=True,
    stop_in_stream=True,
    best_of_is_one=True,
    one_logprob=True,
    top_p_above_zero=True,
    most_without_eos=4000,
    refuses_draft=True,
)
