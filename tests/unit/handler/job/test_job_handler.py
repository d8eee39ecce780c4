"""Run jobs of every kind in both of the ways that the SDK calls a handler."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import BackendConfig, Engine, EngineConfig
from handler.delivery import limits
from handler.errors import UNAVAILABLE
from handler.input.options import OptionsInput, OptionsReader
from handler.job.job_handler import JobHandler
from handler.pipeline import Pipeline
from tests.conftest import SMALL_RULES
from tests.unit.handler.conftest import (
    ExclamationValidator,
    JobHandlerFactory,
    PipelineFactory,
    RunRecorder,
)
from tests.unit.handler.json_values import json_values
from tests.usage import usage
from validation import Options, Subject, Verdict
from validation.rules_validator import RulesValidator

HELLO = {"pieces": ["He", "llo", " wor", "ld"]}
FAILING = {"pieces": ["He", {"error": "out of luck", "delay_ms": 20}]}
ENDLESS = {"when": "endless", "pieces": ["again "], "repeat": -1, "delay_ms": 1}
DONE = "data: [DONE]\n\n"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
SIZES_NOTE = "deltas and tokens were left out of the final output, which would exceed 1 MB"


def job(job_input: Any, job_id: str = "job-1") -> dict[str, Any]:
    return {"id": job_id, "input": job_input}


def prompt(text: str = "hi", *, stream: bool = False, **sampling: Any) -> dict[str, Any]:
    return job({"prompt": text, "sampling_params": {"stream": stream, **sampling}})


def openai(route: str, **body: Any) -> dict[str, Any]:
    return job({"openai_route": route, "openai_input": body})


async def outputs(jobs: JobHandler, payload: dict[str, Any]) -> list[Any]:
    """Return the outputs that the SDK would post, after a check that each is JSON and fits."""
    collected = []
    async with asyncio.timeout(30), aclosing(jobs.stream(payload)) as stream:
        async for output in stream:
            assert limits.sdk_size_bytes({"output": output}) <= limits.STREAM_CHUNK_BYTES
            collected.append(output)
    return collected


async def run(jobs: JobHandler, payload: dict[str, Any]) -> Any:
    async with asyncio.timeout(30):
        output = await jobs.run(payload)
    limits.sdk_size_bytes({"output": output})
    return output


def events(text: str) -> list[Any]:
    """The events of a whole SSE text, which must be nothing but events and end with [DONE]."""
    assert text.endswith(DONE)
    blocks = text.removesuffix(DONE).split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


# -- STREAM_MODE=aggregate ----------------------------------------------------------------------


async def test_prompt(job_handler_of: JobHandlerFactory) -> None:
    # R45, R46
    output = await run(job_handler_of(HELLO), prompt(stream=True))
    assert output["choices"] == [
        {
            "index": 0,
            "text": "Hello world",
            "deltas": ["He", "llo", " wor", "ld"],
            "tokens": ["He", "llo", " wor", "ld"],
            "finish_reason": "stop",
        }
    ]
    assert output["usage"] == {"input": 1, "output": 4, "total": 5}
    assert output["streaming"] is True
    assert output["id"] == "job-1"


async def test_prompt_not_streamed_is_the_same_text(job_handler_of: JobHandlerFactory) -> None:
    # R46
    jobs = job_handler_of(HELLO)
    output = await run(jobs, prompt(stream=False))
    choice = output["choices"][0]
    assert choice["text"] == "Hello world"
    assert choice["tokens"] == ["Hello world"]
    assert "deltas" not in choice
    assert output["streaming"] is False


async def test_messages_are_rendered_by_the_engine(job_handler_of: JobHandlerFactory) -> None:
    # R44, R38
    output = await run(job_handler_of(), job({"messages": CHAT["messages"]}))
    assert output["choices"][0]["text"] == "user: hi\nassistant:"


@pytest.mark.parametrize("stream", [True, False])
async def test_validation_in_the_output(stream: bool, job_handler_of: JobHandlerFactory) -> None:
    # R45-R47
    jobs = job_handler_of({"pieces": ["Hello", "!"]}, validator=ExclamationValidator())
    output = await run(jobs, prompt(stream=stream))
    assert output["validation"] == {
        "valid": False,
        "issues": ["somebody shouted"],
        "sanitized": True,
        "intent": "general",
        "details": {
            "issues": [{"rule": "shouting", "message": "somebody shouted"}],
            "notices": [],
            "removed": [],
            "removed_count": 0,
        },
    }
    assert output["choices"][0]["text"] == "Hello"
    assert output["choices"][0]["tokens"] == (["Hello", "!"] if stream else ["Hello"])


async def test_validation_only_if_enabled(job_handler_of: JobHandlerFactory) -> None:
    # R47
    jobs = job_handler_of(
        {"pieces": ["Hello!"]}, validator=ExclamationValidator(), validation=False
    )
    assert "validation" not in await run(jobs, job({"prompt": "hi"}))
    requests = await run(jobs, job({"prompt": "hi", "enable_validation": True}))
    assert requests["validation"]["sanitized"] is True
    on = job_handler_of({"pieces": ["Hello!"]}, validator=ExclamationValidator())
    assert "validation" in await run(on, job({"prompt": "hi"}))
    assert "validation" not in await run(on, job({"prompt": "hi", "enable_validation": False}))


async def test_stop_string_is_not_in_the_answer(job_handler_of: JobHandlerFactory) -> None:
    # R11, R26
    jobs = job_handler_of({"pieces": ["one f", "i", "ve si", "x"]})
    choice = (await run(jobs, prompt(stream=True, stop="five")))["choices"][0]
    assert choice["text"] == "one " == "".join(choice["deltas"])
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == "five"


async def test_default_of_max_tokens_is_for_a_job(job_handler_of: JobHandlerFactory) -> None:
    # R49
    jobs = job_handler_of({"pieces": ["x"], "repeat": 400}, max_tokens=7)
    output = await run(jobs, job({"prompt": "hi"}))
    assert output["usage"]["output"] == 150
    assert output["choices"][0]["finish_reason"] == "length"


async def test_openai_completion(job_handler_of: JobHandlerFactory) -> None:
    # R44, R2
    body = await run(job_handler_of(HELLO), openai("/v1/completions", prompt="hi"))
    assert body["object"] == "text_completion"
    assert body["choices"][0]["text"] == "Hello world"
    assert body["usage"] == usage(1, 4)


async def test_openai_chat(job_handler_of: JobHandlerFactory) -> None:
    # R44, R35
    body = await run(job_handler_of(HELLO), openai("/v1/chat/completions", **CHAT))
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["content"] == "Hello world"


async def test_default_of_max_tokens_is_for_an_openai_call(
    job_handler_of: JobHandlerFactory,
) -> None:
    # R8
    jobs = job_handler_of({"pieces": ["x"], "repeat": 400}, max_tokens=7)
    body = await run(jobs, openai("/v1/completions", prompt="hi"))
    assert body["usage"]["completion_tokens"] == 7
    unlimited = job_handler_of({"pieces": ["x"], "repeat": 400})
    body = await run(unlimited, openai("/v1/completions", prompt="hi"))
    assert body["usage"]["completion_tokens"] == 400


@pytest.mark.parametrize("mode", ["aggregate", "generator"])
async def test_openai_models(mode: str, job_handler_of: JobHandlerFactory) -> None:
    jobs = job_handler_of()
    payload = openai("/v1/models")
    body = await run(jobs, payload) if mode == "aggregate" else (await outputs(jobs, payload))[0]
    assert body["object"] == "list"
    (model,) = body["data"]
    assert model["id"] == "scripted"
    assert model["object"] == "model"
    assert isinstance(model["created"], int)


async def test_openai_stream_is_one_text_of_events(job_handler_of: JobHandlerFactory) -> None:
    jobs = job_handler_of(HELLO)
    text = await run(jobs, openai("/v1/chat/completions", stream=True, **CHAT))
    assert isinstance(text, str)
    chunks = events(text)
    expected = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert expected == "Hello world"


# -- STREAM_MODE=generator ----------------------------------------------------------------------


async def test_partial_outputs_precede_the_final_output(job_handler_of: JobHandlerFactory) -> None:
    # R45, R46
    answer = {"pieces": [{"text": text, "delay_ms": 10} for text in ("He", "llo", " world")]}
    *partials, final = await outputs(job_handler_of(answer, interval_s=0.0), prompt(stream=True))
    assert len(partials) > 1
    assert all(set(partial) == {"choices", "streaming"} for partial in partials)
    tokens = [token for partial in partials for token in partial["choices"][0]["tokens"]]
    assert tokens == final["choices"][0]["deltas"] == ["He", "llo", " world"]
    assert "".join(partial["choices"][0]["text"] for partial in partials) == "Hello world"
    assert final["choices"][0]["text"] == "Hello world"
    assert final["usage"] == {"input": 1, "output": 3, "total": 4}


async def test_both_modes_end_with_the_same_json(job_handler_of: JobHandlerFactory) -> None:
    # R45
    jobs = job_handler_of(HELLO, validator=ExclamationValidator())
    for stream in (True, False):
        complete = await run(jobs, prompt(stream=stream))
        final = (await outputs(jobs, prompt(stream=stream)))[-1]
        assert {**complete, "timings": 0} == {**final, "timings": 0}
        assert complete["timings"].keys() == final["timings"].keys()


async def test_answer_that_is_not_streamed_is_one_output(
    job_handler_of: JobHandlerFactory,
) -> None:
    (final,) = await outputs(job_handler_of(HELLO), prompt(stream=False))
    assert final["choices"][0]["tokens"] == ["Hello world"]


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
async def test_openai_stream_is_yielded_in_complete_events(
    route: str, job_handler_of: JobHandlerFactory
) -> None:
    # R29
    answer = {"pieces": [{"text": text, "delay_ms": 100} for text in ("He", "llo", " world")]}
    body = CHAT if route.endswith("chat/completions") else {"prompt": "hi"}
    texts = await outputs(
        job_handler_of(answer, interval_s=0.0), openai(route, stream=True, **body)
    )
    assert len(texts) > 1
    assert all(text.startswith("data: ") and text.endswith("\n\n") for text in texts)
    assert len(events("".join(texts))) >= 4


async def test_openai_call_that_is_not_streamed_is_one_output(
    job_handler_of: JobHandlerFactory,
) -> None:
    (body,) = await outputs(job_handler_of(HELLO), openai("/v1/completions", prompt="hi"))
    assert body["choices"][0]["text"] == "Hello world"


# -- failures -----------------------------------------------------------------------------------

BAD = [
    (job(None), "input must be an object"),
    (job({}), "input must have prompt, messages, openai_input with openai_route, or route with"),
    (prompt(temperature="hot"), "input.sampling_params.temperature must be a number from 0 to 2"),
    (job({"messages": []}), "input.messages must be a non-empty array"),
    (prompt(" ".join(["word"] * 5000)), "prompt: 5000 tokens do not fit the context of 4096"),
    ({"id": "job-1"}, "input must be an object"),
    ({}, "input must be an object"),
]


@pytest.mark.parametrize(("payload", "message"), BAD)
async def test_invalid_job_fails_with_one_sentence_and_the_next_is_served(
    payload: dict[str, Any], message: str, job_handler_of: JobHandlerFactory
) -> None:
    # R50
    jobs = job_handler_of()
    complete = await run(jobs, payload)
    assert list(complete) == ["error"]
    assert type(complete["error"]) is str
    assert complete["error"].startswith(message)
    assert await outputs(jobs, payload) == [complete]
    assert (await run(jobs, prompt("fine")))["choices"][0]["text"] == "fine"


BAD_CALLS = [
    ("/v1/completions", {}, 400, "invalid_request_error", "prompt", "Invalid prompt format"),
    (
        "/v1/completions",
        {"prompt": "x", "model": "gpt"},
        "model_not_found",
        "not_found_error",
        "model",
        'the model "gpt" does not exist, there is: scripted',
    ),
    (
        "/v1/images",
        {},
        404,
        "not_found_error",
        "openai_route",
        'there is no route "/v1/images", there are: /v1/completions, /v1/chat/completions, '
        "/v1/embeddings, /v1/rerank, /v1/score, /v1/models, /v1/responses, "
        "/v1/responses/input_tokens, /v1/messages, /v1/messages/count_tokens, /api/chat, "
        "/api/generate, /api/embed, /api/embeddings",
    ),
    (
        "/v1/completions",
        {"prompt": " ".join(["word"] * 5000)},
        "context_length_exceeded",
        "invalid_request_error",
        "prompt",
        "This model's maximum context length is 4096 tokens. However, your prompt resulted in "
        "5000 tokens. Please reduce the length of the prompt. (context_length_exceeded)",
    ),
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("route", "body", "code", "kind", "param", "message"), BAD_CALLS)
async def test_bad_openai_call_fails_with_the_error_object_as_a_string(
    route: str,
    body: dict[str, Any],
    code: int | str,
    kind: str,
    param: str,
    message: str,
    stream: bool,
    job_handler_of: JobHandlerFactory,
) -> None:
    # R53, R54
    jobs = job_handler_of()
    complete = await run(jobs, openai(route, stream=stream, **body))
    assert list(complete) == ["error"]
    assert type(complete["error"]) is str
    assert json.loads(complete["error"]) == {
        "error": {"message": message, "type": kind, "param": param, "code": code}
    }
    assert await outputs(jobs, openai(route, stream=stream, **body)) == [complete]


@pytest.mark.parametrize("stream", [True, False])
async def test_engine_failure_is_one_string(
    stream: bool, job_handler_of: JobHandlerFactory
) -> None:
    # R50
    jobs = job_handler_of(FAILING)
    assert await run(jobs, prompt(stream=stream)) == {"error": "out of luck"}
    collected = await outputs(jobs, prompt(stream=stream))
    assert collected[-1] == {"error": "out of luck"}
    # Text that was already under way came first.
    assert len(collected) == (2 if stream else 1)
    assert not jobs.is_dead


async def test_engine_failure_after_text_is_an_event_of_an_openai_stream(
    job_handler_of: JobHandlerFactory,
) -> None:
    # R30
    jobs = job_handler_of(FAILING)
    payload = openai("/v1/completions", prompt="hi", stream=True)
    for text in (await run(jobs, payload), "".join(await outputs(jobs, payload))):
        *chunks, last = events(text)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "He"
        assert last == {
            "error": {"message": "out of luck", "type": "engine_error", "param": None, "code": 500}
        }


async def test_dead_engine_asks_for_a_new_worker(job_handler_of: JobHandlerFactory) -> None:
    jobs = job_handler_of(load_error="no NPU in this machine")
    assert not jobs.is_dead
    failed = {"error": "no NPU in this machine", "refresh_worker": True}
    assert await run(jobs, prompt()) == failed
    assert jobs.is_dead
    assert await outputs(jobs, prompt(stream=True)) == [failed]
    call = await run(jobs, openai("/v1/completions", prompt="hi"))
    assert call["refresh_worker"] is True
    assert json.loads(call["error"])["error"]["message"] == UNAVAILABLE


async def test_bug_is_reported_without_its_traceback(
    pipeline_of: PipelineFactory, caplog: pytest.LogCaptureFixture
) -> None:
    # R53
    class Buggy(ExclamationValidator):
        def validate(self, subject: Subject, options: Options) -> Verdict:
            raise KeyError("secret")

    jobs = JobHandler(pipeline_of(HELLO, validator=Buggy()))
    failed = {"error": "an internal error ended this request; the log has the details"}
    assert await run(jobs, prompt()) == failed
    assert (await outputs(jobs, prompt()))[-1] == failed
    assert all(record.exc_info for record in caplog.records)


async def test_number_that_is_no_json_never_leaves(pipeline_of: PipelineFactory) -> None:
    class Odd(ExclamationValidator):
        def validate(self, subject: Subject, options: Options) -> Verdict:
            return Verdict(text=float("nan"), intent="general")  # type: ignore[arg-type]

    jobs = JobHandler(pipeline_of(HELLO, validator=Odd()))
    assert list(await run(jobs, prompt())) == ["error"]
    assert list((await outputs(jobs, prompt()))[-1]) == ["error"]


# -- cancelling ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload", [prompt("endless"), openai("/v1/completions", prompt="endless")]
)
async def test_cancelling_the_task_frees_the_slot(
    payload: dict[str, Any], pipeline_of: PipelineFactory
) -> None:
    # R31
    runs = RunRecorder()
    jobs = JobHandler(pipeline_of(ENDLESS, {"when": "."}, slots=1, hooks=[runs]))
    task = asyncio.create_task(jobs.run({**payload, "input": _unlimited(payload["input"])}))
    async with asyncio.timeout(30):
        await runs.started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await run(jobs, prompt("fine")))["choices"][0]["text"] == "fine"


@pytest.mark.parametrize(
    "payload",
    [prompt("endless", stream=True), openai("/v1/completions", prompt="endless", stream=True)],
)
async def test_closing_the_stream_frees_the_slot(
    payload: dict[str, Any], job_handler_of: JobHandlerFactory
) -> None:
    # R31
    jobs = job_handler_of(ENDLESS, {"when": "."}, slots=1)
    stream: AsyncIterator[Any] = jobs.stream({**payload, "input": _unlimited(payload["input"])})
    async with asyncio.timeout(30), aclosing(stream):  # type: ignore[type-var]
        await anext(stream)
    assert (await run(jobs, prompt("fine")))["choices"][0]["text"] == "fine"


def _unlimited(job_input: dict[str, Any]) -> dict[str, Any]:
    if "prompt" in job_input:
        return {
            **job_input,
            "sampling_params": {**job_input["sampling_params"], "max_tokens": 10**6},
        }
    return job_input


# -- sizes --------------------------------------------------------------------------------------


def long_answer(megabytes: float, piece: str = "x" * 1000) -> dict[str, Any]:
    count = int(megabytes * 1e6) // len(piece.encode())
    return {"pieces": [piece], "repeat": count}


def big(payload: dict[str, Any]) -> dict[str, Any]:
    params = payload["input"].get("sampling_params", {})
    return {
        **payload,
        "input": {**payload["input"], "sampling_params": {**params, "max_tokens": 10**6}},
    }


BIG: dict[str, Any] = {"context_length": 10**6}


async def test_long_answer_in_one_json(job_handler_of: JobHandlerFactory) -> None:
    jobs = job_handler_of(long_answer(1.5), **BIG)
    choice = (await run(jobs, big(prompt(stream=True))))["choices"][0]
    assert len(choice["text"]) == 1_500_000
    assert "".join(choice["deltas"]) == choice["text"]


async def test_long_answer_drops_what_was_posted_already(
    job_handler_of: JobHandlerFactory,
) -> None:
    # R45
    jobs = job_handler_of(long_answer(0.6), interval_s=0.0, **BIG)
    *partials, final = await outputs(jobs, big(prompt(stream=True)))
    choice = final["choices"][0]
    assert choice["text"] == "".join(each["choices"][0]["text"] for each in partials)
    assert len(choice["text"]) == 600_000
    assert "deltas" not in choice
    assert "tokens" not in choice
    assert final["warnings"] == [SIZES_NOTE]


async def test_short_answer_drops_nothing(job_handler_of: JobHandlerFactory) -> None:
    jobs = job_handler_of(long_answer(0.2), interval_s=0.0, **BIG)
    final = (await outputs(jobs, big(prompt(stream=True))))[-1]
    assert "".join(final["choices"][0]["deltas"]) == final["choices"][0]["text"]
    assert "warnings" not in final


@pytest.mark.long_except('"')
@pytest.mark.parametrize("char", ["\0", '"', "😀"])
async def test_every_output_fits_whatever_json_escapes(
    char: str, job_handler_of: JobHandlerFactory
) -> None:
    # One delta of many characters, and as many deltas of one; `outputs` checks each.
    count = limits.PARTIAL_CHARS + 1
    long = job_handler_of({"pieces": [char * count]}, interval_s=0.0, **BIG)
    one_by_one = {"pieces": ["a ", {"text": char, "delay_ms": 50}, *[char] * count]}
    for jobs in (long, job_handler_of(one_by_one, interval_s=0.5, **BIG)):
        *partials, final = await outputs(jobs, big(prompt(stream=True)))
        expected = "".join(each["choices"][0]["text"] for each in partials)
        assert expected.count(char) >= count
        assert expected == final["choices"][0]["text"]
    text = "".join(await outputs(long, openai("/v1/completions", prompt="hi", stream=True)))
    assert "".join(event["choices"][0]["text"] for event in events(text)) == char * count


async def test_answer_too_long_for_a_chunk_fails_clearly(
    job_handler_of: JobHandlerFactory,
) -> None:
    jobs = job_handler_of(long_answer(1.5), interval_s=0.0, **BIG)
    collected = await outputs(jobs, big(prompt(stream=True)))
    assert collected[-1]["error"].startswith("one output is 1.5 MB and RunPod takes 1 MB")
    (failed,) = await outputs(jobs, big(prompt(stream=False)))
    assert failed["error"].startswith("one output is 1.5 MB and RunPod takes 1 MB")


@pytest.mark.parametrize(
    ("job_id", "megabytes", "stream", "fails"),
    [
        ("a-u1", 3.2, True, False),
        ("a-u1", 3.6, True, True),
        ("a-u1", 3.6, False, False),
        ("sync-a-u1", 3.6, True, False),
        ("sync-a-u1", 6.8, True, True),
    ],
)
async def test_result_too_large_for_its_kind_of_job_fails_clearly(
    job_id: str, megabytes: float, stream: bool, fails: bool, job_handler_of: JobHandlerFactory
) -> None:
    jobs = job_handler_of(long_answer(megabytes, "x" * 10_000), **BIG)
    output = await run(jobs, {**big(prompt(stream=stream)), "id": job_id})
    if fails:
        size, limit = megabytes * 3, 20 if job_id.startswith("sync-") else 10
        assert output["error"].startswith(
            f"the result is {size:.1f} MB and RunPod takes {limit} MB"
        )
    else:
        assert len(output["choices"][0]["text"]) == int(megabytes * 1e6)


async def test_stream_that_grows_past_the_result_limit_fails_clearly(
    job_handler_of: JobHandlerFactory,
) -> None:
    # With a pause after each: the whole at once would be more than one stream may hold.
    answer = long_answer(11, "x" * 50_000) | {"delay_ms": 1}
    jobs = job_handler_of(answer, interval_s=0.0, **BIG)
    collected = await outputs(jobs, openai("/v1/completions", prompt="hi", stream=True))
    assert collected[-1].keys() == {"error"}
    message = json.loads(collected[-1]["error"])["error"]["message"]
    assert message.startswith("the result is 10.0 MB and RunPod takes 10 MB")
    assert sum(map(limits.sdk_size_bytes, collected[:-1])) < limits.RUN_RESULT_BYTES


# -- anything at all ----------------------------------------------------------------------------


def sometimes(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return good | good | json_values()


TEXT = st.text(st.characters(), min_size=1, max_size=6)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": sometimes(st.sampled_from(["user", "tool"])), "content": sometimes(TEXT)},
        optional={"name": sometimes(TEXT)},
    ),
    max_size=3,
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "json_schema": sometimes(st.just({"type": "object"})),
        "redact_pii": sometimes(st.booleans()),
        "language": sometimes(st.sampled_from(["en", "xx"])),
        "blocked_intents": sometimes(st.just(["weather"])),
        "blocked_terms": sometimes(st.lists(TEXT, max_size=2)),
        "regenerate": sometimes(st.booleans()),
    },
)
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": sometimes(st.integers(1, 9)),
        "temperature": sometimes(st.floats(0, 2)),
        "seed": sometimes(st.integers(-(2**63), 2**63 - 1)),
        "stop": sometimes(TEXT),
        "stop_token_ids": sometimes(st.lists(st.integers())),
        "logit_bias": sometimes(
            st.dictionaries(st.integers().map(str), st.floats(-100, 100), max_size=2)
        ),
        "stream": sometimes(st.booleans()),
        "logprobs": sometimes(st.integers(0, 5)),
        "chat_template_kwargs": json_values(),
        "stream_options": sometimes(st.just({"include_usage": True})),
        "validation": sometimes(OPTIONS),
        "enable_validation": sometimes(st.booleans()),
    },
)
INPUTS = (
    json_values()
    | st.fixed_dictionaries(
        {"prompt": sometimes(TEXT)},
        optional={
            "sampling_params": sometimes(PARAMS),
            "enable_validation": sometimes(st.booleans()),
            "validation": sometimes(OPTIONS),
        },
    )
    | st.fixed_dictionaries({"messages": sometimes(MESSAGES)}, optional={"sampling_params": PARAMS})
    | st.fixed_dictionaries(
        {"openai_route": sometimes(st.sampled_from(["/v1/completions", "/v1/models"]))},
        optional={
            "openai_input": sometimes(
                PARAMS.flatmap(lambda body: sometimes(TEXT).map(lambda x: {**body, "prompt": x}))
            )
        },
    )
    | st.builds(
        lambda body, messages: {
            "openai_route": "/v1/chat/completions",
            "openai_input": {**body, "messages": messages},
        },
        PARAMS,
        sometimes(MESSAGES),
    )
)


def test_no_input_raises_or_costs_a_slot() -> None:
    # R50: through the wire of the engine's own process, which takes less than Python's JSON does.
    with asyncio.Runner() as runner:

        async def build() -> Engine:
            return Engine(
                EngineConfig(backend=BackendConfig.from_wire("scripted"), slots=4, max_queue=0)
            )

        engine = runner.run(build())
        validator = RulesValidator.from_file(SMALL_RULES)
        options = OptionsReader(OptionsInput(redact_pii=True), validator.intents)
        jobs = JobHandler(Pipeline(engine, "scripted", validator), options, interval_s=0.0)

        async def both(job_input: Any) -> tuple[Any, list[Any]]:
            return await run(jobs, job(job_input)), await outputs(jobs, job(job_input))

        @settings(max_examples=100)
        @given(INPUTS)
        def check(job_input: Any) -> None:
            output, yielded = runner.run(both(job_input))
            assert isinstance(output, dict | str)
            assert yielded
            for each in (output, *yielded):
                if isinstance(each, dict) and "error" in each:
                    assert type(each["error"]) is str
                    assert "an internal error" not in each["error"]
                    assert "Traceback" not in each["error"]
            assert engine.running == 0

        try:
            check()
        finally:
            runner.run(engine.close())


@pytest.mark.parametrize(
    "job_input",
    [
        {"route": "/v1/models", "method": "DELETE"},
        {"openai_route": "/v1/models", "openai_input": "hi"},
        {"openai_route": 3},
    ],
)
async def test_call_that_cannot_be_read_fails_with_an_error_object(
    job_handler_of: JobHandlerFactory, job_input: dict[str, Any]
) -> None:
    output = await job_handler_of(HELLO).run(job(job_input))
    error = json.loads(output["error"])["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", 400)
