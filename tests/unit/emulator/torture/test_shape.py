"""The shapes of each API are complete, and their faults are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from emulator.middleware.faults.catalogue import FAULT_KINDS, RULE_FAULT_NAMES
from emulator.middleware.faults.parser import find_unsuitable, parse_faults
from emulator.torture.answer import ANSWER
from emulator.torture.shape import Api, Expected, list_all_shapes, list_shapes
from handler.apis.ollama.wire_format import FORMAT as OLLAMA_FORMAT

STREAMED = [Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES, Api.OLLAMA, Api.JOB_EVENTS]


@pytest.mark.parametrize("api", STREAMED)
def test_streamed_api_has_at_least_seventy_shapes(api: Api) -> None:
    assert len(list_shapes(api)) >= 70


def test_shapes_have_a_name_of_their_own_a_reason_and_a_rule() -> None:
    shapes = list_all_shapes()
    assert len({name for name, *_ in shapes}) == len(shapes) >= 120
    for name, reason, rule, apis in shapes:
        assert reason.endswith("."), name
        assert rule.endswith("."), name
        assert apis, name


@pytest.mark.parametrize("is_call", [False, True])
@pytest.mark.parametrize("api", list(Api))
def test_faults_of_each_shape_are_valid_for_its_api(api: Api, is_call: bool) -> None:
    for shape in list_shapes(api, is_call=is_call):
        for text in filter(None, shape.faults):
            faults = parse_faults(text)
            assert not faults.keys() & RULE_FAULT_NAMES
            if api is Api.OLLAMA:
                assert find_unsuitable(faults, OLLAMA_FORMAT) is None, shape.name


def test_each_fault_of_a_client_is_part_of_a_shape() -> None:
    faults = [text for api in Api for shape in list_shapes(api) for text in shape.faults if text]
    used = {name for text in faults for name in parse_faults(text)}
    # Their effects cannot be told from those of others, or no client can notice them.
    others = {"line-separators", "repeat-event", "no-stream"}
    assert used == FAULT_KINDS.keys() - RULE_FAULT_NAMES - others


def test_text_of_a_shape_is_that_of_its_api() -> None:
    def fault(api: Api, *, is_call: bool = False) -> str:
        [shape] = [s for s in list_shapes(api, is_call=is_call) if s.name == "end-in-text"]
        return shape.faults[0]

    assert fault(Api.CHAT) == "end-after=2"
    assert fault(Api.CHAT, is_call=True) == "end-after=3"
    assert fault(Api.RESPONSES) == "end-after=5"


def test_stream_that_a_client_resumes_may_be_whole() -> None:
    def expected(api: Api) -> Expected:
        [shape] = [each for each in list_shapes(api) if each.name == "drop-in-text"]
        return shape.expected

    assert expected(Api.JOB_EVENTS) is Expected.EITHER
    assert expected(Api.CHAT) is Expected.FAILURE


def test_shapes_without_text_are_not_for_tool_calls() -> None:
    names = {shape.name for shape in list_shapes(Api.CHAT, is_call=True)}
    assert "finish-without-text" not in names
    assert "end-in-text" in names


def test_page_has_the_number_of_shapes_of_each_api() -> None:
    page = (Path(__file__).parents[4] / "docs" / "torture.md").read_text()
    rows = [line for line in page.splitlines() if re.search(r"\| \d+(, \d+)? \|$", line)]
    numbers = [int(number) for row in rows for number in re.findall(r"\d+", row.split("|")[-2])]
    order = (
        *(Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES, Api.OLLAMA),
        *(Api.POLLS, Api.JOB_EVENTS, Api.JOB, Api.JSON),
    )
    assert numbers == [len(list_shapes(api)) for api in order]
    assert f"17 of {len(ANSWER)} characters" in page
