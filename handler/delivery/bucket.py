"""Read the bucket for results from a job's `s3Config`, and open it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from common.value_description import describe_value
from handler.delivery.blobs import BlobStore
from handler.delivery.outbound_targets import OutboundPolicy, TargetRefused
from handler.errors import InvalidRequest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
# The characters of keys and secrets. Others could break an HTTP header, or appear in its error.
_SECRET = re.compile(r"[!-~]{1,1000}")
_MAX_URL_CHARS = 2_000
_MAX_FOLDER_CHARS = 500
_RUNPOD_VOLUME_HOST = re.compile(r"s3api-([a-z0-9-]+)\.runpod\.io")
# Low, because a client waits for the job, and the worker's shutdown waits for its uploads.
_MAX_ATTEMPTS, _READ_TIMEOUT_S = 3, 20.0
_REQUIRED_FIELDS = ("accessId", "accessSecret", "bucketName", "endpointUrl")
_ANY_TARGET = OutboundPolicy()
_TYPE_NAMES = {"NoneType": "none", "str": "a string", "bool": "true or false", "list": "an array"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket on Amazon S3, or on the server at `endpoint_url`.

    Without a name it is named after the current month. Without a pair of keys, boto3's usual
    credential chain applies. `folder` has no slash at its ends; "" is the bucket's root. `targets`
    restricts the connections to a bucket that a job names; None for a bucket of the settings.
    """

    name: str = ""
    endpoint_url: str | None = None
    access_id: str | None = field(default=None, repr=False)
    access_secret: str | None = field(default=None, repr=False)
    folder: str = ""
    targets: OutboundPolicy | None = None

    def key(self, name: str) -> str:
        """Return the key of an object in the bucket's folder."""
        return f"{self.folder}/{name}" if self.folder else name

    def without_secrets(self, text: str) -> str:
        """Return a text with both keys replaced by `***`."""
        for secret in (self.access_secret, self.access_id):
            if secret:
                text = text.replace(secret, "***")
        return text


def read_s3_config(s3_config: Any, targets: OutboundPolicy = _ANY_TARGET) -> Bucket:
    """Return the bucket of a job's `s3Config`, whose server must be allowed by `targets`.

    Raises:
        InvalidRequest: a field is missing or invalid; the message names it and contains no secret.
    """
    if not isinstance(s3_config, Mapping):
        raise InvalidRequest(
            f"s3Config must be an object with {', '.join(_REQUIRED_FIELDS)}, "
            f"got {describe_type(s3_config)}",
            "s3Config",
        )
    fields = {
        name: _check_text(s3_config.get(name), f"s3Config.{name}") for name in _REQUIRED_FIELDS
    }
    folder = s3_config.get("objectPath")
    return Bucket(
        name=check_name(fields["bucketName"], "s3Config.bucketName"),
        endpoint_url=check_target(
            check_url(fields["endpointUrl"], "s3Config.endpointUrl"),
            "s3Config.endpointUrl",
            targets,
        ),
        access_id=check_secret(fields["accessId"], "s3Config.accessId"),
        access_secret=check_secret(fields["accessSecret"], "s3Config.accessSecret"),
        folder="" if folder is None else _check_folder(folder, "s3Config.objectPath"),
        targets=targets,
    )


def check_name(name: str, field: str) -> str:
    """Return a valid bucket name. Raises InvalidRequest."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{field} must be a bucket's name (letters, digits, dots, hyphens), "
            f"got {describe_value(name)}",
            field,
        )
    return name


def check_url(url: str, field: str) -> str:
    """Return a valid server URL without a slash at its end. Raises InvalidRequest."""
    allowed = f"{field} must be an http or https address like https://s3.eu-central-1.amazonaws.com"
    try:
        parts = urlsplit(url)
        # Reading an invalid port raises ValueError.
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    else:
        if parts.username is not None or parts.query or parts.fragment:
            # The URL may contain a secret, so the message does not.
            raise InvalidRequest(f"{allowed}, without user, query and fragment", field)
    if not is_valid or len(url) > _MAX_URL_CHARS or not re.fullmatch(r"[!-~]+", url):
        raise InvalidRequest(f"{allowed}, got {describe_value(url)}", field)
    return url.rstrip("/")


def check_target(url: str, field: str, targets: OutboundPolicy) -> str:
    """Return a URL whose host is not a private address, judging by the URL alone.

    Raises:
        InvalidRequest: the host is a private address, and `targets` does not allow those.
    """
    try:
        targets.check_url(url)
    except TargetRefused as error:
        raise InvalidRequest(f"{field}: {error}", field) from None
    return url


def check_secret(secret: str, field: str) -> str:
    """Return a valid access key or secret. Raises InvalidRequest without the value."""
    if not _SECRET.fullmatch(secret):
        raise InvalidRequest(f"{field} must be up to 1000 ASCII characters without spaces", field)
    return secret


def describe_type(value: Any) -> str:
    """Return the JSON type of a value, for messages that must not contain the value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "a number"
    return _TYPE_NAMES.get(type(value).__name__, "an object")


def _check_text(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value:
        got = "an empty string" if value == "" else describe_type(value)
        raise InvalidRequest(f"{field} must be a non-empty string, got {got}", field)
    return value


def _check_folder(value: Any, field: str) -> str:
    folder = value.strip("/") if isinstance(value, str) else value
    is_valid = (
        isinstance(folder, str)
        and len(folder) <= _MAX_FOLDER_CHARS
        and folder.isprintable()
        and not {".", ".."} & set(folder.split("/"))
    )
    if not is_valid:
        raise InvalidRequest(
            f"{field} must be a folder's path of up to {_MAX_FOLDER_CHARS} printable characters, "
            f"got {describe_value(value)}",
            field,
        )
    return str(folder)


def find_region(endpoint_url: str) -> str | None:
    """Return the region in a server's host name, or None."""
    host = urlsplit(endpoint_url).hostname or ""
    if volume := _RUNPOD_VOLUME_HOST.fullmatch(host):
        return volume[1].upper()
    labels = host.split(".")
    if host.endswith(".digitaloceanspaces.com"):
        return labels[-3]
    # The label after `s3`, as in s3.eu-central-1.amazonaws.com.
    return labels[labels.index("s3") + 1] if "s3" in labels[:-3] else None


def open_bucket(bucket: Bucket) -> BlobStore:
    """Return the blob store of a bucket, without connecting to it."""
    # Importing boto3 takes a third of a second, and most workers need no bucket.
    from handler.delivery.blobs.s3 import S3Blobs, s3_client

    options: dict[str, Any] = {}
    if bucket.access_id is not None:
        options["aws_access_key_id"] = bucket.access_id
        options["aws_secret_access_key"] = bucket.access_secret
    url = bucket.endpoint_url
    if url is not None:
        options["region_name"] = find_region(url)
        url = _without_bucket(url, bucket.name)
    client = s3_client(url, _MAX_ATTEMPTS, _READ_TIMEOUT_S, **options)
    if bucket.targets is None:
        return S3Blobs(bucket.name, client)
    from handler.delivery.blobs.job_session import limit_client

    return S3Blobs(bucket.name, limit_client(client, bucket.targets), exposes_responses=False)


def _without_bucket(url: str, bucket: str) -> str:
    """Return a URL without the bucket's name in its host, because boto3 adds the name itself."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.removeprefix(f"{bucket}.")))
