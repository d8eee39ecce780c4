"""The engine: one door, one host, any number of streams."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any

from engine.admission import Admission, Slot
from engine.backends.base import SideCall
from engine.capabilities import Capabilities
from engine.chat_template import apply_chat_template
from engine.config import EngineConfig
from engine.errors import (
    EngineClosed,
    EngineError,
    EngineRestarting,
    GenerationTimeout,
    UnsupportedParameter,
)
from engine.hooks import Hook, Hooks, RequestQueued, RequestStarted
from engine.hosts.base import Host
from engine.hosts.pool import PoolHost
from engine.hosts.process import ProcessHost
from engine.hosts.thread import ThreadHost
from engine.instance import EngineState, Instance, host_state
from engine.output import Embedding
from engine.prompt_size import check_size
from engine.request import Chat, GenerationRequest, Priority, Prompt, RenderedPrompt
from engine.stream import TokenStream, timeout_error

# Interactive requests wait for a restart for so long, or for as long as two loads take.
SHORT_RESTART_S = 10.0


class Engine:
    """Generates text for anyone who gets past its one admission.

    `generate` is the way in for jobs, HTTP requests and batches alike. Owned by one event loop: all
    methods are called on it, except `spawn`, which may come before there is one.

    After a crash, interactive requests wait for a short restart and then get EngineRestarting; jobs
    and batches, which wait in queues of their own, wait until the engine is back or dead.
    """

    def __init__(self, config: EngineConfig, hooks: Sequence[Hook] = ()) -> None:
        self._timeouts = config.timeouts
        self._hooks = Hooks(hooks)
        host = ProcessHost if config.isolation == "process" else ThreadHost
        self._hosts: tuple[Host, ...] = tuple(
            host(each, config.timeouts, self._hooks) for each in (config.backend, *config.copies)
        )
        self._host = self._hosts[0] if len(self._hosts) == 1 else PoolHost(self._hosts)
        self._host.on_change(self._on_host_change)
        self._admission = Admission(config.slots, config.max_queue)
        self._run_ids = itertools.count(1)
        self._streams: set[TokenStream] = set()
        # How long there was no loaded model, in the periods that are over; when this one began.
        self._unloaded_before_s = 0.0
        self._unloaded_since: float | None = time.monotonic()
        # Interactive requests are refused, because the restart takes long; until then a timer.
        self._rejects_interactive = False
        self._refusal_timer: asyncio.TimerHandle | None = None
        # Of those that wait for the host, to be done when they are refused.
        self._refusal: asyncio.Future[None] | None = None
        self._has_failed = asyncio.Event()

    @property
    def state(self) -> EngineState:
        """Ready, on the way there (`trouble` says why), or dead (`failure` says why)."""
        return host_state(self._host)

    @property
    def trouble(self) -> str | None:
        """What failed and when the engine is started again; None unless it is being restarted."""
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
        """What the loaded model can do; None until it has been loaded once."""
        return self._host.capabilities

    @property
    def request_timeout_s(self) -> float:
        """How long a request may take, waiting included, that sets no time of its own."""
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
        """How many requests wait for a slot."""
        return self._admission.waiting

    @property
    def restarts(self) -> int:
        """How often the host process was started again after a crash."""
        return self._host.restarts

    @property
    def instances(self) -> tuple[Instance, ...]:
        """How each copy of the model is doing; one where there are no copies."""
        return tuple(Instance.of(host) for host in self._hosts)

    def subscribe(self, hook: Hook) -> None:
        """Tell a hook of all events from here on."""
        self._hooks.add(hook)

    def spawn(self) -> None:
        """Begin loading at once, without waiting and without a running loop."""
        self._host.spawn()

    def abandon(self) -> None:
        """Undo `spawn` at once, for a process that ends before it has a running loop."""
        self._host.abandon()

    async def ready(self) -> Capabilities:
        """Wait until the model is loaded. Raises EngineUnavailable."""
        return await self._host.ready()

    async def wait_until_dead(self) -> EngineError:
        """Wait until the engine is dead or closed; return the reason."""
        await self._has_failed.wait()
        assert self._host.failure is not None  # noqa: S101 - set with the event
        return self._host.failure

    def detach(self) -> None:
        """Let another event loop own the engine; only while nothing runs and nothing waits."""
        self._host.detach()

    async def reserve(self, priority: Priority, *, exclusive: bool = False) -> Slot:
        """Wait for a slot on a loaded engine and hold it for a `generate` to come.

        With `alone` nothing else runs while the slot is held.

        For queues of jobs: one that is taken out only when it can run waits where it is durable,
        and its waiting is not counted as execution. Raises EngineUnavailable or QueueFull.
        """
        while True:
            # The host first: slots that were held while a crashed one is started again would keep
            # out the interactive requests that come meanwhile.
            await self._host.ready()
            await self._admission.acquire(priority, exclusive=exclusive)
            if self._host.loaded and self._host.failure is None:
                return Slot(self._admission.release)
            self._admission.release()

    async def generate(
        self, request: GenerationRequest, slot: Slot | None = None, *, buffered: bool = False
    ) -> TokenStream:
        """Wait for a slot, if none is brought, and start; iterate the stream inside `async with`.

        Where the answer is wanted `whole`, for nobody reads along, its deltas come in few parts,
        which takes less time from the model.

        Raises:
            QueueFull: too many wait already.
            EngineUnavailable: the engine is dead, closed, could not load its model, or is
                being restarted for longer than an interactive request waits.
            RequestRejected: the engine cannot honour what the answer depends on.
            GenerationTimeout: the request's time was up before it got a slot.
        """
        loop = asyncio.get_running_loop()
        limit_s = (
            self._timeouts.request_timeout_s if request.timeout_s is None else request.timeout_s
        )
        asked, unloaded_s = loop.time(), self._unloaded_s()
        deadline = asked + limit_s
        if not self._enter(slot):
            try:
                await self._admit(request, slot, deadline)
            except TimeoutError as error:
                raise timeout_error(request, self._timeouts) from error
        try:
            # Nothing is waited for any more; a host that dies now is found out by its stream.
            capabilities = await self._host.ready()
            check_size(request.prompt, capabilities.context_length)
            request, notes = apply_chat_template(request, capabilities)
            warnings = notes + capabilities.check(request.prompt, request.sampling)
        except BaseException:
            self._admission.release()
            raise
        load_s = self._unloaded_s() - unloaded_s
        queued_s = max(loop.time() - asked - load_s, 0.0)
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
            on_end=self._on_stream_end,
            hooks=self._hooks,
            buffered=buffered,
        )
        self._streams.add(stream)
        self._host.start_run(stream)
        return stream

    def _enter(self, slot: Slot | None) -> bool:
        """Take the slot that was brought, or a free one, where nothing has to be waited for."""
        if self._host.failure is not None:
            raise self._host.failure.with_traceback(None)
        if not self._host.loaded:
            return False
        return (slot is not None and slot.take()) or self._admission.try_acquire()

    async def _admit(self, request: GenerationRequest, slot: Slot | None, deadline: float) -> None:
        """Wait for a slot and for the model. Raises TimeoutError at the deadline."""
        if self._rejects_interactive and request.priority is Priority.INTERACTIVE:
            raise self._restarting()
        if slot is None or not slot.take():
            if not self._admission.has_free_slot():
                waiting = self._admission.waiting + 1
                self._hooks(RequestQueued(request.request_id, request.priority, waiting))
            await self._admission.acquire(request.priority, deadline)
        if self._host.loaded and self._host.failure is None:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self._ready(request.priority)
        except BaseException:
            self._admission.release()
            raise

    async def _ready(self, priority: Priority) -> Capabilities:
        """Wait for the model, for an interactive request only as long as a short restart takes."""
        host = self._host
        if host.loaded or host.failure is not None or priority is not Priority.INTERACTIVE:
            return await host.ready()
        if self._rejects_interactive:
            raise self._restarting()
        refusal = self._refusal = self._refusal or asyncio.get_running_loop().create_future()
        ready = asyncio.ensure_future(host.ready())
        try:
            await asyncio.wait({ready, refusal}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                return ready.result()
        finally:
            ready.cancel()
        raise self._restarting()

    def _restarting(self) -> EngineRestarting:
        downtime = self._host.downtime
        if downtime is None:
            return EngineRestarting("the engine is being restarted", retry_after_s=1)
        return EngineRestarting(
            f"the engine is {downtime.sentence}", retry_after_s=downtime.retry_after_s
        )

    async def _call(
        self, op: SideCall, payload: Any, prompt: Prompt, param: str | None = None
    ) -> Any:
        """Ask the engine's process, unless `prompt` cannot fit the context. Raises EngineError."""
        capabilities = await self._ready(Priority.INTERACTIVE)
        check_size(prompt, capabilities.context_length, param)
        return await self._host.call(op, payload)

    async def render(self, chat: Chat) -> str:
        """Return the prompt the model's chat template makes of a chat. Raises EngineError."""
        return str(await self._call("render", chat, chat))

    async def tokenize(self, text: str) -> list[int]:
        """Return the model's token ids for a text. Raises EngineError."""
        return list(await self._call("tokenize", text, text))

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids. Raises EngineError."""
        return str(await self._call("detokenize", list(tokens), tuple(tokens), "tokens"))

    async def pieces(self, text: str) -> list[str]:
        """Return the text of each of a text's tokens. Raises EngineError."""
        return list(await self._call("pieces", text, text))

    async def infill(self, prefix: str, suffix: str) -> str:
        """Return the prompt for what is missing between two texts. Raises EngineError."""
        return str(await self._call("infill", [prefix, suffix], prefix + suffix))

    async def embed(
        self, texts: Sequence[RenderedPrompt], priority: Priority, slot: Slot | None = None
    ) -> list[Embedding]:
        """Return what each text means, one after the other on one slot.

        Raises:
            UnsupportedParameter: the model has no vectors, or takes no token ids.
            QueueFull: too many wait already.
            EngineUnavailable: the engine is dead, closed or could not load its model.
            GenerationTimeout: they took longer than a request may, waiting in the queue included.
            RequestRejected: one of them is too long.
        """
        limit_s = self._timeouts.request_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                capabilities = await self._ready(priority)
                if not capabilities.embeddings:
                    raise UnsupportedParameter(
                        f"input: the {capabilities.backend} engine has no embeddings", param="input"
                    )
                for text in texts:
                    check_size(text, capabilities.context_length, "input")
                if slot is None or not slot.take():
                    await self._admission.acquire(priority)
                return await self._vectors(texts)
        except TimeoutError as error:
            raise GenerationTimeout(
                f"the request took longer than {limit_s:g} s (REQUEST_TIMEOUT_S)"
            ) from error

    async def _vectors(self, texts: Sequence[RenderedPrompt]) -> list[Embedding]:
        """Have them made, and give the slot back when the last that was begun is there.

        One call each, for whoever leaves is not computed for to the last: but a vector cannot be
        aborted, and who came next would pay for it.
        """
        wanted = True

        async def make() -> list[Embedding]:
            made: list[Embedding] = []
            try:
                while wanted and len(made) < len(texts):
                    made.append(Embedding(*await self._host.call("embed", texts[len(made)])))
            except EngineError:
                if wanted:
                    raise
            finally:
                self._admission.release()
            return made

        try:
            return await asyncio.shield(asyncio.create_task(make()))
        finally:
            wanted = False

    async def close(self) -> None:
        """Abort what runs, refuse what waits, unload; bounded by the clocks."""
        self._admission.fail_waiting(EngineClosed("the engine is shutting down"))
        streams = list(self._streams)
        for stream in streams:
            stream.abort(EngineClosed("the engine is shutting down"))
        await self._host.close()

    def _on_stream_end(self, stream: TokenStream) -> None:
        self._streams.discard(stream)
        self._admission.release()

    def _unloaded_s(self) -> float:
        """Return for how long in all there has been no loaded model.

        The difference of two calls is how much of the time between them was spent on loading,
        whatever the request waited for first.
        """
        since = self._unloaded_since
        return self._unloaded_before_s + (0.0 if since is None else time.monotonic() - since)

    def _on_host_change(self) -> None:
        if self._host.loaded and self._unloaded_since is not None:
            self._unloaded_before_s = self._unloaded_s()
            self._unloaded_since = None
        elif not self._host.loaded and self._unloaded_since is None:
            self._unloaded_since = time.monotonic()
        self._time_the_restart()
        if self._host.failure is not None:
            self._has_failed.set()
            self._admission.fail_waiting(self._host.failure)
        elif self._host.capabilities is not None:
            self._admission.resize(self._host.capabilities.slots)

    def _time_the_restart(self) -> None:
        """Refuse interactive requests when a restart takes long, until the model is loaded."""
        downtime = self._host.downtime
        if downtime is None:
            self._rejects_interactive = False
            if self._refusal_timer is not None:
                self._refusal_timer.cancel()
                self._refusal_timer = None
        elif self._refusal_timer is None:
            patience_s = max(SHORT_RESTART_S, 2 * downtime.load_s)
            wait_s = max(downtime.since + patience_s - time.monotonic(), 0.0)
            self._refusal_timer = asyncio.get_running_loop().call_later(wait_s, self._refuse)

    def _refuse(self) -> None:
        self._rejects_interactive = True
        self._admission.fail_waiting(self._restarting(), Priority.INTERACTIVE)
        refusal, self._refusal = self._refusal, None
        if refusal is not None and not refusal.done():
            refusal.set_result(None)
