"""The form parser: the result does not depend on how the body is split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.batches.form_parser import FormParser
from handler.errors import InvalidRequest, UnsupportedMediaType

CONTENT_TYPE = "multipart/form-data; boundary=cut"


def part(disposition: str, content: bytes) -> bytes:
    return (
        f"--cut\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode()
        + content
        + b"\r\n"
    )


def body(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--cut--\r\n"


PURPOSE = part('name="purpose"', b"batch")
FILE = part('name="file"; filename="in.jsonl"', b"one\r\n--cu\r\ntwo\r\n")


def parse(*chunks: bytes) -> tuple[FormParser, bytes]:
    form = FormParser(CONTENT_TYPE)
    file = b""
    for chunk in chunks:
        form.feed(chunk)
        assert form.buffered_bytes <= len(chunk) + len("\r\n--cut")
        file += form.take_buffered()
    form.finish()
    return form, file


@given(cuts=st.lists(st.integers(0, len(body(PURPOSE, FILE))), max_size=20))
def test_result_does_not_depend_on_the_chunks(cuts: list[int]) -> None:
    complete = body(PURPOSE, FILE)
    offsets = [0, *sorted(cuts), len(complete)]
    form, file = parse(*(complete[a:b] for a, b in pairwise(offsets)))
    assert (form.fields, form.filename) == ({"purpose": "batch"}, "in.jsonl")
    assert file == b"one\r\n--cu\r\ntwo\r\n"


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ('name="file"', "file.jsonl"),
        ('name="file"; filename=""', "file.jsonl"),
        ('name="file"; filename="ä b.jsonl"', "ä b.jsonl"),
        (f'name="file"; filename="{"x" * 300}"', "x" * 255),
        ('name="file"; filename="../../etc/passwd"', "../../etc/passwd"),
    ],
)
def test_filename_is_kept_as_text_with_a_default_and_a_maximum_length(
    disposition: str, name: str
) -> None:
    form, _ = parse(body(part(disposition, b"x")))
    assert form.filename == name


@pytest.mark.parametrize(
    ("body_bytes", "reason"),
    [
        (body(PURPOSE), "file must be given"),
        (body(FILE, FILE), "file must be given once"),
        (body(PURPOSE, FILE)[:-8], "ends too early"),
        (b"", "ends too early"),
        (b"what is this", "is not a form"),
        (body(part('name="much"', b"x" * 5000)), "much is longer than 4096 bytes"),
        (body(*[PURPOSE] * 40), "more than 32 parts"),
    ],
)
def test_invalid_form_is_refused_with_the_reason(body_bytes: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        parse(body_bytes)


@pytest.mark.parametrize("content_type", ["", "application/json", "multipart/mixed; boundary=cut"])
def test_other_media_types_are_refused(content_type: str) -> None:
    with pytest.raises(UnsupportedMediaType, match="multipart/form-data"):
        FormParser(content_type)


@pytest.mark.parametrize(
    "content_type", ["multipart/form-data", f"multipart/form-data; boundary={'x' * 500}"]
)
def test_missing_or_long_boundary_is_refused(content_type: str) -> None:
    with pytest.raises(InvalidRequest):
        FormParser(content_type)
