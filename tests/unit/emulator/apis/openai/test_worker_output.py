"""Workers' output, split or nested in any way, becomes complete events, a body or an error."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from structlog.contextvars import bound_contextvars

from common.json_object import JsonObject
from emulator.apis.openai.worker_output import (
    SSEReassembler,
    describe_job_failure,
    read_body,
)
from handler.errors import UNAVAILABLE, CallFailed, ErrorInfo, ErrorMapping
from jobs import Job, JobStatus, Policy

FIRST = {"object": "text_completion", "choices": [{"index": 0, "text": "grün 😀\n\n"}]}
SECOND = {"object": "text_completion", "choices": [], "usage": {"total_tokens": 3}}
DONE = b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    return (
        b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
    )


FULL_STREAM = event(FIRST) + event(SECOND) + DONE
TEXT = FULL_STREAM.decode()


def feed_all(*values: Any) -> bytes:
    """Return the stream for a worker's outputs, and check that each block has complete events."""
    events = SSEReassembler()
    blocks = [events.feed(value) for value in values]
    assert all(not block or block.endswith(b"\n\n") for block in blocks)
    output = b"".join(blocks) + events.finish()
    assert events.done
    assert events.finish() == b""
    return output


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_feed_accepts_text_split_anywhere(end: str) -> None:
    text = TEXT.replace("\n", end)
    for at in range(len(text) + 1):
        assert feed_all(text[:at], text[at:]) == FULL_STREAM, at
    assert feed_all(*text) == FULL_STREAM
    for size in (2, 3, 7):
        assert (
            feed_all(*[text[at : at + size] for at in range(0, len(text), size)]) == FULL_STREAM
        ), size


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\r\r"])
def test_feed_returns_an_event_of_many_pieces_at_its_end(end: str) -> None:
    events = SSEReassembler()
    for piece in ("data: ", *["x"] * 300, *end[:-1]):
        assert events.feed(piece) == b""
    # A last carriage return may be the first half of a line end.
    received = events.feed(end[-1]) + events.feed("data: [DONE]\n\n")
    assert received == b"data: " + b"x" * 300 + b"\n\n" + DONE


@pytest.mark.parametrize(
    "values",
    [
        [TEXT],
        [[TEXT]],
        [FIRST, SECOND],
        [[FIRST, SECOND]],
        [[[FIRST], SECOND], None],
        [FIRST, event(SECOND).decode(), "data: [DONE]\n\n"],
        [TEXT[:-1]],  # the last line's end never came
        [TEXT.removesuffix("\n\n")],
        [TEXT.replace("data: ", "data:")],
        [": open\n\n" + TEXT.replace("data: ", "event: x\nid: 1\ndata: ", 1) + "\n\n: bye\n\n"],
        [TEXT, TEXT],  # nothing is sent after the end
        [TEXT + TEXT],
        [
            event(FIRST).decode(),
            event(SECOND).decode(),
        ],  # `[DONE]` is added if the worker sends none
    ],
)
def test_feed_accepts_any_nesting_of_lists(values: list[Any]) -> None:
    assert feed_all(*values) == FULL_STREAM


def test_data_of_several_lines_is_joined_to_one() -> None:
    # worker-sglang sends JSON with line breaks, and marks each line as data.
    lines = json.dumps(SECOND, indent=4).split("\n")
    text = "".join(f"data: {line}\n" for line in lines) + "\n"
    assert feed_all(text) == event(SECOND) + DONE
    text = text.replace("\n", "\r\n")
    for at in range(len(text) + 1):
        assert feed_all(text[:at], text[at:]) == event(SECOND) + DONE, at
    # Data that is not JSON keeps its lines.
    assert feed_all("data: a\ndata: b\n\n") == b"data: a\ndata: b\n\n" + DONE


def test_data_nested_too_deeply_is_passed_unchanged() -> None:
    deep = f'{{"choices":\n{"[" * 300}{"]" * 300}}}'
    assert feed_all("data: " + deep.replace("\n", "\ndata: ") + "\n\ndata: [DONE]\n\n") == (
        b"data: " + deep.replace("\n", "\ndata: ").encode() + b"\n\n" + DONE
    )
    with pytest.raises(CallFailed) as caught:
        read_body(f'{{"error": {"[" * 300}{"]" * 300}}}')
    assert caught.value.info.message.endswith("an error that is nested too deeply")


@pytest.mark.parametrize("as_text", [False, True])
def test_line_separators_cannot_forge_an_event(as_text: bool) -> None:
    text = 'a\u2028data: [DONE]\u2029b\u0085data: {"made": "up"}\u2028'
    chunk = {"object": "text_completion", "choices": [{"index": 0, "text": text}]}
    events = feed_all(event(chunk).decode() if as_text else chunk)
    # httpx splits lines as `str.splitlines` does.
    lines = [line for line in httpx.Response(200, content=events).iter_lines() if line]
    assert [json.loads(line.removeprefix("data: ")) for line in lines[:-1]] == [chunk]
    assert lines[-1] == "data: [DONE]"


def test_events_are_returned_as_soon_as_they_are_complete() -> None:
    events = SSEReassembler()
    first = event(FIRST).decode()
    assert events.feed(first[:-1]) == b""
    assert events.feed("\n" + first[:10]) == event(FIRST)
    assert events.feed(first[10:] + "data: [DO") == event(FIRST)
    assert not events.done
    assert events.feed("NE]\n\n") == DONE
    assert events.done


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ({"object": "chat.completion", "choices": []}, '{"object":"chat.completion","choices":[]}'),
        ({"text": "hello"}, '{"text":"hello"}'),
        (5, "5"),
        (True, "true"),
        ([5], "5"),
    ],
)
def test_value_that_is_not_a_chunk_raises(value: Any, got: str) -> None:
    with pytest.raises(CallFailed) as failed:
        SSEReassembler().feed(value)
    assert failed.value.info.mapping.status == 502
    message = f"the worker's output must be a stream of chunks, got {got}"
    assert failed.value.info.message == message


@pytest.mark.parametrize("values", [[], [None], [""], ["hello there"], ["a\n\nb\n\n"], [": x\n\n"]])
def test_stream_without_an_event_raises(values: list[Any]) -> None:
    events = SSEReassembler()
    assert b"".join([events.feed(value) for value in values]) == b""
    with pytest.raises(CallFailed, match="must be server-sent events") as failed:
        events.finish()
    assert failed.value.info.mapping == ErrorMapping(502, "worker_error")


BODY = {"object": "text_completion", "choices": []}


@pytest.mark.parametrize(
    "output",
    [BODY, [BODY], [[BODY]], json.dumps(BODY), [json.dumps(BODY)], list(json.dumps(BODY))],
)
def test_read_body_accepts_every_form(output: Any) -> None:
    assert read_body(output) == BODY


@pytest.mark.parametrize("output", [None, [], "", "hello", 5, [BODY, BODY], ["a", 1], TEXT, "[1]"])
def test_invalid_body_is_a_bad_gateway(output: Any) -> None:
    with pytest.raises(CallFailed, match="must be one JSON body") as failed:
        read_body(output)
    assert failed.value.info.mapping == ErrorMapping(502, "worker_error")


OURS = {"error": {"message": "no", "type": "invalid_request_error", "param": "prompt", "code": 400}}


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (OURS, ErrorInfo("no", ErrorMapping(400, "invalid_request_error"), "prompt")),
        (
            # The error objects of vLLM and SGLang, which workers pass on as an answer.
            {"object": "error", "message": "too long", "type": "BadRequestError", "code": 400},
            ErrorInfo("too long", ErrorMapping(400, "BadRequestError")),
        ),
        (
            {"error": {"message": "oh", "type": "worker_error", "code": None}},
            ErrorInfo("oh", ErrorMapping(500, "worker_error")),
        ),
        *(
            (
                {"error": {"message": "oh", "type": "x", "code": code}},
                ErrorInfo("oh", ErrorMapping(status, "x", name=code, code=code)),
            )
            for code, status in (
                ("context_length_exceeded", 400),
                ("invalid_api_key", 401),
                ("model_not_found", 404),
                ("rate_limit_exceeded", 429),
            )
        ),
        (
            {"error": {"message": "oh", "type": "x", "code": "server_error"}},
            ErrorInfo("oh", ErrorMapping(500, "x")),
        ),
        ({"error": "oh", "code": 404}, ErrorInfo("oh", ErrorMapping(404, "worker_error"))),
        ({"error": [1]}, ErrorInfo('{"error":[1]}', ErrorMapping(500, "worker_error"))),
        (
            {"error": {"message": "x", "code": 200}},
            ErrorInfo("x", ErrorMapping(500, "worker_error")),
        ),
        (
            {"error": {"message": "x", "code": True}},
            ErrorInfo("x", ErrorMapping(500, "worker_error")),
        ),
    ],
)
def test_error_object_in_the_output_raises(output: Any, problem: ErrorInfo) -> None:
    for form in (output, [output], json.dumps(output)):
        with pytest.raises(CallFailed) as failed:
            read_body(form)
        assert failed.value.info == problem
    with pytest.raises(CallFailed) as failed:
        SSEReassembler().feed(output)
    assert failed.value.info == problem


def failed_job(error: str | None, status: JobStatus = JobStatus.FAILED) -> Job:
    policy = Policy(execution_timeout_ms=1500)
    return Job(
        id="j", endpoint="e", input=b"", created_at=0, policy=policy, status=status, error=error
    )


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (json.dumps(OURS), ErrorInfo("no", ErrorMapping(400, "invalid_request_error"), "prompt")),
        # worker-vllm yields an object, and the SDK writes it as Python does.
        (str(OURS["error"]), ErrorInfo("no", ErrorMapping(400, "invalid_request_error"), "prompt")),
        (
            json.dumps(
                {
                    "error_type": "<class 'ValueError'>",
                    "error_message": "out of luck",
                    "error_traceback": "File secret.py",
                }
            ),
            ErrorInfo("out of luck", ErrorMapping(500, "worker_error")),
        ),
        (
            "handler: out of luck \ntraceback: File secret.py",
            ErrorInfo("handler: out of luck", ErrorMapping(500, "worker_error")),
        ),
        ("just words", ErrorInfo("just words", ErrorMapping(500, "worker_error"))),
        ("{'not': really", ErrorInfo("{'not': really", ErrorMapping(500, "worker_error"))),
        ("5", ErrorInfo("5", ErrorMapping(500, "worker_error"))),
        (None, ErrorInfo("the worker failed without a message", ErrorMapping(500, "worker_error"))),
    ],
)
def test_failed_job_becomes_an_openai_error(error: str | None, problem: ErrorInfo) -> None:
    assert describe_job_failure(failed_job(error)) == problem


def test_unavailable_worker_error_equals_that_of_direct_routes() -> None:
    ours = ErrorInfo("the model is not there", ErrorMapping(503, "service_unavailable_error"))
    response = describe_job_failure(failed_job(json.dumps(ours.openai_error())))
    assert response == ours
    assert response.openai_error()["error"]["message"] == UNAVAILABLE


def test_timeout_and_cancellation_have_their_own_status() -> None:
    late = describe_job_failure(failed_job(None, JobStatus.TIMED_OUT))
    assert (late.mapping.status, late.mapping.type) == (504, "timeout_error")
    assert late.message == "the call took the worker longer than 1.5 s"
    cancelled = describe_job_failure(failed_job(None, JobStatus.CANCELLED))
    assert (cancelled.mapping.status, cancelled.mapping.type) == (499, "cancelled_error")


def test_pointer_to_a_bucket_raises_with_its_url() -> None:
    place = {"url": "http://s3/b/k.json", "bucket": "b", "key": "k.json", "bytes": 1}
    pointer = {"result": place, "choices": [{"index": 0, "finish_reason": "stop"}]}
    response = ErrorInfo(
        "the answer was put into a bucket: http://s3/b/k.json",
        ErrorMapping(413, "result_too_large_error"),
    )
    for output in (pointer, [pointer]):
        for ask in (read_body, SSEReassembler().feed):
            with pytest.raises(CallFailed) as failed:
                ask(output)
            assert failed.value.info == response
    # After the end of a stream the pointer is ignored.
    assert feed_all(TEXT, pointer) == FULL_STREAM


@pytest.mark.parametrize(
    ("has_names", "worker_event", "expected"),
    [
        # OpenAI's, vLLM's older form, Anthropic's, and that of /v1/responses.
        (False, {"error": {"message": "no"}}, {"error": {"message": "no", "request_id": "r1"}}),
        (False, {"object": "error"}, {"object": "error", "request_id": "r1"}),
        (
            True,
            {"type": "error", "error": {"type": "api_error"}},
            {"type": "error", "error": {"type": "api_error"}, "request_id": "r1"},
        ),
        (True, {"type": "error", "code": "c"}, {"type": "error", "code": "c", "request_id": "r1"}),
    ],
)
def test_error_of_a_worker_gets_the_id_of_the_request(
    has_names: bool, worker_event: JsonObject, expected: JsonObject
) -> None:
    for text in (json.dumps(worker_event), json.dumps(worker_event, separators=(",", ":"))):
        with bound_contextvars(request_id="r1"):
            events = SSEReassembler(has_names=has_names).feed(f"data: {text}\n\n")
        assert json.loads(events.partition(b"data: ")[2]) == expected


def test_other_events_of_a_worker_have_no_id() -> None:
    for text in ('{"choices": [], "error": {"a": 1}}', '{"error": "no"}', '{"error": {"no'):
        with bound_contextvars(request_id="r1"):
            assert SSEReassembler().feed(f"data: {text}\n\n") == f"data: {text}\n\n".encode()
