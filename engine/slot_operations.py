"""Operations that take a slot like a generation: embeddings, reranking, and scores of prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from engine.admission import Admission, Slot
from engine.availability import Availability
from engine.backends.base import SideCall
from engine.capabilities import Capabilities
from engine.errors import GenerationTimeout, RequestRejected, UnsupportedParameter
from engine.hosts.base import Host
from engine.models.memory_place import MemoryPlace
from engine.output import Embedding, PromptToken, Relevance
from engine.prompts.prompt_size import check_size
from engine.request import Priority, RenderedPrompt

Payload = TypeVar("Payload")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOperation(Generic[Payload, Result]):
    """An operation of a backend that computes as long as a prefill, for one payload at a time.

    `find_gap` returns why a model lacks the operation, as an error's message; None if it does not.
    `texts` returns the texts of a payload, which must fit the context, and `params` are the names
    that errors have for them. `read` makes the result from what the backend has returned.
    """

    name: SideCall
    find_gap: Callable[[Capabilities], str | None]
    texts: Callable[[Payload], Sequence[RenderedPrompt]]
    params: tuple[str, ...]
    read: Callable[[Any], Result]


def _find_embedding_gap(model: Capabilities) -> str | None:
    if model.embeddings:
        return None
    if model.is_reranking_model:
        return f"input: {model.model} is a reranking model, which has no embeddings"
    return f"input: the {model.backend} engine has no embeddings"


EMBED: SlotOperation[RenderedPrompt, Embedding] = SlotOperation(
    name="embed",
    find_gap=_find_embedding_gap,
    texts=lambda text: (text,),
    params=("input",),
    read=lambda result: Embedding(*result),
)
RERANK: SlotOperation[tuple[str, str], Relevance] = SlotOperation(
    name="rerank",
    find_gap=lambda model: (
        None
        if model.rerank
        else f"query: {model.rerank_gap or f'{model.model} is no reranking model'}"
    ),
    texts=lambda pair: pair,
    params=("query", "document"),
    read=lambda result: Relevance(*result),
)
SCORE: SlotOperation[tuple[RenderedPrompt, int], list[PromptToken]] = SlotOperation(
    name="score",
    find_gap=lambda model: (
        None
        if model.prompt_logprobs
        else f"logprobs: the {model.backend} engine has none of a prompt"
    ),
    texts=lambda prompt_and_alternatives: prompt_and_alternatives[:1],
    params=("prompt",),
    read=lambda tokens: [PromptToken.from_wire(each) for each in tokens],
)


class SlotOperations:
    """Runs the operations of one engine; owned by the event loop."""

    def __init__(
        self,
        host: Host,
        admission: Admission,
        availability: Availability,
        memory: MemoryPlace,
        limit_s: float,
    ) -> None:
        self._host = host
        self._admission = admission
        self._availability = availability
        self._memory = memory
        self._limit_s = limit_s

    async def run(
        self,
        operation: SlotOperation[Payload, Result],
        payloads: Sequence[Payload],
        priority: Priority,
        slot: Slot | None = None,
        params: Sequence[Sequence[str]] = (),
    ) -> list[Result]:
        """Return the results of payloads, computed on one slot.

        They are computed one after the other, or as many at a time as the engine can.

        `params` has for each payload the request's names of its texts, for errors; without them
        the names are those of the operation.

        Raises:
            UnsupportedParameter: the model does not have the operation, or takes no token ids.
            QueueFull: too many requests wait already.
            EngineUnavailable: the engine is dead, closed or could not load its model.
            GenerationTimeout: they took longer than a request may, queueing included.
            RequestRejected: one of the texts is too long, or has an id that is no token.
        """
        try:
            async with asyncio.timeout(self._limit_s), self._memory.use(priority):
                capabilities = await self._availability.wait_loaded(priority)
                if (gap := operation.find_gap(capabilities)) is not None:
                    raise UnsupportedParameter(gap, param=gap.partition(":")[0])
                names = params or [operation.params] * len(payloads)
                for payload, payload_names in zip(payloads, names, strict=True):
                    for text, name in zip(operation.texts(payload), payload_names, strict=True):
                        param = None if name == "prompt" else name
                        check_size(text, capabilities.context_length, param)
                if slot is None or not slot.take():
                    await self._admission.acquire(priority)
                width = capabilities.concurrent_calls
                results = await self._call_each(operation, payloads, params, width)
                return [operation.read(each) for each in results]
        except TimeoutError as error:
            raise GenerationTimeout(
                f"the request took longer than {self._limit_s:g} s (REQUEST_TIMEOUT_S)"
            ) from error

    async def _call_each(
        self,
        operation: SlotOperation[Any, Any],
        payloads: Sequence[Any],
        params: Sequence[Sequence[str]],
        width: int,
    ) -> list[Any]:
        """Make a call for each payload, `width` at a time, and release the slot after the last one.

        After a cancellation no further call is made. A call in progress cannot be aborted, so the
        slot is held until it returns: otherwise the next request would wait for it.
        """
        is_cancelled = False

        async def call(index: int) -> Any:
            try:
                return await self._host.call(operation.name, payloads[index])
            except RequestRejected as error:
                renamed = _rename(error, operation, params[index] if params else ())
                if renamed is error:
                    raise
                raise renamed from error

        async def compute() -> list[Any]:
            results: list[Any] = []
            try:
                while len(results) < len(payloads) and not is_cancelled:
                    indices = range(len(results), min(len(results) + width, len(payloads)))
                    results += await asyncio.gather(*map(call, indices), return_exceptions=True)
                    errors = [each for each in results if isinstance(each, BaseException)]
                    if errors and not is_cancelled:
                        raise errors[0]
            finally:
                self._admission.release()
            return results

        try:
            return await asyncio.shield(asyncio.create_task(compute()))
        finally:
            is_cancelled = True


def _rename(
    error: RequestRejected, operation: SlotOperation[Any, Any], names: Sequence[str]
) -> RequestRejected:
    """Return an error with the request's name of the text that it is about."""
    name = dict(zip(operation.params, names, strict=False)).get(str(error.details.get("param")))
    return error if name is None else error.rename_param(str(error.details["param"]), name)
