"""Background responses: jobs of the default endpoint, which survive the end of the server."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from common.digits import parse_digits
from common.json_depth import is_nested_too_deeply
from common.json_object import JsonObject
from common.value_description import describe_value
from emulator.http.shutdown_state import SHUTTING_DOWN_ERROR
from emulator.http.stream_steps import split_chunks
from handler.apis.core.wire_format import SentBlocks
from handler.apis.openai.wire_format import DONE
from handler.apis.responses.api import RESPONSES, ResponsesApi
from handler.apis.responses.events import EventEncoder
from handler.apis.responses.input_items import read_items
from handler.apis.responses.request import read_previous_id
from handler.apis.responses.response import ID_PREFIX, encode_envelope
from handler.apis.responses.store import StoredResponse
from handler.apis.responses.wire_format import last_number
from handler.errors import InvalidRequest, NotFound
from jobs import Chunk, Job, JobStatus, JobStore, NewJob, Policy

# How long to wait for an event before the job's status is read again.
_POLL_S = 15.0
_MAX_SEED = 2**31
_STATUSES = {
    JobStatus.IN_QUEUE: "queued",
    JobStatus.IN_PROGRESS: "in_progress",
    JobStatus.COMPLETED: "completed",
    JobStatus.FAILED: "failed",
    JobStatus.TIMED_OUT: "failed",
    JobStatus.CANCELLED: "cancelled",
}
_TERMINAL_EVENTS = frozenset(
    f"response.{status}" for status in ("completed", "incomplete", "failed", "cancelled")
)


class BackgroundResponses:
    """Queues responses as jobs, and reads them from the store of jobs.

    The id of a response is that of its job, with a prefix. A job that was interrupted is run again
    from the start. Its events get the same numbers, and a text that is sampled gets a seed, so that
    a reader continues with the next number. Has no state; owned by the event loop.
    """

    def __init__(self, store: JobStore, api: ResponsesApi, endpoint: str, policy: Policy) -> None:
        self._store = store
        self._api = api
        self._endpoint = endpoint
        self._policy = policy

    async def create(self, body: JsonObject) -> Job:
        """Check a body and queue its job.

        Raises:
            InvalidRequest: naming the parameter that is wrong.
            ModelNotFound: no model has that name.
            StoreFull: the store has no room for another job.
            StoreUnavailable: the job cannot be written.
        """
        created = int(time.time())
        call = await self._api.parse_response(body)
        # References to items are resolved: a worker in another process has no stored responses.
        work = {**call.request.body, "created_at": created, "stream": True}
        if call.request.previous_id is not None:
            # A worker in another process does not have the earlier responses.
            work["previous_items"] = await self._api.read_conversation(body)
        if body.get("seed") is None:
            work["seed"] = secrets.randbelow(_MAX_SEED)
        envelope = encode_envelope(call.request, "", created)
        job_input = {"openai_route": RESPONSES, "openai_input": work, "envelope": envelope}
        return await self._store.enqueue(
            NewJob(endpoint=self._endpoint, input=orjson.dumps(job_input), policy=self._policy)
        )

    async def find_job(self, response_id: str) -> Job | None:
        """Return the job of a response; None if there is none."""
        if not response_id.startswith(ID_PREFIX):
            return None
        job = await self._store.get(response_id.removeprefix(ID_PREFIX))
        if job is None or _read_work(job) is None:
            return None
        # Another worker than this project's may have returned anything.
        is_response = job.output is None or _read_output(job.output) is not None
        return job if is_response else None

    async def get_job(self, response_id: str) -> Job:
        """Return the job of a response. Raises NotFound."""
        job = await self.find_job(response_id)
        if job is None:
            raise NotFound(
                f"there is no background response {describe_value(response_id)}", "response_id"
            )
        return job

    async def find(self, response_id: str) -> StoredResponse | None:
        """Return a response as it is now; None if it is not a background response."""
        job = await self.find_job(response_id)
        work = None if job is None else _read_work(job)
        if job is None or work is None:
            return None
        return StoredResponse(
            orjson.dumps(encode_response(job)),
            orjson.dumps(work.items),
            work.previous_id,
            has_ended=job.status.is_final,
        )

    async def remove(self, response_id: str) -> bool:
        """Cancel a response unless it has ended, and remove it; False if it is not there."""
        job = await self.find_job(response_id)
        return job is not None and await self._store.remove(job.id)

    async def cancel(self, response_id: str) -> dict[str, Any]:
        """Cancel a response unless it has ended, and return it.

        Raises:
            NotFound: there is no such response.
            StoreUnavailable: the end cannot be written.
        """
        job = await self.get_job(response_id)
        return encode_response(await self._store.cancel(job.id) or job)

    async def stream(self, job: Job, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Yield the events of a response whose numbers are greater than `after`, as they come.

        The last event is sent when the end of the job is on the disk: until then the job may be
        run again.
        """
        queued = {"response": encode_response(job) | _UNSTARTED}
        encoder = EventEncoder()
        for number, kind in enumerate(("response.created", "response.queued")):
            event = encoder.encode(kind, queued)
            if number > after:
                yield event
        reader = _EventReader(max(after, 1))
        is_final = False
        while not is_final:
            # The job before its chunks: if it has ended, all its chunks are read below.
            current = await self._store.get(job.id)
            is_final = current is None or current.status.is_final
            chunks = await self._store.read_chunks(job.id, reader.position, _POLL_S)
            async for step in split_chunks(chunks):
                if events := reader.read(step):
                    yield events
            if reader.end is not None and not is_final:
                await self._store.wait(job.id, _POLL_S)
        if current is None or current.status is not JobStatus.COMPLETED or reader.end is None:
            yield _encode_end(current, reader.last + 1)
        elif reader.end.number > after:
            yield reader.end.event
        yield DONE


# The members of a response before it starts.
_UNSTARTED: dict[str, Any] = {
    "status": "queued",
    "output": [],
    "usage": None,
    "error": None,
    "completed_at": None,
    "incomplete_details": None,
}


def encode_response(job: Job) -> dict[str, Any]:
    """Return the response of a job as it is now."""
    error = _read_error(job)
    if job.output is not None:
        if (response := _read_output(job.output)) is not None:
            return response
        error = {"code": "server_error", "message": "the worker's output is not a response"}
    work = _read_work(job)
    return {
        **(work.envelope if work is not None else {}),
        "id": ID_PREFIX + job.id,
        "status": _STATUSES[job.status] if job.output is None else "failed",
        "error": error,
    }


@dataclass(frozen=True, slots=True)
class _Work:
    """The stored input of the job of a background response; every member has its type."""

    envelope: JsonObject
    items: Sequence[JsonObject]
    previous_id: str | None


def _read_work(job: Job) -> _Work | None:
    """Return what a background response's job has stored; None for other jobs.

    Clients can send such a job to `/run` themselves, with members of any type.
    """
    job_input = orjson.loads(job.input)
    if not isinstance(job_input, dict) or job_input.get("openai_route") != RESPONSES:
        return None
    body, envelope = job_input.get("openai_input"), job_input.get("envelope")
    if not isinstance(body, dict) or body.get("background") is not True:
        return None
    if not isinstance(envelope, dict | None):
        return None
    try:
        return _Work(envelope or {}, read_items(body.get("input")), read_previous_id(body))
    except InvalidRequest:
        return None


def _read_output(output: bytes) -> dict[str, Any] | None:
    """Return the response in a job's output; None if it is no object that can be sent."""
    value = orjson.loads(output)
    # With STREAM_MODE=generator the output is a list that ends with the response.
    response = value[-1] if isinstance(value, list) and value else value
    return response if isinstance(response, dict) and not is_nested_too_deeply(response) else None


def _read_error(job: Job) -> dict[str, Any] | None:
    if job.status is JobStatus.TIMED_OUT:
        return {"code": "timeout", "message": "the response took longer than its job may run"}
    if job.error is None:
        return None
    try:
        error = orjson.loads(job.error)["error"]
        return {"code": str(error["type"]), "message": str(error["message"])}
    except (ValueError, KeyError, TypeError):
        # The error of a lost worker is a sentence.
        return {"code": "server_error", "message": job.error}


class _LastEvent(NamedTuple):
    event: bytes
    number: int


class _EventReader:
    """Reads the events of a job's chunks whose numbers are greater than that of the last one.

    `position` is that of the last chunk. `end` is the last event of the response, which is kept
    back, because a job may be run again after it.
    """

    def __init__(self, last: int) -> None:
        self.last = last
        self.position = (0, 0)
        self.end: _LastEvent | None = None

    def read(self, chunks: Sequence[Chunk]) -> bytes:
        """Return the new events of some chunks."""
        events: list[bytes] = []
        for chunk in chunks:
            self.position = (chunk.attempt, chunk.number)
            for event, number, kind in _split_events(chunk.value):
                self.end = _LastEvent(event, number) if kind in _TERMINAL_EVENTS else None
                if self.end is None and number > self.last:
                    events.append(event)
                    self.last = number
        return b"".join(events)


def _split_events(chunk: bytes) -> Iterator[tuple[bytes, int, str]]:
    """Yield the events of a chunk, each with its number and its type."""
    value = orjson.loads(chunk)
    # The last chunk of a stream is the response itself.
    if not isinstance(value, str):
        return
    for event in value.split("\n\n"):
        _, separator, data = event.partition("\ndata: ")
        try:
            members = orjson.loads(data) if separator else None
        except orjson.JSONDecodeError:
            continue
        if not isinstance(members, dict):
            continue
        number, kind = members.get("sequence_number"), members.get("type")
        # Another worker than this project's may stream anything.
        if type(number) is int and isinstance(kind, str):
            yield event.encode() + b"\n\n", number, kind


def _encode_end(job: Job | None, number: int) -> bytes:
    """Return the last event of a response whose worker has sent none."""
    if job is None:
        error = {"code": "not_found", "message": "the response was removed", "param": None}
        return EventEncoder(number).encode("error", error)
    response = encode_response(job)
    kind = f"response.{response.get('status')}"
    if kind not in _TERMINAL_EVENTS:
        kind = "response.failed"
    return EventEncoder(number).encode(kind, {"response": response})


def encode_reader_end(sent: SentBlocks) -> bytes:
    """Return the events that end the stream of a reader when the server shuts down.

    The response goes on after the next start, so it has not failed. The event repeats the number of
    the last one, after which the reader can go on then.
    """
    encoder = EventEncoder(max(last_number(sent.last), 0))
    return encoder.encode_error(SHUTTING_DOWN_ERROR) + DONE


def read_starting_after(raw: str | None) -> int:
    """Return the number after which a stream is to go on; -1 for all. Raises InvalidRequest."""
    if raw is None:
        return -1
    number = parse_digits(raw, max_digits=9)
    if number is None:
        raise InvalidRequest(
            f"starting_after must be the number of an event, got {describe_value(raw)}",
            "starting_after",
        )
    return number
