"""The routes of the bucket: S3's operations on objects, with the bucket's name in the path."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from xml.sax.saxutils import escape

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from emulator.bucket.errors import BucketError, error_response, xml_response
from emulator.bucket.keys import BUCKET_PATH, BucketKeys
from emulator.bucket.multipart import MultipartUploads, read_part_list, read_part_number
from emulator.bucket.receiver import receive_file
from emulator.bucket.signature import check_signature
from emulator.bucket.storage import BucketStorage, StoredObject
from emulator.http.request_body import received_body
from emulator.http.route_facts import (
    Access,
    ApiRoute,
    OperationName,
    RequestLog,
    RouteFacts,
    RouteGroup,
)
from handler.logs.reasons import sanitize_for_log

logger = logging.getLogger(__name__)

_FACTS = RouteFacts(
    group=RouteGroup.PUBLIC,
    operation=OperationName.BUCKET,
    access=Access.SIGNATURE,
    log=RequestLog.FAILURES,
)
_MAX_KEY_BYTES = 1_024
# S3 allows 2 kB of metadata, and as much of other headers.
_MAX_METADATA_CHARS = 4_096
# A list of 10,000 parts with all their checksums.
_MAX_LIST_BYTES = 4_000_000
# The headers of an upload that are served with its object; `x-amz-meta-…` too.
_KEPT_HEADERS = (
    *("content-type", "content-disposition", "content-encoding", "content-language"),
    *("cache-control", "expires"),
)
_META_PREFIX = "x-amz-meta-"
# S3's own default.
_DEFAULT_TYPE = "binary/octet-stream"
# Parameters of a signed URL that replace a header of the object.
_OVERRIDES = {f"response-{name}": name for name in _KEPT_HEADERS}
_SIGNATURE_PARAMETERS = frozenset({"AWSAccessKeyId", "Signature", "Expires", "x-id"})
# Headers with which an upload would do something else than this server does.
_UNSUPPORTED_HEADERS = ("x-amz-copy-source", "if-match", "if-none-match")
# A page among the objects must not run with the rights of the console, which has the same origin.
_SAFE_HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "sandbox",
    "referrer-policy": "no-referrer",
}

_Operation = Callable[[Request, str, str], Awaitable[Response]]


class BucketRoutes:
    """S3's operations: put, get, head and delete an object, and upload one in parts."""

    def __init__(
        self,
        storage: BucketStorage,
        uploads: MultipartUploads,
        read_keys: Callable[[], BucketKeys],
        describe_retention: str,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._storage = storage
        self._uploads = uploads
        self._read_keys = read_keys
        self._describe_retention = describe_retention
        self._wall_clock = wall_clock
        # By the method, and by the query parameters that S3 tells operations apart by.
        self._operations: Mapping[tuple[str, frozenset[str]], _Operation] = {
            ("PUT", frozenset()): self._put,
            ("GET", frozenset()): self._get,
            ("HEAD", frozenset()): self._get,
            ("DELETE", frozenset()): self._delete,
            ("POST", frozenset({"uploads"})): self._create_upload,
            ("PUT", frozenset({"uploadId", "partNumber"})): self._put_part,
            ("POST", frozenset({"uploadId"})): self._complete_upload,
            ("DELETE", frozenset({"uploadId"})): self._abort_upload,
        }

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        methods = ["GET", "HEAD", "PUT", "POST", "DELETE"]
        # The first two are the list of the buckets, whose request is refused as others are.
        paths = ("", "/", "/{bucket}", "/{bucket}/{key:path}")
        return [
            ApiRoute(BUCKET_PATH + path, self._serve, methods=methods, facts=_FACTS)
            for path in paths
        ]

    async def _serve(self, request: Request) -> Response:
        bucket = request.path_params.get("bucket", "")
        key = request.path_params.get("key", "")
        try:
            check_signature(request.scope, self._read_keys(), self._wall_clock())
            return await self._find_operation(request, key)(request, bucket, key)
        except OSError as error:
            refusal = BucketError(
                "InsufficientStorage",
                507,
                f"the disk does not take the object: {error.strerror or error}",
            )
        except BucketError as error:
            refusal = error
        name = sanitize_for_log(f"{bucket}/{key}")
        logger.warning("%s %s in the bucket: %s: %s", request.method, name, refusal.code, refusal)
        response = error_response(refusal, request.method)
        if "expect" in request.headers:
            # A client that waits for status 100, as boto3 does, sends no body now. The next request
            # on this connection would be taken for it.
            response.headers["connection"] = "close"
        return response

    def _find_operation(self, request: Request, key: str) -> _Operation:
        """Return the operation of a request. Raises BucketError if there is none."""
        parameters = frozenset(
            name
            for name in request.query_params
            if not name.lower().startswith("x-amz-") and name not in _SIGNATURE_PARAMETERS
        )
        if request.method in ("GET", "HEAD"):
            parameters = parameters.difference(_OVERRIDES)
        operation = self._operations.get((request.method, parameters))
        if not key:
            # Every bucket exists, so that the names of the SDK (the month and year) do.
            names_bucket = "bucket" in request.path_params
            is_known = names_bucket and request.method in ("PUT", "HEAD") and not parameters
            operation = self._accept_bucket if is_known else None
        if operation is None:
            query = "".join(f" ?{name}" for name in sorted(parameters))
            raise _not_implemented(
                f"{request.method}{query} of {'an object' if key else 'a bucket'}"
            )
        if request.method in ("PUT", "POST"):
            for name in _UNSUPPORTED_HEADERS:
                if name in request.headers:
                    raise _not_implemented(f"{request.method} with {name}")
        if len(key.encode()) > _MAX_KEY_BYTES:
            raise BucketError("KeyTooLongError", 400, "Your key is too long")
        return operation

    async def _accept_bucket(self, request: Request, bucket: str, key: str) -> Response:
        return Response()

    async def _put(self, request: Request, bucket: str, key: str) -> Response:
        headers = _read_headers(request)
        file = await receive_file(request, self._storage)
        etag = f'"{file.md5}"'
        try:
            await self._storage.store(bucket, key, file, etag, headers, self._wall_clock())
        except OSError:
            await self._storage.discard(file)
            raise
        return Response(headers={"etag": etag})

    async def _get(self, request: Request, bucket: str, key: str) -> Response:
        stored = self._find(bucket, key)
        headers = {**stored.headers, "etag": stored.etag, **_SAFE_HEADERS}
        for parameter, header in _OVERRIDES.items():
            if (value := request.query_params.get(parameter)) is not None:
                headers[header] = _check_header(value, parameter)
        if headers["content-type"] == "application/pdf":
            # A browser shows it in a viewer of its own, which a sandbox would not allow.
            del headers["content-security-policy"]
        return FileResponse(self._storage.content_path(stored), headers=headers)

    async def _delete(self, request: Request, bucket: str, key: str) -> Response:
        # As in S3, deleting an object that does not exist succeeds.
        if (stored := self._storage.find(bucket, key)) is not None:
            await self._storage.delete(stored)
        return Response(status_code=204)

    async def _create_upload(self, request: Request, bucket: str, key: str) -> Response:
        headers = _read_headers(request)
        upload_id = self._uploads.create(bucket, key, headers, self._wall_clock())
        return xml_response(
            f"<InitiateMultipartUploadResult><Bucket>{escape(bucket)}</Bucket>"
            f"<Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId>"
            "</InitiateMultipartUploadResult>"
        )

    async def _put_part(self, request: Request, bucket: str, key: str) -> Response:
        number = read_part_number(request.query_params["partNumber"])
        upload = self._uploads.find(request.query_params["uploadId"], bucket, key)
        file = await receive_file(request, self._storage)
        await self._uploads.add_part(upload, number, file)
        return Response(headers={"etag": f'"{file.md5}"'})

    async def _complete_upload(self, request: Request, bucket: str, key: str) -> Response:
        upload = self._uploads.find(request.query_params["uploadId"], bucket, key)
        listed = read_part_list(await _read_list(request))
        etag = await self._uploads.complete(upload, listed)
        return xml_response(
            f"<CompleteMultipartUploadResult><Bucket>{escape(bucket)}</Bucket>"
            f"<Key>{escape(key)}</Key><ETag>{escape(etag)}</ETag>"
            "</CompleteMultipartUploadResult>"
        )

    async def _abort_upload(self, request: Request, bucket: str, key: str) -> Response:
        await self._uploads.abort(self._uploads.find(request.query_params["uploadId"], bucket, key))
        return Response(status_code=204)

    def _find(self, bucket: str, key: str) -> StoredObject:
        stored = self._storage.find(bucket, key)
        if stored is None:
            raise BucketError(
                "NoSuchKey", 404, f"there is no such object; {self._describe_retention}"
            )
        return stored


def _read_headers(request: Request) -> dict[str, str]:
    """Return the headers that an object is served with, from those of its upload.

    Raises BucketError if they are too long to be kept in memory.
    """
    headers = {
        name: value
        for name, value in request.headers.items()
        if name in _KEPT_HEADERS or name.startswith(_META_PREFIX)
    }
    headers.setdefault("content-type", _DEFAULT_TYPE)
    if sum(map(len, (*headers, *headers.values()))) > _MAX_METADATA_CHARS:
        raise BucketError(
            "MetadataTooLarge",
            400,
            "Your metadata headers exceed the maximum allowed metadata size",
        )
    encodings = [each.strip() for each in headers.pop("content-encoding", "").split(",")]
    # It is the encoding of the request, which the receiver has decoded.
    if encoding := ",".join(each for each in encodings if each not in ("", "aws-chunked")):
        headers["content-encoding"] = encoding
    return headers


def _check_header(value: str, parameter: str) -> str:
    if not value.isascii() or not value.isprintable():
        raise BucketError("InvalidArgument", 400, f"{parameter} must be printable ASCII")
    return value


async def _read_list(request: Request) -> bytes:
    received: Any = received_body(request)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_LIST_BYTES:
            raise BucketError("MalformedXML", 400, "the list of the parts is too long")
    if received is not None:
        received.release()
    return bytes(body)


def _not_implemented(operation: str) -> BucketError:
    return BucketError(
        "NotImplemented",
        501,
        f"the bucket of this server does not support {operation}: it puts, gets and deletes single "
        "objects. Set BUCKET_ENDPOINT_URL and its keys to use another bucket",
    )
