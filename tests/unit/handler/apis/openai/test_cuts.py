"""A streamed answer equals the full one, however it is split into tokens and events."""

from __future__ import annotations

import codecs
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Delta, Finish, PromptToken, SamplingParams, TokenLogprob
from engine.backends.base import RunResult
from engine.reply.reply import Reply
from engine.runs.generation import Generation
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.chat import CHAT
from handler.apis.openai.completions import COMPLETIONS
from handler.apis.openai.echo import Echo
from handler.apis.openai.endpoint_spec import EndpointSpec
from handler.apis.openai.wire_format import DONE
from handler.delivery.limits import split_deltas
from handler.generation.completed_answer import CompletedAnswer
from tests.unit.handler.apis.openai import reading

LETTERS = "ab é😀"
TURNS = [{"role": "user", "content": "hi"}]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    return [data[one:other] for one, other in pairwise([0, *sorted(places), len(data)])]


@st.composite
def tokens(draw: st.DrawFn) -> list[bytes]:
    """A text cut anywhere, between the bytes of a character too; its end may be half of one."""
    data = draw(st.text(LETTERS, max_size=20)).encode() + draw(st.sampled_from([b"", b"\xf0\x9f"]))
    places = draw(st.lists(st.integers(0, len(data)), max_size=12))
    return cut(data, places)


def run_generation(pieces: list[bytes], sampling: SamplingParams) -> tuple[list[Delta], Finish]:
    """Return the deltas and the finish that the engine produces from a model's tokens."""
    deltas: list[Delta] = []
    generation = Generation(sampling, deltas.append)
    for number, piece in enumerate(pieces):
        logprob = None
        if sampling.logprobs is not None:
            token, value = piece.decode(errors="replace"), -number / 4
            logprob = TokenLogprob(token, value, ((token, value), (f"{number}", -9.0)))
        if generation.on_piece(piece, number, logprob):
            break
    finish = generation.finish(RunResult(prompt_tokens=3))
    return [delta for delta in deltas if delta.text or delta.logprob], finish


def ended(text: str, stops: list[str], *, include: bool) -> str:
    """The text before the stop that is complete first, the longest of several."""
    for end in range(len(text) + 1):
        hit = [stop for stop in stops if text[:end].endswith(stop)]
        if hit:
            return text[: end if include else end - max(map(len, hit))]
    return text


@pytest.mark.parametrize("shape", [COMPLETIONS, CHAT], ids=["completions", "chat"])
@given(
    pieces=tokens(),
    stops=st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
    max_tokens=st.none() | st.integers(1, 8),
    batches=st.lists(st.integers(0, 14), max_size=6),
    max_chars=st.integers(1, 6),
    alternatives=st.sampled_from([None, 0, 1]),
    echo=st.sampled_from(
        [Echo(), Echo("é😀 b"), Echo("é😀 b", (PromptToken("é😀"), PromptToken(" b", -0.5)))]
    ),
)
def test_streamed_answer_equals_the_complete_one(
    shape: EndpointSpec,
    pieces: list[bytes],
    stops: list[str],
    include: bool,
    max_tokens: int | None,
    batches: list[int],
    max_chars: int,
    alternatives: int | None,
    echo: Echo,
) -> None:
    # R11-R14, R24, R26, R27
    body: dict[str, Any] = {
        "stop": stops,
        "include_stop_str_in_output": include,
        "max_tokens": max_tokens,
        "stream": True,
    }
    if shape is COMPLETIONS:
        body |= {"prompt": "hi", "logprobs": alternatives, "echo": bool(echo.text)}
    else:
        echo = Echo()
        body |= {
            "messages": TURNS,
            "logprobs": alternatives is not None,
            "top_logprobs": alternatives,
        }
    call = OpenAICall(shape, body, "tiny")
    call.echoes = [echo]
    deltas, finish = run_generation(pieces, call.parameters.sampling)
    answer = CompletedAnswer(
        id=call.parsed.id,
        model="tiny",
        created=1_700_000_000,
        text="".join(delta.text for delta in deltas),
        reply=Reply(text="".join(delta.text for delta in deltas)),
        deltas=tuple(delta.text for delta in deltas if delta.text),
        finish=finish,
        streaming=True,
        logprobs=tuple(delta.logprob for delta in deltas if delta.logprob is not None),
    )

    blocks = [call.encode_opening(answer.created)]
    places = sorted(min(place, len(deltas)) for place in batches)
    for one, other in pairwise([0, *places, len(deltas)]):
        blocks += [call.encode_delta(part) for part in split_deltas(deltas[one:other], max_chars)]
    blocks += [call.encode_closing(answer), DONE]
    streamed = reading.read_stream([block for block in blocks if block])
    full = reading.read_response(call.encode_response(answer))
    if full.choices[0].logprobs is not None and not any(full.choices[0].logprobs.values()):
        # There is no text, so no event had empty logprobs.
        full.choices[0].logprobs = None
    assert streamed.choices == full.choices
    assert streamed.usage == full.usage

    pieces = pieces[:max_tokens]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(piece) for piece in pieces]
    text = ended("".join(texts), stops, include=include)
    assert full.choices[0].text == echo.text + text
    starts = [len("".join(texts[:number])) for number in range(len(texts))]
    # A character that is cut off at the end has no text, but its tokens are listed.
    is_stopped = isinstance(finish.stop_reason, str)
    token_numbers = [
        number for number, start in enumerate(starts) if start < len(text) or not is_stopped
    ]
    logprobs = full.choices[0].logprobs
    if alternatives is None:
        assert logprobs is None
    elif shape is COMPLETIONS and logprobs is not None:
        offsets = [len(echo.text) + starts[number] for number in token_numbers]
        assert logprobs["text_offset"] == [*([0, 2][: len(echo.tokens)]), *offsets]
        assert logprobs["token_logprobs"] == [
            *(token.logprob for token in echo.tokens),
            *(-each / 4 for each in token_numbers),
        ]
    elif logprobs is not None:
        result = [(bytes(each["bytes"]), each["logprob"]) for each in logprobs["content"]]
        assert result == [(pieces[number], -number / 4) for number in token_numbers]
    else:
        assert not token_numbers
