"""The server's own settings, from the environment."""

from __future__ import annotations

import pytest

from emulator.settings import EmulatorSettings
from handler.settings import read_settings

NAMES = ("HOST", "PORT", "ENDPOINT_ID", "MAX_BODY_MB", "STREAM_INTERVAL_MS")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_defaults_serve_this_machine_only() -> None:
    settings = read_settings(EmulatorSettings)
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.endpoint_id == "default"
    assert (settings.max_body_mb, settings.stream_interval_ms) == (20, 0)


def test_environment_is_read_by_plain_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(NAMES, ("192.0.2.1", "0", "mine", "0.5", "20"), strict=True):
        monkeypatch.setenv(name, value)
    settings = read_settings(EmulatorSettings)
    assert (settings.host, settings.port) == ("192.0.2.1", 0)
    assert settings.endpoint_id == "mine"
    assert (settings.max_body_mb, settings.stream_interval_ms) == (0.5, 20)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "http"),
        ("PORT", "65536"),
        ("PORT", "-1"),
        ("MAX_BODY_MB", "0"),
        ("MAX_BODY_MB", "-1"),
        ("STREAM_INTERVAL_MS", "-1"),
    ],
)
def test_bad_value_ends_with_a_line_that_names_it(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as leaving:
        read_settings(EmulatorSettings)
    assert leaving.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{name}: ")
    assert repr(value) in line


def test_empty_value_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "")
    assert read_settings(EmulatorSettings).port == 8000
