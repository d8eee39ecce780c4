"""The engine follows the profile that the doctor measured, and takes no risk without one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import Engine
from engine.backends.rkllm.abi.abi import ABI_12, ABI_13, ABI_131, Abi
from engine.backends.rkllm.board.profile import Profile, write_profile
from engine.errors import BackendFailed, ModelLoadFailed
from tests.fake_rkllm import read_log
from tests.fake_rkllm.tokenizer import write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask

only_threads = pytest.mark.parametrize("isolation", ["thread"], indirect=True)

FIRST, SECOND = tuple(range(40)), (*range(30), 200, 201)
# The answer names the whole prompt, so that a token too few would show.
SPEAKS = 'prefix_reuse on\nanswer\n  cache told\n  abort ms=0 finish\n  say "\\{prompt}" id=250\n'

Profiled = Callable[..., Engine]


@pytest.fixture
def profiled(
    rkllm_of: RkllmMaker, library: Path, model: Callable[[str], Path], tmp_path: Path
) -> Profiled:
    """Return a function that builds an engine for a script and the outcomes of a profile."""
    write_tokenizer(tmp_path)

    def build(script: str, outcomes: dict[str, Any], **options: Any) -> Engine:
        path = model(script)
        profile = path.with_suffix(".json")
        write_profile(profile, library, path, Profile(**outcomes))
        return rkllm_of(path, profile=str(profile), **options)

    return build


def calls(log: Path, name: str) -> int:
    return sum(call.name == name for call in read_log(log))


async def test_prompts_of_other_chats_share_their_start_where_the_runtime_skips_it(
    profiled: Profiled, call_log: Path
) -> None:
    engine = profiled(SPEAKS, {"prefix_reuse": True})
    reused = []
    for prompt in (FIRST, SECOND, FIRST, FIRST):
        text, finish = await ask(engine, prompt)
        assert text == " ".join(map(str, prompt))
        reused.append(finish.usage.cached_tokens)
    # An equal prompt is skipped whole, as 1.3.0 was measured to do.
    assert reused == [0, 30, 30, 40]
    assert calls(call_log, "rkllm_clear_kv_cache") == 0


async def test_another_chat_clears_the_cache_of_a_runtime_that_skips_nothing(
    profiled: Profiled, call_log: Path
) -> None:
    engine = profiled(SPEAKS.replace("on", "off", 1), {"prefix_reuse": False})
    for prompt in (FIRST, SECOND):
        assert (await ask(engine, prompt))[1].usage.cached_tokens == 0
    assert calls(call_log, "rkllm_clear_kv_cache") == 2


@only_threads
async def test_reuse_that_is_off_clears_what_the_runtime_would_skip(
    profiled: Profiled, call_log: Path
) -> None:
    engine = profiled(SPEAKS, {"prefix_reuse": True}, kv_reuse=False)
    for prompt in (FIRST, FIRST):
        assert (await ask(engine, prompt))[1].usage.cached_tokens == 0
    contexts = [call for call in read_log(call_log) if call.name == "context"]
    assert [call.values["held"] for call in contexts] == ["0", "0"]


@only_threads
async def test_adapters_share_no_start(profiled: Profiled, call_log: Path, tmp_path: Path) -> None:
    # The fake library ends the process that skips what another adapter computed.
    adapter = tmp_path / "legal.rkllm"
    adapter.write_bytes(b"an adapter")
    engine = profiled(SPEAKS, {"prefix_reuse": True}, lora=f"legal={adapter}")
    for lora in (None, "legal", None):
        assert (await ask(engine, FIRST, lora=lora))[1].usage.cached_tokens == 0


@only_threads
async def test_nothing_is_skipped_after_a_failed_run(profiled: Profiled, call_log: Path) -> None:
    script = 'prefix_reuse on\nanswer when="200"\n  error "no"\nanswer\n  say "a"\n'
    engine = profiled(script, {"prefix_reuse": True})
    await ask(engine, FIRST)
    with pytest.raises(BackendFailed):
        await ask(engine, SECOND)
    assert (await ask(engine, FIRST))[1].usage.cached_tokens == 0


async def test_text_is_answered_with_that_outcome(profiled: Profiled) -> None:
    engine = profiled(SPEAKS, {"prefix_reuse": True})
    await ask(engine, FIRST)
    await ask(engine, SECOND)
    assert (await ask(engine, FIRST))[0] == " ".join(map(str, FIRST))


@pytest.mark.parametrize("abi", [ABI_13, ABI_131], ids=lambda abi: f"abi{abi.name}")
async def test_load_finds_out_whether_the_runtime_skips_common_beginnings(
    profiled: Profiled, call_log: Path
) -> None:
    engine = profiled(SPEAKS, {})
    reused = [(await ask(engine, prompt))[1].usage.cached_tokens for prompt in (FIRST, SECOND)]
    assert reused == [0, 30]
    # Two runs of the load, which leave an empty cache, and those of the prompts.
    assert [call.values["tokens"] for call in read_log(call_log) if call.name == "rkllm_run"] == [
        *("24", "24"),
        *("40", "32"),
    ]
    assert calls(call_log, "rkllm_clear_kv_cache") == 1


@pytest.mark.parametrize("abi", [ABI_131], ids=["abi1.3.1"])
@pytest.mark.parametrize(
    "script",
    [
        'prefix_reuse off\nanswer\n  say "a"\n',
        'answer\n  say "\\{run}" id=300\nanswer\n  say "a"\n',
        'answer when="100 101"\n  error "no"\nanswer\n  say "a"\n',
        'answer run=1\n  say "a" id=3\nanswer run=2\n  say "b" id=4\nanswer\n  say "a"\n',
        'answer\n  perf prefill_tokens=0\n  say "a"\n',
    ],
    ids=["off", "run counter", "failing", "other answer", "no counts"],
)
@pytest.mark.long_except("off", "other answer")
async def test_load_whose_trial_shows_no_reuse_clears_between_chats(
    profiled: Profiled, call_log: Path, script: str
) -> None:
    engine = profiled(script, {})
    await engine.ready()
    before = calls(call_log, "rkllm_clear_kv_cache")
    for prompt in (FIRST, SECOND):
        await ask(engine, prompt)
    expected = 0 if "{run}" in script else 2
    assert calls(call_log, "rkllm_clear_kv_cache") - before == expected


@only_threads
@pytest.mark.parametrize("size", ["works", "fails"])
async def test_usage_of_a_text_counts_what_the_runtime_skipped(
    rkllm_of: RkllmMaker, abi: Abi, size: str
) -> None:
    # Without tokenizer files only the runtime tokenizes.
    engine = rkllm_of(f'cache_size {size}\nanswer\n  say "a" "b"\n')
    usages = []
    for text in ("one two three four five six", "one two three four five six", "one two three go"):
        usage = (await ask(engine, text))[1].usage
        usages.append((usage.prompt_tokens, usage.cached_tokens))
    # Without the size the last one is estimated, by the characters that the texts have in common.
    expected = [(6, 0), (6, 0), (4, 0)] if abi is ABI_12 else [(6, 0), (6, 6), (4, 3)]
    assert usages == expected


async def test_logits_mode_is_refused_where_history_crashes(profiled: Profiled) -> None:
    script = "vocabulary 260\nhistory_logits crash\nanswer\n"
    engine = profiled(script, {"logits_with_history": False}, mode="logits")
    with pytest.raises(ModelLoadFailed, match="as the doctor found"):
        await engine.ready()


async def test_logits_mode_needs_an_outcome_only_with_abi_12(profiled: Profiled, abi: Abi) -> None:
    engine = profiled("vocabulary 260\nanswer\n", {}, mode="logits")
    if abi is ABI_12:
        with pytest.raises(ModelLoadFailed, match=r"let `python -m handler doctor` .* find out"):
            await engine.ready()
    else:
        await ask(engine, (1, 2), max_tokens=2)
