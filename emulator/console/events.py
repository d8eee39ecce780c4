"""One job as server-sent events: each state it comes to, each delta as the model says it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import orjson

from emulator.console import job_view
from emulator.console.generation_tracker import GenerationTracker
from emulator.http.sse import KEEP_ALIVE_S, SSEResponse
from handler.active_generation import ActiveGeneration
from jobs import Job, JobStatus, JobStore

# Nobody is told of a delta by whoever keeps it, so that nobody pays for a reader that is not there:
# a reader looks, as often as a screen is drawn, and where nothing happens less and less often.
_LOOK_S = 0.015
_LOOK_AGAIN_S = 0.1


class JobEventStream:
    """Follows one job to its end for one reader; owned by the task that answers it.

    `event: job` is a job's summary, whenever something in it is new; `event: deltas` what this
    process's engine has said since the last one, `first` being the number of the first of them;
    `event: chunk` what another worker has streamed; `event: restart` says that what was said is
    void; `event: end` is the whole job. Deltas of a job that personal data is redacted from are not
    told before they are.

    A job that `local_worker` (the key of this process's worker) has completed before is sent
    without its chunks, because its output holds all of their text.
    """

    def __init__(
        self, store: JobStore, answers: GenerationTracker, job_id: str, local_worker: str = ""
    ) -> None:
        self._store = store
        self._local_worker = local_worker
        self._needs_chunks: bool | None = None
        self._answers = answers
        self._job_id = job_id
        self._shown: dict[str, Any] = {}
        self._place = (0, 0)
        self._answer: ActiveGeneration | None = None
        self._said = 0
        self._anything = False

    def response(self) -> SSEResponse:
        """Return what answers the reader."""
        return SSEResponse(self.events(), lambda: None, keep_alive_s=KEEP_ALIVE_S)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield blocks of whole events, the last of them `end` or `gone`."""
        wait_s = _LOOK_S
        while True:
            # Before what it has said: an end that is known before that is behind all of it.
            job = await self._store.get(self._job_id)
            if job is None:
                yield _event("gone", {})
                return
            if self._needs_chunks is None:
                is_completed = job.status is JobStatus.COMPLETED
                self._needs_chunks = not (is_completed and job.worker_id == self._local_worker)
            block = self._state(job) + self._deltas() + await self._chunks()
            wait_s = min(wait_s * 1.5, _LOOK_AGAIN_S)
            if block:
                wait_s = _LOOK_S
                yield block
            if job.status.is_final:
                first = self._answers.first_text_at(job.id)
                yield _event("end", job_view.full_view(job, first))
                return
            # Ends early where something is streamed or the job ends.
            await self._store.read_chunks(self._job_id, self._place, wait_s)

    def _state(self, job: Job) -> bytes:
        shown = job_view.summary_view(job, self._answers.first_text_at(job.id))
        if shown == self._shown:
            return b""
        before = self._shown.get("attempt", job.attempt)
        self._shown = shown
        return self._restart(job.attempt != before) + _event("job", shown)

    def _deltas(self) -> bytes:
        # Once seen it is held here, and so can be found when nobody else has it any more.
        answer = self._answers.find(self._job_id)
        if answer is None:
            return b""
        again = False
        if answer is not self._answer:
            again, self._answer, self._said = self._answer is not None, answer, 0
        texts = answer.deltas_after(self._said)
        if not texts:
            return self._restart(again)
        told = _event("deltas", {"first": self._said, "texts": texts})
        self._said += len(texts)
        restart = self._restart(again)
        self._anything = True
        return restart + told

    async def _chunks(self) -> bytes:
        chunks = await self._store.read_chunks(self._job_id, self._place, 0)
        block = b""
        for chunk in chunks:
            if self._place[0] not in (0, chunk.attempt):
                block += self._restart(True)
            self._place = (chunk.attempt, chunk.number)
            # The engine in this process was heard itself, before its words were put together.
            if self._answer is None and self._needs_chunks:
                block += _event("chunk", {"output": orjson.Fragment(chunk.value)})
                self._anything = True
        return block

    def _restart(self, again: bool) -> bytes:
        """Return what takes back all that was said, if anything was."""
        if not (again and self._anything):
            return b""
        self._anything = False
        return _event("restart", {})


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data))
