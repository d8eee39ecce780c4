"""A form with one file in it, read as it comes."""

from __future__ import annotations

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from handler.errors import InvalidRequest, UnsupportedMediaType

_TYPE = "multipart/form-data"
# The parser takes time that grows with the square of this.
_MAX_CONTENT_TYPE_CHARS = 1_024
_MOST_PARTS = 32
_MOST_FIELD_BYTES = 4_096
_MOST_NAME_CHARS = 255
# Of a file whose sender did not name it.
_NAMELESS = "file.jsonl"


class Form:
    """Takes a body in pieces and keeps its fields; the file's bytes are there to be taken away.

    Owned by the task that reads the request.
    """

    def __init__(self, content_type: str, file_field: str = "file") -> None:
        """Prepare for a body. Raises UnsupportedMediaType or InvalidRequest."""
        if len(content_type) > _MAX_CONTENT_TYPE_CHARS:
            raise InvalidRequest(
                f"the content type is longer than {_MAX_CONTENT_TYPE_CHARS} characters"
            )
        label, options = parse_options_header(content_type)
        if label.decode("latin-1").strip() != _TYPE:
            raise UnsupportedMediaType(f"the content type must be {_TYPE}, with the file in it")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._file_field = file_field
        self._file = bytearray()
        self._field = bytearray()
        self._parts = 0
        self._headers: dict[bytes, bytes] = {}
        self._header = self._value = b""
        self._name = ""
        self._ended = False
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

    def feed(self, piece: bytes) -> None:
        """Take a piece of the body. Raises InvalidRequest."""
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise InvalidRequest(f"the body is not a form: {error}") from None

    @property
    def held(self) -> int:
        """How many bytes of the file wait to be taken."""
        return len(self._file)

    def take(self) -> bytes:
        """Return the bytes of the file that have come since the last time."""
        taken = bytes(self._file)
        self._file.clear()
        return taken

    def finish(self) -> None:
        """See that it is whole. Raises InvalidRequest."""
        if not self._ended:
            raise InvalidRequest("the body is not a form: it ends too early")
        if self.filename is None:
            raise InvalidRequest(f"{self._file_field} must be given", self._file_field)

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise InvalidRequest(f"the form has more than {_MOST_PARTS} parts")
        self._headers = {}
        self._header = self._value = b""
        self._field.clear()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header = self._value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name != self._file_field:
            return
        if self.filename is not None:
            raise InvalidRequest(f"{self._file_field} must be given once", self._file_field)
        given = options.get(b"filename", b"").decode("utf-8", "replace")
        self.filename = given[:_MOST_NAME_CHARS] or _NAMELESS

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name == self._file_field:
            self._file += data[start:end]
            return
        self._field += data[start:end]
        if len(self._field) > _MOST_FIELD_BYTES:
            raise InvalidRequest(f"{self._name[:60]} is longer than {_MOST_FIELD_BYTES} bytes")

    def _on_part_end(self) -> None:
        if self._name != self._file_field:
            self.fields[self._name] = self._field.decode("utf-8", "replace")

    def _on_end(self) -> None:
        self._ended = True
