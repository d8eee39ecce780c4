"""The log block at the start names the settings that a user needs, and no secret."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from common.usable_cpus import describe_usable_cpus
from emulator.server.start_log import changed_settings, log_start, version
from emulator.settings.emulator_settings import EmulatorSettings
from handler.logs.console import ConsoleFormatter
from handler.logs.json_lines import FIELDS

URL = "http://127.0.0.1:8123"
SECRET = "hunter2"


def settings(**changes: Any) -> EmulatorSettings:
    return EmulatorSettings.model_construct(**changes)


def test_defaults_are_not_listed() -> None:
    assert changed_settings(settings()) == {}


def test_changed_settings_are_written_as_variables() -> None:
    changed = settings(port=1, drain_s=2.5, metrics_open=True, model_path=Path("/m/a.gguf"))
    assert changed_settings(changed) == {
        "MODEL_PATH": "/m/a.gguf",
        "PORT": "1",
        "METRICS_OPEN": "on",
        "DRAIN_S": "2.5",
    }


@pytest.mark.parametrize(
    "secret",
    [
        {"api_keys": SECRET},
        {"bucket_access_key_id": SECRET},
        {"bucket_secret_access_key": SecretStr(SECRET)},
        {"bucket_endpoint_url": f"https://user:{SECRET}@s3.example.com/x"},
        {"otel_exporter_otlp_endpoint": f"https://host/v1?token={SECRET}"},
    ],
)
def test_secrets_are_masked(secret: dict[str, object]) -> None:
    (masked,) = changed_settings(settings(**secret).model_copy()).values()
    assert SECRET not in masked
    assert "***" in masked


def test_block_has_addresses_model_engine_slots_and_context(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    log_start(settings(model_name="tiny", context_length=2048, port=8123), 4, URL)
    (record,) = caplog.records
    assert record.getMessage() == f"worker-rkllm {version()} running on {URL}"
    assert record.__dict__[FIELDS]["server"] == {
        "version": version(),
        "console": f"{URL}/",
        "openai": f"{URL}/v1",
        "runpod": f"{URL}/v2/default",
        "docs": f"{URL}/docs",
        "hosts": "localhost",
        "model": "tiny",
        "engine": "llamacpp",
        "slots": 4,
        "context_length": 2048,
        "threads": describe_usable_cpus(),
        "jobs": "jobs.sqlite3",
        "settings": {"MODEL_NAME": "tiny", "CONTEXT_LENGTH": "2048", "PORT": "8123"},
    }
    text = ConsoleFormatter(colours=False).format(record)
    assert "          slots           4\n" in text


def test_block_has_all_endpoints_and_what_runs_there(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_start(settings(workers=1), None, URL, ["a", "b"], {"handler": "/a/handler.py, /b/h.py"})
    block = caplog.records[0].__dict__[FIELDS]["server"]
    assert block["runpod"] == f"{URL}/v2/a, {URL}/v2/b"
    assert block["openai"] == f"{URL}/v2/a/openai/v1, {URL}/v2/b/openai/v1"
    assert block["handler"] == "/a/handler.py, /b/h.py"


def test_version_is_that_of_the_project() -> None:
    assert version()[0].isdigit()
