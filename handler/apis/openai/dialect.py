"""The differences between the dialects: OpenAI, oracle, and OpenVINO Model Server (ovms)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The behaviour of one route prefix where the APIs it imitates disagree.

    Everything else is shared by all prefixes.

    - `usage_by_default`: a stream's last chunk has the usage if `stream_options` is unset.
    - `role_in_every_delta`: every delta has a role, because clients of the `oracle` dialect
      read it from each of them.
    - `stop_in_stream`: streamed text includes the stop string, and a request that asks for the
      opposite is refused.
    - `best_of_is_one`: `best_of` defaults to 1 instead of `n`.
    - `one_logprob`: `logprobs` must be 1, and cannot be streamed.
    - `named_errors`: the `code` of an error is a name instead of the HTTP status.
    - `rejects_unavailable_draft`: parameters of a draft model are refused if no draft model is
      loaded or if two of them are set. Other dialects warn.
    """

    name: str
    max_stops: int = 16
    model_required: bool = False
    usage_by_default: bool = False
    role_in_every_delta: bool = False
    stop_in_stream: bool = False
    best_of_is_one: bool = False
    one_logprob: bool = False
    top_p_above_zero: bool = False
    # Maximum and default of `max_tokens` for requests with `ignore_eos`.
    max_tokens_ignoring_eos: int | None = None
    named_errors: bool = False
    rejects_unavailable_draft: bool = False


OPENAI = Dialect(name="openai", usage_by_default=True)
# The chat API that was published as "Shard Oracle"; its routes have no prefix.
ORACLE = Dialect(name="oracle", role_in_every_delta=True, named_errors=True)
OVMS = Dialect(
    name="ovms",
    max_stops=4,
    model_required=True,
    stop_in_stream=True,
    best_of_is_one=True,
    one_logprob=True,
    top_p_above_zero=True,
    max_tokens_ignoring_eos=4000,
    rejects_unavailable_draft=True,
)
