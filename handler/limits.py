"""RunPod's size limits, checked here because over there a result that is too large is just gone.

The cloud answers the worker's post with 400 and the client then sees a job COMPLETED without an
output (runpod-python#309). So it fails before it is posted, with a sentence that says what to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from engine import Delta, TokenLogprob
from handler.errors import ResultTooLarge

T = TypeVar("T")

# Documented by RunPod: result of /run, of /runsync (whose job ids start with "sync-"), one chunk.
RUN_RESULT_BYTES = 10_000_000
RUNSYNC_RESULT_BYTES = 20_000_000
STREAM_CHUNK_BYTES = 1_000_000

# Characters in one partial output. JSON may take 6 bytes for one (\u0000), and a partial holds its
# text twice, the second time perhaps with quotes, comma and space around every character: 16 bytes
# each, which with the envelope still fits a chunk.
PARTIAL_CHARS = 60_000

# An OpenAI stream's events are text inside JSON as well. Theirs hold a text once, so seven bytes a
# character at worst; this is for the log-probabilities beside it, which may be far more.
EVENT_LOGPROB_BYTES = 400_000
# Of whole events in one output: quotes and backslashes take two bytes there.
BLOCK_BYTES = 450_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadLimits:
    """How many bytes of what are taken, and by whom; RunPod unless something else is said.

    The local server has settings for them, so that those who try a worker there may try others.
    """

    run: int = RUN_RESULT_BYTES
    runsync: int = RUNSYNC_RESULT_BYTES
    chunk: int = STREAM_CHUNK_BYTES
    taker: str = "RunPod"

    @property
    def partial_chars(self) -> int:
        """How many characters one partial output may have."""
        return min(PARTIAL_CHARS, max(1, PARTIAL_CHARS * self.chunk // STREAM_CHUNK_BYTES))

    def result(self, job_id: str) -> int:
        """Return how many bytes of result are taken for a job."""
        return self.runsync if job_id.startswith("sync-") else self.run

    def check_result(self, job_id: str, size: int) -> None:
        """Refuse a result of `size` bytes that would be dropped.

        Raises:
            ResultTooLarge: with both sizes and the remedy.
        """
        limit = self.result(job_id)
        if size > limit:
            raise ResultTooLarge(
                f"the result is {_mb(size)} MB and {self.taker} takes {limit / 1e6:g} MB "
                "for it: lower max_tokens, send stream=false, which returns the text twice instead "
                "of thrice, or post the job with an s3Config"
            )

    def check_chunk(self, size: int) -> None:
        """Refuse one partial output that is larger than a stream chunk may be.

        Raises:
            ResultTooLarge: with both sizes and the remedy.
        """
        if size > self.chunk:
            raise ResultTooLarge(
                f"one output is {_mb(size)} MB and {self.taker} takes "
                f"{self.chunk / 1e6:g} MB in a stream: lower max_tokens, or run the worker with "
                "STREAM_MODE=aggregate"
            )


def wire_body(value: Any) -> bytes:
    """Return a value as the SDK encodes it. Raises ValueError on NaN."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def wire_size(value: Any) -> int:
    """Return the size in bytes of a value as the SDK posts it. Raises ValueError on NaN."""
    return len(wire_body(value))


def _mb(size: int) -> str:
    # Limits of tests may be small.
    return f"{size / 1e6:.1f}" if size >= 100_000 else f"{size / 1e6:g}"


def split_deltas(batch: list[Delta], max_chars: int = PARTIAL_CHARS) -> Iterable[list[Delta]]:
    """Return a batch in parts of at most `max_chars` characters, cutting a longer delta.

    No part has more to tell of its tokens than an event may.
    """
    room = max_chars
    for text, logprob in batch:
        room -= len(text)
        if room < 0 or logprob is not None:
            return _cut(batch, max_chars)
    return (batch,) if batch else ()


def _cut(batch: list[Delta], max_chars: int) -> Iterator[list[Delta]]:
    part: list[Delta] = []
    room, room_to_tell = max_chars, EVENT_LOGPROB_BYTES
    for delta in batch:
        while len(delta.text) > max_chars:
            if part:
                yield part
                part, room, room_to_tell = [], max_chars, EVENT_LOGPROB_BYTES
            yield [Delta(delta.text[:max_chars])]
            delta = delta._replace(text=delta.text[max_chars:])
        told = 0 if delta.logprob is None else max_logprob_bytes(delta.logprob)
        if len(delta.text) > room or (part and told > room_to_tell):
            yield part
            part, room, room_to_tell = [], max_chars, EVENT_LOGPROB_BYTES
        part.append(delta)
        room -= len(delta.text)
        room_to_tell -= told
    if part:
        yield part


def max_logprob_bytes(found: TokenLogprob) -> int:
    """Return how many bytes a token with its alternatives takes at most, in either shape."""
    return max_token_bytes(found.token) + sum(max_token_bytes(token) for token, _ in found.top)


def max_token_bytes(token: str) -> int:
    """Return how many bytes one token takes at most: its text, its bytes as numbers, the rest."""
    return 23 * len(token) + 120


def split_token_entries(tokens: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield what is told of tokens in lists that each fit an event; an empty one for none."""
    part: list[T] = []
    room = EVENT_LOGPROB_BYTES
    for token in tokens:
        told = size(token)
        if part and told > room:
            yield part
            part, room = [], EVENT_LOGPROB_BYTES
        part.append(token)
        room -= told
    yield part


def split_events(block: bytes) -> Sequence[bytes]:
    """Return a block of whole events in blocks that each fit a chunk, an event never cut."""
    if len(block) <= BLOCK_BYTES:
        return (block,) if block else ()
    found = []
    while len(block) > BLOCK_BYTES:
        end = block.rfind(b"\n\n", 0, BLOCK_BYTES)
        if end < 0:
            end = block.find(b"\n\n")
        found.append(block[: end + 2])
        block = block[end + 2 :]
    return [*found, block] if block else found
