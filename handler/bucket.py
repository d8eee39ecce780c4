"""A bucket for results, as a job's `s3Config` or the settings name it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from handler.blobs import BlobStore
from handler.errors import InvalidRequest
from handler.outbound_targets import OutboundPolicy, TargetRefused
from handler.sampling import describe_value

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
# As keys and secrets are written; anything else could end up in a header, or in its error.
_SECRET = re.compile(r"[!-~]{1,1000}")
_LONGEST_URL = 2_000
_LONGEST_FOLDER = 500
_RUNPOD_VOLUMES = re.compile(r"s3api-([a-z0-9-]+)\.runpod\.io")
# Somebody waits for the job, and the end of a worker for its uploads.
_TRIES, _ANSWER_S = 3, 20.0
_NEEDED = ("accessId", "accessSecret", "bucketName", "endpointUrl")
_ANY_TARGET = OutboundPolicy()
_KINDS = {"NoneType": "none", "str": "a string", "bool": "true or false", "list": "an array"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket of Amazon's, or of the server at `endpoint_url`; without a name it is the month's.

    Without a pair of keys the usual chain of credentials is asked. A folder has no slash at its
    ends; an empty one is none. `targets` limits the connections to a bucket that a job names; a
    bucket of the settings has none.
    """

    name: str = ""
    endpoint_url: str | None = None
    access_id: str | None = field(default=None, repr=False)
    access_secret: str | None = field(default=None, repr=False)
    folder: str = ""
    targets: OutboundPolicy | None = None

    def key(self, name: str) -> str:
        """Return the key of an object in the folder."""
        return f"{self.folder}/{name}" if self.folder else name

    def without_secrets(self, text: str) -> str:
        """Return a text in which neither of the keys is shown."""
        for secret in (self.access_secret, self.access_id):
            if secret:
                text = text.replace(secret, "***")
        return text


def read_s3_config(given: Any, targets: OutboundPolicy = _ANY_TARGET) -> Bucket:
    """Return the bucket of a job's `s3Config`, whose server must be one of the `targets`.

    Raises:
        InvalidRequest: a field is missing or wrong; the sentence names it and contains no secret.
    """
    if not isinstance(given, Mapping):
        raise InvalidRequest(
            f"s3Config must be an object with {', '.join(_NEEDED)}, got {describe_type(given)}",
            "s3Config",
        )
    texts = {name: _text(given.get(name), f"s3Config.{name}") for name in _NEEDED}
    folder = given.get("objectPath")
    return Bucket(
        name=check_name(texts["bucketName"], "s3Config.bucketName"),
        endpoint_url=check_target(
            check_url(texts["endpointUrl"], "s3Config.endpointUrl"),
            "s3Config.endpointUrl",
            targets,
        ),
        access_id=check_secret(texts["accessId"], "s3Config.accessId"),
        access_secret=check_secret(texts["accessSecret"], "s3Config.accessSecret"),
        folder="" if folder is None else _folder(folder, "s3Config.objectPath"),
        targets=targets,
    )


def check_name(name: str, field: str) -> str:
    """Return a bucket's name. Raises InvalidRequest."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{field} must be a bucket's name (letters, digits, dots, hyphens), "
            f"got {describe_value(name)}",
            field,
        )
    return name


def check_url(url: str, field: str) -> str:
    """Return a server's address. Raises InvalidRequest."""
    wanted = f"{field} must be an http or https address like https://s3.eu-central-1.amazonaws.com"
    try:
        parts = urlsplit(url)
        # A port that is none raises when it is asked for.
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    else:
        if parts.username is not None or parts.query or parts.fragment:
            # There may be a secret in it.
            raise InvalidRequest(f"{wanted}, without user, query and fragment", field)
    if not whole or len(url) > _LONGEST_URL or not re.fullmatch(r"[!-~]+", url):
        raise InvalidRequest(f"{wanted}, got {describe_value(url)}", field)
    return url.rstrip("/")


def check_target(url: str, field: str, targets: OutboundPolicy) -> str:
    """Return a URL whose host is no private address, as far as the URL shows it.

    Raises:
        InvalidRequest: it is one, and `targets` allows none.
    """
    try:
        targets.check_url(url)
    except TargetRefused as error:
        raise InvalidRequest(f"{field}: {error}", field) from None
    return url


def check_secret(secret: str, field: str) -> str:
    """Return one of a pair of keys. Raises InvalidRequest, which does not show it."""
    if not _SECRET.fullmatch(secret):
        raise InvalidRequest(f"{field} must be up to 1000 ASCII characters without spaces", field)
    return secret


def describe_type(value: Any) -> str:
    """Return what a value is, in a word that tells nothing of it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "a number"
    return _KINDS.get(type(value).__name__, "an object")


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value:
        got = "an empty string" if value == "" else describe_type(value)
        raise InvalidRequest(f"{field} must be a non-empty string, got {got}", field)
    return value


def _folder(given: Any, field: str) -> str:
    folder = given.strip("/") if isinstance(given, str) else given
    whole = (
        isinstance(folder, str)
        and len(folder) <= _LONGEST_FOLDER
        and folder.isprintable()
        and not {".", ".."} & set(folder.split("/"))
    )
    if not whole:
        raise InvalidRequest(
            f"{field} must be a folder's path of up to {_LONGEST_FOLDER} printable characters, "
            f"got {describe_value(given)}",
            field,
        )
    return str(folder)


def find_region(endpoint_url: str) -> str | None:
    """Return the region that the name of a server tells; None where it tells none."""
    host = urlsplit(endpoint_url).hostname or ""
    if volume := _RUNPOD_VOLUMES.fullmatch(host):
        return volume[1].upper()
    labels = host.split(".")
    if host.endswith(".digitaloceanspaces.com"):
        return labels[-3]
    # Between the word and the domain.
    return labels[labels.index("s3") + 1] if "s3" in labels[:-3] else None


def open_bucket(bucket: Bucket) -> BlobStore:
    """Return the blobs of a bucket; nothing is asked of it yet."""
    # A third of a second of importing, and most workers never need it.
    from handler.blobs.s3 import S3Blobs, s3_client

    given: dict[str, Any] = {}
    if bucket.access_id is not None:
        given["aws_access_key_id"] = bucket.access_id
        given["aws_secret_access_key"] = bucket.access_secret
    url = bucket.endpoint_url
    if url is not None:
        given["region_name"] = find_region(url)
        url = _server(url, bucket.name)
    client = s3_client(url, _TRIES, _ANSWER_S, **given)
    if bucket.targets is None:
        return S3Blobs(bucket.name, client)
    from handler.blobs.job_session import limit_client

    return S3Blobs(bucket.name, limit_client(client, bucket.targets), shows_answers=False)


def _server(url: str, bucket: str) -> str:
    """Return an address without the bucket's name, which some give with it: boto3 adds its own."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.removeprefix(f"{bucket}.")))
