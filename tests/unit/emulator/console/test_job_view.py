"""A job in a list: its times, its worker and the beginning of its prompt."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from emulator.console.job_view import summary_view
from jobs import Job


def job(job_input: Any = "x", **changes: Any) -> Job:
    data = job_input if isinstance(job_input, bytes) else orjson.dumps(job_input)
    return Job(id="j", endpoint="e", input=data, created_at=1, queued_at=1, **changes)


@pytest.mark.parametrize(
    ("job_input", "preview"),
    [
        ({"prompt": "some words"}, "some words"),
        ({"messages": [{"content": "first"}, {"content": "last"}]}, "last"),
        ({"openai_route": "/v1/completions", "openai_input": {"prompt": "routed"}}, "routed"),
        ({"openai_input": {"messages": [{"content": "a turn"}]}}, "a turn"),
        ({"openai_input": {"input": "a question"}}, "a question"),
        ({"openai_input": {"input": [{"role": "user", "content": "an item"}]}}, "an item"),
        ({"messages": []}, '{"messages":[]}'),
        ({"messages": [{"content": [1]}]}, "[1]"),
        ([1, 2], "[1,2]"),
        ("text", "text"),
        ({"prompt": "x" * 120}, "x" * 120),
        ({"prompt": "x" * 121}, "x" * 119 + "…"),
        # Inputs above the limit are not parsed for a list.
        ({"prompt": "x" * 30_000}, ""),
    ],
)
def test_preview_is_the_beginning_of_the_prompt(job_input: Any, preview: str) -> None:
    assert summary_view(job(job_input), None)["preview"] == preview


@pytest.mark.parametrize(
    ("started", "first", "expected"),
    [(2.0, 2.5, 2500), (2.0, 2.0, 2000), (3.0, 2.5, None), (None, 2.5, None), (2.0, None, None)],
)
def test_first_token_of_an_earlier_attempt_is_ignored(
    started: float | None, first: float | None, expected: int | None
) -> None:
    assert summary_view(job(started_at=started), first)["firstTokenAt"] == expected


def test_times_are_in_milliseconds() -> None:
    view = summary_view(job(started_at=2.0, ended_at=2.0625), None)
    assert [view[f"{name}At"] for name in ("created", "queued", "started", "ended")] == [
        *(1000, 1000),
        *(2000, 2062),
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "none"),
        ({"webhook": "http://127.0.0.1:9/"}, "due"),
        ({"webhook": "http://127.0.0.1:9/", "webhook_sent": True}, "done"),
    ],
)
def test_view_has_the_webhook_state_and_not_its_url(changes: dict[str, Any], expected: str) -> None:
    view = summary_view(job(**changes), None)
    assert view["webhook"] == expected
    assert "127.0.0.1" not in str(view)


@pytest.mark.parametrize(("worker", "name"), [(None, None), ("e/w1", "w1")])
def test_view_has_the_worker_name(worker: str | None, name: str | None) -> None:
    assert summary_view(job(worker_id=worker), None)["workerId"] == name
