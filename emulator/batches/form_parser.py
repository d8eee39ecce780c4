"""Parses a multipart form with one file incrementally, as its bytes arrive."""

from __future__ import annotations

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from handler.errors import InvalidRequest, UnsupportedMediaType

_MEDIA_TYPE = "multipart/form-data"
# The time to parse a content type grows with the square of its length.
_MAX_CONTENT_TYPE_CHARS = 1_024
_MAX_PARTS = 32
_MAX_FIELD_BYTES = 4_096
_MAX_FILENAME_CHARS = 255
# The name of a file that is sent without one.
_DEFAULT_FILENAME = "file.jsonl"


class FormParser:
    """Collects the fields of a form, and buffers the bytes of its file until they are taken.

    Owned by the task that reads the request.
    """

    def __init__(self, content_type: str, file_field: str = "file") -> None:
        """Create a parser for a content type. Raises UnsupportedMediaType or InvalidRequest."""
        if len(content_type) > _MAX_CONTENT_TYPE_CHARS:
            raise InvalidRequest(
                f"the content type is longer than {_MAX_CONTENT_TYPE_CHARS} characters"
            )
        media_type, options = parse_options_header(content_type)
        if media_type.decode("latin-1").strip() != _MEDIA_TYPE:
            raise UnsupportedMediaType(
                f"the content type must be {_MEDIA_TYPE}, with the file in it"
            )
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._file_field = file_field
        self._file_buffer = bytearray()
        self._field_buffer = bytearray()
        self._part_count = 0
        self._headers: dict[bytes, bytes] = {}
        self._header_name = self._header_value = b""
        self._field_name = ""
        self._is_complete = False
        boundary = options.get(b"boundary")
        if not boundary:
            raise InvalidRequest("the content type must have a boundary")
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._on_part_begin,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            raise InvalidRequest(f"the body is not a form: {error}") from None

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the body. Raises InvalidRequest."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidRequest(f"the body is not a form: {error}") from None

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes of the file that are buffered."""
        return len(self._file_buffer)

    def take_buffered(self) -> bytes:
        """Return the buffered bytes of the file and empty the buffer."""
        data = bytes(self._file_buffer)
        self._file_buffer.clear()
        return data

    def finish(self) -> None:
        """Check that the form is complete and has a file. Raises InvalidRequest."""
        if not self._is_complete:
            raise InvalidRequest("the body is not a form: it ends too early")
        if self.filename is None:
            raise InvalidRequest(f"{self._file_field} must be given", self._file_field)

    def _on_part_begin(self) -> None:
        self._part_count += 1
        if self._part_count > _MAX_PARTS:
            raise InvalidRequest(f"the form has more than {_MAX_PARTS} parts")
        self._headers = {}
        self._header_name = self._header_value = b""
        self._field_buffer.clear()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._header_name.lower()] = self._header_value
        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._field_name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._field_name != self._file_field:
            return
        if self.filename is not None:
            raise InvalidRequest(f"{self._file_field} must be given once", self._file_field)
        filename = options.get(b"filename", b"").decode("utf-8", "replace")
        self.filename = filename[:_MAX_FILENAME_CHARS] or _DEFAULT_FILENAME

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._field_name == self._file_field:
            self._file_buffer += data[start:end]
            return
        self._field_buffer += data[start:end]
        if len(self._field_buffer) > _MAX_FIELD_BYTES:
            raise InvalidRequest(f"{self._field_name[:60]} is longer than {_MAX_FIELD_BYTES} bytes")

    def _on_part_end(self) -> None:
        if self._field_name != self._file_field:
            self.fields[self._field_name] = self._field_buffer.decode("utf-8", "replace")

    def _on_end(self) -> None:
        self._is_complete = True
