"""A deterministic backend whose answers and faults come from a JSON file."""

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

from engine.backends.base import OnPiece, Operations, RunResult, TokenizerInfo
from engine.backends.options import ScriptedOptions
from engine.backends.script import Script, ScriptedAnswer, ScriptedPiece
from engine.capabilities import Capabilities
from engine.errors import BackendFailed, ModelLoadFailed, PromptTooLong
from engine.output import FinishReason, PromptToken, TokenLogprob
from engine.prompts.reasoning import THINK_OPEN, continue_last
from engine.prompts.tool_prompt import tools_as_text
from engine.request import Chat, Prompt, RenderedPrompt, SamplingParams

_TOKEN = re.compile(r"\s*\S+|\s+")
_EMBEDDING_SIZE = 32


class ScriptedBackend:
    """Generate the answers of a script, for tests, load tests and clients without a model.

    A token is a word with the white space before it. `model_path` names the JSON file; without
    one, the answer to every prompt is the prompt itself, word by word.
    """

    def __init__(self, options: ScriptedOptions) -> None:
        self._path = options.model_path
        self._name = options.model_name
        self._lock = threading.Lock()
        self._aborts: dict[int, threading.Event] = {}

    def load(self) -> Capabilities:
        """Read the script. Raises ModelLoadFailed with the file's name and the error."""
        try:
            self._script = script = self._read()
            self._capabilities = capabilities = self._build_capabilities(script)
            load_signal = script.load_signal and signal.Signals[script.load_signal].name
        except FileNotFoundError as error:
            raise ModelLoadFailed(f"MODEL_PATH: there is no file {self._path}") from error
        except (OSError, ValueError, TypeError, AttributeError, KeyError, re.error) as error:
            raise ModelLoadFailed(f"MODEL_PATH: {self._path} is not a script: {error}") from error
        time.sleep(script.load_ms / 1000)
        _kill_self(load_signal)
        if script.load_error is not None:
            raise ModelLoadFailed(script.load_error)
        return capabilities

    def _read(self) -> Script:
        if self._path is None:
            return Script()
        return Script.parse(json.loads(Path(self._path).read_bytes()))

    def _build_capabilities(self, script: Script) -> Capabilities:
        defaults: dict[str, Any] = {
            "backend": "scripted",
            "model": self._name,
            "context_length": script.context_length,
            "slots": script.slots,
            "max_logprobs": 5,
            "prompt_logprobs": True,
            "token_prompts": True,
            "chat_template": True,
            "tokenize": True,
            "embeddings": True,
            "embedding_size": _EMBEDDING_SIZE,
            "abort_in_prefill": True,
        }
        return Capabilities(**(defaults | script.capabilities))

    @property
    def operations(self) -> Operations:
        """The operations that this backend has besides generation, by name."""
        return {
            "render": self.render,
            "tokenize": self.tokenize,
            "tokenize_text": self.tokenize_text,
            "describe_tokenizer": self.describe_tokenizer,
            "detokenize": self.detokenize,
            "pieces": self.pieces,
            "infill": self.infill,
            "find_grammar_violation": self.find_grammar_violation,
            "embed": self.embed,
            "rerank": self.rerank,
            "score": self.score,
        }

    def render(self, chat: Chat) -> str:
        """Render each turn as one line, and end with an open line for the assistant.

        The reasoning is opened too if the script has the capability `starts_in_reasoning`.
        """
        return continue_last(chat, self._render_turns)

    def _render_turns(self, chat: Chat) -> str:
        if chat.tools:
            chat = tools_as_text(chat)
        turns = [f"{message.role}: {message.content}" for message in chat.messages]
        opening = f"{THINK_OPEN}\n" if self._capabilities.starts_in_reasoning else ""
        return "\n".join([*turns, f"assistant:{opening}"])

    def tokenize(self, prompt: str | Chat) -> list[int]:
        """Return one token id per word; a word always has the same id."""
        text = self.render(prompt) if isinstance(prompt, Chat) else prompt
        return [zlib.crc32(token.encode()) % 50_000 for token in _TOKEN.findall(text)]

    def tokenize_text(self, text: str) -> list[int]:
        """Return one token id per word: there are no special tokens."""
        return self.tokenize(text)

    def describe_tokenizer(self, _: str) -> TokenizerInfo:
        """Return a tokenizer that has nothing but words."""
        return {"bos_token": None, "eos_token": "", "chat_template": None}

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the ids as words; a prompt of token ids is answered as if it were this text."""
        return " ".join(map(str, tokens))

    def pieces(self, text: str) -> list[str]:
        """Split a text into its tokens, the words."""
        return _TOKEN.findall(text)

    def score(self, prompt_and_alternatives: tuple[RenderedPrompt, int]) -> list[PromptToken]:
        """Return the words of a prompt, of which each is likelier than the one before it."""
        prompt, alternatives = prompt_and_alternatives
        words = self._split_words(prompt)
        scored = [PromptToken(words[0])] if words else []
        for number, word in enumerate(words[1:], 1):
            logprob = -1.0 / number
            token_id = self.tokenize(word)[0] if isinstance(prompt, str) else prompt[number]
            top = ((word, logprob),)[:alternatives]
            scored.append(PromptToken(word, logprob, top, token_id, 1, (token_id,)[:alternatives]))
        return scored

    def find_grammar_violation(self, notation_and_text: tuple[str, str]) -> str | None:
        """Return None: there are no grammars."""
        return None

    def infill(self, prefix_and_suffix: tuple[str, str]) -> str:
        """Return both texts with a marker between them."""
        return "<gap>".join(prefix_and_suffix)

    def embed(self, text: RenderedPrompt) -> tuple[list[float], int]:
        """Return an embedding computed from the words; texts that share words are closer."""
        words = self._split_words(text, param="input")
        sums = [0.0] * _EMBEDDING_SIZE
        for word in words:
            for index, byte in enumerate(hashlib.sha256(word.strip().encode()).digest()):
                sums[index] += byte - 127.5
        length = math.hypot(*sums) or 1.0
        return [value / length for value in sums], len(words)

    def rerank(self, query_and_document: tuple[str, str]) -> tuple[float, int]:
        """Return the share of the query's words that a document has."""
        query, document = query_and_document
        query_words = self._split_words(query, param="query")
        words = self._split_words(document, param="document")
        query_set = {word.strip() for word in query_words}
        common = query_set & {word.strip() for word in words}
        return len(common) / len(query_set), len(query_words) + len(words)

    def _split_words(self, text: RenderedPrompt, **details: str) -> list[str]:
        """Return the tokens of a text; `param` names it in errors. Raises PromptTooLong."""
        words = _TOKEN.findall(text if isinstance(text, str) else self.detokenize(text))
        context_length = self._script.context_length
        if len(words) >= context_length:
            raise PromptTooLong(
                f"{details.get('param', 'prompt')}: {len(words)} tokens do not fit the context of "
                f"{context_length} tokens",
                prompt_tokens=len(words),
                context_length=context_length,
                **details,
            )
        return words

    def run(
        self,
        run_id: int,
        prompt: Prompt,
        sampling: SamplingParams,
        on_piece: OnPiece,
    ) -> RunResult:
        """Generate the first answer that matches the prompt."""
        if isinstance(prompt, Chat):
            prompt = self.render(prompt)
        words = self._split_words(prompt)
        free_tokens = self._script.context_length - len(words)
        answer = self._find_answer("".join(words))
        with self._lock:
            aborted = self._aborts.setdefault(run_id, threading.Event())
        try:
            _wait(answer.prefill_ms / 1000, aborted, deaf=answer.deaf_prefill)
            tokens, context_full = self._generate(
                answer, words, aborted, sampling, on_piece, free_tokens
            )
        finally:
            with self._lock:
                del self._aborts[run_id]
        return RunResult(
            reason=FinishReason.LENGTH if context_full else answer.reason,
            prompt_tokens=len(words),
            completion_tokens=tokens,
            prefill_ms=answer.prefill_ms,
        )

    def _generate(
        self,
        answer: ScriptedAnswer,
        words: list[str],
        aborted: threading.Event,
        sampling: SamplingParams,
        on_piece: OnPiece,
        free_tokens: int,
    ) -> tuple[int, bool]:
        """Return how many tokens were generated, and whether the context was full."""
        tokens = 0
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
            if tokens == free_tokens:
                return tokens, True
            logprob = None
            if sampling.logprobs is not None:
                token = piece.data.decode("utf-8", "replace")
                logprob = TokenLogprob(token, piece.logprob, ((token, piece.logprob),))
            tokens += 1
            if on_piece(piece.data, tokens, logprob):
                break
        return tokens, False

    def _find_answer(self, text: str) -> ScriptedAnswer:
        for answer in self._script.answers:
            if answer.when is None or answer.when.search(text):
                return answer
        raise BackendFailed("the script has no answer for this prompt")

    def abort(self, run_id: int) -> None:
        """End the current delay of the run, and the run after it."""
        with self._lock:
            self._aborts.setdefault(run_id, threading.Event()).set()

    def close(self) -> None:
        """Do nothing: the backend holds no resources."""


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
        # The kernel may deliver the signal to another thread a moment later.
        signal.pause()
