"""The prompt that is repeated before its answer with `echo: true` (R14)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine import Chat, Engine
from engine.errors import UnsupportedParameter
from engine.request import Prompt
from handler.limits import PARTIAL_CHARS, max_token_bytes, split_token_entries


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is sent before its answers.

    `pieces` are the texts of its tokens, empty if they are not sent.
    """

    text: str = ""
    pieces: tuple[str, ...] = ()

    def split(self) -> Iterator[Echo]:
        """Yield the prompt in parts that each fit into an event."""
        if self.pieces:
            for pieces in split_token_entries(self.pieces, max_token_bytes):
                yield Echo("".join(pieces), tuple(pieces))
            return
        for start in range(0, len(self.text), PARTIAL_CHARS):
            yield Echo(self.text[start : start + PARTIAL_CHARS])


NO_ECHO = Echo()


async def create_echo(prompt: Prompt, engine: Engine, *, pieces: bool) -> Echo:
    """Return the echo of a prompt, with the texts of its tokens if `pieces` is set.

    Raises:
        EngineError: the prompt is token ids, and they cannot be converted to text.
    """
    if isinstance(prompt, Chat):
        return NO_ECHO
    text = await prompt_text(prompt, engine)
    if not pieces:
        return Echo(text)
    try:
        token_texts = tuple(await engine.pieces(text))
    except UnsupportedParameter:
        token_texts = ()
    # If the engine cannot split the text exactly, send it as one token.
    return Echo(text, token_texts if "".join(token_texts) == text else (text,))


async def prompt_text(prompt: Prompt, engine: Engine) -> str:
    """Return a prompt as text. Raises EngineError if token ids cannot be converted."""
    if isinstance(prompt, Chat):
        return await engine.render(prompt)
    return prompt if isinstance(prompt, str) else await engine.detokenize(prompt)
