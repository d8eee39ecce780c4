"""Build the result uploader from RunPod's `BUCKET_*` settings and the two of this project."""

from __future__ import annotations

from typing import Any

import pytest

from common.setting_error import SettingError
from handler.composition import build_result_uploader
from handler.delivery.blobs import BlobStore
from handler.delivery.bucket import Bucket
from handler.delivery.results import ResultUploader
from handler.settings.worker_settings import WorkerSettings

URL = "https://s3.eu-central-1.amazonaws.com"
SECRET = "Zm9v/s3cr3t"
PAIR = {"BUCKET_ACCESS_KEY_ID": "AKIDEXAMPLE", "BUCKET_SECRET_ACCESS_KEY": SECRET}


class BucketOpened(Exception):
    """Raised in place of opening a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket.name)
        self.bucket = bucket


@pytest.fixture(autouse=True)
def _none_of_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BUCKET_ENDPOINT_URL", "BUCKET_NAME", "RESULT_MAX_MB", *PAIR):
        monkeypatch.delenv(name, raising=False)


def build_uploader(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> ResultUploader:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return build_result_uploader(WorkerSettings())


async def deliver(results: ResultUploader, size: int) -> Any:
    """Return the bucket that a result of so many bytes would go to; None for none."""

    def look(bucket: Bucket) -> BlobStore:
        raise BucketOpened(bucket)

    results._open_bucket = look
    try:
        return await results.plan_delivery({"id": "j"}).deliver(None, size)
    except BucketOpened as opened:
        return opened.bucket


@pytest.mark.parametrize(
    ("variables", "bucket"),
    [
        ({"BUCKET_NAME": "b"}, Bucket(name="b")),
        (
            {"BUCKET_ENDPOINT_URL": f"{URL}/", "BUCKET_NAME": "b", **PAIR},
            Bucket(name="b", endpoint_url=URL, access_id="AKIDEXAMPLE", access_secret=SECRET),
        ),
        # RunPod's console sends empty ones for what was left blank.
        (
            {"BUCKET_ENDPOINT_URL": URL, "BUCKET_NAME": "b", **dict.fromkeys(PAIR, "")},
            Bucket(name="b", endpoint_url=URL),
        ),
    ],
)
async def test_large_results_go_there(
    variables: dict[str, str], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = build_uploader(monkeypatch, variables)
    assert await deliver(results, 9_000_000) is None
    assert await deliver(results, 11_000_000) == bucket
    results = build_uploader(monkeypatch, {"RESULT_MAX_MB": "0.5"})
    assert await deliver(results, 500_000) is None
    assert await deliver(results, 500_001) == bucket
    results = build_uploader(monkeypatch, {"RESULT_MAX_MB": "0"})
    assert await deliver(results, 1) == bucket


async def test_name_that_is_not_set_is_the_months_as_the_sdk_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = build_uploader(
        monkeypatch, {"BUCKET_ENDPOINT_URL": URL, **PAIR, "RESULT_MAX_MB": "0"}
    )
    bucket = await deliver(results, 1)
    month, year = bucket.name.split("-")
    assert 1 <= int(month) <= 12
    assert len(year) == 2


async def test_without_any_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await deliver(build_uploader(monkeypatch, {}), 9_000_000) is None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            {"BUCKET_ENDPOINT_URL": URL, "BUCKET_ACCESS_KEY_ID": "AKIDEXAMPLE"},
            "BUCKET_SECRET_ACCESS_KEY must be set as well, or neither of the two",
        ),
        (
            {"BUCKET_ENDPOINT_URL": URL, "BUCKET_SECRET_ACCESS_KEY": SECRET},
            "BUCKET_ACCESS_KEY_ID must be set as well, or neither of the two",
        ),
        (PAIR, "BUCKET_ACCESS_KEY_ID needs BUCKET_ENDPOINT_URL or BUCKET_NAME"),
        ({"RESULT_MAX_MB": "1"}, "RESULT_MAX_MB needs BUCKET_ENDPOINT_URL or BUCKET_NAME"),
        ({"BUCKET_NAME": "a/b"}, "BUCKET_NAME must be a bucket's name (letters, digits, dots, hyp"),
        (
            {"BUCKET_ENDPOINT_URL": "s3.example.com"},
            f'BUCKET_ENDPOINT_URL must be an http or https address like {URL}, got "s3.exam',
        ),
        (
            {"BUCKET_NAME": "b", **PAIR, "BUCKET_SECRET_ACCESS_KEY": f"{SECRET} \n"},
            "BUCKET_SECRET_ACCESS_KEY must be up to 1000 ASCII characters without spaces",
        ),
    ],
)
def test_build_result_uploader_names_missing_or_invalid_settings(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingError) as refused:
        build_uploader(monkeypatch, variables)
    assert str(refused.value).startswith(expected)
    assert SECRET not in str(refused.value)


def test_secret_is_not_in_the_settings_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKET_SECRET_ACCESS_KEY", SECRET)
    assert SECRET not in repr(WorkerSettings())
