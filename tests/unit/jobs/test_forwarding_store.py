"""The forwarding store calls the same method of the wrapped store with the same arguments."""

from __future__ import annotations

import inspect
from typing import Any, cast
from unittest.mock import AsyncMock, Mock, call

import pytest

from jobs import JobStore
from jobs.forwarding_store import ForwardingJobStore

METHODS = [
    name
    for name, _ in inspect.getmembers(ForwardingJobStore, inspect.isfunction)
    if not name.startswith("_")
]


@pytest.mark.parametrize("name", METHODS)
async def test_call_is_forwarded_with_its_arguments(name: str) -> None:
    method = getattr(ForwardingJobStore, name)
    is_async = inspect.iscoroutinefunction(method)
    inner = Mock()
    setattr(inner, name, (AsyncMock if is_async else Mock)(return_value="result"))
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            kwargs[parameter.name] = object()
        else:
            args.append(object())
    result = getattr(ForwardingJobStore(cast("JobStore", inner)), name)(*args, **kwargs)
    if is_async:
        result = await result
    assert inner.mock_calls == [getattr(call, name)(*args, **kwargs)]
    assert result in ("result", None)
