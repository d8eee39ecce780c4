"""The stream of a server's answer: its output, its end, and what no whole answer has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.openai.answer_reader import AnswerReader
from engine.backends.openai.event_stream import Event
from engine.errors import EngineCrashed
from engine.output import FinishReason, TokenLogprob
from engine.reply.parser import read_reply
from engine.reply.reply_format import REASONING_ONLY, ReplyFormat

TOOLS = ReplyFormat(functions={"weather": {}, "time": {}})
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}


class Output:
    """The pieces that a reader has passed on."""

    def __init__(self, stops_after: int | None = None) -> None:
        self.pieces: list[tuple[bytes, TokenLogprob | None]] = []
        self._stops_after = stops_after

    def emit(self, data: bytes, logprob: TokenLogprob | None) -> bool:
        self.pieces.append((data, logprob))
        return len(self.pieces) == self._stops_after

    @property
    def text(self) -> str:
        return b"".join(data for data, _ in self.pieces).decode()


def chunk(delta: dict[str, Any] | None = None, reason: str | None = None, **more: Any) -> Event:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": reason}
    return Event("message", json.dumps({"choices": [choice], **more}))


def text_chunk(content: str, logprobs: Any = None) -> Event:
    choice = {"index": 0, "delta": {"content": content}, "logprobs": logprobs}
    return Event("message", json.dumps({"choices": [choice]}))


def call_chunk(index: int | None, call_id: str | None, **function: Any) -> Event:
    call: dict[str, Any] = {"function": function}
    if index is not None:
        call["index"] = index
    if call_id is not None:
        call["id"] = call_id
    return chunk({"tool_calls": [call]})


def read(*events: Event, output: Output | None = None) -> tuple[AnswerReader, Output]:
    output = output or Output()
    reader = AnswerReader(output.emit)
    for event in events:
        reader.read(event)
    return reader, output


DONE = Event("message", "[DONE]")
STOP = chunk(reason="stop")


def test_reader_passes_on_the_texts_and_the_usage() -> None:
    usage = Event("message", json.dumps({"choices": [], "usage": USAGE}))
    reader, output = read(
        chunk({"role": "assistant", "content": ""}),
        text_chunk("He"),
        text_chunk("llo"),
        STOP,
        usage,
        DONE,
    )
    reader.close()
    result = reader.result()
    assert output.text == "Hello"
    assert (result.reason, result.prompt_tokens) == (FinishReason.STOP, 9)
    assert (result.completion_tokens, result.cached_tokens, result.warnings) == (4, 3, ())
    assert reader.is_done


def test_reader_reads_completions() -> None:
    choice = {"index": 0, "text": "word", "finish_reason": "length"}
    reader, output = read(Event("message", json.dumps({"choices": [choice]})))
    reader.close()
    assert (output.text, reader.result().reason) == ("word", FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("stop", FinishReason.STOP),
        ("tool_calls", FinishReason.STOP),
        ("eos_token", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("model_length", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
    ],
)
def test_reader_knows_the_finish_reasons_of_servers(reason: str, expected: FinishReason) -> None:
    reader, _ = read(text_chunk("a"), chunk(reason=reason))
    assert reader.result().reason is expected


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_read_as_that_of_a_model(key: str) -> None:
    _, output = read(chunk({key: "I "}), chunk({key: "think"}), text_chunk("Yes"), STOP)
    reply = read_reply(output.text, REASONING_ONLY)
    assert (reply.reasoning, reply.text) == ("I think", "Yes")


def test_reasoning_without_an_answer_is_closed() -> None:
    _, output = read(chunk({"reasoning": "I think"}), STOP)
    assert read_reply(output.text, REASONING_ONLY).reasoning == "I think"


def test_content_in_parts_has_its_reasoning() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    _, output = read(
        chunk({"content": [thinking]}), chunk({"content": [{"type": "text", "text": "Yes"}]}), STOP
    )
    reply = read_reply(output.text, REASONING_ONLY)
    assert (reply.reasoning, reply.text) == ("hm", "Yes")


# Each with two calls: OpenAI and vLLM number them, Ollama has given all of them the index 0, and
# Gemini's compatible API none.
CALLS = {
    "by index": [
        call_chunk(0, "a", name="weather", arguments=""),
        call_chunk(0, None, arguments='{"city":'),
        call_chunk(0, None, arguments=' "Rome"}'),
        call_chunk(1, "b", name="time", arguments=""),
        call_chunk(1, None, arguments="{}"),
    ],
    "by id": [
        call_chunk(0, "a", name="weather", arguments='{"city": "Rome"}'),
        call_chunk(0, "b", name="time", arguments="{}"),
    ],
    "without an index": [
        call_chunk(None, "a", name="weather", arguments='{"city": "Rome"}'),
        call_chunk(None, "b", name="time"),
    ],
    "an id in each": [
        call_chunk(0, "a", name="weather", arguments='{"city"'),
        call_chunk(0, "a", name="", arguments=': "Rome"}'),
        call_chunk(1, "b", name="time", arguments=None),
    ],
    # Gemini's compatible API, and proxies in front of it.
    "the same index and empty ids": [
        call_chunk(0, "", name="weather", arguments='{"city": "Rome"}'),
        call_chunk(0, "", name="time", arguments="{}"),
    ],
    "neither an index nor ids": [
        call_chunk(None, None, name="weather", arguments='{"city": "Rome"}'),
        call_chunk(None, None, name="time", arguments="{}"),
    ],
    "another id in each": [
        call_chunk(0, "a", name="weather", arguments='{"city"'),
        call_chunk(0, "b", arguments=': "Rome"}'),
        call_chunk(1, "c", name="time", arguments=" "),
    ],
    "the name in each": [
        call_chunk(0, None, name="weather", arguments='{"city"'),
        call_chunk(0, None, name="weather", arguments=': "Rome"}'),
        call_chunk(0, None, name="weather", arguments=""),
        call_chunk(1, None, name="time", arguments="{}"),
    ],
    "arguments as an object": [
        call_chunk(0, "a", name="weather", arguments={"city": "Rome"}),
        call_chunk(1, "b", name="time", arguments={}),
    ],
}


@pytest.mark.parametrize("events", CALLS.values(), ids=CALLS.keys())
def test_calls_are_read_as_those_of_a_model(events: list[Event]) -> None:
    reader, output = read(text_chunk("Let me see."), *events, chunk(reason="tool_calls"))
    reader.close()
    reply = read_reply(output.text, TOOLS)
    assert [(call.name, json.loads(call.arguments)) for call in reply.calls] == [
        ("weather", {"city": "Rome"}),
        ("time", {}),
    ]
    assert reply.text == "Let me see."


def test_objects_of_one_call_are_calls_of_the_same_function() -> None:
    _, output = read(
        call_chunk(0, "a", name="weather", arguments=""),
        call_chunk(0, None, name="", arguments='{"city": "Rome"}'),
        call_chunk(0, None, name="", arguments='{"city": "Oslo"}'),
        chunk(reason="tool_calls"),
    )
    calls = read_reply(output.text, TOOLS).calls
    assert [json.loads(call.arguments)["city"] for call in calls] == ["Rome", "Oslo"]


@pytest.mark.parametrize("end", ['{"city": "Ro', '{"city": ', '{"city": {"a": 1}'])
def test_arguments_that_the_limit_has_cut_end_there(end: str) -> None:
    _, output = read(call_chunk(0, "a", name="weather", arguments=end), chunk(reason="length"))
    [call] = read_reply(output.text, TOOLS).calls
    assert call.arguments.strip() == end.strip()


def test_older_form_of_a_call_is_read() -> None:
    _, output = read(
        chunk({"function_call": {"name": "weather", "arguments": ""}}),
        chunk({"function_call": {"arguments": '{"city": "Rome"}'}}),
        chunk(reason="function_call"),
    )
    [call] = read_reply(output.text, TOOLS).calls
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Rome"})


def test_message_in_a_stream_is_read() -> None:
    choice = {"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}
    _, output = read(Event("message", json.dumps({"choices": [choice]})))
    assert output.text == "Hello"


def test_reasoning_after_the_text_is_left_out_with_a_warning() -> None:
    reader, output = read(
        chunk({"content": "\n"}),
        chunk({"reasoning": "one"}),
        text_chunk("A"),
        chunk({"reasoning": "two"}),
        text_chunk("B"),
        STOP,
    )
    reply = read_reply(output.text, REASONING_ONLY)
    assert (reply.reasoning, reply.text) == ("one", "AB")
    assert any("reasoning" in warning for warning in reader.result().warnings)


@given(st.lists(st.sampled_from(["</think>", "</", "th", "ink>", "<", "a"]), min_size=1))
def test_marks_in_the_reasoning_do_not_end_it(parts: list[str]) -> None:
    _, output = read(*(chunk({"reasoning": part}) for part in parts), text_chunk("Yes"), STOP)
    reply = read_reply(output.text, REASONING_ONLY)
    assert reply.text == "Yes"
    assert reply.reasoning.replace(" ", "") == "".join(parts)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["weather", "time"]),
            st.dictionaries(st.text(max_size=4), st.text(max_size=12) | st.integers(), max_size=3),
        ),
        min_size=1,
        max_size=3,
    ),
    st.text(alphabet="ab ü😀", max_size=10).map(str.strip),
    st.integers(1, 7),
)
def test_calls_arrive_as_they_were_sent(
    calls: list[tuple[str, dict[str, Any]]], text: str, size: int
) -> None:
    events = [text_chunk(text)]
    for index, (name, arguments) in enumerate(calls):
        written = json.dumps(arguments)
        parts = [written[at : at + size] for at in range(0, len(written), size)]
        events.append(call_chunk(index, f"call-{index}", name=name, arguments=""))
        events += [call_chunk(index, None, arguments=part) for part in parts]
    _, output = read(*events, chunk(reason="tool_calls"))
    reply = read_reply(output.text, TOOLS)
    assert [(call.name, json.loads(call.arguments)) for call in reply.calls] == calls
    assert reply.text == text


# ---- log-probabilities ----


def token(text: str, logprob: float, data: list[int] | None = None) -> dict[str, Any]:
    top = [{"token": text, "logprob": logprob}, {"token": "x", "logprob": -9.0}]
    return {"token": text, "logprob": logprob, "bytes": data, "top_logprobs": top}


def test_each_token_has_its_logprob() -> None:
    _, output = read(text_chunk("a b", {"content": [token("a", -0.5), token(" b", -1.5)]}), STOP)
    assert [data for data, _ in output.pieces] == [b"a", b" b"]
    logprobs = [logprob for _, logprob in output.pieces if logprob is not None]
    assert [each.logprob for each in logprobs] == [-0.5, -1.5]
    assert logprobs[0].top == (("a", -0.5), ("x", -9.0))


def test_tokens_of_one_character_wait_for_its_text() -> None:
    first = {"content": [token("\ufffd", -0.5, [0xF0, 0x9F])]}
    second = {"content": [token("\ufffd", -0.7, [0x98, 0x80])]}
    _, output = read(text_chunk("", first), text_chunk("😀", second), STOP)
    assert output.text == "😀"
    assert len(output.pieces) == 2


def test_tokens_that_are_not_the_text_are_left_out_with_a_warning() -> None:
    reader, output = read(text_chunk("other", {"content": [token("a", -0.5)]}), STOP)
    assert output.pieces == [(b"other", None)]
    [warning] = [each for each in reader.result().warnings if "logprobs" in each]
    assert "1 tokens were left out" in warning


def test_completions_have_their_own_form_of_logprobs() -> None:
    logprobs = {
        "tokens": ["a", " b"],
        "token_logprobs": [-0.5, -1.5],
        "top_logprobs": [{"a": -0.5}, None],
    }
    choice = {"index": 0, "text": "a b", "logprobs": logprobs}
    _, output = read(Event("message", json.dumps({"choices": [choice]})))
    assert [(data, each and each.logprob) for data, each in output.pieces] == [
        (b"a", -0.5),
        (b" b", -1.5),
    ]


# ---- usage ----


def test_infinite_logprobs_become_the_number_of_vllm() -> None:
    data = '{"token": "a", "logprob": -Infinity, "top_logprobs": [{"token": "b", "logprob": -1e9}]}'
    logprobs = f'{{"content": [{data}]}}'
    event = f'{{"choices": [{{"delta": {{"content": "a"}}, "logprobs": {logprobs}}}]}}'
    _, output = read(Event("message", event))
    [(_, logprob)] = output.pieces
    assert logprob == TokenLogprob("a", -9999.0, (("b", -9999.0),))


def test_usage_of_each_chunk_is_known_when_the_engine_stops_the_answer() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 1}
    reader, _ = read(chunk({"content": "a"}, usage=usage), output=Output(stops_after=1))
    result = reader.result()
    assert (result.prompt_tokens, result.completion_tokens, result.warnings) == (9, 1, ())


def test_timings_of_llama_server_are_the_usage() -> None:
    timings = {"cache_n": 5, "prompt_n": 4, "predicted_n": 2}
    reader, _ = read(chunk({"content": "a"}, timings=timings), output=Output(stops_after=1))
    result = reader.result()
    assert (result.prompt_tokens, result.cached_tokens, result.completion_tokens) == (9, 5, 2)


def test_reasoning_tokens_of_the_usage_are_read() -> None:
    usage = {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}
    reader, _ = read(chunk({"reasoning_content": "hm"}), chunk(reason="stop", usage=usage))
    assert reader.result().reasoning_tokens == 4


def test_warnings_of_a_worker_rkllm_are_passed_on_once() -> None:
    warned = chunk({"content": "a"}, warnings=["min_p was ignored", 7])
    last = chunk(reason="stop", warnings=["min_p was ignored"], usage={"prompt_tokens": 1})
    reader, _ = read(warned, last)
    assert reader.result().warnings == ("min_p was ignored",)


def test_unknown_usage_is_a_warning() -> None:
    reader, _ = read(text_chunk("a"), STOP, DONE)
    assert any("prompt_tokens is 0" in each for each in reader.result().warnings)


def test_usage_is_read_after_the_engine_has_stopped_the_answer() -> None:
    usage = Event("message", json.dumps({"choices": [], "usage": USAGE}))
    reader, output = read(
        text_chunk("a"), text_chunk("b"), usage, DONE, output=Output(stops_after=1)
    )
    assert (output.text, reader.result().prompt_tokens, reader.is_done) == ("a", 9, True)


# ---- broken answers ----


def test_reader_reads_no_more_when_the_engine_has_stopped_the_answer() -> None:
    output = Output(stops_after=1)
    reader, _ = read(text_chunk("a"), text_chunk("b"), Event("message", "no JSON"), output=output)
    assert reader.is_stopped
    reader.close()
    assert output.text == "a"


@pytest.mark.parametrize(
    "event",
    [
        Event("message", "no JSON"),
        Event("message", ""),
        Event("message", "[]"),
        Event("message", '"text"'),
        Event("message", '{"choices": {}}'),
        Event("message", '{"choices": ["a"]}'),
        Event("message", '{"choices": [{"delta": "a"}]}'),
        Event("message", '{"choices": [{"delta": {"content": 5}}]}'),
        Event("message", '{"choices": [{"delta": {"tool_calls": {}}}]}'),
        Event("message", '{"error": {"message": "out of memory"}}'),
        Event("message", '{"error": "out of memory"}'),
        Event("error", '{"message": "out of memory"}'),
        Event("message", '{"choices": [{"delta": {"tool_calls": [{"function": "a"}]}}]}'),
        Event("message", '{"choices": [{"delta": {}, "logprobs": {"content": ["a"]}}]}'),
        Event("message", '{"choices": [{"delta": {}, "logprobs": {"content": [{"token": "a"}]}}]}'),
        Event("message", '{"object": "error", "message": "out of memory", "code": 500}'),
        Event(
            "message",
            '{"choices": [{"delta": {}, "finish_reason": "stop", "error": {"message": "lost"}}]}',
        ),
        call_chunk(0, "a", arguments="{}"),
        chunk(reason="error"),
        chunk(reason="abort"),
        chunk(reason="insufficient_system_resource"),
    ],
    ids=lambda event: event.data[:60],
)
def test_broken_event_fails_the_answer(event: Event) -> None:
    reader, _ = read(text_chunk("half an"))
    with pytest.raises(EngineCrashed, match="server"):
        reader.read(event)


def test_words_of_the_server_are_in_the_error() -> None:
    with pytest.raises(EngineCrashed, match="out of memory"):
        read(text_chunk("half"), Event("message", '{"error": {"message": "out of memory"}}'))


def test_text_after_the_finish_reason_fails_the_answer() -> None:
    reader, _ = read(text_chunk("a"), STOP)
    with pytest.raises(EngineCrashed, match="after its finish reason"):
        reader.read(text_chunk("b"))


def test_call_after_the_finish_reason_fails_the_answer() -> None:
    reader, _ = read(text_chunk("a"), STOP)
    with pytest.raises(EngineCrashed, match="after its finish reason"):
        reader.read(call_chunk(0, "a", name="weather", arguments="{}"))


def test_call_after_half_a_call_fails_the_answer() -> None:
    reader, _ = read(call_chunk(0, "a", name="weather", arguments='{"city": "Ro'))
    with pytest.raises(EngineCrashed, match="half a call"):
        reader.read(call_chunk(1, "b", name="time", arguments="{}"))


def test_end_mark_may_have_white_space_around_it() -> None:
    reader, _ = read(text_chunk("a"), STOP, Event("message", "[DONE] "))
    assert reader.is_done


@pytest.mark.parametrize("events", [(), (DONE,)], ids=["end", "done"])
def test_answer_without_a_finish_reason_is_none(events: tuple[Event, ...]) -> None:
    reader, _ = read(text_chunk("half an"), *events)
    with pytest.raises(EngineCrashed, match="without a finish reason"):
        reader.close()


def test_halves_of_a_surrogate_pair_become_one_character() -> None:
    _, output = read(
        Event("message", r'{"choices": [{"delta": {"content": "a\ud83d"}}]}'),
        Event("message", r'{"choices": [{"delta": {"content": "\ude00b"}}]}'),
        Event("message", r'{"choices": [{"delta": {"content": "c\ud83d"}}]}'),
        STOP,
    )
    assert output.text == "a😀bc\ufffd"
