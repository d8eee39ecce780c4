"""Which part of a prompt is sent, depending on the cache size that the runtime reports."""

from __future__ import annotations

from typing import Any, cast

import pytest

from engine.backends.rkllm.kv_cache.kv_reuse import KvReuse, PromptPart
from engine.backends.rkllm.runs.run import Run, RuntimeInput, UserTurn
from engine.backends.rkllm.runtime import Runtime

CONTEXT = 100


class Cache:
    """A fake runtime: a cache of some size, which clearing sets to 0 if it works."""

    def __init__(self, *, clears: bool = True) -> None:
        self.size: int | None = 0
        self.clears = clears
        self.cleared = 0

    def cache_size(self) -> int | None:
        return self.size

    def clear_cache(self) -> bool:
        self.cleared += 1
        if self.clears:
            self.size = 0
        return self.clears


def history_of(*, enabled: bool = True) -> KvReuse:
    return KvReuse(enabled=enabled)


def prepare(history: KvReuse, cache: Cache, prompt: Any, **options: Any) -> PromptPart | None:
    return history.prepare(cast("Runtime", cache), prompt, **options)


def ran(ids: list[int], **fields: Any) -> Run:
    made = Run(1, lambda *_: False, 50, ids=ids, tokens=len(ids))
    for name, value in {"finished": True, **fields}.items():
        setattr(made, name, value)
    return made


def after(history: KvReuse, cache: Cache, ids: list[int], size: int, **fields: Any) -> None:
    """Run [1, 2, 3] with these tokens as the answer and this cache size afterwards."""
    assert prepare(history, cache, [1, 2, 3]) == PromptPart([1, 2, 3], keep_history=True)
    history.record_run([1, 2, 3], ran(ids, **fields), CONTEXT)
    cache.size = size


def test_first_prompt_is_sent_completely_to_a_cleared_cache() -> None:
    cache = Cache()
    assert prepare(history_of(), cache, [1, 2]) == PromptPart([1, 2], keep_history=True)
    assert cache.cleared == 1


@pytest.mark.parametrize(
    ("size", "reused"),
    [(None, 0), (0, 0), (2, 0), (3, 3), (4, 4), (5, 5), (6, 0), (7, 0)],
)
def test_reuse_depends_on_the_reported_cache_size(size: Any, reused: int) -> None:
    # [1, 2, 3] and the answer 4, 5: a size below the prompt or above all tokens is implausible.
    history, cache = history_of(), Cache()
    after(history, cache, [4, 5], size)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    assert prepare(history, cache, prompt) == PromptPart(prompt[reused:], reused, keep_history=True)
    assert cache.cleared == (1 if reused else 2)


@pytest.mark.parametrize(
    "prompt",
    [[1, 2, 3, 4, 5], [1, 2, 3], [1], [9], [1, 2, 3, 4, 6, 7], [9, 2, 3, 4, 5, 6]],
)
def test_prompt_that_does_not_continue_is_sent_completely(prompt: list[int]) -> None:
    history, cache = history_of(), Cache()
    after(history, cache, [4, 5], 5)
    assert prepare(history, cache, prompt) == PromptPart(prompt, keep_history=True)
    assert cache.cleared == 2


@pytest.mark.parametrize(
    "fields",
    [{"failed": True}, {"code": -1}, {"finished": False}, {"tokens": CONTEXT - 3}],
)
def test_cache_content_is_unknown_after(fields: dict[str, Any]) -> None:
    history, cache = history_of(), Cache()
    after(history, cache, [4, 5], 5, **fields)
    assert prepare(history, cache, [1, 2, 3, 4, 5, 6]) == PromptPart(
        [1, 2, 3, 4, 5, 6], keep_history=True
    )


def test_aborted_run_is_reused() -> None:
    history, cache = history_of(), Cache()
    after(history, cache, [4, 5], 5, finished=False, stopped=True)
    assert prepare(history, cache, [1, 2, 3, 4, 5, 6]) == PromptPart([6], 5, keep_history=True)


@pytest.mark.parametrize(
    ("size", "fields", "reused"),
    [
        # With the end token in the cache, without it, or with one that the chat does not contain.
        (6, {"end_id": 6}, 6),
        (5, {"end_id": 6}, 5),
        (4, {"end_id": 6}, 4),
        (7, {"end_id": 6}, 0),
        (6, {"end_id": 8}, 0),
        (6, {"end_id": -1}, 0),
        # An answer that was cut off has no end token.
        (6, {"end_id": 6, "stopped": True}, 0),
    ],
)
def test_reported_end_token_is_reused(size: int, fields: dict[str, Any], reused: int) -> None:
    history, cache = history_of(), Cache()
    after(history, cache, [4, 5], size, **fields)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    assert prepare(history, cache, prompt) == PromptPart(prompt[reused:], reused, keep_history=True)


def test_repeated_last_token_is_not_an_end_token() -> None:
    history, cache = history_of(), Cache()
    after(history, cache, [4, 5], 6, end_id=5)
    assert prepare(history, cache, [1, 2, 3, 4, 5, 5, 7]) == PromptPart(
        [1, 2, 3, 4, 5, 5, 7], keep_history=True
    )


def test_cache_content_is_used_once() -> None:
    # A run that raises does not record its end.
    history, cache = history_of(), Cache()
    after(history, cache, [4], 4)
    prepare(history, cache, [1, 2, 3, 4, 5])
    assert prepare(history, cache, [1, 2, 3, 4, 5]) == PromptPart(
        [1, 2, 3, 4, 5], keep_history=True
    )


def test_text_prompt_runs_without_history() -> None:
    history, cache, text = KvReuse(enabled=True, prefix_reuse=False), Cache(), UserTurn("hi")
    assert prepare(history, cache, text) == PromptPart(text)
    assert cache.cleared == 0
    after(history, cache, [4], 4)
    assert [prepare(history, cache, text) for _ in range(2)] == [PromptPart(text)] * 2
    assert cache.cleared == 2


def test_text_prompt_skips_nothing_while_the_runtime_may_skip_something() -> None:
    history, cache, text = history_of(), Cache(), UserTurn("hi")
    assert [prepare(history, cache, text) for _ in range(3)] == [PromptPart(text)] * 3
    assert cache.cleared == 2


def test_reset_forgets_the_cache() -> None:
    history, cache = history_of(), Cache()
    after(history, cache, [4], 4)
    history.reset()
    assert prepare(history, cache, [1, 2, 3, 4, 5]) == PromptPart(
        [1, 2, 3, 4, 5], keep_history=True
    )


def test_cache_that_cannot_be_cleared_is_not_reused(caplog: pytest.LogCaptureFixture) -> None:
    history, cache = history_of(), Cache(clears=False)
    assert prepare(history, cache, [1, 2]) is None
    assert "RKLLM_KV_REUSE" in caplog.text
    history.record_run([1, 2], ran([3]), CONTEXT)
    cache.size = 3
    whole = PromptPart([1, 2, 3, 4], skips_prefix=True)
    assert prepare(history, cache, [1, 2, 3, 4]) == whole


def test_runtime_is_not_queried_when_reuse_is_off_and_it_skips_nothing() -> None:
    history, cache = KvReuse(enabled=False, prefix_reuse=False), Cache(clears=False)
    for prompt in ([1, 2], [1, 2, 3], UserTurn("hi")):
        assert prepare(history, cache, prompt) == PromptPart(prompt)
        history.record_run(prompt, ran([3]), CONTEXT)
    assert cache.cleared == 0


@pytest.mark.parametrize("prefix_reuse", [None, True])
def test_reuse_that_is_off_clears_before_each_run_but_the_first(prefix_reuse: bool | None) -> None:
    history, cache = KvReuse(enabled=False, prefix_reuse=prefix_reuse), Cache()
    prompts: list[RuntimeInput] = [[1, 2], [1, 2], UserTurn("hi")]
    for runs, prompt in enumerate(prompts):
        assert prepare(history, cache, prompt) == PromptPart(prompt)
        assert cache.cleared == runs
        history.record_run(prompt, ran([3]), CONTEXT)
    history.reset()
    assert prepare(history, cache, [1, 2]) == PromptPart([1, 2])
    assert cache.cleared == 2


def test_cache_that_cannot_be_cleared_reloads_once_with_reuse_off_and_always_for_an_image() -> None:
    history, cache = KvReuse(enabled=False), Cache(clears=False)
    assert prepare(history, cache, [1, 2]) == PromptPart([1, 2])
    assert prepare(history, cache, [1, 2]) is None
    history.reset()
    # The runtime may skip what it has computed, which the usage then counts.
    whole = PromptPart([1, 2], skips_prefix=True)
    for skipped in (0, 1, 1):
        assert prepare(history, cache, [1, 2]) == whole
        run = ran([3], prefill_tokens=1)
        assert history.count_skipped(run, [1, 2], cache.cache_size) == skipped
    for _ in range(2):
        assert prepare(history, cache, [1, 2], isolated=True) is None
        history.reset()
        assert prepare(history, cache, [1, 2], isolated=True) == whole
    assert prepare(history, cache, [1, 2], lora="a") is None


@pytest.mark.parametrize(
    ("first", "then", "reused"), [("a", "a", 3), ("a", "b", 0), ("a", None, 0), (None, "a", 0)]
)
def test_adapters_do_not_reuse_each_others_cache(
    first: str | None, then: str | None, reused: int
) -> None:
    history, cache = history_of(), Cache()
    prepare(history, cache, [1, 2, 3], lora=first)
    history.record_run([1, 2, 3], ran([4]), CONTEXT)
    cache.size = 3
    part = prepare(history, cache, [1, 2, 3, 4, 5], lora=then)
    assert part == PromptPart([1, 2, 3, 4, 5][reused:], reused, keep_history=True)
    assert cache.cleared == (1 if reused else 2)


def test_embedding_in_between_is_isolated_and_clears_the_cache() -> None:
    # Even if the cache has the same size afterwards.
    history, cache = history_of(), Cache()
    after(history, cache, [4], 4)
    assert prepare(history, cache, [7, 8], isolated=True) == PromptPart([7, 8])
    assert (cache.cleared, cache.size) == (2, 0)
    cache.size = 4
    assert prepare(history, cache, [1, 2, 3, 4, 5]) == PromptPart(
        [1, 2, 3, 4, 5], keep_history=True
    )
    assert cache.cleared == 3
