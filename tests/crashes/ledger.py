"""A record of what the server acknowledged to clients, and of each contradiction to it."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

FINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"})
# In the error of a local worker's job whose engine host was killed: failed by design, not lost.
_ENGINE_DIED = "while the request was running on it"


@dataclass
class Ledger:
    """Every acknowledged job id, and the bytes of the first final response for it."""

    # Whether a job may end only with its answer, or with the engine host it ran on.
    strict: bool = True
    prompts: dict[str, str] = field(default_factory=dict)
    finals: dict[str, bytes] = field(default_factory=dict)
    completed: int = 0
    # How many of the completed jobs the local worker, and so the engine, answered.
    generated: int = 0
    failed: int = 0
    status_reads: int = 0
    # Sentences: each is a broken promise.
    broken: list[str] = field(default_factory=list)

    def record_job(self, job_id: str, prompt: str) -> None:
        """Record an acknowledged job."""
        if job_id in self.prompts:
            self.broken.append(f"the id {job_id} was given twice")
        self.prompts[job_id] = prompt

    def record_status(self, job_id: str, code: int, body: bytes) -> bool:
        """Record the response to a status request; return whether the job has ended."""
        self.status_reads += 1
        first_body = self.finals.get(job_id)
        if code == 404:
            self.broken.append(f"{job_id} was acknowledged and is not there")
            return True
        if code != 200:
            return False
        if first_body is not None:
            if body != first_body:
                self.broken.append(f"{job_id} was {first_body!r} and is {body!r}")
            return True
        answer = orjson.loads(body)
        if answer["status"] not in FINAL:
            return False
        self.finals[job_id] = body
        self._check_final(job_id, answer)
        return True

    def _check_final(self, job_id: str, answer: dict[str, object]) -> None:
        prompt = self.prompts[job_id]
        if answer["status"] == "COMPLETED":
            self.completed += 1
            self.generated += answer.get("workerId") == "local"
            # Both kinds of workers return the prompt, and prompts are unique.
            if orjson.dumps(prompt) not in orjson.dumps(answer["output"]):
                self.broken.append(f"{job_id} asked {prompt!r} and was answered {answer!r}")
            return
        self.failed += 1
        if not self.strict:
            return
        if answer["status"] != "FAILED" or _ENGINE_DIED not in str(answer.get("error")):
            self.broken.append(f"{job_id} ended as {answer!r}")
