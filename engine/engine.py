"""The engine: admits requests to its slots and runs them on its host."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from engine.admission import Admission, Slot
from engine.availability import Availability
from engine.backends.base import SideCall, TokenizerInfo
from engine.capabilities import Capabilities
from engine.config import EngineConfig
from engine.errors import EngineClosed, EngineError, EngineUnavailable
from engine.hooks import Hook, Hooks, RequestQueued, RequestStarted
from engine.hosts.base import Host
from engine.hosts.copies import CopiesHost
from engine.hosts.losses.crash_causes import CrashCauses
from engine.hosts.process import ProcessHost
from engine.hosts.thread import ThreadHost
from engine.instance import EngineState, Instance, host_state
from engine.models.memory import ModelMemory, Residency
from engine.models.memory_place import MemoryPlace
from engine.preparation import prepare
from engine.prompts.prompt_size import check_size
from engine.request import (
    Chat,
    GenerationRequest,
    Priority,
    Prompt,
    SamplingParams,
)
from engine.runs.stream import RunStart, TokenStream, timeout_error
from engine.slot_operations import Payload, Result, SlotOperation, SlotOperations


class Engine:
    """Generates text with one model.

    Jobs, HTTP requests and batches all use `generate`. Owned by one event loop: all methods are
    called on it, except `spawn`, which may be called before there is one.

    An engine that shares its memory with others (`share_memory`) loads its model for a request, and
    unloads it when that memory says so (`MemoryPlace`). Other engines keep their model. What
    requests wait for after a crash is in `Availability`.
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
        self._admission = Admission(config.slots, config.max_queue)
        self._availability = Availability(self._host, self._admission)
        self._memory = MemoryPlace(
            self._host, config.backend, config.max_queue, self._availability.on_revival
        )
        self._host.on_change(self._availability.on_host_change)
        self._host.on_change(self._memory.on_host_change)
        self._slot_operations = SlotOperations(
            self._host,
            self._admission,
            self._availability,
            self._memory,
            config.timeouts.request_timeout_s,
        )
        self._run_ids = itertools.count(1)
        self._streams: set[TokenStream] = set()

    def share_memory(
        self, memory: ModelMemory, name: str, need_bytes: int, keep_alive_s: float
    ) -> None:
        """Load the model only while it has a place in a memory; called once, before all else."""
        for host in self._hosts:
            if isinstance(host, ProcessHost):
                host.load_on_demand()
        self._memory.share(memory, name, need_bytes, keep_alive_s)

    @property
    def residency(self) -> Residency | None:
        """The model's place in the memory that it shares; None if it always stays loaded."""
        return self._memory.residency

    @property
    def state(self) -> EngineState:
        """The state; `trouble` explains a restart and `failure` explains a dead engine."""
        return EngineState.UNLOADED if self._memory.is_unloaded else host_state(self._host)

    @property
    def trouble(self) -> str | None:
        """A sentence on the failure and the time of the restart; None unless restarting."""
        downtime = self._host.downtime
        return None if downtime is None else downtime.sentence

    @property
    def rejects_interactive(self) -> bool:
        """Whether interactive requests get EngineRestarting, because a restart takes long."""
        return self._availability.rejects_interactive

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
        return self._admission.waiting + self._memory.waiting

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
        if self._memory.residency is not None:
            self._memory.residency.occupy()
        self._host.spawn()

    def abandon(self) -> None:
        """Undo `spawn` at once, in a process that ends before it has a running event loop."""
        self._host.abandon()

    async def ready(self) -> Capabilities:
        """Wait until the model is loaded. Raises EngineUnavailable.

        A model that was unloaded is not loaded again, because its capabilities are known.
        """
        capabilities = self._host.capabilities
        if not self._memory.can_retry(self._host.failure):
            return await self._host.ready()
        return await self.load() if capabilities is None else capabilities

    async def load(self) -> Capabilities:
        """Wait until the model is loaded, and load it if it was unloaded.

        Raises EngineUnavailable or QueueFull.
        """
        async with self._memory.use(Priority.INTERACTIVE):
            return await self._host.ready()

    async def wait_until_dead(self) -> EngineError:
        """Wait until the engine is dead or closed, and return the reason."""
        return await self._availability.wait_until_dead()

    def detach(self) -> None:
        """Let another event loop own the engine; nothing may be running or waiting."""
        self._host.detach()

    async def reserve(self, priority: Priority, *, exclusive: bool = False) -> Slot:
        """Wait for a slot on a loaded engine, and hold it for a later `generate`.

        Nothing else runs while an exclusive slot is held, unless crashes are isolated anyway.

        Job queues reserve a slot before they take a job: so the job waits in the durable queue, and
        its wait does not count as execution. Raises EngineUnavailable or QueueFull.
        """
        while True:
            # The host first: slots that are held during a restart would keep out the interactive
            # requests that arrive meanwhile.
            capabilities = await self._host.ready()
            is_alone = exclusive and not capabilities.isolated_crashes
            await self._admission.acquire(priority, exclusive=is_alone)
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
        start, unloaded_s = asyncio.get_running_loop().time(), self._availability.unloaded_s
        deadline = start + limit_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._memory.enter(request.priority)
        except TimeoutError as error:
            raise timeout_error(request, self._timeouts) from error
        try:
            if not self._try_admit(slot):
                await self._admit(request, slot, deadline)
            load_s = self._availability.unloaded_s - unloaded_s
            return await self._start(request, start, load_s, deadline, buffered=buffered)
        except EngineUnavailable as error:
            self._memory.leave()
            raise self._memory.add_retry_time(error) from None
        except BaseException:
            self._memory.leave()
            raise

    async def _start(
        self,
        request: GenerationRequest,
        start: float,
        load_s: float,
        deadline: float,
        *,
        buffered: bool,
    ) -> TokenStream:
        """Start a request that has its place in the memory and a slot; see `generate`."""
        try:
            # Returns at once; if the host dies now, the stream reports it.
            capabilities = await self._host.ready()
            prepared = await prepare(request, capabilities, self._render)
        except BaseException:
            self._admission.release()
            raise
        request = prepared.request
        queued_s = max(asyncio.get_running_loop().time() - start - load_s, 0.0)
        self._hooks(RequestStarted(request.request_id, request.priority, queued_s, load_s))
        run = RunStart(
            run_id=next(self._run_ids),
            request=request,
            deadline=deadline,
            queued_s=queued_s,
            load_s=load_s,
            warnings=prepared.warnings,
            starts_in_reasoning=prepared.starts_in_reasoning,
            abort_in_prefill=capabilities.abort_in_prefill,
            buffered=buffered,
        )
        stream = TokenStream(
            run,
            self._host,
            self._timeouts,
            self._hooks,
            threaded=self._host.threaded,
            on_end=self._on_stream_end,
        )
        self._streams.add(stream)
        self._host.start_run(stream)
        return stream

    async def _render(self, chat: Chat) -> str:
        """Render a chat while the model has its place in the memory."""
        return str(await self._host.call("render", chat))

    def _try_admit(self, slot: Slot | None) -> bool:
        """Take the given slot or a free one; returns False if the request has to wait."""
        if self._host.failure is not None:
            raise self._host.failure.with_traceback(None)
        if not self._host.loaded:
            return False
        return (slot is not None and slot.take()) or self._admission.try_acquire()

    async def _admit(self, request: GenerationRequest, slot: Slot | None, deadline: float) -> None:
        """Wait for a slot and for the model. Raises GenerationTimeout at the deadline."""
        self._availability.check(request.priority)
        if slot is None or not slot.take():
            if not self._admission.has_free_slot():
                waiting = self._admission.waiting + 1
                self._hooks(RequestQueued(request.request_id, request.priority, waiting))
            try:
                await self._admission.acquire(request.priority, deadline)
            except TimeoutError as error:
                raise timeout_error(request, self._timeouts) from error
        if self._host.loaded and self._host.failure is None:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self._availability.wait_loaded(request.priority)
        except TimeoutError as error:
            self._admission.release()
            raise timeout_error(request, self._timeouts) from error
        except BaseException:
            self._admission.release()
            raise

    async def _call(
        self, op: SideCall, payload: Any, prompt: Prompt, param: str | None = None
    ) -> Any:
        """Make a side call on the host, unless `prompt` cannot fit the context.

        Raises EngineError.
        """
        async with self._memory.use(Priority.INTERACTIVE):
            capabilities = await self._availability.wait_loaded(Priority.INTERACTIVE)
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
        async with self._memory.use(priority):
            await self._availability.wait_loaded(priority)
            violation: str | None = await self._host.call("find_grammar_violation", payload)
        return violation

    async def compute(
        self,
        operation: SlotOperation[Payload, Result],
        payloads: Sequence[Payload],
        priority: Priority,
        slot: Slot | None = None,
        params: Sequence[Sequence[str]] = (),
    ) -> list[Result]:
        """Return what an operation, such as `EMBED`, makes of each payload.

        `params` has for each payload the request's names of its texts, for errors. Raises like
        `SlotOperations.run`.
        """
        return await self._slot_operations.run(operation, payloads, priority, slot, params)

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
        self._memory.leave()
