"""The server's own settings, from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.setting_error import SettingError
from emulator.settings.emulator_settings import EmulatorSettings
from handler.settings.engine_configs import build_engine_config
from handler.settings.shared_settings import read_settings
from tests.unit.deploy.reading import read

NAMES = ("HOST", "PORT", "ENDPOINT_ID", "MAX_BODY_MB", "STREAM_INTERVAL_MS")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, "API_KEYS", "CORS_ORIGINS", "FAULT_SEED"):
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
        ("HEAD_TIMEOUT_S", "0"),
        ("BODY_TIMEOUT_S", "-1"),
        ("READ_TIMEOUT_S", "nan"),
        ("FAULT_SEED", "x"),
        ("API_KEYS", " , "),
        ("MODEL_NAME_MAP", "claude-*"),
        ("CORS_ORIGINS", "app.example"),
        ("CORS_ORIGINS", "https://app.example/"),
        ("CORS_ORIGINS", "https://*.example"),
        ("CORS_ORIGINS", "https://App.example"),
        ("CORS_ORIGINS", "https://a.example https://b.example"),
    ],
)
def test_bad_value_ends_the_command_with_a_line_that_names_it(
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


@pytest.mark.parametrize(
    ("value", "keys"),
    [("", ()), ("one", ("one",)), (" one , two,", ("one", "two")), ("a b", ("a b",))],
)
def test_keys_are_separated_by_commas(
    value: str, keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEYS", value)
    assert read_settings(EmulatorSettings).keys() == keys


@pytest.mark.parametrize(
    ("value", "origins"),
    [
        ("", ()),
        ("*", ("*",)),
        (
            "https://a.example, http://localhost:3000,http://[::1]:80,app://obsidian.md",
            ("https://a.example", "http://localhost:3000", "http://[::1]:80", "app://obsidian.md"),
        ),
    ],
)
def test_origins_are_separated_by_commas(
    value: str, origins: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORS_ORIGINS", value)
    assert read_settings(EmulatorSettings).origins() == origins


def test_batch_folder_is_next_to_the_database_or_in_memory() -> None:
    assert EmulatorSettings(job_db="a/b.sqlite3").batch_folder() == Path("a/b.sqlite3.batches")
    assert EmulatorSettings(job_db=":memory:").batch_folder() is None
    kept = EmulatorSettings(job_db=":memory:", batch_dir=Path("c"))
    assert kept.batch_folder() == Path("c")


@pytest.mark.parametrize(("value", "expected"), [(None, 15), ("2.5", 2.5), ("off", None)])
def test_comments_can_be_turned_off(
    monkeypatch: pytest.MonkeyPatch, value: str | None, expected: float | None
) -> None:
    monkeypatch.delenv("STREAM_COMMENTS_AFTER_S", raising=False)
    if value is not None:
        monkeypatch.setenv("STREAM_COMMENTS_AFTER_S", value)
    assert read_settings(EmulatorSettings).stream_comments_after_s == expected


@pytest.mark.parametrize(
    ("variables", "has_engine"),
    [
        ({}, True),
        ({"LOCAL_WORKER": "off"}, False),
        ({"LOCAL_WORKER": "off", "MODEL_PATH": "/m.gguf"}, True),
        ({"LOCAL_WORKER": "off", "ENGINE": "scripted"}, True),
        ({"LOCAL_WORKER": "off", "MODEL_PULL": "on"}, True),
        ({"ENGINE": "none"}, False),
        ({"ENGINE": "none", "MODEL_PATH": "/m.gguf"}, False),
    ],
)
def test_model_is_loaded_if_the_server_or_a_setting_needs_one(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], has_engine: bool
) -> None:
    settings = read(EmulatorSettings, variables, monkeypatch)
    assert settings.has_engine is has_engine
    assert settings.local_worker is (not variables)


def test_engine_none_is_refused_where_an_engine_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read(EmulatorSettings, {"ENGINE": "none"}, monkeypatch)
    with pytest.raises(SettingError, match="ENGINE=none is for the server alone"):
        build_engine_config(settings)
