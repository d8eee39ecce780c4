"""The settings of `python -m emulator`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from emulator.calls import METRICS, OPEN
from emulator.faults import FaultRates
from emulator.protocol import ConnectionLimits
from emulator.scaling import Scaling
from emulator.submission import PolicyLimits
from emulator.worker_process import worker_command
from handler.limits import Sizes
from handler.worker_settings import ResultSettings
from jobs import Limits, Policy

# JOB_DB of a server that may forget its jobs.
IN_MEMORY = ":memory:"
_DAY_MS = 24 * 3600 * 1000
# As browsers write it: in lower case, and nothing behind the port. Apps have schemes of their own.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#*A-Z]+")


class EmulatorSettings(ResultSettings):
    """What the local server needs beside the engine's settings; RunPod's limits by default."""

    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="The port to listen on; 0 is any free one.")
    api_keys: str = Field(
        "",
        description="Keys that clients and workers must send, separated by commas; none is open.",
    )
    metrics_open: bool = Field(
        False, description="on: /metrics needs no key, where API_KEYS has some."
    )
    otel_exporter_otlp_endpoint: str | None = Field(
        None,
        pattern="^https?://",
        description="Where traces go by OTLP over HTTP, as `http://127.0.0.1:4318`; unset is no "
        "traces. Other `OTEL_` variables mean what they mean to OpenTelemetry's SDK.",
    )
    cors_origins: str = Field(
        "",
        description="Origins whose pages may call the server from a browser, separated by commas, "
        "as `https://example.com`; `*` is all, and none is none but its own.",
    )
    endpoint_id: str = Field(
        "default",
        min_length=1,
        pattern="^[A-Za-z0-9_-]+$",
        description="The endpoint that the local worker serves, and the short forms mean.",
    )
    job_db: str = Field(
        "jobs.sqlite3",
        min_length=1,
        description="The database that jobs survive in; `:memory:` forgets them with the server.",
    )
    local_worker: bool = Field(
        True, description="off: no jobs run in this process, workers have to join."
    )
    workers: int = Field(
        0, ge=0, le=1_000, description="SDK workers that may be started as processes, at most."
    )
    workers_min: int = Field(0, ge=0, description="How many of them there always are.")
    worker_command: str = Field(
        "", description="What starts one; unset is `python -m handler`, with this very python."
    )
    scaler: Literal["delay", "count"] = Field(
        "delay",
        description="When one more is started: a job has waited for QUEUE_DELAY_S, or there are "
        "REQUEST_COUNT jobs for each.",
    )
    queue_delay_s: float = Field(4, ge=0, description="How long a job waits for one more worker.")
    request_count: int = Field(4, ge=1, description="Jobs, waiting or running, for each worker.")
    idle_timeout_s: float = Field(
        5, ge=0, description="How long a worker has nothing to do before it is ended."
    )
    stream_mode: Literal["aggregate", "generator"] = Field(
        "aggregate", description="What the local worker's jobs are: see STREAM_MODE above."
    )
    max_body_mb: float = Field(20, gt=0, description="The largest OpenAI body, in megabytes.")
    max_run_mb: float = Field(10, gt=0, description="Largest body and result of /run, megabytes.")
    max_runsync_mb: float = Field(
        20, gt=0, description="Largest body and result of /runsync, megabytes."
    )
    max_chunk_mb: float = Field(1, gt=0, description="Largest thing a worker streams, megabytes.")
    stream_multi_prompt: bool = Field(
        False, description="on: several prompts in one call may be streamed, by index."
    )
    rate_limit_chat: str = Field(
        "10/minute",
        description="How often a key may call the bare /chat/completions; off is no limit.",
    )
    stream_interval_ms: float = Field(
        0, ge=0, description="Least time between two events of a stream; 0 sends as fast as read."
    )
    stream_hold_s: float = Field(
        5, ge=0, le=9, description="How long /stream waits for something; clients give up at 10."
    )
    execution_timeout_ms: int = Field(
        600_000, ge=1, le=7 * _DAY_MS, description="A job's time on a worker, where it sets none."
    )
    min_execution_timeout_ms: int = Field(
        5_000, ge=1, description="The least policy.executionTimeout a job may set."
    )
    job_ttl_ms: int = Field(
        _DAY_MS, ge=1, le=7 * _DAY_MS, description="A job's life from its sending, where unset."
    )
    min_job_ttl_ms: int = Field(10_000, ge=1, description="The least policy.ttl a job may set.")
    result_retention_s: float = Field(
        1800, gt=0, description="How long the result of a /run is kept."
    )
    sync_retention_s: float = Field(
        60, gt=0, description="How long the result of a /runsync is kept."
    )
    max_jobs: int = Field(100_000, ge=1, description="Jobs kept, waiting, running and ended.")
    max_jobs_mb: float = Field(2_000, gt=0, description="Megabytes of jobs kept.")
    lost_jobs: Literal["requeue", "fail"] = Field(
        "requeue", description="What becomes of the jobs of a worker that is lost."
    )
    max_losses: int = Field(3, ge=1, description="Lost workers after which a job has failed.")
    lease_s: float = Field(30, gt=0, description="How long a worker may give no sign of life.")
    worker_grace_s: float = Field(
        2, ge=0, description="How long a worker whose connection broke off may stay away."
    )
    poll_hold_s: float = Field(
        5, gt=0, le=80, description="How long a worker's call for jobs is held open."
    )
    batch_dir: Path | None = Field(
        None,
        description="Where files and batches are kept; unset is beside JOB_DB, under its name and "
        "`.batches`, or nowhere where that is `:memory:`.",
    )
    batch_share: float = Field(
        1,
        gt=0,
        le=1,
        description="The share of the engine's slots that batches may have, one at least; below 1 "
        "some are always free for what does not wait in a file.",
    )
    batch_max_lines: int = Field(
        50_000, ge=1, le=10_000_000, description="The most lines of a batch."
    )
    batch_max_mb: float = Field(
        200, gt=0, le=100_000, description="The largest file that may be uploaded, in megabytes."
    )
    batch_store_mb: float = Field(
        10_000, gt=0, description="Megabytes of files kept, uploaded and made by batches."
    )
    batch_tries: int = Field(
        3, ge=1, le=100, description="How often a line is tried whose failure may pass."
    )
    batch_window_s: float = Field(
        86_400, gt=0, description='How long a batch may take: what "24h" stands for.'
    )
    batch_retention_s: float = Field(
        30 * 86_400,
        gt=0,
        description="How long files are kept that nobody said it of, and batches that have ended.",
    )
    max_batches: int = Field(
        1_000, ge=1, le=100_000, description="Batches that wait or are being answered."
    )
    webhook_tries: int = Field(3, ge=1, description="How often a webhook is called at most.")
    webhook_pause_s: float = Field(10, ge=0, description="The time between two such calls.")
    drain_s: float = Field(
        30, ge=0, description="After SIGTERM: time for what runs; then it goes back to the queue."
    )
    head_timeout_s: float = Field(
        10, gt=0, description="How long a client may take to send a request's head."
    )
    body_timeout_s: float = Field(
        300, gt=0, description="How long a client may take to send a request's body."
    )
    read_timeout_s: float = Field(
        60, gt=0, description="How long a client may read nothing of what waits for it."
    )
    runpod_rate_limits: bool = Field(
        False, description="on: 429 for calls more frequent than RunPod takes for one endpoint."
    )
    fault_429: float = Field(
        0, ge=0, le=1, description="Share of client calls that are answered 429 on purpose."
    )
    fault_500: float = Field(
        0, ge=0, le=1, description="Share of client calls that are answered 500 on purpose."
    )
    fault_delay_ms: float = Field(
        0, ge=0, le=600_000, description="What every client call is delayed by on purpose."
    )
    fault_drop_post: float = Field(
        0,
        ge=0,
        le=1,
        description="Share of workers' posts whose connection is dropped before they are taken.",
    )
    fault_lose_lease: float = Field(
        0,
        ge=0,
        le=1,
        description="Share of jobs that are taken from their worker as soon as it has them, as if "
        "it was lost; not from the local worker.",
    )
    fault_seed: int | None = Field(
        None, description="Makes the same calls fail at every start; unset is by chance."
    )

    @field_validator("worker_command")
    @classmethod
    def _command_line(cls, value: str) -> str:
        worker_command(value)
        return value

    @field_validator("api_keys")
    @classmethod
    def _some_key(cls, value: str) -> str:
        if value and not _split(value):
            raise ValueError("no key is in it; leave it empty for a server that is open to all")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: str) -> str:
        for each in _split(value):
            if each != "*" and not _ORIGIN.fullmatch(each):
                raise ValueError(
                    f"{each} is no origin; one is written like https://example.com:8443, without a "
                    "path, and * is all of them"
                )
        return value

    def origins(self) -> tuple[str, ...]:
        """Return the origins of `cors_origins`."""
        return _split(self.cors_origins)

    def keys(self) -> tuple[str, ...]:
        """Return the keys of `api_keys`."""
        return _split(self.api_keys)

    def open_paths(self) -> frozenset[str]:
        """Return the paths that are open to all, whatever `api_keys` says."""
        return OPEN | {METRICS} if self.metrics_open else OPEN

    def batch_folder(self) -> Path | None:
        """Return where files and batches are kept; None where they go with the server."""
        if self.batch_dir is not None:
            return self.batch_dir
        return None if self.job_db == IN_MEMORY else Path(f"{self.job_db}.batches")

    def result_sizes(self) -> Sizes:
        """Return how much the local worker may hand over of what."""
        return Sizes(
            run=int(self.max_run_mb * 1e6),
            runsync=int(self.max_runsync_mb * 1e6),
            chunk=int(self.max_chunk_mb * 1e6),
            taker="this server",
        )

    def scaling(self) -> Scaling:
        """Return how many workers there are to be."""
        return Scaling(
            least=min(self.workers_min, self.workers),
            most=self.workers,
            scaler=self.scaler,
            queue_delay_s=self.queue_delay_s,
            request_count=self.request_count,
            idle_timeout_s=self.idle_timeout_s,
        )

    def connection_limits(self) -> ConnectionLimits:
        """Return how long a client may take over what."""
        return ConnectionLimits(
            head_s=self.head_timeout_s, body_s=self.body_timeout_s, read_s=self.read_timeout_s
        )

    def fault_rates(self) -> FaultRates:
        """Return what fails on purpose."""
        return FaultRates(
            too_many=self.fault_429,
            internal=self.fault_500,
            delay_ms=self.fault_delay_ms,
            drop_post=self.fault_drop_post,
            lose_lease=self.fault_lose_lease,
            seed=self.fault_seed,
        )

    def policy_limits(self) -> PolicyLimits:
        """Return what a job's policy is by default, and its bounds."""
        return PolicyLimits(
            default=Policy(execution_timeout_ms=self.execution_timeout_ms, ttl_ms=self.job_ttl_ms),
            least_execution_timeout_ms=self.min_execution_timeout_ms,
            least_ttl_ms=self.min_job_ttl_ms,
        )

    def store_limits(self) -> Limits:
        """Return what the store keeps."""
        return Limits(
            max_jobs=self.max_jobs,
            max_bytes=int(self.max_jobs_mb * 1e6),
            retention_s=self.result_retention_s,
            sync_retention_s=self.sync_retention_s,
            max_losses=1 if self.lost_jobs == "fail" else self.max_losses,
        )


def _split(listed: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in listed.split(",") if each.strip())
