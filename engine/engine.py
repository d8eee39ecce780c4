"""The engine: admits requests to its slots and runs them on its host."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from engine.admission import Admission, Slot
from engine.backends.base import SideCall, TokenizerInfo
from engine.capabilities import Capabilities, thinks_before_grammar
from engine.config import EngineConfig
from engine.errors import (
    EngineClosed,
    EngineError,
    EngineRestarting,
    GenerationTimeout,
    RequestRejected,
    UnsupportedParameter,
)
from engine.hooks import Hook, Hooks, RequestQueued, RequestStarted
from engine.hosts.base import Host
from engine.hosts.copies import CopiesHost
from engine.hosts.crash_causes import CrashCauses
from engine.hosts.process import ProcessHost
from engine.hosts.thread import ThreadHost
from engine.instance import EngineState, Instance, host_state
from engine.models.load_retry import LoadRetry
from engine.models.memory import ModelMemory, Residency
from engine.models.model_check import check_model_file
from engine.output import Embedding, PromptToken, Relevance
from engine.prompts.chat_template import apply_chat_template, merge_system_messages
from engine.prompts.control_marks import break_control_marks
from engine.prompts.image_prompt import leave_out_images
from engine.prompts.prompt_size import check_size
from engine.prompts.reasoning import leaves_reasoning_open, starts_in_reasoning
from engine.request import (
    Chat,
    GenerationRequest,
    Priority,
    Prompt,
    RenderedPrompt,
    SamplingParams,
)
from engine.stream import TokenStream, timeout_error

# How long interactive requests wait for a restart, at least; or as long as two loads take.
SHORT_RESTART_S = 10.0


class Engine:
    """Generates text with one model.

    Jobs, HTTP requests and batches all use `generate`. Owned by one event loop: all methods are
    called on it, except `spawn`, which may be called before there is one.

    An engine that shares its memory with others (`share_memory`) loads its model for a request, and
    unloads it when that memory says so. Other engines keep their model.

    After a crash, interactive requests wait for a short restart, and get EngineRestarting if it
    takes longer. Jobs and batches, which have queues of their own, wait until the engine is ready
    or dead.
    """

    def __init__(self, config: EngineConfig, hooks: Sequence[Hook] = ()) -> None:
        self._timeouts = config.timeouts
        self._hooks = Hooks(hooks)
        host: type[ThreadHost] | partial[ProcessHost] = ThreadHost
        if config.isolation == "process":
            host = partial(ProcessHost, crash_causes=CrashCauses())
        self._hosts: tuple[Host, ...] = tuple(
            host(each, config.timeouts, self._hooks) for each in (config.backend, *config.copies)
        )
        self._host = self._hosts[0] if len(self._hosts) == 1 else CopiesHost(self._hosts)
        self._host.on_change(self._on_host_change)
        self._admission = Admission(config.slots, config.max_queue)
        self._run_ids = itertools.count(1)
        self._streams: set[TokenStream] = set()
        # Seconds without a loaded model in earlier periods, and when the current period began.
        self._unloaded_before_s = 0.0
        self._unloaded_since: float | None = time.monotonic()
        # Whether interactive requests are refused because a restart takes long, and the timer that
        # sets it.
        self._rejects_interactive = False
        self._rejection_timer: asyncio.TimerHandle | None = None
        # Done when the interactive requests that wait for the host are refused.
        self._rejection: asyncio.Future[None] | None = None
        self._has_failed = asyncio.Event()
        self._max_queue = config.max_queue
        self._residency: Residency | None = None
        self._load_retry = LoadRetry()
        # Held while a failed host is made ready for the next load.
        self._revival = asyncio.Lock()
        options = config.backend.options
        self._model_path, self._model_name = options.get("model_path"), options.get("model_name")
        # Set when the host has changed, for `_load`.
        self._has_changed = asyncio.Event()

    def share_memory(
        self, memory: ModelMemory, name: str, need_bytes: int, keep_alive_s: float
    ) -> None:
        """Load the model only while it has a place in a memory; called once, before all else."""
        for host in self._hosts:
            if isinstance(host, ProcessHost):
                host.is_on_demand = True
        self._residency = memory.add(name, need_bytes, self._load, self._host.unload, keep_alive_s)

    @property
    def residency(self) -> Residency | None:
        """The model's place in the memory that it shares; None if it always stays loaded."""
        return self._residency

    @property
    def state(self) -> EngineState:
        """The state; `trouble` explains a restart and `failure` explains a dead engine."""
        residency = self._residency
        if residency is not None and not residency.is_loaded and self._host.failure is None:
            return EngineState.UNLOADED
        return host_state(self._host)

    @property
    def trouble(self) -> str | None:
        """A sentence on the failure and the time of the restart; None unless restarting."""
        downtime = self._host.downtime
        return None if downtime is None else downtime.sentence

    @property
    def rejects_interactive(self) -> bool:
        """Whether interactive requests get EngineRestarting, because a restart takes long."""
        return self._rejects_interactive

    @property
    def failure(self) -> EngineError | None:
        """Why the engine is dead; None while it is not."""
        return self._host.failure

    @property
    def capabilities(self) -> Capabilities | None:
        """The capabilities of the loaded model; None until it has been loaded once."""
        return self._host.capabilities

    @property
    def request_timeout_s(self) -> float:
        """The default time limit of a request, queueing included."""
        return self._timeouts.request_timeout_s

    @property
    def slots(self) -> int:
        """How many generations run side by side."""
        return self._admission.slots

    @property
    def running(self) -> int:
        """How many generations hold a slot."""
        return self._admission.running

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot, or for the model's place in the memory."""
        residency = self._residency
        return self._admission.waiting + (0 if residency is None else len(residency.waiters))

    @property
    def restarts(self) -> int:
        """How often the host process was restarted after a crash."""
        return self._host.restarts

    @property
    def pids(self) -> Sequence[int]:
        """The ids of the processes that the model is in; none where it is in this process."""
        return self._host.pids

    @property
    def instances(self) -> tuple[Instance, ...]:
        """The state of each copy of the model; one entry if there are no copies."""
        instances = tuple(Instance.of(host) for host in self._hosts)
        if self.state is not EngineState.UNLOADED:
            return instances
        return tuple(replace(each, state=EngineState.UNLOADED) for each in instances)

    def subscribe(self, hook: Hook) -> None:
        """Call a hook with all events from now on."""
        self._hooks.add(hook)

    def spawn(self) -> None:
        """Begin loading, without waiting and without a running event loop."""
        if self._residency is not None:
            self._residency.occupy()
        self._host.spawn()

    def abandon(self) -> None:
        """Undo `spawn` at once, in a process that ends before it has a running event loop."""
        self._host.abandon()

    async def ready(self) -> Capabilities:
        """Wait until the model is loaded. Raises EngineUnavailable.

        A model that was unloaded is not loaded again, because its capabilities are known.
        """
        capabilities = self._host.capabilities
        failure = self._host.failure
        if self._residency is None or (
            failure is not None and not self._load_retry.is_due(failure)
        ):
            return await self._host.ready()
        return await self.load() if capabilities is None else capabilities

    async def load(self) -> Capabilities:
        """Wait until the model is loaded, and load it if it was unloaded.

        Raises EngineUnavailable or QueueFull.
        """
        async with self._use_memory(Priority.INTERACTIVE):
            return await self._host.ready()

    async def wait_until_dead(self) -> EngineError:
        """Wait until the engine is dead or closed, and return the reason."""
        while (failure := self._host.failure) is None:
            await self._has_failed.wait()
        return failure

    def detach(self) -> None:
        """Let another event loop own the engine; nothing may be running or waiting."""
        self._host.detach()

    async def reserve(self, priority: Priority, *, exclusive: bool = False) -> Slot:
        """Wait for a slot on a loaded engine, and hold it for a later `generate`.

        Nothing else runs while an exclusive slot is held.

        Job queues reserve a slot before they take a job: so the job waits in the durable queue, and
        its wait does not count as execution. Raises EngineUnavailable or QueueFull.
        """
        while True:
            # The host first: slots that are held during a restart would keep out the interactive
            # requests that arrive meanwhile.
            await self._host.ready()
            await self._admission.acquire(priority, exclusive=exclusive)
            if self._host.loaded and self._host.failure is None:
                return Slot(self._admission.release)
            self._admission.release()

    async def generate(
        self, request: GenerationRequest, slot: Slot | None = None, *, buffered: bool = False
    ) -> TokenStream:
        """Wait for a slot, unless one is given, and start; iterate the stream in `async with`.

        With `buffered`, for a client that reads only the complete answer, the deltas arrive in few
        batches, which takes less time from the model.

        Raises:
            QueueFull: too many requests wait already.
            EngineUnavailable: the engine is dead, closed, could not load its model, or is
                being restarted for longer than an interactive request waits.
            RequestRejected: the engine does not support a parameter that the answer depends on.
            GenerationTimeout: the request reached its time limit before it got a slot.
        """
        limit_s = (
            self._timeouts.request_timeout_s if request.timeout_s is None else request.timeout_s
        )
        start, unloaded_s = asyncio.get_running_loop().time(), self._unloaded_s()
        deadline = start + limit_s
        if self._residency is not None:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._enter_memory(request.priority)
            except TimeoutError as error:
                raise timeout_error(request, self._timeouts) from error
        try:
            return await self._start(request, slot, start, unloaded_s, deadline, buffered=buffered)
        except BaseException:
            self._leave_memory()
            raise

    async def _start(
        self,
        request: GenerationRequest,
        slot: Slot | None,
        start: float,
        unloaded_s: float,
        deadline: float,
        *,
        buffered: bool,
    ) -> TokenStream:
        """Start a request whose model has its place in the memory; see `generate`."""
        loop = asyncio.get_running_loop()
        if not self._try_admit(slot):
            try:
                await self._admit(request, slot, deadline)
            except TimeoutError as error:
                raise timeout_error(request, self._timeouts) from error
        try:
            # Returns at once; if the host dies now, the stream reports it.
            capabilities = await self._host.ready()
            if not capabilities.truncates(request.sampling):
                check_size(request.prompt, capabilities.context_length)
            request, template_warnings = apply_chat_template(request, capabilities)
            request, system_warnings = merge_system_messages(request, capabilities)
            request, image_warnings = leave_out_images(request, capabilities)
            request, mark_warnings = break_control_marks(request, capabilities)
            warnings = (
                *template_warnings,
                *system_warnings,
                *image_warnings,
                *mark_warnings,
                *capabilities.check(request.prompt, request.sampling),
            )
            opens_reasoning = await self._starts_in_reasoning(request.prompt, capabilities)
            sampling = capabilities.leave_out_ignored(request.sampling)
            if thinks_before_grammar(request.prompt, sampling, capabilities):
                sampling = replace(sampling, may_think=True)
            if opens_reasoning and sampling.stop_scope is not None:
                scope = replace(sampling.stop_scope, starts_in_reasoning=True)
                sampling = replace(sampling, stop_scope=scope)
            if sampling is not request.sampling:
                request = replace(request, sampling=sampling)
        except BaseException:
            self._admission.release()
            raise
        load_s = self._unloaded_s() - unloaded_s
        queued_s = max(loop.time() - start - load_s, 0.0)
        self._hooks(RequestStarted(request.request_id, request.priority, queued_s, load_s))
        stream = TokenStream(
            next(self._run_ids),
            request,
            self._host,
            self._timeouts,
            abort_in_prefill=capabilities.abort_in_prefill,
            threaded=self._host.threaded,
            queued_s=queued_s,
            load_s=load_s,
            deadline=deadline,
            warnings=warnings,
            starts_in_reasoning=opens_reasoning,
            on_end=self._on_stream_end,
            hooks=self._hooks,
            buffered=buffered,
        )
        self._streams.add(stream)
        self._host.start_run(stream)
        return stream

    async def _starts_in_reasoning(self, prompt: Prompt, capabilities: Capabilities) -> bool:
        """Return whether the answer to a prompt begins inside the model's reasoning.

        Only a template with variables of the request's own has to be rendered for this.
        """
        if isinstance(prompt, str):
            return starts_in_reasoning(prompt)
        if not isinstance(prompt, Chat):
            return False
        if prompt.continues_last:
            return leaves_reasoning_open(prompt.messages[-1].content)
        if prompt.template_kwargs:
            with suppress(UnsupportedParameter):
                return starts_in_reasoning(str(await self._host.call("render", prompt)))
        return capabilities.starts_in_reasoning

    def _try_admit(self, slot: Slot | None) -> bool:
        """Take the given slot or a free one; returns False if the request has to wait."""
        if self._host.failure is not None:
            raise self._host.failure.with_traceback(None)
        if not self._host.loaded:
            return False
        return (slot is not None and slot.take()) or self._admission.try_acquire()

    async def _admit(self, request: GenerationRequest, slot: Slot | None, deadline: float) -> None:
        """Wait for a slot and for the model. Raises TimeoutError at the deadline."""
        if self._rejects_interactive and request.priority is Priority.INTERACTIVE:
            raise self._restarting_error()
        if slot is None or not slot.take():
            if not self._admission.has_free_slot():
                waiting = self._admission.waiting + 1
                self._hooks(RequestQueued(request.request_id, request.priority, waiting))
            await self._admission.acquire(request.priority, deadline)
        if self._host.loaded and self._host.failure is None:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self._wait_loaded(request.priority)
        except BaseException:
            self._admission.release()
            raise

    async def _wait_loaded(self, priority: Priority) -> Capabilities:
        """Wait for the model; an interactive request waits only for a short restart."""
        host = self._host
        if host.loaded or host.failure is not None or priority is not Priority.INTERACTIVE:
            return await host.ready()
        if self._rejects_interactive:
            raise self._restarting_error()
        loop = asyncio.get_running_loop()
        rejection = self._rejection = self._rejection or loop.create_future()
        ready = asyncio.ensure_future(host.ready())
        try:
            await asyncio.wait({ready, rejection}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                return ready.result()
        finally:
            ready.cancel()
        raise self._restarting_error()

    def _restarting_error(self) -> EngineRestarting:
        downtime = self._host.downtime
        if downtime is None:
            return EngineRestarting("the engine is being restarted", retry_after_s=1)
        return EngineRestarting(
            f"the engine is {downtime.sentence}", retry_after_s=downtime.retry_after_s
        )

    async def _enter_memory(self, priority: Priority) -> None:
        """Wait until the model may be loaded; `_leave_memory` must follow.

        Raises QueueFull or EngineUnavailable, after which it must not.
        """
        if self._residency is not None:
            if self._host.failure is not None:
                await self._revive()
            if not self._residency.is_loaded:
                # Before other models are unloaded for it.
                await asyncio.to_thread(check_model_file, self._model_path, self._model_name)
            interactive = priority is Priority.INTERACTIVE
            await self._residency.enter(self._max_queue if interactive else None)

    async def _revive(self) -> None:
        """Let a model that could not be loaded be tried again; within its pause, raise the reason.

        Raises EngineUnavailable.
        """
        async with self._revival:
            failure = self._host.failure
            if failure is None:
                return
            if not self._load_retry.is_due(failure):
                raise failure.with_traceback(None)
            # The process that has failed may still be there.
            await self._host.unload()
            self._has_failed.clear()
            self._host.revive()

    def _leave_memory(self) -> None:
        if self._residency is not None:
            self._residency.leave()

    @asynccontextmanager
    async def _use_memory(self, priority: Priority) -> AsyncIterator[None]:
        await self._enter_memory(priority)
        try:
            yield
        finally:
            self._leave_memory()

    async def _load(self) -> bool:
        """Load the model; return at the first crash too, and whether there is still a process."""
        host = self._host
        starting = asyncio.create_task(host.ready())
        try:
            while not host.loaded and host.failure is None and host.downtime is None:
                self._has_changed.clear()
                await self._has_changed.wait()
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        return host.failure is None

    async def _call(
        self, op: SideCall, payload: Any, prompt: Prompt, param: str | None = None
    ) -> Any:
        """Make a side call on the host, unless `prompt` cannot fit the context.

        Raises EngineError.
        """
        async with self._use_memory(Priority.INTERACTIVE):
            capabilities = await self._wait_loaded(Priority.INTERACTIVE)
            check_size(prompt, capabilities.context_length, param)
            return await self._host.call(op, payload)

    async def render(self, chat: Chat) -> str:
        """Render a chat with the model's chat template. Raises EngineError."""
        return str(await self._call("render", chat, chat))

    async def tokenize(self, prompt: str | Chat) -> list[int]:
        """Return the model's token ids for a prompt. Raises EngineError."""
        return list(await self._call("tokenize", prompt, prompt))

    async def tokenize_text(self, text: str) -> list[int]:
        """Return the token ids of a text without special tokens around it. Raises EngineError."""
        return list(await self._call("tokenize_text", text, text))

    async def describe_tokenizer(self) -> TokenizerInfo:
        """Return the model's special tokens and chat template. Raises EngineError."""
        info: TokenizerInfo = await self._call("describe_tokenizer", "", "")
        return info

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids. Raises EngineError."""
        return str(await self._call("detokenize", list(tokens), tuple(tokens), "tokens"))

    async def pieces(self, text: str) -> list[str]:
        """Return the texts of the single tokens of a text. Raises EngineError."""
        return list(await self._call("pieces", text, text))

    async def infill(self, prefix: str, suffix: str) -> str:
        """Return the fill-in-the-middle prompt for two texts. Raises EngineError."""
        return str(await self._call("infill", [prefix, suffix], prefix + suffix))

    async def find_grammar_violation(
        self, sampling: SamplingParams, priority: Priority
    ) -> str | None:
        """Return why the backend cannot hold an answer to its schema or grammar; None if it can.

        Raises EngineError.
        """
        payload: list[str]
        if sampling.json_schema is not None:
            payload = ["schema", json.dumps(sampling.json_schema)]
        elif sampling.grammar is not None:
            payload = ["grammar", sampling.grammar]
        else:
            return None
        async with self._use_memory(priority):
            await self._wait_loaded(priority)
            violation: str | None = await self._host.call("find_grammar_violation", payload)
        return violation

    async def embed(
        self,
        texts: Sequence[RenderedPrompt],
        priority: Priority,
        slot: Slot | None = None,
        params: Sequence[str] = (),
    ) -> list[Embedding]:
        """Return the embeddings of texts, computed one after the other on one slot.

        `params` names each text in errors; without them all are named `input`.

        Raises:
            UnsupportedParameter: the model has no embeddings, or takes no token ids.
            QueueFull: too many requests wait already.
            EngineUnavailable: the engine is dead, closed or could not load its model.
            GenerationTimeout: they took longer than a request may, queueing included.
            RequestRejected: one of the texts is too long.
        """
        limit_s = self._timeouts.request_timeout_s
        try:
            async with asyncio.timeout(limit_s), self._use_memory(priority):
                capabilities = await self._wait_loaded(priority)
                if not capabilities.embeddings:
                    raise UnsupportedParameter(
                        f"input: the {capabilities.backend} engine has no embeddings", param="input"
                    )
                for text, param in zip(texts, params or ["input"] * len(texts), strict=True):
                    check_size(text, capabilities.context_length, param)
                if slot is None or not slot.take():
                    await self._admission.acquire(priority)
                names = [{"input": param} for param in params]
                embeddings = await self._call_on_slot("embed", texts, names)
                return [Embedding(*each) for each in embeddings]
        except TimeoutError as error:
            raise _took_too_long(limit_s) from error

    async def rerank(
        self,
        pairs: Sequence[tuple[str, str]],
        priority: Priority,
        slot: Slot | None = None,
        params: Sequence[tuple[str, str]] = (),
    ) -> list[Relevance]:
        """Return how relevant each pair's document is to its query, computed as in `embed`.

        `params` names both texts of each pair in errors; without them they are named `query` and
        `document`.

        Raises:
            UnsupportedParameter: the model is no reranking model.
            QueueFull: too many requests wait already.
            EngineUnavailable: the engine is dead, closed or could not load its model.
            GenerationTimeout: they took longer than a request may, queueing included.
            RequestRejected: one of the pairs is too long.
        """
        limit_s = self._timeouts.request_timeout_s
        try:
            async with asyncio.timeout(limit_s), self._use_memory(priority):
                capabilities = await self._wait_loaded(priority)
                if not capabilities.rerank:
                    raise UnsupportedParameter(
                        f"query: {capabilities.model} is no reranking model", param="query"
                    )
                names = params or [("query", "document")] * len(pairs)
                for pair, pair_names in zip(pairs, names, strict=True):
                    for text, param in zip(pair, pair_names, strict=True):
                        check_size(text, capabilities.context_length, param)
                if slot is None or not slot.take():
                    await self._admission.acquire(priority)
                scores = await self._call_on_slot(
                    "rerank",
                    pairs,
                    [{"query": query, "document": document} for query, document in params],
                )
                return [Relevance(*each) for each in scores]
        except TimeoutError as error:
            raise _took_too_long(limit_s) from error

    async def score(
        self, prompt: RenderedPrompt, alternatives: int, priority: Priority
    ) -> list[PromptToken]:
        """Return a prompt's tokens, each with the log-probability that the model gives it.

        The first token has none. `alternatives` is the number of likeliest tokens for each place.

        Raises:
            UnsupportedParameter: the engine has no log-probabilities of prompts.
            QueueFull: too many requests wait already.
            EngineUnavailable: the engine is dead, closed or could not load its model.
            GenerationTimeout: it took longer than a request may, queueing included.
            RequestRejected: the prompt is too long, or has an id that is no token.
        """
        limit_s = self._timeouts.request_timeout_s
        try:
            async with asyncio.timeout(limit_s), self._use_memory(priority):
                capabilities = await self._wait_loaded(priority)
                if not capabilities.prompt_logprobs:
                    raise UnsupportedParameter(
                        f"logprobs: the {capabilities.backend} engine has none of a prompt",
                        param="logprobs",
                    )
                check_size(prompt, capabilities.context_length)
                await self._admission.acquire(priority)
                (tokens,) = await self._call_on_slot("score", [[prompt, alternatives]])
                return [
                    PromptToken(
                        text,
                        logprob,
                        tuple((name, value) for name, value in top),
                        token_id,
                        rank,
                        tuple(top_ids),
                    )
                    for text, logprob, top, token_id, rank, top_ids in tokens
                ]
        except TimeoutError as error:
            raise _took_too_long(limit_s) from error

    async def _call_on_slot(
        self, op: SideCall, payloads: Sequence[Any], names: Sequence[Mapping[str, str]] = ()
    ) -> list[Any]:
        """Make one call for each payload, and release the slot when the last call has returned.

        `names` has for each payload the request's names of the backend's parameters, for errors.

        After a cancellation no further call is made. A call in progress cannot be aborted, so the
        slot is held until it returns: otherwise the next request would wait for it.
        """
        is_cancelled = False

        async def compute() -> list[Any]:
            results: list[Any] = []
            try:
                for payload in payloads:
                    if is_cancelled:
                        break
                    results.append(await self._host.call(op, payload))
            except EngineError as error:
                if is_cancelled:
                    return results
                if names and isinstance(error, RequestRejected):
                    param = str(error.details.get("param"))
                    if (name := names[len(results)].get(param)) is not None:
                        raise error.rename_param(param, name) from error
                raise
            finally:
                self._admission.release()
            return results

        try:
            return await asyncio.shield(asyncio.create_task(compute()))
        finally:
            is_cancelled = True

    async def close(self) -> None:
        """Abort running requests, refuse waiting ones, and unload; the timeouts limit the wait."""
        self._admission.fail_waiting(EngineClosed("the engine is shutting down"))
        streams = list(self._streams)
        for stream in streams:
            stream.abort(EngineClosed("the engine is shutting down"))
        await self._host.close()

    def _on_stream_end(self, stream: TokenStream) -> None:
        self._streams.discard(stream)
        self._admission.release()
        self._leave_memory()

    def _unloaded_s(self) -> float:
        """Return the total time without a loaded model.

        The difference between two calls is the time spent on loading between them, whatever else
        the request waited for.
        """
        since = self._unloaded_since
        return self._unloaded_before_s + (0.0 if since is None else time.monotonic() - since)

    def _on_host_change(self) -> None:
        if self._host.loaded and self._unloaded_since is not None:
            self._unloaded_before_s = self._unloaded_s()
            self._unloaded_since = None
        elif not self._host.loaded and self._unloaded_since is None:
            self._unloaded_since = time.monotonic()
        self._has_changed.set()
        self._update_restart_timer()
        if self._host.loaded:
            self._load_retry.record_load()
        if self._host.failure is not None:
            self._has_failed.set()
            self._load_retry.record_failure(self._host.failure)
            if self._residency is not None:
                self._residency.release()
            self._admission.fail_waiting(self._host.failure)
        elif self._host.capabilities is not None:
            self._admission.resize(self._host.capabilities.slots)

    def _update_restart_timer(self) -> None:
        """Refuse interactive requests if a restart takes long, until the model is loaded."""
        downtime = self._host.downtime
        if downtime is None:
            self._rejects_interactive = False
            if self._rejection_timer is not None:
                self._rejection_timer.cancel()
                self._rejection_timer = None
        elif self._rejection_timer is None:
            max_wait_s = max(SHORT_RESTART_S, 2 * downtime.load_s)
            wait_s = max(downtime.since + max_wait_s - time.monotonic(), 0.0)
            self._rejection_timer = asyncio.get_running_loop().call_later(
                wait_s, self._reject_interactive
            )

    def _reject_interactive(self) -> None:
        self._rejects_interactive = True
        self._admission.fail_waiting(self._restarting_error(), Priority.INTERACTIVE)
        rejection, self._rejection = self._rejection, None
        if rejection is not None and not rejection.done():
            rejection.set_result(None)


def _took_too_long(limit_s: float | None) -> GenerationTimeout:
    return GenerationTimeout(f"the request took longer than {limit_s:g} s (REQUEST_TIMEOUT_S)")
