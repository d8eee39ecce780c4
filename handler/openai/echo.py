"""The prompt that stands before its answer where a call wants it back (R14)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine import Chat, Engine
from engine.errors import UnsupportedParameter
from engine.request import Prompt
from handler.limits import PARTIAL_CHARS, max_token_bytes, split_token_entries


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that stands before its answers, and the text of its tokens where that is told."""

    text: str = ""
    pieces: tuple[str, ...] = ()

    def parts(self) -> Iterator[Echo]:
        """Yield it in parts that each fit an event."""
        if self.pieces:
            for pieces in split_token_entries(self.pieces, max_token_bytes):
                yield Echo("".join(pieces), tuple(pieces))
            return
        for start in range(0, len(self.text), PARTIAL_CHARS):
            yield Echo(self.text[start : start + PARTIAL_CHARS])


NO_ECHO = Echo()


async def create_echo(prompt: Prompt, engine: Engine, *, pieces: bool) -> Echo:
    """Return a prompt as its answers repeat it, in the engine's tokens where `pieces` are wanted.

    Raises:
        EngineError: token ids cannot be told as text.
    """
    if isinstance(prompt, Chat):
        return NO_ECHO
    text = await prompt_text(prompt, engine)
    if not pieces:
        return Echo(text)
    try:
        found = tuple(await engine.pieces(text))
    except UnsupportedParameter:
        found = ()
    # What cannot be told apart is told as one.
    return Echo(text, found if "".join(found) == text else (text,))


async def prompt_text(prompt: Prompt, engine: Engine) -> str:
    """Return a prompt as text. Raises EngineError where token ids cannot be told as that."""
    if isinstance(prompt, Chat):
        return await engine.render(prompt)
    return prompt if isinstance(prompt, str) else await engine.detokenize(prompt)
