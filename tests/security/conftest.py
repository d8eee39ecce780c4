"""Servers and buckets under attack: the ones of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from moto import mock_aws

from batch.place import Place
from tests.integration.emulator.conftest import Serve, serve

__all__ = ["Serve", "place", "serve"]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Return a batch's place in an empty bucket of a mocked S3; the usual credentials open it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        mocked_place = Place.at("s3://bucket/here")
        mocked_place._client.create_bucket(Bucket="bucket")
        yield mocked_place
