"""The limit of open files of a process."""

from __future__ import annotations

import resource

import pytest

from common.process_utils import raise_open_files_limit


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1_024, 4_096, 4_096),
        (1_024, 1_000_000, 102_400),
        (1_024, resource.RLIM_INFINITY, 102_400),
        (200_000, 1_000_000, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_limit_of_open_files_is_raised_but_never_lowered(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, values: limits.append(values))
    raise_open_files_limit()
    assert limits == ([] if raised is None else [(raised, hard)])
