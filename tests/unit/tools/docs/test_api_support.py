"""The tables of the Responses and the Messages API."""

from __future__ import annotations

import pytest

from emulator.openapi.descriptions import responses
from emulator.settings.emulator_settings import EmulatorSettings
from handler.errors import InvalidRequest
from handler.input.sampling import SamplingInput
from tools.docs.api_support import (
    MESSAGE_PROBES,
    RESPONSE_PROBES,
    find_message_warnings,
    find_response_warnings,
    message_table,
    response_table,
)


def test_every_member_of_the_description_has_a_probe() -> None:
    schemas = responses.DESCRIPTION.build_schemas(EmulatorSettings(engine="scripted"))
    described = schemas["NewResponse"]["properties"].keys()
    probed = {name for _, body in RESPONSE_PROBES for name in body}
    # Tested by the conversations of tests/integration/emulator/test_responses.py.
    without_probe = {"model", "previous_response_id"}
    # The parameters of chats have their own tables.
    assert described - probed - SamplingInput.model_fields.keys() == without_probe


@pytest.mark.parametrize(("name", "body"), RESPONSE_PROBES)
def test_row_of_a_response_has_its_warnings_or_its_refusal(
    name: str, body: dict[str, object]
) -> None:
    row = next(line for line in response_table().splitlines() if line.startswith(f"| {name} |"))
    try:
        warnings, refusal = find_response_warnings(body), None
    except InvalidRequest as error:
        warnings, refusal = [], error.message
    assert all(warning in row for warning in warnings)
    assert row.endswith("| yes |") is (not warnings and refusal is None)
    assert refusal is None or row.endswith(f"| 400: {refusal} |")


def test_tables_have_supported_ignored_and_refused_members() -> None:
    for table in (response_table(), message_table()):
        for answer in ("| yes |", "| warns: ", "| 400: "):
            assert answer in table
    assert len(MESSAGE_PROBES) == len(message_table().splitlines()) - 2
    assert find_message_warnings({}) == ()
