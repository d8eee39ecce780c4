"""The forms as settings and engine make them."""

from __future__ import annotations

from typing import Any

import pytest

from emulator.console.description import describe_console, describe_handler_console
from emulator.settings.emulator_settings import EmulatorSettings
from engine import Capabilities


def described(capabilities: Capabilities | None = None, **settings: Any) -> dict[str, Any]:
    return describe_console(EmulatorSettings(engine="scripted", **settings), capabilities)


def test_description_has_forms_but_no_engine_while_the_model_loads() -> None:
    description = described()
    assert description["forms"].keys() == {"job", "completion", "chat", "response", "message"}
    assert {form["path"] for form in description["forms"].values()} >= {
        "/v1/responses",
        "/v1/messages",
    }
    assert description["forms"]["message"]["parameters"].keys() == {
        *("max_tokens", "temperature", "top_p", "top_k", "stop_sequences")
    }
    assert (description["engine"], description["warnings"]) == (None, [])


def test_parameter_fixed_at_load_has_a_note() -> None:
    capabilities = Capabilities(
        backend="rkllm", model="m", context_length=64, fixed_sampling={"temperature": 0.7}
    )
    description = described(capabilities)
    note = "temperature is fixed at 0.7 while the model is loaded"
    for form in description["forms"].values():
        assert form["parameters"]["temperature"]["note"] == note
        assert "note" not in form["parameters"]["max_tokens"]
    assert note in description["warnings"]
    assert description["engine"]["context_length"] == 64


@pytest.mark.parametrize("on", [True, False])
def test_description_has_the_settings(on: bool) -> None:
    description = described(
        enable_validation=on, local_worker=on, endpoint_id="mine", model_name="tiny"
    )
    assert (description["validation"]["default"], description["local_worker"]) == (on, on)
    assert (description["endpoint"], description["model"]) == ("mine", "tiny")
    assert description["forms"]["job"]["path"] == "/v2/mine/run"


@pytest.mark.parametrize("handler", [None, {"state": "ready"}])
def test_description_without_an_engine_has_one_form_without_parameters(
    handler: dict[str, Any] | None,
) -> None:
    description = describe_handler_console("mine", ["first", "mine"], handler)
    assert description["forms"] == {"job": {"path": "/v2/mine/run", "parameters": {}}}
    assert (description["model"], description["engine"], description["local_worker"]) == (
        None,
        None,
        False,
    )
    assert (description["handler"], description["endpoints"]) == (handler, ["first", "mine"])


def test_description_without_an_engine_has_the_keys_of_one_with_an_engine() -> None:
    settings = EmulatorSettings(engine="scripted")
    description = describe_handler_console("mine", [], None)
    # The route adds these to the description of an engine.
    added = {"endpoints", "handler", "examples"}
    assert description.keys() == {*describe_console(settings, None), *added}
