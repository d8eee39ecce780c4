"""The environment variables of the commands that run RunPod jobs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from handler.delivery.outbound_targets import OutboundPolicy
from handler.settings.shared_settings import Settings

NO_SDK = (
    "the worker needs RunPod's SDK, the package runpod, which is not installed: `pip install "
    "runpod` or, in a clone, `make sdk` installs it"
)


class ResultSettings(Settings):
    """The bucket for large results; the first three variables have RunPod's own names."""

    bucket_endpoint_url: str | None = Field(
        None,
        description="Address of the S3 server for large results. Unset: Amazon S3 if BUCKET_NAME is"
        " set, otherwise no bucket.",
        examples=["https://s3.eu-central-1.amazonaws.com"],
    )
    bucket_access_key_id: str | None = Field(
        None,
        description="Access key of the bucket. Unset: the AWS SDK's usual sources (`AWS_*` "
        "variables, profile, role).",
    )
    bucket_secret_access_key: SecretStr | None = Field(
        None, description="Secret that belongs to the access key."
    )
    bucket_name: str | None = Field(
        None,
        description="Name of the bucket. Unset: the current month and year as in RunPod's SDK, such"
        " as `11-26`.",
        examples=["my-results"],
    )
    result_max_mb: float | None = Field(
        None,
        ge=0,
        le=20,
        allow_inf_nan=False,
        description="Results larger than this many MB go to the bucket; 0 sends every result. "
        "Unset: RunPod's limits minus 0.1, so 9.9 for /run and 19.9 for /runsync.",
        examples=["5"],
    )

    private_targets: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Whether jobs may name a webhook or an `s3Config` at a private address: this "
        "machine, a local network, a cloud's metadata service. `auto`: only while all jobs come "
        "from this machine, so not on a server that listens on other addresses than loopback, nor "
        "on a worker of another machine. Requests to public addresses use no proxy then.",
        examples=["on"],
    )

    def outbound_policy_for(self, *, is_local: bool) -> OutboundPolicy:
        """Return the addresses that requests caused by jobs may go to.

        `is_local` states that all jobs come from this machine.
        """
        if self.private_targets == "auto":
            return OutboundPolicy(allows_private=is_local)
        return OutboundPolicy(allows_private=self.private_targets == "on")


class WorkerSettings(ResultSettings):
    """The settings of `python -m handler`."""

    stream_mode: Literal["aggregate", "generator"] = Field(
        "aggregate",
        description="`aggregate`: one JSON at the end. `generator`: the job also yields partial "
        "outputs, which RunPod serves at /stream.",
    )
    stream_interval_ms: float = Field(
        50,
        ge=0,
        allow_inf_nan=False,
        description="Minimum time between two partial outputs. Each one is a POST request to "
        "RunPod. The local server's default is 0.",
    )
