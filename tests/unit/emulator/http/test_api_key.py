"""The key of a request, in every form in which clients send it."""

from __future__ import annotations

from typing import Any

import pytest

from emulator.http.api_key import read_api_key
from tests.unit.emulator.server_routes import with_route


def scope(*headers: tuple[str, str], path: str = "/chat/completions") -> dict[str, Any]:
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return with_route({"type": "http", "method": "POST", "path": path, "headers": encoded})


FORMS: list[list[tuple[str, str]]] = [
    [("authorization", "Bearer K")],
    [("authorization", "bearer K")],
    [("authorization", "BEARER  K ")],
    [("authorization", "  K")],
    [("x-api-key", " K ")],
    [("authorization", "Bearer K"), ("x-api-key", "other")],
]


@pytest.mark.parametrize("headers", FORMS)
def test_key_is_the_same_in_every_form(headers: list[tuple[str, str]]) -> None:
    assert read_api_key(scope(*headers)) == b"K"


def test_request_needs_a_single_key() -> None:
    assert read_api_key(scope()) is None
    assert read_api_key(scope(("authorization", "K"), ("authorization", "L"))) is None
    assert read_api_key(scope(("x-api-key", "K"), path="/v2/a/job-take/w")) is None
