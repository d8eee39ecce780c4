"""The witness: what clients were told, and what of it did not stay true."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

FINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"})
# So the local worker's jobs end that ran on an engine host that was killed: by design, not lost.
_ENGINE_DIED = "while the request was running on it"


@dataclass
class Ledger:
    """Every id that was given out, and the first final answer that was seen for it, as bytes."""

    # Whether a job may end only with its answer, or with the engine host it ran on.
    strict: bool = True
    prompts: dict[str, str] = field(default_factory=dict)
    finals: dict[str, bytes] = field(default_factory=dict)
    completed: int = 0
    # Of these, by the local worker and so by the engine.
    generated: int = 0
    failed: int = 0
    looks: int = 0
    # Sentences: each is a broken promise.
    broken: list[str] = field(default_factory=list)

    def acknowledged(self, job_id: str, prompt: str) -> None:
        """A client was given an id."""
        if job_id in self.prompts:
            self.broken.append(f"the id {job_id} was given twice")
        self.prompts[job_id] = prompt

    def saw(self, job_id: str, code: int, body: bytes) -> bool:
        """Take what a client was told of a job; return whether it has ended."""
        self.looks += 1
        before = self.finals.get(job_id)
        if code == 404:
            self.broken.append(f"{job_id} was acknowledged and is not there")
            return True
        if code != 200:
            return False
        if before is not None:
            if body != before:
                self.broken.append(f"{job_id} was {before!r} and is {body!r}")
            return True
        answer = orjson.loads(body)
        if answer["status"] not in FINAL:
            return False
        self.finals[job_id] = body
        self._judge(job_id, answer)
        return True

    def _judge(self, job_id: str, answer: dict[str, object]) -> None:
        prompt = self.prompts[job_id]
        if answer["status"] == "COMPLETED":
            self.completed += 1
            self.generated += answer.get("workerId") == "local"
            # Either worker says the prompt back; prompts are unique.
            if orjson.dumps(prompt) not in orjson.dumps(answer["output"]):
                self.broken.append(f"{job_id} asked {prompt!r} and was answered {answer!r}")
            return
        self.failed += 1
        if not self.strict:
            return
        if answer["status"] != "FAILED" or _ENGINE_DIED not in str(answer.get("error")):
            self.broken.append(f"{job_id} ended as {answer!r}")
