"""The metrics that are counted from events: their names, labels and descriptions."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Scope

from emulator.http.route_facts import OperationName, read_route
from emulator.metrics.instruments import OTHER, Counter, Family, Histogram, MetricSpec
from engine import FinishReason, Priority
from engine import errors as engine
from engine.hooks import EngineEvent, FirstToken, RequestEnded, RequestStarted
from jobs import Job, JobStatus
from validation import Verdict

PREFIX = "worker_rkllm_"

_CODES = (
    *(200, 204, 307, 400, 401, 403, 404, 405, 413, 415),
    *(429, 499, 500, 502, 503, 504, 507),
)
_PRIORITIES = {each: each.name.lower() for each in Priority}
_ABORTED, _FAILED = "aborted", "failed"
_OUTCOMES = (*(each.value for each in FinishReason), _ABORTED, _FAILED)
_ENDS = tuple(each.value for each in JobStatus if each.is_final)
# The label `reason` of an aborted or failed generation, by the error that its consumer got.
_REASONS: dict[type[engine.EngineError], str] = {
    engine.GenerationCancelled: "cancelled",
    engine.GenerationTimeout: "timeout",
    engine.EngineStalled: "stalled",
    engine.ConsumerTooSlow: "slow_reader",
    engine.EngineClosed: "shutdown",
    engine.EngineCrashed: "crashed",
    engine.EngineDead: "dead",
    engine.BackendFailed: "backend",
    engine.RequestRejected: "rejected",
}
_ABORTS = ("cancelled", "timeout", "stalled", "slow_reader", "shutdown", OTHER)
_FAILURES = ("crashed", "dead", "backend", "rejected", "shutdown", OTHER)

# A token takes milliseconds on a server and tenths of a second on a small board.
_INTERVALS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
_WAITS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_RUNS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0)
_OPERATIONS = tuple(name.value for name in OperationName)


class Metrics:
    """Counts events of the engine, the job queue, the validator, batches and HTTP.

    An instance is an engine hook. To do little work per token, a request's intervals between tokens
    are recorded once, at its end. Owned by the event loop, except that `verdict` is also called
    from threads, one at a time.
    """

    def __init__(self, rules: Sequence[str], notice_rules: Sequence[str] = ()) -> None:
        self.families: list[Family[Counter] | Family[Histogram]] = []
        self._requests = self._counter(
            "http_requests_total",
            "Finished HTTP requests by operation and status code.",
            sparse=True,
            operation=_OPERATIONS,
            code=(*map(str, _CODES), OTHER),
        )
        self._request_time = self._histogram(
            "http_request_duration_seconds",
            "Time from a request to the end of its response, streams and long-polls included.",
            _RUNS_S,
            sparse=True,
            operation=_OPERATIONS,
        )
        self._generations = self._counter(
            "generations_total",
            "Finished generations by priority and outcome.",
            priority=(*_PRIORITIES.values(),),
            outcome=_OUTCOMES,
        )
        self._aborts = self._counter(
            "aborts_total",
            "Aborted generations by reason.",
            reason=_ABORTS,
        )
        self._failures = self._counter(
            "failures_total", "Failed generations by reason.", reason=_FAILURES
        )
        self._stops = self._counter(
            "stop_hits_total",
            "Generations that ended at a stop sequence of their request.",
            kind=("string", "token"),
        )
        self._prompt_tokens = self._counter(
            "prompt_tokens_total", "Prompt tokens of completed generations."
        ).labels()
        self._cached_tokens = self._counter(
            "cached_prompt_tokens_total",
            "Prompt tokens of completed generations that were reused from a cache.",
        ).labels()
        self._tokens = self._counter(
            "completion_tokens_total",
            "Generated tokens, including those of aborted and failed generations.",
        ).labels()
        self._first_token = self._histogram(
            "time_to_first_token_seconds",
            "Time from the start on a slot to the first token, without the wait for the slot.",
            _WAITS_S,
        ).labels()
        self._interval = self._histogram(
            "inter_token_latency_seconds",
            "Time between two tokens; a generation's intervals are recorded as their mean.",
            _INTERVALS_S,
        ).labels()
        self._run_time = self._histogram(
            "generation_duration_seconds",
            "Time from the start on a slot to the end of the generation.",
            _RUNS_S,
        ).labels()
        self._slot_wait = self._histogram(
            "slot_wait_seconds",
            "Time that generations waited for a slot; jobs wait in the job queue instead.",
            _WAITS_S,
            priority=(*_PRIORITIES.values(),),
        )
        self._verdicts = self._counter(
            "validation_verdicts_total", "Validated answers by verdict.", valid=("true", "false")
        )
        self._issues = self._counter(
            "validation_issues_total", "Validation issues by rule.", rule=(*rules, OTHER)
        )
        self._notices = self._counter(
            "validation_notices_total",
            "Validation notices by rule; an answer with notices is still valid.",
            rule=(*notice_rules, OTHER),
        )
        self._jobs_ended = self._counter(
            "jobs_ended_total", "Finished jobs of all endpoints by status.", status=_ENDS
        )
        self._job_wait = self._histogram(
            "job_queue_delay_seconds",
            "Time from queueing a job to its start on a worker.",
            _WAITS_S,
        ).labels()
        self._job_time = self._histogram(
            "job_execution_seconds", "Time from a job's start on a worker to its end.", _RUNS_S
        ).labels()
        self._batch_lines = self._counter(
            "batch_lines_total",
            "Answered lines of batches by outcome.",
            outcome=("completed", "failed"),
        )
        self._slot_waits = {
            each: self._slot_wait.labels(name) for each, name in _PRIORITIES.items()
        }

    def __call__(self, event: EngineEvent) -> None:
        """Count an event of the engine."""
        match event:
            case RequestStarted():
                self._slot_waits[event.priority].observe(event.queue_s)
            case FirstToken():
                self._first_token.observe(event.after_s)
            case RequestEnded():
                self._generation_ended(event)

    def _generation_ended(self, event: RequestEnded) -> None:
        finish = event.finish
        self._run_time.observe(event.duration_s)
        self._tokens.add(event.tokens)
        if event.tokens > 1:
            intervals = event.tokens - 1
            self._interval.observe(event.decode_s / intervals, intervals)
        outcome: str = _FAILED
        if finish is not None:
            outcome, usage = finish.reason, finish.usage
            self._prompt_tokens.add(usage.prompt_tokens)
            self._cached_tokens.add(usage.cached_tokens)
            if finish.stop_reason is not None:
                self._stops.labels(
                    "string" if isinstance(finish.stop_reason, str) else "token"
                ).add()
        elif event.aborted:
            outcome = _ABORTED
            self._aborts.labels(_reason(event.error)).add()
        else:
            self._failures.labels(_reason(event.error)).add()
        self._generations.labels(_PRIORITIES[event.priority], outcome).add()

    def job_ended(self, job: Job) -> None:
        """Count a finished job, whichever worker ran it."""
        self._jobs_ended.labels(job.status).add()
        started, ended = job.started_at, job.ended_at
        if started is not None:
            # The system clock may have been set back in between.
            self._job_wait.observe(max(0.0, started - job.queued_at))
            if ended is not None:
                self._job_time.observe(max(0.0, ended - started))

    def count_verdict(self, verdict: Verdict) -> None:
        """Count a verdict, its issues and its notices."""
        self._verdicts.labels("true" if verdict.valid else "false").add()
        for issue in verdict.issues:
            self._issues.labels(issue.rule).add()
        for notice in verdict.notices:
            self._notices.labels(notice.rule).add()

    def count_batch_line(self, ok: bool) -> None:
        """Count an answered line of a batch."""
        self._batch_lines.labels("completed" if ok else "failed").add()

    def count_request(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a finished HTTP request."""
        operation = read_route(scope).operation.value
        self._requests.labels(operation, str(status)).add()
        self._request_time.labels(operation).observe(seconds)

    def _counter(
        self, name: str, description: str, *, sparse: bool = False, **labels: Sequence[str]
    ) -> Family[Counter]:
        spec = MetricSpec(name=PREFIX + name, kind="counter", help=description, labels=labels)
        family = Family(spec, Counter, sparse=sparse)
        self.families.append(family)
        return family

    def _histogram(
        self,
        name: str,
        description: str,
        bounds: Sequence[float],
        *,
        sparse: bool = False,
        **labels: Sequence[str],
    ) -> Family[Histogram]:
        spec = MetricSpec(name=PREFIX + name, kind="histogram", help=description, labels=labels)
        family = Family(spec, lambda: Histogram(bounds), sparse=sparse)
        self.families.append(family)
        return family


def _reason(error: engine.EngineError | None) -> str:
    for cls in type(error).__mro__:
        if (reason := _REASONS.get(cls)) is not None:
            return reason
    return OTHER
