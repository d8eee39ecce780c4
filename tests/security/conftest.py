"""Servers and buckets under attack: the ones of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moto import mock_aws

from batch.queue.result_bucket import ResultBucket
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve, serve

__all__ = ["Serve", "place", "serve"]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[ResultBucket]:
    """Return a batch's place in an empty bucket of a mocked S3; the usual credentials open it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        mocked_place = ResultBucket.from_url("s3://bucket/here")
        mocked_place._client.create_bucket(Bucket="bucket")
        yield mocked_place


@pytest.fixture
def settings(script: ScriptFactory, tmp_path: Path) -> dict[str, str]:
    """A server with a database, in a folder of its own."""
    data = tmp_path / "data"
    data.mkdir()
    return {
        "MODEL_PATH": str(script({})),
        "ENGINE_ISOLATION": "thread",
        "JOB_DB": str(data / "jobs.sqlite3"),
        "PORT": "0",
        "DRAIN_S": "0",
    }
