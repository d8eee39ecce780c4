"""Every parameter that changes an answer's form, with every other, streamed and not streamed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from handler.apis.openai.service import OpenAIService
from tests.unit.handler.apis.openai.calls import CHAT, COMPLETIONS, complete, complete_streamed
from tests.unit.handler.apis.openai.reading import Choice, ReadResponse
from tests.unit.handler.conftest import PipelineFactory
from tests.usage import usage

STOP = "five six"
# The last but one is held back until the stop string is whole, the third not to be; an emoji comes
# in halves.
ONE: list[dict[str, Any]] = [
    {"text": "One ", "logprob": -0.5},
    {"hex": "f09f", "logprob": -1.5},
    {"hex": "988020", "logprob": -0.25},
    {"text": "five ", "logprob": -2.0, "delay_ms": 1},
    {"text": "seven", "logprob": 0.0, "delay_ms": 1},
    {"text": " five", "logprob": -3.0, "delay_ms": 1},
    {"text": " six eight", "logprob": -4.0},
    {"text": " never"},
]
TWO: list[dict[str, Any]] = [
    {"text": "Zwei", "logprob": -0.125, "delay_ms": 1},
    {"text": " é.", "logprob": -1.0},
]
SCRIPT: list[dict[str, Any]] = [
    {"when": "one", "pieces": ONE},
    {"when": "^1 2 3$", "pieces": TWO},
    {"pieces": TWO},
]
# Expected result of each: text, token texts with offsets, token count, finish.
ANSWERS: dict[str, tuple[str, list[str], list[float], list[int], int, str | None]] = {
    "one": (
        "One 😀 five seven ",
        ["One ", "\ufffd", "\ufffd\ufffd ", "five ", "seven", " five"],
        [-0.5, -1.5, -0.25, -2.0, 0.0, -3.0],
        [0, 4, 4, 6, 11, 16],
        7,
        STOP,
    ),
    "two": ("Zwei é.", ["Zwei", " é."], [-0.125, -1.0], [0, 4], 2, None),
}
# Prompts as they are sent; each one's text, tokens and answer.
Prompts = list[tuple[str, list[str], str]]
TEXT = ("Say 😀 one", ["Say", " 😀", " one"], "one")
OTHER = ("é two", ["é", " two"], "two")
IDS = ("1 2 3", ["1", " 2", " 3"], "two")
PROMPTS: dict[str, tuple[Any, Prompts]] = {
    "text": (TEXT[0], [TEXT]),
    "array-of-one": ([TEXT[0]], [TEXT]),
    "array": ([TEXT[0], OTHER[0]], [TEXT, OTHER]),
    "ids": ([1, 2, 3], [IDS]),
    "array-of-ids": ([[1, 2, 3], [7]], [IDS, ("7", ["7"], "two")]),
}
USAGE: list[dict[str, Any] | None] = [None, {"include_usage": True}, {"include_usage": False}]


def check_usage(streamed: ReadResponse, full: ReadResponse, options: dict[str, Any] | None) -> None:
    """R22: on the last chunk, in one of its own, or nowhere."""
    if options == {"include_usage": True}:
        assert streamed.sent[-1]["choices"] == []
        assert all(chunk["usage"] is None for chunk in streamed.sent[:-1])
        assert streamed.usage == full.usage
        return
    assert all(chunk["choices"] for chunk in streamed.sent)
    assert all("usage" not in chunk for chunk in streamed.sent[:-1])
    assert streamed.usage == (full.usage if options is None else None)


def check_ending(choice: Choice, name: str) -> None:
    assert choice.finish_reason == "stop"
    assert choice.stop_reason == ANSWERS[name][-1]


def usage_of(prompts: Prompts, n: int) -> dict[str, Any]:
    prompt = sum(len(pieces) for _, pieces, _ in prompts)
    completion = n * sum(ANSWERS[name][4] for _, _, name in prompts)
    return usage(prompt, completion)


def check_legacy(
    choice: Choice, prompt: tuple[str, list[str], str], logprobs: int | None, echoed: bool
) -> None:
    text, pieces, name = prompt
    if not echoed:
        text, pieces = "", []
    answer, tokens, values, offsets, _, _ = ANSWERS[name]
    assert choice.text == text + answer
    check_ending(choice, name)
    if logprobs is None:
        assert choice.logprobs is None
        return
    token_data = choice.logprobs
    assert token_data is not None
    assert list(token_data) == ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
    assert {len(each) for each in token_data.values()} == {len(pieces) + len(tokens)}
    # The scripted engine's, and none for the first.
    scores = [None, *(-1.0 / number for number in range(1, len(pieces)))][: len(pieces)]
    assert token_data["tokens"] == [*pieces, *tokens]
    assert token_data["token_logprobs"] == [*scores, *values]
    answer_tops = [{token: value} for token, value in zip(tokens, values, strict=True)]
    prompt_tops = [score and {piece: score} for piece, score in zip(pieces, scores, strict=True)]
    assert token_data["top_logprobs"] == [*prompt_tops, *answer_tops]
    starts = [len("".join(pieces[:each])) for each in range(len(pieces))]
    assert token_data["text_offset"] == [*starts, *(len(text) + offset for offset in offsets)]
    for token, offset in zip(token_data["tokens"], token_data["text_offset"], strict=True):
        if "\ufffd" not in token and token != " five":
            assert choice.text[offset:].startswith(token)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("logprobs", [None, 0, 5])
@pytest.mark.parametrize("echo", [None, True])
@pytest.mark.parametrize("prompt", PROMPTS)
async def test_completions(
    pipeline_of: PipelineFactory, prompt: str, echo: bool | None, logprobs: int | None, n: int
) -> None:
    # R2-R5, R11, R13-R15, R20-R28
    sent, prompts = PROMPTS[prompt]
    service = OpenAIService(pipeline_of(*SCRIPT))
    body = {"prompt": sent, "echo": echo, "logprobs": logprobs, "n": n, "stop": [STOP, "x"]}
    full = await complete(service, COMPLETIONS, body)
    assert len(full.choices) == len(prompts) * n
    assert full.usage == usage_of(prompts, n)
    assert full.warnings == []
    for index, choice in full.choices.items():
        check_legacy(choice, prompts[index // n], logprobs, bool(echo))
    # A stream has one prompt.
    for options in USAGE if len(prompts) == 1 else ():
        streamed = await complete_streamed(
            service, COMPLETIONS, {**body, "stream_options": options}
        )
        assert streamed.choices == full.choices
        check_usage(streamed, full, options)


def check_chat(choice: Choice, top: int | None) -> None:
    answer, tokens, values, _, _, _ = ANSWERS["one"]
    assert choice.text == answer
    check_ending(choice, "one")
    if top is None:
        assert choice.logprobs is None
        return
    token_data = choice.logprobs
    assert token_data is not None
    assert token_data["refusal"] is None
    content = token_data["content"]
    assert [each["token"] for each in content] == tokens
    assert [each["logprob"] for each in content] == values
    assert bytes(itertools.chain(*[each["bytes"] for each in content])).decode() == (
        "One 😀 five seven five"
    )
    for each in content:
        assert list(each) == ["token", "logprob", "bytes", "top_logprobs"]
        # The script has no other token.
        sampled = {key: each[key] for key in ("token", "logprob", "bytes")}
        sampled["bytes"] = None if "\ufffd" in each["token"] else sampled["bytes"]
        assert each["top_logprobs"] == [sampled][:top]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("logprobs", "top"), [(None, None), (False, None), (True, None), (True, 0), (True, 20)]
)
async def test_chat(
    pipeline_of: PipelineFactory, logprobs: bool | None, top: int | None, n: int
) -> None:
    # R13, R15, R20-R22, R35, R36
    service = OpenAIService(pipeline_of(*SCRIPT))
    body = {
        "messages": [{"role": "user", "content": "Say one"}],
        "logprobs": logprobs,
        "top_logprobs": top,
        "n": n,
        "stop": STOP,
    }
    full = await complete(service, CHAT, body)
    assert list(full.choices) == list(range(n))
    assert full.usage == usage(4, 7 * n)
    for choice in full.choices.values():
        check_chat(choice, (top or 0) if logprobs else None)
    for options in USAGE:
        streamed = await complete_streamed(service, CHAT, {**body, "stream_options": options})
        assert streamed.choices == full.choices
        check_usage(streamed, full, options)
