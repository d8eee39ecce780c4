"""The page is what the code says, and leaves out no route and no program."""

from __future__ import annotations

import functools
import re
from dataclasses import fields
from pathlib import Path

from emulator.openapi.descriptions import DESCRIPTIONS
from engine.capabilities import Capabilities
from handler.errors import ERROR_MAPPING
from tools.docs.openai import (
    CAPABILITY_LABELS,
    CLIENT_PROGRAMS,
    DESCRIBED_APIS,
    ERROR_DESCRIPTIONS,
    page,
)

ROOT = Path(__file__).resolve().parents[4]
# It takes a second to make.
made_page = functools.cache(page)


def test_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "openai.md").read_text() == made_page(), "run `make docs`"


def test_every_placeholder_is_replaced() -> None:
    assert not re.findall(r"(?<!`)\{[a-z_]+\}(?!/)", re.sub(r"`[^`]*`", "", made_page()))


def test_every_route_and_error_is_listed() -> None:
    made = made_page()
    for api in DESCRIPTIONS:
        for path in api.operations:
            assert (f"| `{path}` |" in made) is (api in DESCRIBED_APIS)
    assert ERROR_DESCRIPTIONS.keys() == {(row.status, row.type) for row in ERROR_MAPPING.values()}
    assert list(ERROR_DESCRIPTIONS) == sorted(ERROR_DESCRIPTIONS)


def test_every_capability_is_listed() -> None:
    # Capabilities with a row among the parameters, and capabilities of the loaded model.
    parameters = {
        *("penalties", "min_p", "seed", "ignore_eos", "logit_bias", "min_tokens"),
        *("chat_template", "infill", "token_prompts", "prompt_truncation", "special_tokens"),
        *("stop_token_ids", "template_variables", "tool_choice"),
    }
    of_model = {
        *("backend", "model", "context_length", "embedding_size", "starts_in_reasoning", "runtime"),
        *("own_template", "template_markers", "late_system", "control_tokens", "answer_marks"),
        *("call_form", "library_facts", "max_images", "rerank_gap", "token_pieces"),
        *("concurrent_calls", "isolated_crashes"),
    }
    response = CAPABILITY_LABELS.keys()
    assert response | parameters | of_model == {field.name for field in fields(Capabilities)}
    assert not response & (parameters | of_model)


def test_configurations_are_listed_where_they_differ() -> None:
    lines = made_page().splitlines()
    [slots] = [line for line in lines if line.startswith("| parallel generations (slots) |")]
    assert slots.endswith(
        "| 4; `DETERMINISTIC`: 1 | 1; `RKLLM_N_BATCH=4`: 4 | 1; `RKLLM_N_BATCH=4`: 4 | 4 |"
    )
    [held] = [line for line in lines if "with a JSON Schema" in line]
    assert held.count("no; `RKLLM_MODE=logits`: yes") == 2
    assert "| yes |" in held


def test_every_client_program_is_linked() -> None:
    folder = ROOT / "tests" / "acceptance" / "programs"
    response = sorted(name for names in CLIENT_PROGRAMS.values() for name in names)
    assert response == sorted(each.name for each in folder.iterdir() if each.is_file())
