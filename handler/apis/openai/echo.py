"""The prompt that is repeated before its answer with `echo: true`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from engine import SCORE, Chat, Engine, Priority, PromptToken
from engine.errors import UnsupportedParameter
from engine.request import Prompt
from handler.apis.core.prepared_call import prompt_text
from handler.delivery.limits import PARTIAL_CHARS, max_token_bytes, split_token_entries


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is sent before its answers.

    `tokens` are its tokens with their log-probabilities, empty if they are not sent.
    """

    text: str = ""
    tokens: tuple[PromptToken, ...] = ()

    def split(self) -> Iterator[Echo]:
        """Yield the prompt in parts that each fit into an event."""
        if self.tokens:
            for tokens in split_token_entries(self.tokens, _max_entry_bytes):
                yield Echo(_join(tokens), tuple(tokens))
            return
        for start in range(0, len(self.text), PARTIAL_CHARS):
            yield Echo(self.text[start : start + PARTIAL_CHARS])


NO_ECHO = Echo()


async def create_echo(
    prompt: Prompt, engine: Engine, *, logprobs: int | None, is_scored: bool, priority: Priority
) -> Echo:
    """Return the echo of a prompt, with its tokens and `logprobs` alternatives if it is set.

    The tokens have log-probabilities only if `is_scored`, which needs an engine that has them.

    Raises:
        EngineError: the prompt is token ids, and they cannot be converted to text; or the engine
            could not compute its log-probabilities.
    """
    if isinstance(prompt, Chat):
        return NO_ECHO
    if logprobs is not None and is_scored:
        [tokens] = await engine.compute(SCORE, [(prompt, logprobs)], priority)
        return Echo(_join(tokens), tuple(tokens))
    text = await prompt_text(prompt, engine)
    if logprobs is None:
        return Echo(text)
    try:
        token_texts = tuple(await engine.pieces(text))
    except UnsupportedParameter:
        token_texts = ()
    # If the engine cannot split the text exactly, send it as one token.
    if "".join(token_texts) != text:
        token_texts = (text,)
    return Echo(text, tuple(map(PromptToken, token_texts)))


def _join(tokens: Iterable[PromptToken]) -> str:
    return "".join(token.text for token in tokens)


def _max_entry_bytes(token: PromptToken) -> int:
    return max_token_bytes(token.text) + sum(max_token_bytes(text) for text, _ in token.top)
