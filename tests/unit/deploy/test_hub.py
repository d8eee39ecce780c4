"""RunPod's Hub: `.runpod/` in the Hub's own fields, and against the worker's settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic_core import PydanticUndefined

from handler.input.request import parse_job
from handler.settings.worker_settings import WorkerSettings
from tests.unit.deploy.reading import read

ROOT = Path(__file__).resolve().parents[3]
HUB: Mapping[str, Any] = json.loads((ROOT / ".runpod" / "hub.json").read_bytes())
TESTS: Mapping[str, Any] = json.loads((ROOT / ".runpod" / "tests.json").read_bytes())
ENV: Mapping[str, Any] = {each["key"]: each for each in HUB["config"]["env"]}
INPUTS = {key: each["input"] for key, each in ENV.items() if "input" in each}
FIELDS = {name.upper(): field for name, field in WorkerSettings.model_fields.items()}

# The Hub's publishing guide.
GENERAL = {"title", "description", "type", "category", "iconUrl", "config"}
CONFIG = {"runsOn", "containerDiskInGb", "cpuFlavor", "presets", "env"}
INPUT = {"name", "type", "description", "default", "advanced", "required"}
OF_TYPE: Mapping[str, set[str]] = {
    "string": {"options"},
    "number": {"min", "max"},
    "boolean": {"trueValue", "falseValue"},
}


def written(hub_input: Mapping[str, Any], value: object) -> str:
    """Return the text of the environment variable that the Hub sets for a value."""
    if hub_input["type"] == "boolean":
        return str(hub_input["trueValue"] if value else hub_input["falseValue"])
    return str(value)


def test_the_listing_has_the_hub_s_fields_and_no_others() -> None:
    assert GENERAL - set(HUB) <= {"iconUrl"}
    assert set(HUB) <= GENERAL
    assert (HUB["type"], HUB["category"]) == ("serverless", "language")
    assert set(HUB["config"]) == CONFIG
    # No host of RunPod's has an NPU of Rockchip's.
    assert HUB["config"]["runsOn"] == "CPU"
    assert all(set(each) in ({"key", "value"}, {"key", "input"}) for each in ENV.values())
    assert len(ENV) == len(HUB["config"]["env"])


@pytest.mark.parametrize("key", INPUTS)
def test_an_input_is_of_a_kind_that_the_hub_has(key: str) -> None:
    hub_input = INPUTS[key]
    assert {"name", "type", "description", "default"} <= set(hub_input)
    assert set(hub_input) <= INPUT | OF_TYPE[hub_input["type"]]
    for option in hub_input.get("options", []):
        assert set(option) == {"label", "value"}


@pytest.mark.parametrize("key", ENV)
def test_a_variable_is_a_setting_of_the_worker(key: str) -> None:
    assert key in FIELDS


@pytest.mark.parametrize("key", INPUTS)
def test_default_of_an_input_is_the_default_of_its_setting(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = read(
        WorkerSettings, {key: written(INPUTS[key], INPUTS[key]["default"])}, monkeypatch
    )
    assert FIELDS[key].default is not PydanticUndefined
    assert getattr(settings, key.lower()) == FIELDS[key].default


@pytest.mark.parametrize("key", INPUTS)
def test_choices_of_an_input_are_the_values_of_its_setting(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_input = INPUTS[key]
    choices = {each for each in get_args(FIELDS[key].annotation) if isinstance(each, str)}
    assert {each["value"] for each in hub_input.get("options", [])} == choices
    for value in (True, False) if hub_input["type"] == "boolean" else (hub_input.get("min"),):
        if value is not None:
            read(WorkerSettings, {key: written(hub_input, value)}, monkeypatch)
    if "max" in hub_input:
        read(WorkerSettings, {key: str(hub_input["max"])}, monkeypatch)


@pytest.mark.parametrize("preset", HUB["config"]["presets"], ids=lambda each: each["name"])
def test_a_preset_sets_inputs_that_there_are(
    preset: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(preset) == {"name", "defaults"}
    assert set(preset["defaults"]) <= set(INPUTS)
    read(
        WorkerSettings,
        {key: written(INPUTS[key], each) for key, each in preset["defaults"].items()},
        monkeypatch,
    )


def test_fixed_variables_are_valid_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = {key: each["value"] for key, each in ENV.items() if "value" in each}
    settings = read(WorkerSettings, fixed, monkeypatch)
    assert settings.backend == "llamacpp"


def test_the_hub_s_tests_are_jobs_on_the_machine_of_the_listing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert set(TESTS) == {"tests", "config"}
    assert set(TESTS["config"]) == {"cpuFlavor", "env"}
    assert TESTS["config"]["cpuFlavor"] == HUB["config"]["cpuFlavor"]
    read(
        WorkerSettings, {each["key"]: each["value"] for each in TESTS["config"]["env"]}, monkeypatch
    )
    assert {each["key"] for each in TESTS["config"]["env"]} <= set(FIELDS)
    for each in TESTS["tests"]:
        assert set(each) == {"name", "input", "timeout"}
        assert each["timeout"] <= 10 * 60_000
        parse_job({"input": each["input"]})


# R44, R50
@pytest.mark.timeout(120)
def test_the_file_that_the_hub_requires_is_the_worker(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"answers": [{"pieces": ["It ", "works."]}]}')
    done = subprocess.run(
        [
            sys.executable,
            ROOT / ".runpod" / "handler.py",
            "--test_input",
            json.dumps({"input": {"prompt": "?"}}),
        ],
        cwd=tmp_path,
        env={**os.environ, "MODEL_PATH": str(script)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["choices"][0]["text"] == "It works."
