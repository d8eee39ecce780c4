"""How to read a model's reasoning, and the header of the answer after it."""

from __future__ import annotations

from engine.reply.parts import Reading, ReasoningPart
from engine.reply.source import TextSource

# Harmony (gpt-oss) writes each message into a channel; these are the channels for the user.
ANSWER_HEADERS = tuple(
    f"{start}<|channel|>{channel}<|message|>"
    for start in ("", "<|start|>assistant")
    for channel in ("final", "commentary")
)


def read_reasoning(source: TextSource, closes: tuple[str, ...]) -> Reading[None]:
    """Read reasoning up to one of the closing marks, or to the end of the output.

    Line breaks before it are skipped.
    """
    while (yield from source.skip("\n")):
        pass
    while True:
        text, close = source.take_until(closes)
        if text:
            yield ReasoningPart(text)
        if close or source.is_complete:
            return
        yield None
