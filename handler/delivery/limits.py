"""Check RunPod's size limits before a result is posted, and split streams to fit them.

RunPod's cloud answers the post of a result that is too large with status 400, and the client then
sees a COMPLETED job without an output (runpod-python#309). So the job fails before that, with
a message that has the remedy.
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

# Maximum characters of one partial output. JSON may need 6 bytes per character (\u0000), and a
# partial output contains its text twice, the second time possibly with quotes, comma and space
# around every character: 16 bytes each, which together with the envelope still fits a chunk.
PARTIAL_CHARS = 60_000

# Maximum characters of a part that a parser reads at once.
_PARSED_CHARS = 2_000

# Maximum bytes of log-probabilities in one event of an OpenAI stream. An event is text inside JSON
# and contains its text once, so at most seven bytes per character; log-probabilities may be larger.
EVENT_LOGPROB_BYTES = 400_000
# Maximum bytes of whole events in one chunk, where quotes and backslashes take two bytes.
BLOCK_BYTES = 450_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadLimits:
    """The maximum sizes of results and chunks, and the name of the platform that sets them.

    The defaults are RunPod's. The local server has settings for them.
    """

    run_bytes: int = RUN_RESULT_BYTES
    runsync_bytes: int = RUNSYNC_RESULT_BYTES
    chunk_bytes: int = STREAM_CHUNK_BYTES
    platform: str = "RunPod"

    @property
    def partial_chars(self) -> int:
        """The maximum number of characters of one partial output."""
        return min(PARTIAL_CHARS, max(1, PARTIAL_CHARS * self.chunk_bytes // STREAM_CHUNK_BYTES))

    def max_result_bytes(self, job_id: str) -> int:
        """Return the maximum size of a job's result."""
        return self.runsync_bytes if job_id.startswith("sync-") else self.run_bytes

    def check_result(self, job_id: str, size: int) -> None:
        """Refuse a result of `size` bytes that the platform would drop.

        Raises:
            ResultTooLarge: the message has both sizes and the remedy.
        """
        limit = self.max_result_bytes(job_id)
        if size > limit:
            raise ResultTooLarge(
                f"the result is {_format_mb(size)} MB and {self.platform} takes {limit / 1e6:g} MB "
                "for it: lower max_tokens, send stream=false, which returns the text twice instead "
                "of thrice, or post the job with an s3Config"
            )

    def check_chunk(self, size: int) -> None:
        """Refuse one partial output that is larger than a stream chunk may be.

        Raises:
            ResultTooLarge: the message has both sizes and the remedy.
        """
        if size > self.chunk_bytes:
            raise ResultTooLarge(
                f"one output is {_format_mb(size)} MB and {self.platform} takes "
                f"{self.chunk_bytes / 1e6:g} MB in a stream: lower max_tokens, or run the worker "
                "with STREAM_MODE=aggregate"
            )


def encode_for_sdk(value: Any) -> bytes:
    """Encode a value as the SDK does. Raises ValueError on NaN."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def sdk_size_bytes(value: Any) -> int:
    """Return the size in bytes of a value as the SDK encodes it. Raises ValueError on NaN."""
    return len(encode_for_sdk(value))


def _format_mb(size: int) -> str:
    # The limits in tests are small.
    return f"{size / 1e6:.1f}" if size >= 100_000 else f"{size / 1e6:g}"


def split_deltas(batch: list[Delta], max_chars: int = PARTIAL_CHARS) -> Iterable[list[Delta]]:
    """Split a batch into parts of at most `max_chars` characters, cutting a longer delta.

    The log-probabilities of a part fit one event.
    """
    room_chars = max_chars
    for text, logprob in batch:
        room_chars -= len(text)
        if room_chars < 0 or logprob is not None:
            return _split_batch(batch, max_chars)
    return (batch,) if batch else ()


def split_into_steps(
    batch: list[Delta], max_chars: int = PARTIAL_CHARS, *, is_parsed: bool = False
) -> Iterable[list[Delta]]:
    """Split a batch as `split_deltas` does; the caller lets the event loop run between the parts.

    With `is_parsed` the parts are searched for tool calls, which takes up to 20 µs a character, so
    they are short. A batch is long if the reader was slow. This is no asynchronous generator,
    because the loop would register a new one for each token.
    """
    return split_deltas(batch, min(max_chars, _PARSED_CHARS) if is_parsed else max_chars)


def _split_batch(batch: list[Delta], max_chars: int) -> Iterator[list[Delta]]:
    part: list[Delta] = []
    room_chars, room_bytes = max_chars, EVENT_LOGPROB_BYTES
    for delta in batch:
        while len(delta.text) > max_chars:
            if part:
                yield part
                part, room_chars, room_bytes = [], max_chars, EVENT_LOGPROB_BYTES
            yield [Delta(delta.text[:max_chars])]
            delta = delta._replace(text=delta.text[max_chars:])
        size_bytes = 0 if delta.logprob is None else max_logprob_bytes(delta.logprob)
        if len(delta.text) > room_chars or (part and size_bytes > room_bytes):
            yield part
            part, room_chars, room_bytes = [], max_chars, EVENT_LOGPROB_BYTES
        part.append(delta)
        room_chars -= len(delta.text)
        room_bytes -= size_bytes
    if part:
        yield part


def max_logprob_bytes(logprob: TokenLogprob) -> int:
    """Return the maximum JSON size of a token with its alternatives, in either OpenAI format."""
    return max_token_bytes(logprob.token) + sum(max_token_bytes(token) for token, _ in logprob.top)


def max_token_bytes(token: str) -> int:
    """Return the maximum JSON size of one token: its text, its bytes as numbers, and the keys."""
    return 23 * len(token) + 120


def split_token_entries(tokens: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield token entries in lists that each fit one event; one empty list for no entries."""
    part: list[T] = []
    room_bytes = EVENT_LOGPROB_BYTES
    for token in tokens:
        size_bytes = size(token)
        if part and size_bytes > room_bytes:
            yield part
            part, room_bytes = [], EVENT_LOGPROB_BYTES
        part.append(token)
        room_bytes -= size_bytes
    yield part


def split_events(block: bytes) -> Sequence[bytes]:
    """Split a block of whole events into blocks that each fit a chunk, without cutting an event."""
    if len(block) <= BLOCK_BYTES:
        return (block,) if block else ()
    blocks = []
    while len(block) > BLOCK_BYTES:
        end = block.rfind(b"\n\n", 0, BLOCK_BYTES)
        if end < 0:
            end = block.find(b"\n\n")
        blocks.append(block[: end + 2])
        block = block[end + 2 :]
    return [*blocks, block] if block else blocks
