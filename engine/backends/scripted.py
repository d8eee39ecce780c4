"""A deterministic backend: says what a JSON file tells it to, faults included."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import signal
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from engine.backends.base import OnPiece, RunResult
from engine.backends.script import Script, ScriptedAnswer, ScriptedPiece
from engine.capabilities import Capabilities
from engine.errors import BackendFailed, ModelLoadFailed, PromptTooLong
from engine.output import FinishReason, TokenLogprob
from engine.request import Chat, Prompt, RenderedPrompt, SamplingParams
from engine.tool_prompt import tools_as_text

_TOKEN = re.compile(r"\s*\S+|\s+")
_VECTOR_SIZE = 32


class ScriptedBackend:
    """Answers from a script, for tests, load tests and trying out clients without a model.

    Tokens are words with the white space before them. `model_path` names the JSON file; without
    one, every prompt is said back word by word.
    """

    def __init__(self, model_path: str | None = None, model_name: str = "scripted") -> None:
        self._path = model_path
        self._name = model_name
        self._lock = threading.Lock()
        self._aborts: dict[int, threading.Event] = {}

    def load(self) -> Capabilities:
        """Read the script. Raises ModelLoadFailed naming the file and what is wrong with it."""
        try:
            self._script = script = self._read()
            capabilities = self._claims(script)
            fatal = script.load_signal and signal.Signals[script.load_signal].name
        except FileNotFoundError as error:
            raise ModelLoadFailed(f"MODEL_PATH: there is no file {self._path}") from error
        except (OSError, ValueError, TypeError, AttributeError, KeyError, re.error) as error:
            raise ModelLoadFailed(f"MODEL_PATH: {self._path} is not a script: {error}") from error
        time.sleep(script.load_ms / 1000)
        _kill_self(fatal)
        if script.load_error is not None:
            raise ModelLoadFailed(script.load_error)
        return capabilities

    def _read(self) -> Script:
        if self._path is None:
            return Script()
        return Script.parse(json.loads(Path(self._path).read_bytes()))

    def _claims(self, script: Script) -> Capabilities:
        claims: dict[str, Any] = {
            "backend": "scripted",
            "model": self._name,
            "context_length": script.context_length,
            "slots": script.slots,
            "max_logprobs": 5,
            "token_prompts": True,
            "chat_template": True,
            "tokenize": True,
            "embeddings": True,
            "embedding_size": _VECTOR_SIZE,
            "abort_in_prefill": True,
        }
        return Capabilities(**(claims | script.capabilities))

    def render(self, chat: Chat) -> str:
        """Return one line a turn, the assistant's left open."""
        if chat.tools:
            chat = tools_as_text(chat)
        turns = [f"{message.role}: {message.content}" for message in chat.messages]
        return "\n".join([*turns, "assistant:"])

    def tokenize(self, text: str) -> list[int]:
        """Return a stable number for each word."""
        return [zlib.crc32(token.encode()) % 50_000 for token in _TOKEN.findall(text)]

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return what such a prompt is taken for."""
        return " ".join(map(str, tokens))

    def pieces(self, text: str) -> list[str]:
        """Return the words, as they are counted."""
        return _TOKEN.findall(text)

    def infill(self, around: tuple[str, str]) -> str:
        """Return both texts with a mark between them."""
        return "<gap>".join(around)

    def embed(self, text: RenderedPrompt) -> tuple[list[float], int]:
        """Return numbers that depend on the words alone; texts that share words are nearer."""
        words = self._words(text, param="input")
        sums = [0.0] * _VECTOR_SIZE
        for word in words:
            for place, byte in enumerate(hashlib.sha256(word.strip().encode()).digest()):
                sums[place] += byte - 127.5
        length = math.hypot(*sums) or 1.0
        return [each / length for each in sums], len(words)

    def _words(self, text: RenderedPrompt, **of: str) -> list[str]:
        """Return a text's tokens; `param` says what it is if no prompt. Raises PromptTooLong."""
        words = _TOKEN.findall(text if isinstance(text, str) else self.detokenize(text))
        room = self._script.context_length
        if len(words) >= room:
            raise PromptTooLong(
                f"{of.get('param', 'prompt')}: {len(words)} tokens do not fit the context of "
                f"{room} tokens",
                prompt_tokens=len(words),
                context_length=room,
                **of,
            )
        return words

    def run(
        self,
        run_id: int,
        prompt: Prompt,
        sampling: SamplingParams,
        on_piece: OnPiece,
    ) -> RunResult:
        """Say the first answer that matches the prompt."""
        if isinstance(prompt, Chat):
            prompt = self.render(prompt)
        words = self._words(prompt)
        room = self._script.context_length - len(words)
        answer = self._pick("".join(words))
        with self._lock:
            aborted = self._aborts.setdefault(run_id, threading.Event())
        try:
            _wait(answer.prefill_ms / 1000, aborted, deaf=answer.deaf_prefill)
            said, cut = self._say(answer, words, aborted, sampling, on_piece, room)
        finally:
            with self._lock:
                del self._aborts[run_id]
        return RunResult(
            reason=FinishReason.LENGTH if cut else answer.reason,
            prompt_tokens=len(words),
            completion_tokens=said,
            prefill_ms=answer.prefill_ms,
        )

    def _say(
        self,
        answer: ScriptedAnswer,
        words: list[str],
        aborted: threading.Event,
        sampling: SamplingParams,
        on_piece: OnPiece,
        room: int,
    ) -> tuple[int, bool]:
        said = 0
        pieces = answer.pieces
        if pieces is None:
            pieces = tuple(ScriptedPiece(word.encode()) for word in words)
        for piece in _repeat_pieces(answer.repeat, pieces):
            if delay_ms := piece.delay_ms or answer.delay_ms:
                aborted.wait(delay_ms / 1000)
            if piece.hang_s:
                _wait(piece.hang_s, aborted, deaf=piece.deaf)
            _kill_self(piece.signal)
            if piece.error is not None:
                raise BackendFailed(piece.error)
            if aborted.is_set():
                break
            if said == room:
                return said, True
            logprob = None
            if sampling.logprobs is not None:
                token = piece.data.decode("utf-8", "replace")
                logprob = TokenLogprob(token, piece.logprob, ((token, piece.logprob),))
            said += 1
            if on_piece(piece.data, said, logprob):
                break
        return said, False

    def _pick(self, text: str) -> ScriptedAnswer:
        for answer in self._script.answers:
            if answer.when is None or answer.when.search(text):
                return answer
        raise BackendFailed("the script has no answer for this prompt")

    def abort(self, run_id: int) -> None:
        """Wake the run up from its delays."""
        with self._lock:
            self._aborts.setdefault(run_id, threading.Event()).set()

    def close(self) -> None:
        """Nothing is held."""


def _repeat_pieces(repeat: int, pieces: tuple[ScriptedPiece, ...]) -> Iterator[ScriptedPiece]:
    rounds: Iterable[object] = itertools.count() if repeat < 0 else range(repeat)
    for _ in rounds:
        yield from pieces


def _wait(seconds: float, aborted: threading.Event, *, deaf: bool) -> None:
    if deaf:
        time.sleep(seconds)
    elif seconds:
        aborted.wait(seconds)


def _kill_self(name: str | None) -> None:
    if name is not None:
        os.kill(os.getpid(), signal.Signals[name])
        # The signal may be delivered to another thread a moment later.
        signal.pause()
