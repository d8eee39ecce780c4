"""The metrics that each event changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from emulator.metrics.definitions import PREFIX, Metrics
from emulator.metrics.snapshot import metrics_as_json
from engine import Finish, FinishReason, Priority, Usage
from engine import errors as engine
from engine.hooks import EngineEvent, FirstToken, HostLost, RequestEnded, RequestStarted
from jobs import Job, JobStatus
from tests.unit.emulator.server_routes import with_route
from tools.docs.metrics import page, specs
from validation import Issue, Verdict
from validation.rules_validator import RulesValidator

ROOT = Path(__file__).resolve().parents[4]
# Prometheus's base units, and the metrics that have none.
UNITS = ("_seconds", "_bytes", "_total", "_ratio", "_hertz", "_celsius")
COUNTS = {"info", "engine_state", "engine_slots", "slots_in_use", "requests_waiting"} | {
    *("jobs", "jobs_max", "job_database_up", "workers", "batches", "model_copies")
}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(("too_short",))


def read_metric(metrics: Metrics, name: str) -> Any:
    return metrics_as_json(metrics.families)[PREFIX + name]


def ended(
    generation_finish: Finish | None = None,
    error: engine.EngineError | None = None,
    *,
    aborted: bool = False,
    tokens: int = 0,
    decode_s: float = 0.0,
) -> EngineEvent:
    return RequestEnded(
        "r", generation_finish, error, aborted, 2.0, Priority.BATCH, tokens, decode_s
    )


def finish(stop_reason: str | int | None = None) -> Finish:
    return Finish(reason=FinishReason.STOP, usage=Usage(7, 5, 2), stop_reason=stop_reason)


def test_finished_generation_is_counted(metrics: Metrics) -> None:
    metrics(RequestStarted("r", Priority.BATCH, 0.5))
    metrics(FirstToken("r", 0.25))
    metrics(ended(finish("END"), tokens=5, decode_s=1.0))
    assert read_metric(metrics, "slot_wait_seconds")["batch"] == {"count": 1, "sum": 0.5}
    assert read_metric(metrics, "time_to_first_token_seconds") == {"count": 1, "sum": 0.25}
    assert read_metric(metrics, "generation_duration_seconds") == {"count": 1, "sum": 2.0}
    assert read_metric(metrics, "generations_total")["batch"]["stop"] == 1
    assert read_metric(metrics, "prompt_tokens_total") == 7
    assert read_metric(metrics, "cached_prompt_tokens_total") == 2
    assert read_metric(metrics, "completion_tokens_total") == 5
    assert read_metric(metrics, "stop_hits_total") == {"string": 1, "token": 0}


def test_intervals_are_one_fewer_than_tokens(metrics: Metrics) -> None:
    metrics(ended(finish(), tokens=5, decode_s=1.0))
    metrics(ended(finish(), tokens=1))
    metrics(ended(finish(), tokens=0))
    assert read_metric(metrics, "inter_token_latency_seconds") == {"count": 4, "sum": 1.0}


def test_stop_tokens_and_stop_strings_are_counted_separately(metrics: Metrics) -> None:
    metrics(ended(finish(0)))
    metrics(ended(finish()))
    assert read_metric(metrics, "stop_hits_total") == {"string": 0, "token": 1}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (engine.GenerationCancelled("x"), "cancelled"),
        (engine.GenerationTimeout("x"), "timeout"),
        (engine.EngineStalled("x"), "stalled"),
        (engine.ConsumerTooSlow("x"), "slow_reader"),
        (engine.EngineClosed("x"), "shutdown"),
        (engine.EngineError("x"), "other"),
        (None, "other"),
    ],
)
def test_aborts_are_counted_by_reason(
    metrics: Metrics, error: engine.EngineError | None, reason: str
) -> None:
    metrics(ended(error=error, aborted=True, tokens=3))
    assert {name for name, count in read_metric(metrics, "aborts_total").items() if count} == {
        reason
    }
    assert read_metric(metrics, "generations_total")["batch"]["aborted"] == 1
    # Tokens of an aborted generation count too, because the engine computed them.
    assert read_metric(metrics, "completion_tokens_total") == 3
    assert sum(read_metric(metrics, "failures_total").values()) == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (engine.EngineCrashed("x"), "crashed"),
        (engine.EngineDead("x"), "dead"),
        (engine.BackendFailed("x"), "backend"),
        (engine.PromptTooLong("x"), "rejected"),
        (engine.EngineClosed("x"), "shutdown"),
        (engine.EngineStalled("x"), "other"),
    ],
)
def test_failures_are_counted_by_reason(
    metrics: Metrics, error: engine.EngineError, reason: str
) -> None:
    metrics(ended(error=error))
    assert {name for name, count in read_metric(metrics, "failures_total").items() if count} == {
        reason
    }
    assert read_metric(metrics, "generations_total")["batch"]["failed"] == 1


def test_other_engine_events_are_ignored(metrics: Metrics) -> None:
    before = metrics_as_json(metrics.families)
    metrics(HostLost("gone", dead=False))
    assert metrics_as_json(metrics.families) == before


def job(**changes: Any) -> Job:
    return Job(id="j", endpoint="e", input=b"", created_at=1, queued_at=1, **changes)


def test_ended_job_is_counted_with_its_times(metrics: Metrics) -> None:
    metrics.job_ended(job(status=JobStatus.COMPLETED, started_at=1.5, ended_at=3.5))
    # Cancelled before a worker leased it.
    metrics.job_ended(job(status=JobStatus.CANCELLED, ended_at=2))
    # The clock was set back.
    metrics.job_ended(job(status=JobStatus.FAILED, started_at=0.5, ended_at=0.25))
    assert read_metric(metrics, "jobs_ended_total") == {
        "COMPLETED": 1,
        "FAILED": 1,
        "CANCELLED": 1,
        "TIMED_OUT": 0,
    }
    assert read_metric(metrics, "job_queue_delay_seconds") == {"count": 2, "sum": 0.5}
    assert read_metric(metrics, "job_execution_seconds") == {"count": 2, "sum": 2.0}


def test_verdicts_are_counted_by_rule(metrics: Metrics) -> None:
    issues = tuple(Issue(rule, "said") for rule in ("too_short", "too_short", "made up by someone"))
    metrics.count_verdict(Verdict(text="", intent="general", issues=issues))
    metrics.count_verdict(Verdict(text="", intent="general"))
    assert read_metric(metrics, "validation_issues_total") == {"too_short": 2, "other": 1}
    assert read_metric(metrics, "validation_verdicts_total") == {"true": 1, "false": 1}


def test_notices_are_counted_separately_from_issues() -> None:
    # R60
    metrics = Metrics(("too_short",), ("cut_off",))
    metrics.count_verdict(Verdict(text="", intent="general", notices=(Issue("cut_off", "said"),)))
    assert read_metric(metrics, "validation_notices_total") == {"cut_off": 1, "other": 0}
    assert read_metric(metrics, "validation_issues_total") == {"too_short": 0, "other": 0}
    assert read_metric(metrics, "validation_verdicts_total") == {"true": 1, "false": 0}


def test_requests_are_counted_by_operation_and_status(metrics: Metrics) -> None:
    for path, status in (("/run", 200), ("/run", 418), ("/nobody/knows", 404)):
        metrics.count_request(with_route({"type": "http", "path": path}), status, 0.5)
    assert read_metric(metrics, "http_requests_total") == {
        "run": {"200": 1, "other": 1},
        "other": {"404": 1},
    }
    assert read_metric(metrics, "http_request_duration_seconds")["run"] == {"count": 2, "sum": 1.0}


def test_batch_lines_are_counted_by_outcome(metrics: Metrics) -> None:
    for ok in (True, False, True):
        metrics.count_batch_line(ok)
    assert read_metric(metrics, "batch_lines_total") == {"completed": 2, "failed": 1}


def test_names_follow_the_conventions_of_prometheus() -> None:
    names = [spec.name for spec in specs()]
    assert len(names) == len(set(names))
    for spec in specs():
        short = spec.name.removeprefix(PREFIX)
        assert re.fullmatch(r"worker_rkllm_[a-z_]+", spec.name)
        assert (spec.kind == "counter") == short.endswith("_total")
        assert spec.kind != "histogram" or short.endswith("_seconds")
        assert short.endswith(UNITS) or short in COUNTS
        assert spec.help.endswith(".")
        assert set(spec.labels).isdisjoint({"le", "job", "instance", "id", "quantile"})


def test_every_rule_has_a_series_from_the_start() -> None:
    validator = RulesValidator.from_file()
    known = {*validator.issue_rules, *validator.notice_rules}
    for path in (ROOT / "validation").rglob("*.py"):
        for rule in re.findall(r'Issue\("([a-z_]+)"', path.read_text()):
            assert rule in known, path


def test_documentation_page_matches_the_code() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == page(), "run `make docs`"
