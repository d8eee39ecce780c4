"""The time limit of a prompt, which grows with its length."""

from __future__ import annotations

import pytest

from engine.request import Chat, Message, Prompt
from engine.timeouts import Timeouts


@pytest.mark.parametrize(
    ("prompt", "factor"),
    [
        ("short", 1),
        ((1,) * 4096, 1),
        ((1,) * 8192, 2),
        ("word " * 9_000, 45_000 / 3 / 4096),
        ("你好" * 6_144, 36_864 / 3 / 4096),
        (Chat((Message("user", "x" * 12_288),)), 2),
    ],
    ids=["short", "ids", "more ids", "English", "Chinese", "chat"],
)
def test_limit_of_a_prefill_grows_with_the_prompt(prompt: Prompt, factor: float) -> None:
    limit_s = Timeouts(prefill_timeout_s=10).prefill_limit_s(prompt)
    assert limit_s == pytest.approx(10 * factor, rel=0.001)


def test_prompt_of_9000_tokens_has_more_than_400_seconds_by_default() -> None:
    # rkllama#169
    assert Timeouts().prefill_limit_s((1,) * 9_000) > 400
