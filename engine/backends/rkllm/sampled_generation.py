"""One answer that is chosen here, token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.backends.base import OnPiece
from engine.backends.rkllm.sampler import Floats, Picked, Sampler
from engine.backends.rkllm.vocabulary import Vocabulary
from engine.output import FinishReason, TokenLogprob
from engine.request import SamplingParams

if TYPE_CHECKING:
    # Its library need not be there.
    from engine.backends.rkllm.grammar import Constraint


class Answer:
    """What was said so far, and what comes next. Owned by the thread of the run.

    `room` is how many tokens the context has left, and `constraint` what the answer is held to.
    `tokens` were said; `reason` is why it ended, once it has.

    Raises:
        RequestRejected: the sampling names a token that is not there.
    """

    def __init__(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        vocabulary: Vocabulary,
        constraint: Constraint | None,
        room: int,
        on_piece: OnPiece,
    ) -> None:
        self._sampler = Sampler(sampling, prompt, vocabulary.size)
        self._vocabulary = vocabulary
        self._constraint = constraint
        self._room = room
        self._on_piece = on_piece
        self._tells = sampling.logprobs is not None
        self._ends = frozenset[int]() if sampling.ignore_eos else vocabulary.ends
        self.tokens = 0
        self.reason = FinishReason.STOP

    def go_on(self, logits: Floats) -> list[int]:
        """Say what comes next; return what the model is to read before more, nothing at the end.

        Raises:
            RequestRejected: what it is held to could not be followed any further.
            BackendFailed: the logits are none to choose by.
        """
        constraint = self._constraint
        picked = self._sampler.pick(logits, None if constraint is None else constraint.allowed())
        if picked.token in self._ends:
            return []
        tokens = [picked.token]
        if constraint is not None:
            # Log-probabilities are told of each token, so the model has to be asked for each.
            forced = constraint.take(picked.token, forced=not self._tells)
            self._sampler.count(forced)
            tokens += forced
        room, told = self._room - self.tokens, self._told(picked)
        for token in tokens[:room]:
            self.tokens += 1
            if self._on_piece(self._vocabulary.piece(token), token, told):
                return []
        if constraint is not None and constraint.over and len(tokens) <= room:
            return []
        if len(tokens) >= room:
            self.reason = FinishReason.LENGTH
            return []
        return tokens

    def _told(self, picked: Picked) -> TokenLogprob | None:
        if not self._tells:
            return None
        return TokenLogprob(
            self._vocabulary.text(picked.token),
            picked.logprob,
            tuple((self._vocabulary.text(token), logprob) for token, logprob in picked.top),
        )
