"""The variables of a client."""

from __future__ import annotations

import pytest

from emulator.torture.server import client_variables


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "127.0.0.1"),
        ({"NO_PROXY": "a.example"}, "a.example,127.0.0.1"),
        ({"NO_PROXY": "a.example", "no_proxy": "b.example,"}, "b.example,a.example,127.0.0.1"),
        ({"NO_PROXY": "*", "no_proxy": "*"}, "*,127.0.0.1"),
    ],
)
def test_client_reaches_the_server_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert {client_variables(1)[name] for name in ("NO_PROXY", "no_proxy")} == {expected}
