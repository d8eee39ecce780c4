"""Follow one job as server-sent events: each state, and each delta as it is generated."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import orjson

from emulator.console import job_view
from emulator.console.generation_tracker import GenerationTracker
from emulator.http.sse import COMMENTS_AFTER_S, SSEResponse
from emulator.http.stream_steps import STEP_BYTES, split_chunks
from handler.apis.core.wire_format import escape_line_separators
from handler.generation.active_generation import ActiveGeneration
from jobs import Chunk, Job, JobStatus, JobStore

# Deltas are polled, so that a generation without a reader costs nothing. The interval is that of a
# screen refresh, and grows to the maximum while nothing is new.
_MIN_POLL_INTERVAL_S = 0.015
_MAX_POLL_INTERVAL_S = 0.1
# A larger progress update would be sent again at each change; only its size is.
_MAX_PROGRESS_BYTES = 100_000


class JobEventStream:
    """Follows one job to its end for one reader; owned by the task that answers the request.

    The events:

    - `job`: the job's summary, whenever a field of it has changed.
    - `deltas`: the deltas of this process's engine since the last event; `first` is the number of
      the first one. If personal data is redacted from the job, there are none before the redaction.
    - `chunk`: a chunk that another worker has streamed.
    - `progress`: the progress of the running job, whenever it has changed: its `output`, or its
      `bytes` if they are more than 100,000.
    - `restart`: all deltas and chunks so far are void, because another attempt has started.
    - `end`: the whole job. `gone`: the job does not exist.

    `explain_wait` returns what a queued job waits for, which is the `message` of its summary.

    If `local_worker` (the key of this process's worker) has completed the job before the stream
    starts, its chunks are not sent, because the output has all of their text.
    """

    def __init__(
        self,
        store: JobStore,
        tracker: GenerationTracker,
        job_id: str,
        local_worker: str = "",
        explain_wait: Callable[[Job], str | None] = lambda job: None,
    ) -> None:
        self._store = store
        self._explain_wait = explain_wait
        self._local_worker = local_worker
        self._needs_chunks: bool | None = None
        self._tracker = tracker
        self._job_id = job_id
        self._last_summary: dict[str, Any] = {}
        self._last_progress = b""
        # The attempt and number of the last chunk.
        self._last_chunk = (0, 0)
        # Kept here, so that its last deltas can be read after its worker has released it.
        self._generation: ActiveGeneration | None = None
        self._sent_deltas = 0
        self._has_sent_text = False

    def response(self) -> SSEResponse:
        """Return the response to the reader."""
        return SSEResponse(self.events(), lambda: None, comments_after_s=COMMENTS_AFTER_S)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield blocks of whole events, the last of them `end` or `gone`."""
        wait_s = _MIN_POLL_INTERVAL_S
        while True:
            # Read before the deltas: if the job has ended by now, its last deltas are read below.
            job = await self._store.get(self._job_id)
            if job is None:
                yield _event("gone", {})
                return
            if self._needs_chunks is None:
                is_completed = job.status is JobStatus.COMPLETED
                self._needs_chunks = not (is_completed and job.worker_id == self._local_worker)
            block = self._job_event(job) + self._progress_event(job) + self._delta_event()
            chunks = await self._store.read_chunks(self._job_id, self._last_chunk, 0)
            async for step in split_chunks(chunks):
                if len(block) >= STEP_BYTES:
                    yield block
                    block = b""
                block += self._chunk_events(step)
            wait_s = min(wait_s * 1.5, _MAX_POLL_INTERVAL_S)
            if block:
                wait_s = _MIN_POLL_INTERVAL_S
                yield block
            if job.status.is_final:
                first_text_at = self._tracker.first_text_at(job.id)
                yield _event("end", job_view.full_view(job, first_text_at))
                return
            # Returns early if a chunk is streamed or the job ends.
            await self._store.read_chunks(self._job_id, self._last_chunk, wait_s)

    def _job_event(self, job: Job) -> bytes:
        summary = job_view.summary_view(
            job, self._tracker.first_text_at(job.id), self._explain_wait(job)
        )
        if summary == self._last_summary:
            return b""
        last_attempt = self._last_summary.get("attempt", job.attempt)
        self._last_summary = summary
        restart = self._restart_event() if job.attempt != last_attempt else b""
        return restart + _event("job", summary)

    def _progress_event(self, job: Job) -> bytes:
        if job.progress == self._last_progress or job.status.is_final:
            return b""
        self._last_progress = job.progress
        # A new attempt begins without progress.
        if not job.progress:
            return b""
        size = len(job.progress)
        is_large = size > _MAX_PROGRESS_BYTES
        return _event(
            "progress", {"bytes": size} if is_large else {"output": orjson.Fragment(job.progress)}
        )

    def _delta_event(self) -> bytes:
        generation = self._tracker.find(self._job_id)
        if generation is None:
            return b""
        restart = b""
        if generation is not self._generation:
            if self._generation is not None:
                restart = self._restart_event()
            self._generation, self._sent_deltas = generation, 0
        texts = generation.deltas_after(self._sent_deltas)
        if not texts:
            return restart
        deltas = _event("deltas", {"first": self._sent_deltas, "texts": texts})
        self._sent_deltas += len(texts)
        self._has_sent_text = True
        return restart + deltas

    def _chunk_events(self, chunks: Sequence[Chunk]) -> bytes:
        events: list[bytes] = []
        for chunk in chunks:
            if self._last_chunk[0] not in (0, chunk.attempt):
                events.append(self._restart_event())
            self._last_chunk = (chunk.attempt, chunk.number)
            # The text of a generation in this process has been sent as deltas.
            if self._generation is None and self._needs_chunks:
                events.append(_event("chunk", {"output": orjson.Fragment(chunk.value)}))
                self._has_sent_text = True
        return b"".join(events)

    def _restart_event(self) -> bytes:
        """Return the event that makes all text void; nothing if no text was sent."""
        if not self._has_sent_text:
            return b""
        self._has_sent_text = False
        return _event("restart", {})


def _event(name: str, data: dict[str, Any]) -> bytes:
    body = escape_line_separators(orjson.dumps(data))
    return b"event: %b\ndata: %b\n\n" % (name.encode(), body)
