"""The variables that point workers to the bucket, unless a user has set them."""

from __future__ import annotations

import pytest

from emulator.bucket.keys import BUCKET_VARIABLES, BucketKeys

KEYS = BucketKeys("id", "secret")
URL = "http://127.0.0.1:8000"


@pytest.fixture(autouse=True)
def _no_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BUCKET_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_worker_gets_the_bucket_of_this_server() -> None:
    assert KEYS.worker_variables(URL, {"OTHER": "1", "BUCKET_NAME": "mine"}) == {
        "BUCKET_ENDPOINT_URL": f"{URL}/s3",
        "BUCKET_ACCESS_KEY_ID": "id",
        "BUCKET_SECRET_ACCESS_KEY": "secret",
    }


@pytest.mark.parametrize("name", BUCKET_VARIABLES)
@pytest.mark.parametrize("value", ["mine", ""])
def test_worker_keeps_the_users_bucket(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    assert KEYS.worker_variables(URL, {name: value}) == {}
    monkeypatch.setenv(name, value)
    assert KEYS.worker_variables(URL, {}) == {}


def test_keys_cannot_be_guessed() -> None:
    first, second = BucketKeys.generate(), BucketKeys.generate()
    assert first.access_key_id != second.access_key_id
    assert first.secret != second.secret
    assert len(first.secret) >= 40
