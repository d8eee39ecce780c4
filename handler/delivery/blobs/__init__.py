"""Named bytes, in a folder or in a bucket."""

from __future__ import annotations

from handler.delivery.blobs.blob import (
    BlobDenied,
    BlobError,
    BlobInfo,
    BlobNotFound,
    BlobStore,
    BlobUnavailable,
    BlobUnsupported,
)

__all__ = [
    "BlobDenied",
    "BlobError",
    "BlobInfo",
    "BlobNotFound",
    "BlobStore",
    "BlobUnavailable",
    "BlobUnsupported",
]
