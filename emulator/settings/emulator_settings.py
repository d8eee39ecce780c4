"""The settings of `python -m emulator`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from emulator.http.allowed_hosts import AllowedHosts, is_entry
from emulator.http.request_body import ValueLimit
from emulator.settings.limits import ConnectionLimits, PolicyLimits, ScalingPolicy
from handler.delivery.limits import PayloadLimits
from handler.delivery.outbound_targets import OutboundPolicy, is_loopback
from handler.input.json_values import JOB_CONTAINER_COST, MAX_JOB_VALUES, MAX_JSON_VALUES
from handler.models.model_name_map import CLAUDE_TO_DEFAULT, ModelNameMap, parse_name_map
from handler.settings.worker_settings import ResultSettings
from jobs import Limits, Policy

# The value of JOB_DB that keeps jobs in memory only.
IN_MEMORY = ":memory:"
_DAY_MS = 24 * 3600 * 1000
# As browsers write it: in lower case, without a path. Apps have schemes of their own.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#*A-Z]+")


class EmulatorSettings(ResultSettings):
    """Settings of the local server in addition to the engine's. Default limits are RunPod's."""

    host: str = Field(
        "127.0.0.1",
        description="Address to listen on. `0.0.0.0` accepts connections from other machines and "
        "needs API_KEYS.",
    )
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on. 0: any free port.")
    ollama_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="A second port to listen on, with the same routes: 11434 for clients that "
        "expect Ollama there. Unset: none.",
        examples=["11434"],
    )
    model_pull: bool = Field(
        False,
        description="`on`: `/api/pull` downloads models from the Hugging Face Hub and serves them "
        "until the server stops. Everyone who may send requests can then fill the disk.",
    )
    api_keys: str = Field(
        "",
        description="Keys that clients and workers must send, separated by commas. Unset: no key is"
        " needed.",
        examples=["a-long-secret,another-one"],
    )
    allow_no_api_key: bool = Field(
        False,
        description="`on`: HOST may be an address that other machines can reach although API_KEYS "
        "is unset. Everyone who can reach it can then use the server.",
    )
    allowed_hosts: str = Field(
        "",
        description="Names that clients may call the server by, separated by commas, in addition "
        "to `localhost`, loopback addresses and HOST. `*.example.com` allows all names under "
        "example.com, `*` every name. Requests to other names are refused, because a web page "
        "could use one to reach the server (DNS rebinding). With `HOST=0.0.0.0`, every IP address "
        "is allowed, and with API_KEYS also names outside public DNS, such as `worker` and "
        "`board.local`.",
        examples=["llm.example.com"],
    )
    metrics_open: bool = Field(
        False, description="`on`: /metrics needs no key even if API_KEYS is set."
    )
    otel_exporter_otlp_endpoint: str | None = Field(
        None,
        pattern="^https?://",
        description="Address that traces are sent to, by OTLP over HTTP; unset: no traces. Other "
        "`OTEL_*` variables have their standard meaning.",
        examples=["http://127.0.0.1:4318"],
    )
    cors_origins: str = Field(
        "",
        description="Web origins whose pages may call the server from a browser, separated by "
        "commas; `*` allows all. Unset: only pages of this server.",
        examples=["https://example.com"],
    )
    endpoint_id: str = Field(
        "default",
        min_length=1,
        pattern="^[A-Za-z0-9_-]+$",
        description="Endpoint ID that the local worker serves. Paths without an ID, such as "
        "/runsync, use it too.",
        examples=["my-endpoint"],
    )
    job_db: str = Field(
        "jobs.sqlite3",
        min_length=1,
        description="SQLite file that jobs are stored in. `:memory:` keeps them in memory only, so "
        "they are lost when the server ends. With handlers, it is in a folder for each set of "
        "handlers in `~/.local/state/worker-rkllm` (`XDG_STATE_HOME`) unless it is set.",
        examples=["/data/jobs.sqlite3"],
    )
    local_worker: bool = Field(
        True,
        description="`off`: the server runs no jobs itself and waits for workers to connect. It "
        "then loads a model only if one is named: see ENGINE.",
    )
    engine_dead_exit: bool = Field(
        True,
        description="Whether the server exits with code 1 when the engine is dead and is not "
        "started again. `off`: it stays, and answers with 503; jobs stay in the queue.",
    )
    workers: int = Field(
        0,
        ge=0,
        le=1_000,
        description="Maximum number of SDK worker processes that the server starts.",
    )
    workers_min: int = Field(0, ge=0, description="Number of these workers that always run.")
    worker_command: str = Field(
        "",
        description="Command that starts such a worker. Unset: this project's worker, with the "
        "server's own Python. `python` as its first word is replaced as for HANDLER_FILE. With one "
        "handler, the command runs in its folder, in place of `python -u FILE`.",
        examples=["python my_handler.py"],
    )
    handler_file: str = Field(
        "",
        description="File with a RunPod handler of your own, or the folder of its project, as "
        "`--handler` names it. The server then runs this handler in worker processes, and has no "
        "model of its own. ENDPOINT_ID is the name of the folder if it is unset. Several handlers "
        "are separated by commas, each with an endpoint of its own: `ENDPOINT=PATH`, or the path.",
        examples=["./handler.py", "resize=./resize,caption=./caption"],
    )
    worker_python: str | None = Field(
        None,
        description="Python that runs HANDLER_FILE: a program, or the folder of a virtual "
        "environment. Unset: an active virtual environment, else `.venv` or `venv` next to the "
        "file or one folder above it, else the server's own Python.",
        examples=["/opt/venv/bin/python"],
    )
    volume_dir: Path | None = Field(
        None,
        description="Folder that the worker processes have as `/runpod-volume`, where RunPod "
        "mounts a network volume. The server itself does not see it there. Needs Linux; a warning "
        "at the start says what to do where the kernel does not allow it.",
        examples=["./volume"],
    )
    worker_image: str = Field(
        "",
        description="Container image with a RunPod worker of your own, as `--image` names it: the "
        "server runs its containers as workers, with Docker or Podman, and has no model of its own."
        " ENDPOINT_ID is the name of the image if it is unset. Several images are separated by "
        "commas, each with an endpoint of its own: `ENDPOINT=IMAGE`, or the image.",
        examples=["my-worker:latest"],
    )
    worker_build: Path | None = Field(
        None,
        description="Folder of a project with a `Dockerfile`: WORKER_IMAGE is built from it at the "
        "start, and again when a file in it is saved (see RELOAD). If WORKER_IMAGE is unset, the "
        "image is named after the folder.",
        examples=["."],
    )
    worker_platform: str = Field(
        "",
        pattern="^([a-z0-9]+/[a-z0-9/]+)?$",
        description="Platform to pull or build WORKER_IMAGE for. Unset: that of this machine.",
        examples=["linux/amd64"],
    )
    worker_gpus: str = Field(
        "",
        description="GPUs that containers of WORKER_IMAGE have, as in Docker's `--gpus`. Unset: "
        "none.",
        examples=["all"],
    )
    worker_network: str = Field(
        "",
        description="Network of these containers. Unset: `host`, in which they reach a server on "
        "127.0.0.1, or `bridge` with Docker Desktop. In any other network they call this machine "
        "by its name there, and HOST must be an address that they can reach.",
        examples=["bridge"],
    )
    worker_run_args: str = Field(
        "",
        description="More arguments of `docker run` for these containers.",
        examples=["--memory 8g --shm-size 1g"],
    )
    worker_build_args: str = Field(
        "",
        description="More arguments of `docker build` for WORKER_BUILD.",
        examples=["--build-arg CUDA=12.8"],
    )
    container_engine: str | None = Field(
        None,
        min_length=1,
        description="Program that runs containers: `docker`, `podman` or the path of one. Unset: "
        "Docker, or Podman if Docker does not answer.",
        examples=["podman"],
    )
    reload: Literal["on", "replace", "off"] = Field(
        "on",
        description="Whether a saved change in the folder of HANDLER_FILE, or of its project, "
        "starts a new worker: of a `.py`, `.toml`, `.yaml` or `.yml` file, or of `.env`. With "
        "`replace`, and always with WORKER_COMMAND, the workers with the older code end first, "
        "after their jobs; otherwise they take jobs until the new one has started.",
    )
    reload_jobs: Literal["finish", "requeue"] = Field(
        "finish",
        description="What happens to running jobs at such a change: they end with the code they "
        "started with (`finish`), or run again with the new code (`requeue`).",
    )
    scaler: Literal["delay", "count"] = Field(
        "delay",
        description="When the server starts another worker. `delay`: a job has waited for "
        "QUEUE_DELAY_S; `count`: there are more than REQUEST_COUNT jobs per worker.",
    )
    queue_delay_s: float = Field(
        4,
        ge=0,
        description="Time that a job waits before another worker is started (`SCALER=delay`).",
    )
    request_count: int = Field(
        4, ge=1, description="Waiting and running jobs per worker (`SCALER=count`)."
    )
    idle_timeout_s: float = Field(
        5, ge=0, description="Time without a job after which a worker is stopped."
    )
    stream_mode: Literal["aggregate", "generator"] = Field(
        "aggregate",
        description="The form of a job's output. `aggregate`: one JSON at the end. `generator`: "
        "the job also yields partial outputs, which RunPod serves at /stream. On the local server "
        "/stream has, in both modes, the chunks of a job of the local worker that asks to stream.",
    )
    max_body_mb: float = Field(
        20,
        gt=0,
        description="Maximum size of an OpenAI request body. For `python -m batch`, it is the "
        "maximum length of one line, with a default of 10.",
    )
    max_run_mb: float = Field(
        10, gt=0, description="Maximum size of a /run request and of its result."
    )
    max_runsync_mb: float = Field(
        20, gt=0, description="Maximum size of a /runsync request and of its result."
    )
    max_chunk_mb: float = Field(
        1, gt=0, description="Maximum size of one partial output of a streamed job."
    )
    model_name_map: str = Field(
        "",
        description="Which model answers requests to /v1/messages whose model is not served: "
        "pairs of a name, in which `*` stands for any text, and a served name, separated by "
        "commas. The first pair that matches counts. Unset: the default model answers all names "
        "that begin with `claude`.",
        examples=["claude-haiku-*=small,claude-*=large"],
    )
    rate_limit_chat: str = Field(
        "10/minute",
        description="Limit per key for /chat/completions without a prefix. `off`: no limit.",
        examples=["60/minute"],
    )
    stream_interval_ms: float = Field(
        0,
        ge=0,
        description="Minimum time between two events of an OpenAI stream or two partial outputs of "
        "a job. 0: send each one as soon as the client can read it. The RunPod worker's default is "
        "50.",
    )
    stream_comments_after_s: float | None = Field(
        15,
        gt=0,
        description="A stream that has been silent for this long gets a comment, because proxies "
        "and clients close a silent connection. A stream that begins with one has status 200, so "
        "that a later error is its only event. `off`: never.",
        examples=["60"],
    )
    stream_hold_s: float = Field(
        5,
        ge=0,
        le=9,
        description="How long /stream waits for new output before it returns an empty list. At most"
        " 9, because clients give up after 10.",
    )
    execution_timeout_ms: int = Field(
        600_000,
        ge=1,
        le=7 * _DAY_MS,
        description="Maximum run time of a job that sets no `policy.executionTimeout`.",
    )
    min_execution_timeout_ms: int = Field(
        5_000, ge=1, description="Lowest `policy.executionTimeout` that a job may set."
    )
    job_ttl_ms: int = Field(
        _DAY_MS,
        ge=1,
        le=7 * _DAY_MS,
        description="Lifetime of a job from its submission, when it sets no `policy.ttl`.",
    )
    min_job_ttl_ms: int = Field(10_000, ge=1, description="Lowest `policy.ttl` that a job may set.")
    result_retention_s: float = Field(
        1800, gt=0, description="How long the result of a /run job is kept."
    )
    sync_retention_s: float = Field(
        60, gt=0, description="How long the result of a /runsync job is kept."
    )
    max_jobs: int = Field(
        100_000, ge=1, description="Maximum number of stored jobs: waiting, running and ended."
    )
    max_jobs_mb: float = Field(2_000, gt=0, description="Maximum memory of the stored jobs.")
    max_losses: int = Field(
        3,
        ge=1,
        description="A job ends as FAILED after this many lost workers; with `1` none is run "
        "again.",
    )
    lease_s: float = Field(
        30, gt=0, description="A worker that sends nothing for this long counts as lost."
    )
    worker_grace_s: float = Field(
        2,
        ge=0,
        description="How long a worker whose connection broke may take to reconnect before it "
        "counts as lost.",
    )
    poll_hold_s: float = Field(
        5,
        gt=0,
        le=80,
        description="How long a worker's request for jobs is held open while there are none (long "
        "polling).",
    )
    batch_dir: Path | None = Field(
        None,
        description="Folder for uploaded files and batches. Unset: JOB_DB with `.batches` appended,"
        " or memory only with `JOB_DB=:memory:`.",
        examples=["/data/batches"],
    )
    bucket_store_mb: float = Field(
        2_000,
        ge=0,
        description="Maximum total size of the objects in the bucket that workers which the server "
        "starts get while no `BUCKET_ENDPOINT_URL`, `BUCKET_ACCESS_KEY_ID` or "
        "`BUCKET_SECRET_ACCESS_KEY` is set. Uploads beyond it fail. 0: no bucket.",
    )
    batch_share: float = Field(
        1,
        gt=0,
        le=1,
        description="Share of the engine's slots that batches may use, but at least one slot. Below"
        " 1, some slots stay free for other requests.",
        examples=["0.75"],
    )
    batch_max_lines: int = Field(
        50_000, ge=1, le=10_000_000, description="Maximum number of lines in a batch."
    )
    batch_max_mb: float = Field(
        200, gt=0, le=100_000, description="Maximum size of an uploaded file."
    )
    batch_store_mb: float = Field(
        10_000, gt=0, description="Maximum total size of all files: uploads and results of batches."
    )
    batch_tries: int = Field(
        3, ge=1, le=100, description="Attempts per line, if the failure is temporary."
    )
    batch_window_s: float = Field(
        86_400,
        gt=0,
        description='Maximum duration of a batch, which is what `completion_window: "24h"` stands '
        "for. After it the batch expires.",
    )
    batch_retention_s: float = Field(
        30 * 86_400,
        gt=0,
        description="How long ended batches and files without an expiry of their own are kept.",
    )
    max_batches: int = Field(
        1_000, ge=1, le=100_000, description="Maximum number of batches that wait or run."
    )
    webhook_tries: int = Field(
        3, ge=1, description="Maximum number of attempts to deliver a webhook."
    )
    webhook_pause_s: float = Field(10, ge=0, description="Time between two attempts.")
    drain_s: float = Field(
        30,
        ge=0,
        description="After SIGTERM: time for running jobs to finish. Unfinished jobs go back to the"
        " queue.",
    )
    head_timeout_s: float = Field(
        10, gt=0, description="Maximum time for a client to send the headers of a request."
    )
    body_timeout_s: float = Field(
        300, gt=0, description="Maximum time for a client to send the body of a request."
    )
    read_timeout_s: float = Field(
        60,
        gt=0,
        description="Maximum time that a client may read nothing while data waits for it. After it "
        "the connection is closed.",
    )
    max_connections: int = Field(
        4_096,
        ge=1,
        le=60_000,
        description="Maximum number of open connections. More are refused with status 503, except a"
        " few from this machine, such as health checks. The limit of open files of the process may "
        "be lower.",
    )
    max_connections_per_address: int = Field(
        2_048,
        ge=1,
        le=60_000,
        description="Maximum number of open connections from one address, or from one /64 network "
        "of IPv6. All clients of a reverse proxy have the proxy's address.",
    )
    max_pending_body_mb: float = Field(
        200,
        gt=0,
        description="Maximum total size of the request bodies that are being received. The first "
        "64 kB of each body do not count. Bodies beyond it are refused with status 503.",
    )
    max_pending_body_mb_per_address: float = Field(
        100,
        gt=0,
        description="Maximum total size of the request bodies that are being received from one "
        "address, or from one /64 network of IPv6. All clients of a reverse proxy have the proxy's "
        "address.",
    )
    max_json_values: int = Field(
        MAX_JSON_VALUES,
        ge=1_000,
        description="Maximum number of values in a JSON body: every list element, object key, list "
        "and object counts. While a body is parsed nothing else runs, up to 0.1 s for the default, "
        "so a higher limit makes other requests wait longer.",
    )
    max_job_values: int = Field(
        MAX_JOB_VALUES,
        ge=1_000,
        description="The same for the inputs and the results of jobs that other workers run. Each "
        "key, list and object counts as 4 elements. Jobs of the server's own model have the limit "
        "of MAX_JSON_VALUES.",
    )
    faults_per_request: bool = Field(
        False,
        description="`on`: a client may request faults for itself, with the header `x-fault` or "
        "with rules at `/faults`. For tests only.",
    )
    fault_seed: int | None = Field(
        None,
        description="Seed for the rules that have a probability: the same seed "
        "makes the same requests fail at every start. Unset: random.",
        examples=["1"],
    )

    @field_validator("stream_comments_after_s", mode="before")
    @classmethod
    def _off_is_none(cls, value: object) -> object:
        return None if isinstance(value, str) and value.strip().lower() == "off" else value

    @field_validator("worker_command")
    @classmethod
    def _command_line(cls, value: str) -> str:
        shlex.split(value)  # raises ValueError
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

    @field_validator("model_name_map")
    @classmethod
    def _check_name_map(cls, value: str) -> str:
        parse_name_map(value)
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _host_names(cls, value: str) -> str:
        for each in _split(value):
            if not is_entry(each):
                raise ValueError(
                    f"{each} is no host name; one is written like llm.example.com or "
                    "*.example.com, without scheme and port, and * is all of them"
                )
        return value

    def host_check(self) -> AllowedHosts:
        """Return the check of the host names that requests are sent to."""
        return AllowedHosts(self.host, _split(self.allowed_hosts), has_keys=bool(self.keys()))

    @model_validator(mode="after")
    def _pulls_no_models_of_servers(self) -> Self:
        if self.model_pull and self.engine == "openai":
            raise ValueError(
                "MODEL_PULL must be off where ENGINE is openai: models are pulled at their server"
            )
        return self

    @property
    def has_engine(self) -> bool:
        """Whether the server loads a model: its own worker needs one, or a setting names one."""
        if self.engine == "none":
            return False
        names_model = {"engine", "model_path", "models"} & self.model_fields_set
        return self.local_worker or self.model_pull or bool(names_model)

    @model_validator(mode="after")
    def _has_no_worker_without_engine(self) -> Self:
        if self.engine == "none":
            self.local_worker = False
        return self

    def name_map(self) -> ModelNameMap:
        """Return the models that answer to names that are not served."""
        return parse_name_map(self.model_name_map) if self.model_name_map else CLAUDE_TO_DEFAULT

    def origins(self) -> tuple[str, ...]:
        """Return the origins of `cors_origins`."""
        return _split(self.cors_origins)

    def keys(self) -> tuple[str, ...]:
        """Return the keys of `api_keys`."""
        return _split(self.api_keys)

    def outbound_policy(self) -> OutboundPolicy:
        """Return the addresses that webhooks and buckets of jobs may have."""
        return self.outbound_policy_for(is_local=is_loopback(self.host))

    def batch_folder(self) -> Path | None:
        """Return the folder of files and batches; None if they are kept in memory only."""
        if self.batch_dir is not None:
            return self.batch_dir
        return None if self.job_db == IN_MEMORY else Path(f"{self.job_db}.batches")

    def bucket_folder(self) -> Path | None:
        """Return the folder of the workers' bucket; None if it is kept until the end only."""
        return None if self.job_db == IN_MEMORY else Path(f"{self.job_db}.bucket")

    def payload_limits(self) -> PayloadLimits:
        """Return the size limits of the local worker's results."""
        return PayloadLimits(
            run_bytes=int(self.max_run_mb * 1e6),
            runsync_bytes=int(self.max_runsync_mb * 1e6),
            chunk_bytes=int(self.max_chunk_mb * 1e6),
            platform="this server",
        )

    def scaling_policy(self) -> ScalingPolicy:
        """Return the scaling policy of the managed workers."""
        return ScalingPolicy(
            min_workers=min(self.workers_min, self.workers),
            max_workers=self.workers,
            scaler=self.scaler,
            queue_delay_s=self.queue_delay_s,
            request_count=self.request_count,
            idle_timeout_s=self.idle_timeout_s,
        )

    def connection_limits(self) -> ConnectionLimits:
        """Return the limits on the time and memory that clients may use."""
        return ConnectionLimits(
            head_s=self.head_timeout_s,
            body_s=self.body_timeout_s,
            read_s=self.read_timeout_s,
            max_connections=self.max_connections,
            max_connections_per_address=self.max_connections_per_address,
            max_pending_body_bytes=int(self.max_pending_body_mb * 1e6),
            max_pending_body_bytes_per_address=int(self.max_pending_body_mb_per_address * 1e6),
            max_json_values=self.max_json_values,
        )

    def job_value_limit(self) -> ValueLimit:
        """Return how many JSON values the input or the result of a worker's job may have."""
        return ValueLimit(self.max_job_values, JOB_CONTAINER_COST, "MAX_JOB_VALUES")

    def policy_limits(self) -> PolicyLimits:
        """Return the default policy of a job and its lower bounds."""
        return PolicyLimits(
            default=Policy(execution_timeout_ms=self.execution_timeout_ms, ttl_ms=self.job_ttl_ms),
            min_execution_timeout_ms=self.min_execution_timeout_ms,
            min_ttl_ms=self.min_job_ttl_ms,
        )

    def store_limits(self) -> Limits:
        """Return the limits of the job store."""
        return Limits(
            max_jobs=self.max_jobs,
            max_bytes=int(self.max_jobs_mb * 1e6),
            retention_s=self.result_retention_s,
            sync_retention_s=self.sync_retention_s,
            max_losses=self.max_losses,
        )


def _split(listed: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in listed.split(",") if each.strip())
