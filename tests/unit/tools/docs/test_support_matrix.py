"""The tables of docs/openai.md: they ask of everything, and say what is answered."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from engine import Capabilities
from handler.apis.core.best_of import build_requests
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.dialect import OVMS, Dialect
from handler.input.parameter_names import IGNORED
from tools.docs.openai import DIALECT_LABELS, engines
from tools.docs.support_matrix import ENDPOINTS, Matrix, create_call, dialect_table
from tools.docs.support_probes import BOTH, CHAT, COMPLETIONS, PROBES, Probe

ROUTES = pytest.mark.parametrize("route", BOTH)
OF = [(probe, route) for probe in PROBES for route in probe.routes]


def state(call: OpenAICall) -> list[Any]:
    """All that a body decides, and a name that is made up is not."""
    request = build_requests(call.parsed)[0]
    return [
        call.parsed.prompts,
        (call.parsed.reply_format, call.parsed.constraint),
        call.parameters,
        call.streaming,
        call._include_usage,
        (request.validation, request.options, request.warnings, request.reasoning_budget),
    ]


@ROUTES
def test_every_parameter_has_a_probe(route: str) -> None:
    # R16
    spec, _ = ENDPOINTS[route]
    probed = {probe.name for probe in PROBES if route in probe.routes}
    ignored = set(Matrix({}).ignored(route, sorted(IGNORED)))
    assert spec.input_model.model_fields.keys() <= probed
    # A parameter that one route ignores may be supported on the other.
    assert IGNORED - spec.input_model.model_fields.keys() == ignored
    assert not ignored & probed


# R5-R17, R22, R25, R39: all that the requirements name.
NAMED = """
    model prompt messages max_tokens max_completion_tokens temperature top_p top_k min_p
    repetition_penalty frequency_penalty presence_penalty seed ignore_eos stop stop_token_ids
    include_stop_str_in_output logprobs top_logprobs echo n best_of length_penalty diversity_penalty
    logit_bias suffix use_beam_search early_stopping min_tokens prompt_logprobs detokenize
    skip_special_tokens spaces_between_special_tokens logits_processors truncate_prompt_tokens
    num_assistant_tokens assistant_confidence_threshold stream stream_options response_format tools
    tool_choice enable_thinking chat_template_kwargs
""".split()


@pytest.mark.parametrize("name", NAMED)
def test_every_documented_parameter_has_a_probe_or_is_ignored(name: str) -> None:
    # R16
    assert name in {probe.name for probe in PROBES} | IGNORED


@pytest.mark.parametrize(
    ("probe", "route"), OF, ids=[f"{route}-{probe.name}{probe.kind}" for probe, route in OF]
)
def test_no_parameter_is_ignored_without_a_warning(probe: Probe, route: str) -> None:
    # R16: each parameter changes the engine's request or the answer, or it causes a warning.
    if probe.name == "model":
        return
    # Other parameters that this one requires must not count as its effect.
    company = {name: value for name, value in probe.bodies[0].items() if name != probe.name}
    assert state(create_call(route, probe.bodies[0])) != state(create_call(route, company))


def able(**more: Any) -> Capabilities:
    return Capabilities(backend="tiny", model="tiny", context_length=10, chat_template=True, **more)


def cells(table: str, name: str) -> list[str]:
    (row,) = [line for line in table.splitlines() if line.startswith(f"| `{name}` |")]
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_engine_cell_has_the_engines_warning() -> None:
    ways = {"": able(seed=False, max_logprobs=5), "set up otherwise": able(max_logprobs=2)}
    matrix = Matrix({"tiny": ways, "other": {"": able(max_logprobs=5)}})
    table = matrix.table(COMPLETIONS)
    notes = matrix.notes().splitlines()

    seed, *_, tiny, other = cells(table, "seed")
    assert (seed, other) == ("`seed`", "yes")
    number = tiny.removeprefix("warns (").removesuffix("); set up otherwise: yes")
    assert (
        notes[int(number) - 1] == f"{number}. seed is not supported by the engine and was ignored"
    )
    assert cells(table, "max_tokens")[-2:] == ["yes", "yes"]


def test_dialect_cell_has_the_dialects_error() -> None:
    matrix = Matrix({"tiny": {"": able()}})
    table = matrix.table(CHAT)
    _, takes, unset, openai, oracle, ovms, _ = cells(table, "top_p")
    assert (takes, unset) == ("a number from 0 to 1", "1")
    assert (openai, oracle) == ("yes", "yes")
    number = ovms.removeprefix("yes (").removesuffix(")")
    note = f"{number}. 400: top_p must be above 0, at most 1, got 0"
    assert note in matrix.notes().splitlines()
    # R17: it depends on the engine as well.
    draft = cells(table, "num_assistant_tokens")
    assert draft[3:6] == ["yes", "yes", "yes"]
    assert re.fullmatch(r"warns \(\d+\), ovms: 400 \(\d+\)", draft[6])


@pytest.mark.parametrize(
    ("engine", "name", "cell"),
    [
        # R9, R10, R13, R16, R39: what is promised of each.
        ("llamacpp", "logprobs", "yes; `DRAFT_MODEL_PATH`: warns (N)"),
        ("llamacpp", "logit_bias", "yes"),
        ("llamacpp", "response_format", "yes"),
        (
            "rkllm 1.2",
            "temperature",
            "warns (N); `RKLLM_SAMPLING=reload`: yes; `RKLLM_MODE=logits`: yes",
        ),
        ("rkllm 1.3", "temperature", "yes"),
        ("rkllm 1.3", "seed", "warns (N); `RKLLM_MODE=logits`: yes"),
        ("rkllm 1.3", "best_of", "warns (N); `RKLLM_MODE=logits`: yes"),
        ("rkllm 1.3", "response_format", "warns (N); `RKLLM_MODE=logits`: yes"),
        ("rkllm 1.2", "stop", "yes"),
    ],
)
def test_engine_cell(engine: str, name: str, cell: str) -> None:
    matrix = Matrix({engine: engines()[engine]})
    result = cells(matrix.table(COMPLETIONS), name)[-1]
    assert re.sub(r"\(\d+\)", "(N)", result) == cell


def test_every_dialect_field_is_listed() -> None:
    assert DIALECT_LABELS.keys() == {field.name for field in fields(Dialect)} - {"name"}
    table = dialect_table(DIALECT_LABELS)
    assert cells(table.replace("maximum number of `stop` strings", "`x`"), "x")[1:] == [
        "16",
        "16",
        "4",
    ]
    assert str(OVMS.max_tokens_ignoring_eos) in table
