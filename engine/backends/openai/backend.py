"""A model on another server, through its OpenAI-compatible API."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import anyio
import httpx2
from anyio.from_thread import start_blocking_portal

from common.url_credentials import hide_credentials
from engine.backends.base import OnPiece, Operations, RunResult
from engine.backends.openai.answer_reader import AnswerReader
from engine.backends.openai.call_body import Call, build_call
from engine.backends.openai.event_stream import EventStreamParser
from engine.backends.openai.server_calls import ServerCalls, open_client
from engine.backends.openai.server_errors import describe_failure
from engine.backends.openai.server_kind import OTHER, find_kind
from engine.backends.openai.server_models import (
    ServerModel,
    describe_refusal,
    list_models,
    read_models,
)
from engine.backends.openai.server_pool import RemoteServer, ServerPool
from engine.backends.options import OpenAIOptions
from engine.capabilities import Capabilities
from engine.errors import EngineCrashed, ModelLoadFailed, UnsupportedParameter
from engine.request import Prompt, RenderedPrompt, SamplingParams

logger = logging.getLogger(__name__)

# At the start, the pause between two requests for the models of a server that does not answer, and
# between two log lines about it.
_RETRY_S = 1.0
_REPORT_S = 15.0
# A paused server is tried again soon: requests of users wait for it.
_MAX_PAUSE_S = 2.0
# How long the end of a response may take after its last event.
_END_GRACE_S = 0.2
# How long a server that ends at the same stop string may take to send its usage.
_USAGE_GRACE_S = 2.0
_EVENT_STREAM = "text/event-stream"


class OpenAIBackend:
    """Generates with a model of one or several OpenAI-compatible servers.

    An event loop on a thread of its own has all connections. Each run waits on its own thread for
    its task there, and an abort cancels that task, which closes the connection: so the server
    notices it. The lock is for the runs, which all threads share. Stop strings are not sent to the
    server, and are found by the engine.
    """

    def __init__(self, options: OpenAIOptions) -> None:
        self._options = options
        self._kind = OTHER
        self._resources = ExitStack()
        self._lock = threading.Lock()
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._aborted: set[int] = set()
        self._has_warned = False

    def load(self) -> Capabilities:
        """Wait until a server answers, and read from its models what it is. Raises ModelLoadFailed.

        Servers need minutes to load a model, so they may start after this one.
        """
        self._portal = self._resources.enter_context(start_blocking_portal(name="openai"))
        self._portal.call(self._open)
        try:
            models = self._portal.call(self._find_models)
        except BaseException:
            self.close()
            raise
        return self._build_capabilities(self._choose(models))

    async def _open(self) -> None:
        self._http = open_client(self._options.key, self._options.slots)
        self._servers = ServerPool(self._options.urls, _MAX_PAUSE_S)
        self._calls = ServerCalls(self._http, self._servers)

    async def _find_models(self) -> Sequence[ServerModel]:
        """Return the models of the first server that answers."""
        options = self._options
        started_at = reported_at = time.monotonic()
        while True:
            reasons = []
            for server in self._servers.servers:
                try:
                    models = await self._read_models(server)
                except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                    reasons.append(f"{server.name} does not answer: {describe_failure(error)}")
                    continue
                model = self._choose(models)
                if not (model.is_loading or model.failure):
                    return models
                reasons.append(f"{server.name}: {model.failure or f'{model.id} is loading'}")
            now, reason = time.monotonic(), "; ".join(reasons)
            if now + _RETRY_S - started_at > options.load_timeout_s:
                raise ModelLoadFailed(f"UPSTREAM_URL: {reason}")
            if now - reported_at > _REPORT_S:
                reported_at = now
                logger.warning("waiting for the server of the model: %s", reason)
            await anyio.sleep(_RETRY_S)

    async def _read_models(self, server: RemoteServer) -> Sequence[ServerModel]:
        """Return the models of a server; none if it has no list of them."""
        response = await list_models(self._http, server.url)
        if refusal := describe_refusal(response):
            raise ModelLoadFailed(refusal)
        if response.status_code != httpx2.codes.OK and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "UPSTREAM_URL: %s has no list of models (status %d), so only OpenAI's own "
                "parameters are sent to it",
                server.name,
                response.status_code,
            )
        return read_models(response.content)

    def _choose(self, models: Sequence[ServerModel]) -> ServerModel:
        name = self._options.model_id
        for model in models:
            if model.id in (name, f"{name}:latest"):
                return model
        if models and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "UPSTREAM_URL: the server does not list the model %s, it lists: %s",
                name,
                ", ".join(model.id for model in models[:20]),
            )
        return ServerModel(name, models[0].owner if models else "")

    def _build_capabilities(self, model: ServerModel) -> Capabilities:
        self._kind = kind = find_kind(model.owner)
        fixed = {"top_k": -1, "repetition_penalty": 1.0}
        return Capabilities(
            backend="openai",
            model=self._options.model_name,
            context_length=self._options.context_length or model.context_length,
            slots=self._options.slots,
            fixed_sampling={
                name: value for name, value in fixed.items() if name not in kind.parameters
            },
            max_logprobs=20,
            min_p="min_p" in kind.parameters,
            ignore_eos="ignore_eos" in kind.parameters,
            logit_bias="logit_bias" in kind.parameters,
            min_tokens="min_tokens" in kind.parameters,
            special_tokens="skip_special_tokens" in kind.parameters,
            stop_token_ids="stop_token_ids" in kind.parameters,
            grammar=kind.grammar is not None,
            json_schema=True,
            token_prompts=kind.token_prompts,
            chat_template=True,
            own_template=True,
            template_variables=kind.template_variables,
            tool_choice=True,
            isolated_crashes=True,
            token_pieces=False,
            concurrent_calls=self._options.slots,
            embeddings=True,
            images=True,
            abort_in_prefill=True,
            runtime=f"{kind.name} at {', '.join(map(hide_credentials, self._options.urls))}",
        )

    @property
    def operations(self) -> Operations:
        """Embeddings; the server renders chats and knows its tokens itself."""
        return {"embed": self.embed, "find_grammar_violation": self.find_grammar_violation}

    def find_grammar_violation(self, notation_and_text: tuple[str, str]) -> str | None:
        """Return None: only the server knows, and refuses a request then."""
        return None

    def embed(self, text: RenderedPrompt) -> tuple[list[float], int]:
        """Return the server's embedding of a text, normalised to length 1. Raises EngineError."""
        if not isinstance(text, str) and not self._kind.token_prompts:
            raise UnsupportedParameter(
                "input: the openai engine takes text, not token ids", param="input"
            )
        body = {
            "model": self._options.model_id,
            "input": text if isinstance(text, str) else list(text),
            "encoding_format": "float",
        }
        answer = self._portal.call(self._calls.post, "/v1/embeddings", body)
        return _read_embedding(answer)

    def run(
        self, run_id: int, prompt: Prompt, sampling: SamplingParams, on_piece: OnPiece
    ) -> RunResult:
        """Generate until the server's answer has ended, or the engine has stopped it."""
        call = build_call(self._options.model_id, prompt, sampling, self._kind)
        reader = AnswerReader(lambda data, logprob: on_piece(data, -1, logprob))
        try:
            self._portal.call(self._read_unless_aborted, run_id, call, reader)
        finally:
            with self._lock:
                self._scopes.pop(run_id, None)
                self._aborted.discard(run_id)
        return reader.result()

    async def _read_unless_aborted(self, run_id: int, call: Call, reader: AnswerReader) -> None:
        with anyio.CancelScope() as scope:
            with self._lock:
                if run_id in self._aborted:
                    return
                self._scopes[run_id] = scope
            await self._read_answer(call, reader)

    async def _read_answer(self, call: Call, reader: AnswerReader) -> None:
        async with self._calls.open(call.path, call.body) as response:
            content_type = response.headers.get("content-type", "")
            if not content_type.startswith(_EVENT_STREAM):
                raise EngineCrashed(
                    f"{hide_credentials(str(response.url))} answered with "
                    f"{content_type or 'no content type'}, not with a stream of events "
                    f"({_EVENT_STREAM})"
                )
            parser = EventStreamParser()
            body = response.aiter_bytes()
            async for data in body:
                for event in parser.feed(data):
                    reader.read(event)
                if reader.is_done or reader.is_stopped:
                    break
            reader.close()
            if reader.is_done or self._kind.ends_at_stops:
                # The usage may follow, and a connection whose response was read can be used again.
                with anyio.move_on_after(_END_GRACE_S if reader.is_done else _USAGE_GRACE_S):
                    async for data in body:
                        for event in parser.feed(data):
                            reader.read(event)

    def abort(self, run_id: int) -> None:
        """Cancel the request of a run, which closes its connection."""
        with self._lock:
            scope = self._scopes.get(run_id)
            if scope is None:
                self._aborted.add(run_id)
        if scope is not None:
            self._portal.start_task_soon(scope.cancel)

    def close(self) -> None:
        """Close all connections and end the event loop."""
        self._portal.call(self._http.aclose)
        self._resources.close()


def _read_embedding(answer: Any) -> tuple[list[float], int]:
    """Return the vector of the first embedding with length 1, and its tokens, 0 if not known."""
    try:
        vector = [float(value) for value in answer["data"][0]["embedding"]]
    except (KeyError, IndexError, TypeError, ValueError):
        raise EngineCrashed("the server's answer has no embedding") from None
    length = math.hypot(*vector) or 1.0
    usage = answer.get("usage") or {}
    return [value / length for value in vector], int(usage.get("prompt_tokens") or 0)
