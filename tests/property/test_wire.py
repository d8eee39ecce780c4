"""Messages to the host process arrive unchanged through real JSON."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from engine.capabilities import Capabilities
from engine.errors import engine_errors, from_wire
from engine.output import Finish, FinishReason, Timings, Usage
from engine.request import (
    Chat,
    ChatImage,
    Message,
    Prompt,
    SamplingParams,
    prompt_from_wire,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
TOKENS = st.integers(0, 2**31 - 1)
NUMBER = st.floats(-1e6, 1e6, allow_nan=False)
COUNT = st.integers(0, 2**40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=4)

SAMPLING = st.builds(
    SamplingParams,
    max_tokens=st.none() | st.integers(1, 2**32 - 1),
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    top_k=st.integers(-1, 1000),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.01, 5),
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
    seed=st.none() | st.integers(0, 2**63),
    stop=st.lists(TEXT.filter(bool), max_size=16).map(tuple),
    stop_token_ids=st.lists(TOKENS, max_size=4).map(tuple),
    include_stop_str_in_output=st.booleans(),
    ignore_eos=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
    logit_bias=st.dictionaries(TOKENS, st.floats(-100, 100), max_size=4),
    grammar=st.none() | TEXT,
    json_schema=st.none() | OBJECT,
)
OBJECTS = st.lists(OBJECT, max_size=2).map(tuple)
IMAGES = st.lists(st.builds(ChatImage, TEXT, COUNT), max_size=2).map(tuple)
MESSAGE = st.builds(Message, TEXT, TEXT, st.none() | TEXT, OBJECTS, st.none() | TEXT, IMAGES)
CHAT = st.builds(
    Chat,
    messages=st.lists(MESSAGE, max_size=4).map(tuple),
    template_kwargs=OBJECT,
    tools=OBJECTS,
)
PROMPT = st.one_of(TEXT, st.lists(TOKENS, max_size=20).map(tuple), CHAT)


def through_json(wire: Any) -> Any:
    return orjson.loads(orjson.dumps(wire))


@given(SAMPLING)
def test_sampling_parameters(sampling: SamplingParams) -> None:
    assert SamplingParams.from_wire(through_json(sampling.to_wire())) == sampling


@given(PROMPT)
def test_prompts_of_every_kind(prompt: Prompt) -> None:
    decoded = prompt_from_wire(through_json(prompt))
    assert decoded == prompt
    assert type(decoded) is type(prompt)


@given(
    st.sampled_from(FinishReason),
    st.builds(Usage, COUNT, COUNT, COUNT),
    st.none() | TEXT | TOKENS,
    st.floats(0, 1e9),
    st.none() | COUNT,
)
def test_finish(
    reason: FinishReason,
    usage: Usage,
    stop_reason: str | int | None,
    prefill_ms: float,
    grammar_break: int | None,
) -> None:
    timings = Timings(prefill_ms=prefill_ms)
    finish = Finish(reason, usage, stop_reason, timings, grammar_break)
    assert Finish.from_wire(through_json(finish.to_wire())) == finish


@given(
    st.sampled_from(list(engine_errors())),
    TEXT,
    st.dictionaries(
        st.from_regex(r"[a-z_]{3,8}", fullmatch=True).filter(
            lambda name: name not in ("self", "message")
        ),
        st.none() | TEXT | NUMBER | COUNT,
    ),
)
def test_errors(kind: Any, message: str, details: dict[str, Any]) -> None:
    decoded = from_wire(through_json(kind(message, **details).to_wire()))
    assert (type(decoded), decoded.message, decoded.details) == (kind, message, details)


@given(
    st.builds(
        Capabilities,
        backend=TEXT,
        model=TEXT,
        context_length=COUNT,
        slots=st.integers(1, 100),
        seed=st.booleans(),
        max_logprobs=st.integers(0, 20),
        adapters=st.lists(TEXT).map(tuple),
        grammar=st.booleans(),
        abort_in_prefill=st.booleans(),
    )
)
def test_capabilities(capabilities: Capabilities) -> None:
    assert Capabilities(**through_json(capabilities.to_wire())) == capabilities
