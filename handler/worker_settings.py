"""The variables of those who run RunPod's jobs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from handler.settings import Settings


class ResultSettings(Settings):
    """Where those who run RunPod's jobs put results; the first three are RunPod's own names."""

    bucket_endpoint_url: str | None = Field(
        None,
        description="The S3 server of the bucket for large results; unset is Amazon's, or no "
        "bucket where BUCKET_NAME is unset as well.",
    )
    bucket_access_key_id: str | None = Field(
        None, description="Its access key; unset is the usual chain of credentials, `AWS_*`."
    )
    bucket_secret_access_key: SecretStr | None = Field(None, description="The key's secret.")
    bucket_name: str | None = Field(
        None, description="The bucket; unset is the month, as `11-26`, as in RunPod's SDK."
    )
    result_max_mb: float | None = Field(
        None,
        ge=0,
        le=20,
        allow_inf_nan=False,
        description="The largest result that does not go to the bucket, in megabytes; 0 sends all "
        "there, unset what RunPod would not take: 10, and 20 of /runsync.",
    )


class WorkerSettings(ResultSettings):
    """The settings of `python -m handler`."""

    stream_mode: Literal["aggregate", "generator"] = Field(
        "aggregate", description="One JSON at the end, or partial outputs for RunPod's /stream too."
    )
    stream_interval_ms: float = Field(
        50,
        ge=0,
        allow_inf_nan=False,
        description="Least time between two partial outputs; each one is a POST.",
    )
