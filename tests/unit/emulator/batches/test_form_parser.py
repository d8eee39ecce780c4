"""A form with a file: the same, however the network cuts it up."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.batches.form_parser import Form
from handler.errors import InvalidRequest, UnsupportedMediaType

TYPE = "multipart/form-data; boundary=cut"


def part(disposition: str, body: bytes) -> bytes:
    return (
        f"--cut\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + body + b"\r\n"
    )


def body(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--cut--\r\n"


PURPOSE = part('name="purpose"', b"batch")
FILE = part('name="file"; filename="in.jsonl"', b"one\r\n--cu\r\ntwo\r\n")


def read(*pieces: bytes) -> tuple[Form, bytes]:
    form = Form(TYPE)
    file = b""
    for piece in pieces:
        form.feed(piece)
        assert form.held <= len(piece) + len("\r\n--cut")
        file += form.take()
    form.finish()
    return form, file


@given(cuts=st.lists(st.integers(0, len(body(PURPOSE, FILE))), max_size=20))
def test_pieces_do_not_matter(cuts: list[int]) -> None:
    whole = body(PURPOSE, FILE)
    places = [0, *sorted(cuts), len(whole)]
    form, file = read(*(whole[a:b] for a, b in pairwise(places)))
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
def test_names_are_only_names(disposition: str, name: str) -> None:
    form, _ = read(body(part(disposition, b"x")))
    assert form.filename == name


@pytest.mark.parametrize(
    ("sent", "said"),
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
def test_what_is_wrong_is_said(sent: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        read(sent)


@pytest.mark.parametrize("label", ["", "application/json", "multipart/mixed; boundary=cut"])
def test_other_types_are_refused(label: str) -> None:
    with pytest.raises(UnsupportedMediaType, match="multipart/form-data"):
        Form(label)


@pytest.mark.parametrize(
    "label", ["multipart/form-data", f"multipart/form-data; boundary={'x' * 500}"]
)
def test_a_boundary_must_be_one(label: str) -> None:
    with pytest.raises(InvalidRequest):
        Form(label)
