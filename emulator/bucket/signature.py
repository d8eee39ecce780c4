"""Check the signature of a request to the bucket: AWS Signature Version 4, or 2 in a URL.

RunPod's SDK signs with version 4. boto3's own default for the URL of an object is version 2.
botocore cannot be used for this: it signs requests and verifies none, and is no dependency.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, unquote

from starlette.types import Scope

from common.digits import parse_digits
from emulator.bucket.errors import BucketError
from emulator.bucket.keys import BucketKeys

_ALGORITHM = "AWS4-HMAC-SHA256"
_HEADER = re.compile(
    rf"{_ALGORITHM} +Credential=(?P<credential>[^,\s]+),\s*"
    r"SignedHeaders=(?P<headers>[^,\s]+),\s*Signature=(?P<signature>[0-9a-f]{64})"
)
_UNSIGNED = "UNSIGNED-PAYLOAD"
# How far the clocks of client and server may differ, as in S3.
_MAX_SKEW_S = 900
# S3's maximum lifetime of a URL that is signed with version 4.
_MAX_LIFETIME_S = 604_800
# Query parameters that version 2 signs as part of the path.
_SIGNED_PARAMETERS = frozenset(
    {
        *("uploads", "uploadId", "partNumber"),
        *("response-content-type", "response-content-disposition", "response-cache-control"),
        *("response-content-encoding", "response-content-language", "response-expires"),
    }
)


@dataclass(frozen=True, slots=True)
class _SignedRequest:
    """The parts of a request that a signature covers; paths and names are decoded."""

    method: str
    path: str
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    # Where a client on the server's machine sends its requests to.
    local_host: str

    @classmethod
    def read(cls, scope: Scope) -> _SignedRequest:
        headers: dict[str, str] = {}
        for raw_name, raw_value in scope["headers"]:
            name, value = raw_name.decode("latin-1"), " ".join(raw_value.decode("latin-1").split())
            headers[name] = f"{headers[name]},{value}" if name in headers else value
        return cls(
            scope["method"],
            unquote(scope["raw_path"].decode("latin-1")),
            parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True),
            headers,
            f"127.0.0.1:{(scope.get('server') or ('', 0))[1]}",
        )

    def hosts(self) -> tuple[str, ...]:
        """Return the names of the server that the client may have signed.

        A worker signs a URL for the server's own machine. It opens on another machine, or behind a
        forwarded port, if its host is replaced by the one that this machine can reach.
        """
        return self.headers.get("host", ""), self.local_host


def check_signature(scope: Scope, keys: BucketKeys, now: float) -> None:
    """Check that a request is signed with the keys, by a header or by its query, and is in time.

    Raises:
        BucketError: it is not.
    """
    request = _SignedRequest.read(scope)
    query = dict(request.query)
    if "X-Amz-Signature" in query:
        _check_signed_url(request, query, keys, now)
    elif "Signature" in query:
        _check_signed_url_2(request, query, keys, now)
    elif "authorization" in request.headers:
        _check_header(request, keys, now)
    else:
        raise BucketError(
            "AccessDenied",
            403,
            "the request has no signature: open the whole URL, with its query, or send the bucket's"
            " keys",
        )


def _check_signed_url(
    request: _SignedRequest, query: Mapping[str, str], keys: BucketKeys, now: float
) -> None:
    names = query.get("X-Amz-SignedHeaders", "").split(";")
    date = query.get("X-Amz-Date", "")
    lifetime_s = parse_digits(query.get("X-Amz-Expires", ""), max_digits=7)
    if query.get("X-Amz-Algorithm") != _ALGORITHM or lifetime_s is None:
        raise _malformed_query("it needs X-Amz-Algorithm, X-Amz-Date and X-Amz-Expires")
    if lifetime_s > _MAX_LIFETIME_S:
        raise _malformed_query("X-Amz-Expires must be less than a week (in seconds)")
    rest = [(name, value) for name, value in request.query if name != "X-Amz-Signature"]
    credential = query.get("X-Amz-Credential", "")
    payload_hash = query.get("X-Amz-Content-Sha256", _UNSIGNED)
    _check_version_4(
        request, rest, credential, names, date, payload_hash, query["X-Amz-Signature"], keys
    )
    signed_at = _parse_date(date)
    if signed_at > now + _MAX_SKEW_S:
        raise BucketError("AccessDenied", 403, "Request is not yet valid")
    if signed_at + lifetime_s < now:
        raise _expired()


def _check_signed_url_2(
    request: _SignedRequest, query: Mapping[str, str], keys: BucketKeys, now: float
) -> None:
    _check_key_id(query.get("AWSAccessKeyId", ""), keys)
    expires = parse_digits(query.get("Expires", ""), max_digits=12)
    if expires is None:
        raise _malformed_query("it needs AWSAccessKeyId, Signature and Expires")
    signed = sorted(
        f"{name}={value}" if value else name
        for name, value in request.query
        if name in _SIGNED_PARAMETERS
    )
    amazon_headers = "".join(
        f"{name}:{request.headers[name]}\n"
        for name in sorted(request.headers)
        if name.startswith("x-amz-")
    )
    headers = [request.headers.get(name, "") for name in ("content-md5", "content-type")]
    # Clients that take the path from the address of the bucket sign it, and others leave it out.
    for path in _paths_of_version_2(request.path):
        resource = path + ("?" + "&".join(signed) if signed else "")
        text = "\n".join(
            [request.method, *headers, query["Expires"], f"{amazon_headers}{resource}"]
        )
        digest = hmac.digest(keys.secret.encode(), text.encode(), hashlib.sha1)
        if hmac.compare_digest(base64.b64encode(digest), query["Signature"].encode()):
            break
    else:
        raise _does_not_match()
    if expires < now:
        raise _expired()


def _paths_of_version_2(path: str) -> tuple[str, ...]:
    encoded = quote(path, safe="/~")
    return encoded, "/" + encoded.split("/", 2)[2]


def _check_header(request: _SignedRequest, keys: BucketKeys, now: float) -> None:
    match = _HEADER.fullmatch(request.headers["authorization"])
    if match is None:
        raise BucketError(
            "InvalidRequest",
            400,
            "The authorization mechanism you have provided is not supported. Please use "
            f"{_ALGORITHM}.",
        )
    names = match["headers"].split(";")
    payload_hash = request.headers.get("x-amz-content-sha256", "")
    if not {"x-amz-content-sha256", "x-amz-date"} <= set(names):
        raise BucketError(
            "AccessDenied", 403, "x-amz-content-sha256 and x-amz-date must be signed headers"
        )
    date = request.headers.get("x-amz-date", "")
    _check_version_4(
        request,
        request.query,
        match["credential"],
        names,
        date,
        payload_hash,
        match["signature"],
        keys,
    )
    if abs(_parse_date(date) - now) > _MAX_SKEW_S:
        raise BucketError(
            "RequestTimeTooSkewed",
            403,
            "The difference between the request time and the current time is too large.",
        )


def _check_version_4(
    request: _SignedRequest,
    query: Sequence[tuple[str, str]],
    credential: str,
    signed_headers: Sequence[str],
    date: str,
    payload_hash: str,
    signature: str,
    keys: BucketKeys,
) -> None:
    key_id, *scope = credential.split("/")
    _check_key_id(key_id, keys)
    if len(scope) != 4 or "host" not in signed_headers:
        raise _does_not_match()
    encoded = sorted((quote(name, safe="~"), quote(value, safe="~")) for name, value in query)
    canonical_query = "&".join(f"{name}={value}" for name, value in encoded)
    key = f"AWS4{keys.secret}".encode()
    for part in scope:
        key = hmac.digest(key, part.encode(), hashlib.sha256)
    for host in request.hosts():
        headers = {**request.headers, "host": host}
        lines = [f"{name}:{headers.get(name, '')}" for name in signed_headers]
        canonical_request = "\n".join(
            [
                request.method,
                quote(request.path, safe="/~"),
                canonical_query,
                *lines,
                "",
                ";".join(signed_headers),
                payload_hash,
            ]
        )
        digest = hashlib.sha256(canonical_request.encode()).hexdigest()
        text = "\n".join([_ALGORITHM, date, "/".join(scope), digest])
        expected = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        if hmac.compare_digest(expected.encode(), signature.encode()):
            return
    raise _does_not_match()


def _check_key_id(key_id: str, keys: BucketKeys) -> None:
    if not hmac.compare_digest(key_id.encode(), keys.access_key_id.encode()):
        raise BucketError(
            "InvalidAccessKeyId",
            403,
            "the access key id is not that of this server's bucket, which the workers that it "
            "starts have as BUCKET_ACCESS_KEY_ID",
        )


def _parse_date(date: str) -> float:
    try:
        return datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise BucketError("AccessDenied", 403, "the date of the signature is invalid") from None


def _malformed_query(message: str) -> BucketError:
    return BucketError("AuthorizationQueryParametersError", 400, f"the URL is invalid: {message}")


def _does_not_match() -> BucketError:
    return BucketError(
        "SignatureDoesNotMatch",
        403,
        "the signature does not belong to this request and the keys of this server's bucket",
    )


def _expired() -> BucketError:
    return BucketError("AccessDenied", 403, "Request has expired")
