"""llama.cpp through xllamacpp: the embedded default, and a production engine for CPU boxes."""

from __future__ import annotations

import http.client
import json
import logging
import os
import secrets
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

from engine.backends.base import OnPiece, RunEnd
from engine.backends.gguf import trained_context
from engine.capabilities import Capabilities
from engine.errors import (
    BackendFailed,
    EngineError,
    ModelLoadFailed,
    PromptTooLong,
    RequestRejected,
)
from engine.output import FinishReason, TokenLogprob
from engine.request import Chat, Prompt, RenderedPrompt, SamplingParams

logger = logging.getLogger(__name__)

# llama.cpp looks for an abort once a batch: small ones keep an abort in prefill under a second on
# a slow CPU, at no measured cost in prefill speed.
_BATCH_TOKENS = 64
_MAX_LOGPROBS = 20
# The ending is what makes llama.cpp take a host name for a socket path.
_SOCKET = "listener.sock"
_MAX_SOCKET_PATH = 107


class LlamaCppBackend:
    """llama.cpp's own server inside this process, asked without HTTP for what is hot.

    Generations go through in-process calls, one thread each; the server batches them continuously.
    Rendering a chat template and tokenising exist only behind its HTTP listener, which is put on a
    socket in a private folder with a key that nobody else has. `context_length` is per slot, in
    tokens, 0 for the model's own; `deterministic` trades speed for the same text every time: one
    slot, one thread, no reuse of an earlier prompt's cache.
    """

    def __init__(
        self,
        model_path: str,
        model_name: str,
        context_length: int = 4096,
        slots: int = 4,
        threads: int = 0,
        *,
        deterministic: bool = False,
    ) -> None:
        self._path = Path(model_path)
        self._name = model_name
        self._context_length = context_length
        self._slots = 1 if deterministic else slots
        self._threads = 1 if deterministic else threads or len(os.sched_getaffinity(0))
        self._deterministic = deterministic
        self._key = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._aborted: dict[int, threading.Event] = {}
        self._server: Any = None
        self._folder = ""

    def load(self) -> Capabilities:
        """Load library and model. Raises ModelLoadFailed."""
        trained = trained_context(self._path)
        try:
            import xllamacpp
        except ImportError as error:
            raise ModelLoadFailed(f"the llamacpp engine needs xllamacpp: {error}") from error
        context = min(self._context_length, trained) if self._context_length else trained
        # llama.cpp refuses a socket path that exists already, so each load gets a new folder.
        self._folder = tempfile.mkdtemp(prefix="worker-rkllm-")
        if len(os.fsencode(f"{self._folder}/{_SOCKET}")) > _MAX_SOCKET_PATH:
            os.rmdir(self._folder)
            raise ModelLoadFailed(f"TMPDIR: {self._folder} is too long for the path of a socket")
        library: Any = xllamacpp
        params = library.CommonParams()
        params.model.path = str(self._path)
        params.model_alias = {self._name}
        # A part of the cache for each slot: with a shared one, neighbours could starve each other.
        params.n_ctx = context * self._slots
        params.n_parallel = self._slots
        params.kv_unified = False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = self._threads
        params.n_batch = params.n_ubatch = _BATCH_TOKENS
        params.cache_ram_mib = 0
        params.ui = False
        params.verbosity = -1
        params.hostnames = [f"{self._folder}/{_SOCKET}"]
        params.api_keys = [self._key]
        try:
            self._server = library.Server(params)
        except RuntimeError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise ModelLoadFailed(
                f"MODEL_PATH: llama.cpp could not load {self._path}: the file is damaged or cut "
                "short, its architecture is not supported, or memory ran out"
            ) from error
        # Answered by the server's own loop. Before that has begun, closing it would wait for ever,
        # and with the interpreter's lock held.
        self._ask("/slots")
        return Capabilities(
            backend="llamacpp",
            model=self._name,
            context_length=context,
            slots=self._slots,
            max_logprobs=_MAX_LOGPROBS,
            logit_bias=True,
            grammar=True,
            json_schema=True,
            token_prompts=True,
            chat_template=True,
            tokenize=True,
            abort_in_prefill=True,
        )

    def render(self, chat: Chat) -> str:
        """Return the prompt that the GGUF's own chat template makes. Raises RequestRejected."""
        messages = [
            {"role": message.role, "content": message.content}
            | ({"name": message.name} if message.name else {})
            for message in chat.messages
        ]
        body: dict[str, Any] = {"messages": messages}
        if chat.template_kwargs:
            body["chat_template_kwargs"] = dict(chat.template_kwargs)
        return str(self._ask("/apply-template", body)["prompt"])

    def tokenize(self, text: str) -> list[int]:
        """Return the model's token ids, special tokens parsed and added as for a prompt."""
        body = {"content": text, "add_special": True, "parse_special": True}
        return list(self._ask("/tokenize", body)["tokens"])

    def run(
        self,
        run_id: int,
        prompt: Prompt,
        sampling: SamplingParams,
        on_piece: OnPiece,
    ) -> RunEnd:
        """Generate; blocks without holding the interpreter's lock. Raises as `Backend.run` says."""
        with self._lock:
            aborted = self._aborted.setdefault(run_id, threading.Event())
        run = _Run(on_piece, aborted, sampling)
        try:
            text = self.render(prompt) if isinstance(prompt, Chat) else prompt
            self._server.handle_completions(self._body(text, sampling), run.on_chunk)
        finally:
            with self._lock:
                del self._aborted[run_id]
        return run.end()

    def abort(self, run_id: int) -> None:
        """Make the run's next callback answer that no more is wanted."""
        with self._lock:
            self._aborted.setdefault(run_id, threading.Event()).set()

    def close(self) -> None:
        """Stop the server, free the model and remove its socket."""
        self._server = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _body(self, prompt: RenderedPrompt, sampling: SamplingParams) -> dict[str, Any]:
        body: dict[str, Any] = {
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            # A call that does not stream cannot be aborted.
            "stream": True,
            "verbose": True,
            "return_tokens": True,
            # Calls back during prefill too, so that an abort is noticed there.
            "return_progress": True,
            "cache_prompt": not self._deterministic,
            "max_tokens": -1 if sampling.max_tokens is None else sampling.max_tokens,
            # Each one is sent: llama.cpp's defaults (top_k 40, min_p 0.05) are not OpenAI's.
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": max(sampling.top_k, 0),
            "min_p": sampling.min_p,
            "repeat_penalty": sampling.repetition_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "presence_penalty": sampling.presence_penalty,
            "ignore_eos": sampling.ignore_eos,
            "logit_bias": [[token, bias] for token, bias in sampling.logit_bias.items()],
        }
        if sampling.seed is not None:
            # llama.cpp's seeds are 32 bits wide, and the highest one means "random".
            body["seed"] = sampling.seed % 0xFFFF_FFFF
        if sampling.logprobs is not None:
            # 0 would report nothing at all: ask for one and drop the alternatives.
            body["logprobs"] = max(sampling.logprobs, 1)
        if sampling.grammar is not None:
            body["grammar"] = sampling.grammar
        if sampling.json_schema is not None:
            body["json_schema"] = dict(sampling.json_schema)
        return body

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        connection = _UnixConnection(f"{self._folder}/{_SOCKET}")
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        try:
            if body is None:
                connection.request("GET", path, headers=headers)
            else:
                connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise BackendFailed(f"llama.cpp did not answer {path}: {error}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise _rejection(answer.get("error") or {})
        return answer


class _Run:
    """Turns one run's chunks into pieces; every method is called on the run's own thread."""

    def __init__(
        self, on_piece: OnPiece, aborted: threading.Event, sampling: SamplingParams
    ) -> None:
        self._on_piece = on_piece
        self._aborted = aborted
        self._max_tokens = sampling.max_tokens
        self._alternatives = sampling.logprobs or 0
        self._predicted = 0
        # A token without text, until it is known not to have been the end of the sequence.
        self._mute: tuple[int, TokenLogprob | None] | None = None
        self._progress: dict[str, Any] = {}
        self._final: dict[str, Any] | None = None
        self._error: EngineError | None = None

    def on_chunk(self, chunk: dict[str, Any]) -> bool:
        """Take one chunk; True ends the run. xllamacpp swallows exceptions, so they are kept."""
        try:
            return self._take(chunk)
        except Exception as error:
            logger.exception("a chunk of llama.cpp's could not be read")
            self._error = BackendFailed(f"llama.cpp sent something unexpected: {error}")
            return True

    def _take(self, chunk: dict[str, Any]) -> bool:
        if (error := chunk.get("error")) is not None:
            self._error = _rejection(error)
            return True
        verbose = chunk["__verbose"]
        if (progress := verbose.get("prompt_progress")) is not None:
            self._progress = progress
            return self._aborted.is_set()
        predicted: int = verbose["tokens_predicted"]
        if verbose["stop"]:
            self._final = verbose
            if verbose["stop_type"] != "eos":
                self._give_mute()
            return False
        tokens: list[int] = verbose["tokens"]
        # The tokens of a character that was not complete yet were counted but brought no chunk.
        done = self._give_mute()
        for _ in range(predicted - self._predicted - 1):
            done = self._on_piece(b"", -1, None)
        self._predicted = predicted
        choice = chunk["choices"][0]
        token = tokens[-1] if tokens else -1
        logprob = None
        if logprobs := choice.get("logprobs"):
            logprob = _logprob(logprobs["content"][0], self._alternatives)
        if text := choice["text"]:
            done = self._on_piece(text.encode("utf-8", "surrogatepass"), token, logprob)
        else:
            self._mute = token, logprob
        if self._aborted.is_set():
            return True
        # At its own limit llama.cpp is about to end by itself, with its final counts.
        return done and predicted != self._max_tokens

    def _give_mute(self) -> bool:
        mute, self._mute = self._mute, None
        return mute is not None and self._on_piece(b"", *mute)

    def end(self) -> RunEnd:
        """Return how it ended. Raises what went wrong."""
        if self._error is not None:
            raise self._error
        progress, final = self._progress, self._final
        if final is None:
            if not progress:
                raise BackendFailed("llama.cpp ended the run without a word")
            return RunEnd(
                prompt_tokens=progress["total"],
                cached_tokens=progress["cache"],
                prefill_ms=progress["time_ms"],
            )
        limit = final["stop_type"] == "limit"
        timings = final["timings"]
        return RunEnd(
            reason=FinishReason.LENGTH if limit else FinishReason.STOP,
            prompt_tokens=final["tokens_evaluated"],
            completion_tokens=final["tokens_predicted"],
            cached_tokens=max(timings["cache_n"], 0),
            prefill_ms=timings["prompt_ms"],
        )


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _logprob(entry: dict[str, Any], alternatives: int) -> TokenLogprob:
    # llama.cpp says -inf for what cannot be chosen; JSON has no such number, OpenAI says -9999.
    top = tuple((each["token"], max(each["logprob"], -9999.0)) for each in entry["top_logprobs"])
    return TokenLogprob(entry["token"], max(entry["logprob"], -9999.0), top[:alternatives])


def _rejection(error: dict[str, Any]) -> EngineError:
    message = str(error.get("message", "no reason given"))
    if error.get("type") == "exceed_context_size_error":
        prompt_tokens, context = error["n_prompt_tokens"], error["n_ctx"]
        return PromptTooLong(
            f"prompt: {prompt_tokens} tokens do not fit the context of {context} tokens",
            prompt_tokens=prompt_tokens,
            context_length=context,
        )
    if error.get("code") == 400:
        return RequestRejected(f"llama.cpp refused the request: {message}")
    return BackendFailed(f"llama.cpp failed: {message}")
