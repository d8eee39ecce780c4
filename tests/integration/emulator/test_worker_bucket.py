"""The bucket of launched workers, with boto3 as RunPod's SDK configures it, and with plain HTTP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from emulator.startup.components import build_components
from engine import Engine
from handler.settings.engine_configs import build_engine_config
from tests.integration.emulator.conftest import Serve, build_settings
from tests.integration.emulator.serving import Server, http_client

# Of a command that is not this project's worker; the tests do not start it.
WORKERS: Mapping[str, Any] = {"workers": 1, "worker_command": "python my_handler.py"}
CONTENT = b"\x89PNG" * 1_000
LOCATION = {"Bucket": "11-26", "Key": "job-1/a ä+b.png"}


def s3_client(server: Server, version: str = "s3v4") -> Any:
    """Return a client as the SDK opens it; `s3` signs URLs as boto3 does on its own."""
    bucket = server.components.bucket
    assert bucket is not None
    variables = bucket.worker_variables(server.url, {})
    return boto3.session.Session().client(
        "s3",
        endpoint_url=variables["BUCKET_ENDPOINT_URL"],
        aws_access_key_id=variables["BUCKET_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["BUCKET_SECRET_ACCESS_KEY"],
        config=Config(
            signature_version=version if version == "s3v4" else None,
            retries={"max_attempts": 1, "mode": "standard"},
        ),
        region_name="us-east-1",
    )


def put_and_sign(s3: Any, content_type: str = "image/png", **parameters: Any) -> str:
    s3.put_object(**LOCATION, Body=CONTENT, ContentType=content_type, Metadata={"seed": "7"})
    url: str = s3.generate_presigned_url(
        "get_object", Params={**LOCATION, **parameters}, ExpiresIn=604_800
    )
    return url


def error_code(operation: Any, **parameters: Any) -> str:
    with pytest.raises(ClientError) as failed:
        operation(**parameters)
    code: str = failed.value.response["Error"]["Code"]
    return code


@pytest.mark.parametrize("version", ["s3v4", "s3"])
async def test_signed_url_of_an_upload_opens_in_a_browser(serve: Serve, version: str) -> None:
    # The keys of the API are not needed: the signature is one.
    server = await serve(**WORKERS, api_keys="secret")
    url = await asyncio.to_thread(lambda: put_and_sign(s3_client(server, version)))
    assert ("X-Amz-Signature" in url) is (version == "s3v4")
    page = {"origin": "https://other.example", "sec-fetch-site": "cross-site"}
    async with http_client(server.url) as client:
        response = await client.get(url, headers=page)
        assert (response.status_code, response.content) == (200, CONTENT)
        assert response.headers["content-type"] == "image/png"
        assert response.headers["x-amz-meta-seed"] == "7"
        part = await client.get(url, headers={"range": "bytes=4-7"})
        assert (part.status_code, part.content) == (206, b"\x89PNG")
        # The user of another machine replaces the host by the one that this machine can reach.
        other = await client.get(url, headers={"host": "board.local:8080"})
        assert other.status_code == 200
        for changed in (url[:-4] + "0000", url.replace("job-1", "job-2"), url.partition("?")[0]):
            refused = await client.get(changed)
            assert refused.status_code == 403
            assert refused.headers["content-type"] == "application/xml"
            assert CONTENT not in refused.content
        for method in ("PUT", "DELETE", "POST"):
            assert (await client.request(method, url, content=b"x")).status_code == 403
        with_key = await client.get(url.partition("?")[0], headers={"x-api-key": "secret"})
        assert "<Code>AccessDenied</Code>" in with_key.text
        head = await client.head(url)
        assert (head.status_code, head.content) == (403, b"")


async def test_page_in_the_bucket_has_no_rights_of_the_console(serve: Serve) -> None:
    server = await serve(**WORKERS)
    s3 = await asyncio.to_thread(s3_client, server)
    async with http_client(server.url) as client:
        for content_type, policy in (("text/html", "sandbox"), ("application/pdf", None)):
            url = await asyncio.to_thread(put_and_sign, s3, content_type)
            response = await client.get(url)
            assert response.headers["content-type"] == content_type
            assert response.headers.get("content-security-policy") == policy
            assert response.headers["x-content-type-options"] == "nosniff"
        url = await asyncio.to_thread(
            put_and_sign, s3, "application/pdf", ResponseContentType="text/html"
        )
        response = await client.get(url)
        assert response.headers["content-type"] == "text/html"
        assert response.headers["content-security-policy"] == "sandbox"


async def test_errors_have_the_codes_that_boto3_knows(serve: Serve) -> None:
    server = await serve(**WORKERS, bucket_store_mb=0.1)

    def use(s3: Any) -> None:
        s3.put_object(**LOCATION, Body=CONTENT)
        assert s3.get_object(**LOCATION)["Body"].read() == CONTENT
        assert s3.head_object(**LOCATION)["ContentType"] == "binary/octet-stream"
        s3.head_bucket(Bucket="any")
        s3.create_bucket(Bucket="any")
        large = {**LOCATION, "Body": b"x" * 200_000}
        assert error_code(s3.put_object, **large) == "EntityTooLarge"
        large["Body"] = b"x" * 93_000
        assert error_code(s3.put_object, **large) == "InsufficientStorage"
        # A refused upload does not take the object that is there.
        assert s3.get_object(**LOCATION)["ContentLength"] == len(CONTENT)
        source = "11-26/job-1/a"
        assert error_code(s3.copy_object, **LOCATION, CopySource=source) == "NotImplemented"
        assert error_code(s3.put_object, **LOCATION, IfNoneMatch="*") == "NotImplemented"
        assert error_code(s3.list_objects_v2, Bucket="11-26") == "NotImplemented"
        assert error_code(s3.get_object_acl, **LOCATION) == "NotImplemented"
        assert error_code(s3.list_buckets) == "NotImplemented"
        assert error_code(s3.put_object, **LOCATION, Metadata={"a": "b" * 4_096}) == (
            "MetadataTooLarge"
        )
        key = {"Bucket": "11-26", "Key": "k" * 1_025}
        assert error_code(s3.put_object, **key, Body=b"") == "KeyTooLongError"
        s3.delete_object(**LOCATION)
        s3.delete_object(**LOCATION)
        with pytest.raises(s3.exceptions.NoSuchKey, match="RESULT_RETENTION_S"):
            s3.get_object(**LOCATION)
        assert error_code(s3.head_object, **LOCATION) == "404"
        upload = s3.create_multipart_upload(**LOCATION)["UploadId"]
        s3.abort_multipart_upload(**LOCATION, UploadId=upload)
        part = {"UploadId": upload, "PartNumber": 1, "Body": b"x"}
        assert error_code(s3.upload_part, **LOCATION, **part) == "NoSuchUpload"

    await asyncio.to_thread(lambda: use(s3_client(server)))


async def test_upload_in_parts_is_one_object(serve: Serve) -> None:
    server = await serve(**WORKERS)
    first, last = os.urandom(5 << 20), b"the last part"

    def upload(s3: Any) -> None:
        begun = s3.create_multipart_upload(**LOCATION, ContentType="video/mp4")
        parts = []
        for number, body in enumerate((first, last), 1):
            part = {**LOCATION, "UploadId": begun["UploadId"], "PartNumber": number}
            parts.append({"PartNumber": number, "ETag": s3.upload_part(**part, Body=body)["ETag"]})
        done = s3.complete_multipart_upload(
            **LOCATION, UploadId=begun["UploadId"], MultipartUpload={"Parts": parts}
        )
        stored = s3.get_object(**LOCATION)
        assert (stored["ContentType"], stored["ETag"]) == ("video/mp4", done["ETag"])
        assert stored["Body"].read() == first + last

    await asyncio.to_thread(lambda: upload(s3_client(server)))


async def test_reset_of_the_workers_endpoint_removes_the_objects(serve: Serve) -> None:
    server = await serve(**WORKERS)
    url = await asyncio.to_thread(lambda: put_and_sign(s3_client(server)))
    async with server.client() as client:
        await client.post("/v2/another/reset")
        assert (await client.get(url)).status_code == 200
        await client.post("/v2/default/reset")
        assert "<Code>NoSuchKey</Code>" in (await client.get(url)).text


@pytest.mark.parametrize(
    "settings",
    [{"workers": 1}, {**WORKERS, "workers": 0}, {**WORKERS, "bucket_store_mb": 0}],
    ids=["own worker", "no workers", "turned off"],
)
def test_other_servers_have_no_bucket(settings: dict[str, Any]) -> None:
    built = build_settings({"engine": "scripted", "job_db": ":memory:", **settings})
    assert build_components(built, Engine(build_engine_config(built))).bucket is None
