"""Which values of the Host header are accepted, by HOST, ALLOWED_HOSTS and API_KEYS."""

from __future__ import annotations

import pytest

from emulator.http.allowed_hosts import AllowedHosts, is_entry

EVERYWHERE = "0.0.0.0"  # noqa: S104 - the address under test


@pytest.mark.parametrize(
    ("bound", "entries", "has_keys", "host", "allowed"),
    [
        ("127.0.0.1", (), False, "localhost:8000", True),
        ("127.0.0.1", (), False, "[::1]:8000", True),
        ("127.0.0.1", (), True, "worker", False),
        ("127.0.0.1", (), True, "192.0.2.7", False),
        ("192.0.2.7", (), True, "192.0.2.7:8000", True),
        ("192.0.2.7", (), True, "192.0.2.8:8000", False),
        ("board.lan", (), True, "board.lan", True),
        (EVERYWHERE, (), False, "192.0.2.7:8000", True),
        ("::", (), False, "[2001:db8::1]:8000", True),
        (EVERYWHERE, (), False, "worker:8000", False),
        (EVERYWHERE, (), True, "worker:8000", True),
        (EVERYWHERE, (), True, "worker.default.svc.cluster.local", True),
        (EVERYWHERE, (), True, "host.docker.internal", True),
        (EVERYWHERE, (), True, "evil.example", False),
        (EVERYWHERE, (), True, "", False),
        ("127.0.0.1", ("llm.example.com",), False, "LLM.example.com:443", True),
        ("127.0.0.1", ("llm.example.com",), False, "a.llm.example.com", False),
        ("127.0.0.1", ("*.example.com",), False, "a.example.com", True),
        ("127.0.0.1", ("*.example.com",), False, "badexample.com", False),
        ("127.0.0.1", ("*",), False, "evil.example", True),
    ],
)
def test_allowed_hosts_accepts_the_servers_names(
    bound: str, entries: tuple[str, ...], has_keys: bool, host: str, allowed: bool
) -> None:
    hosts = AllowedHosts(bound, entries, has_keys=has_keys)
    assert hosts.allows(host.encode()) is allowed


@pytest.mark.parametrize("text", ["llm.example.com", "*.a.b", "*", "::1", "[::1]", "192.0.2.7"])
def test_is_entry_accepts_names_and_addresses(text: str) -> None:
    assert is_entry(text)


@pytest.mark.parametrize("text", ["http://a", "a:80", "a/b", "a.*", "a b", "[a"])
def test_is_entry_rejects_invalid_names(text: str) -> None:
    assert not is_entry(text)
