"""Answers `/stream/{id}`: new chunks of a job as JSON, or all chunks as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from common.digits import parse_digits
from emulator.http.disconnect import ClientDisconnected, while_connected
from emulator.http.responses import JSON
from emulator.http.sse import COMMENT, COMMENTS_AFTER_S, SSEResponse
from emulator.http.stream_steps import split_chunks
from emulator.runpod import job_response
from emulator.runpod.stream_end import explain_drained, explain_end
from handler.apis.core.wire_format import escape_line_separators
from handler.errors import InvalidRequest, NotFound
from jobs import Chunk, Job, JobStore

# The id of the last event. An EventSource reconnects with this id, and a 204 makes it stop.
_END = "end"
_RESTART = b"event: restart\ndata: {}\n\n"


class JobStream:
    """Responds with JSON, as RunPod does, or with events to a client that accepts them.

    JSON responses drain the stream: each chunk is in one response, and the last response has a
    terminal status. A response waits up to `hold_s` for a chunk, which is less than the timeout of
    RunPod's own client. Events do not drain the stream. Their ids are `attempt.number`, and
    `Last-Event-ID` resumes after an event. A comment after each `comments_after_s` without a chunk
    keeps proxies from closing the connection; None for no comments.

    If an ended job has no output to stream, a `message` gives the reason. `local_worker` is the key
    of the worker in this process.
    """

    def __init__(
        self,
        store: JobStore,
        hold_s: float,
        comments_after_s: float | None,
        local_worker: str = "",
    ) -> None:
        self._store = store
        self._local_worker = local_worker
        self._hold_s = hold_s
        self._comments_after_s = comments_after_s

    async def respond(self, request: Request, job: Job) -> Any:
        """Return the response. Raises InvalidRequest."""
        if request.method == "HEAD":
            # The client of a HEAD gets no body, so the stream must not be drained.
            return JSON(job_response.build_stream(job, ()))
        if "text/event-stream" in request.headers.get("accept", ""):
            last = request.headers.get("last-event-id", "")
            if last == _END and job.status.is_final:
                return Response(status_code=204)
            return SSEResponse(self._events(job.id, _parse_event_id(last)), lambda: None)
        job, chunks = await self._take(request, job.id)
        if not chunks and not job.status.is_final:
            sent = await self._store.read_chunks(job.id, (0, 0), 0)
            after = _event_id_of(sent[-1]) if sent else (0, 0)
            # Wait without draining: if this client disconnects, the next one gets the chunk.
            await while_connected(
                request.receive, self._store.read_chunks(job.id, after, self._hold_s)
            )
            job, chunks = await self._take(request, job.id)
        response = job_response.build_stream(job, chunks)
        if not chunks and job.status.is_final:
            count = len(await self._store.read_chunks(job.id, (0, 0), 0))
            response["message"] = self._explain_end(job, count) or explain_drained(count)
        return JSON(response)

    def _explain_end(self, job: Job, chunk_count: int) -> str | None:
        return explain_end(job, chunk_count, self._local_worker)

    async def _take(self, request: Request, job_id: str) -> tuple[Job, list[Chunk]]:
        """Return the job and its new chunks. Raises ClientDisconnected and NotFound."""
        if await request.is_disconnected():
            raise ClientDisconnected
        job = await self._store.get(job_id)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        # Take the chunks after the status: the npm client stops at a terminal status, so this
        # response must have all remaining chunks.
        return job, await self._store.take_chunks(job_id, 0)

    async def _events(self, job_id: str, after: tuple[int, int]) -> AsyncGenerator[bytes, None]:
        # This sends the response headers at once, so that the client knows it is connected.
        yield b": open\n\n"
        interval_s = self._comments_after_s or COMMENTS_AFTER_S
        while True:
            # Read the job before its chunks: if it has ended, all its chunks are read below.
            job = await self._store.get(job_id)
            chunks = await self._store.read_chunks(job_id, after, interval_s)
            async for step in split_chunks(chunks):
                events: list[bytes] = []
                for chunk in step:
                    if after[0] not in (0, chunk.attempt):
                        # The job was lost or retried, so its stream starts again.
                        events.append(_RESTART)
                    after = _event_id_of(chunk)
                    output = escape_line_separators(
                        orjson.dumps({"output": orjson.Fragment(chunk.value)})
                    )
                    events.append(b"id: %d.%d\ndata: %b\n\n" % (*after, output))
                yield b"".join(events)
            if chunks:
                continue
            if job is None:
                yield b"event: gone\ndata: {}\n\n"
                return
            if job.status.is_final:
                # The attempt that ended the job may have streamed nothing.
                restart = _RESTART if after[0] not in (0, job.attempt) else b""
                end = job_response.build_status(job)
                count = len(await self._store.read_chunks(job_id, (0, 0), 0))
                if (message := self._explain_end(job, count)) is not None:
                    end["message"] = message
                data = escape_line_separators(orjson.dumps(end))
                yield restart + b"event: end\nid: %b\ndata: %b\n\n" % (_END.encode(), data)
                return
            if self._comments_after_s is not None and await self._store.get(job_id) is job:
                yield COMMENT


def _parse_event_id(raw: str) -> tuple[int, int]:
    """Return the attempt and number of an event id; (0, 0) for an empty one.

    Raises InvalidRequest.
    """
    if raw in ("", _END):
        return (0, 0)
    attempt, number = (parse_digits(part, max_digits=9) for part in raw.partition(".")[::2])
    if attempt is not None and number is not None:
        return (attempt, number)
    raise InvalidRequest(f"Last-Event-ID must be the id of an event of this stream, got {raw!r}")


def _event_id_of(chunk: Chunk) -> tuple[int, int]:
    return (chunk.attempt, chunk.number)
