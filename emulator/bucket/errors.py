"""Errors of the bucket in S3's XML, with the codes that S3's clients know."""

from __future__ import annotations

from xml.sax.saxutils import escape

from starlette.responses import Response

_XML = "application/xml"


class BucketError(Exception):
    """A request that the bucket refuses: S3's code, the HTTP status and one sentence."""

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


def xml_response(text: str, status: int = 200) -> Response:
    """Return a response with an XML document, given without its declaration."""
    document = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'
    return Response(document, status, media_type=_XML)


def error_response(error: BucketError, method: str) -> Response:
    """Return the response to a refused request; one to HEAD has no body."""
    if method == "HEAD":
        return Response(status_code=error.status, media_type=_XML)
    message = escape(str(error))
    text = f"<Error><Code>{error.code}</Code><Message>{message}</Message></Error>"
    return xml_response(text, error.status)
