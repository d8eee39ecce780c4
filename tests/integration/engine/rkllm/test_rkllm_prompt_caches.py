"""Named prompt caches: tokens that later prompts reuse, and invalid files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import Chat, Engine, Message, Priority
from engine.backends.rkllm.abi.abi import ABI_13, ABI_131
from engine.errors import RequestRejected
from tests.fake_rkllm import read_log
from tests.fake_rkllm.tokenizer import write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask, read, request

only_threads = pytest.mark.parametrize("isolation", ["thread"], indirect=True)
only_13 = pytest.mark.parametrize("abi", [ABI_13, ABI_131], ids=lambda abi: f"abi{abi.name}")

SPEAKS = 'answer\n  spell "Answer \\{run}."\n'
BOT = "You answer for a shop that sells walnuts, and for nobody else."
GUIDE = "You are a guide who knows every town."
# <|im_start|>, system, the prompt, <|im_end|>, <|im_start|>, user: with their line ends.
AROUND = len("1system\n2\n1user\n")


async def ask_and_count_reused(engine: Engine, system: str, question: str, name: str | None) -> int:
    chat = Chat((Message("system", system), Message("user", question)))
    _, finish = await ask(engine, chat, prompt_cache=name)
    timings = finish.timings
    assert timings.reused_tokens + timings.prefilled_tokens == finish.usage.prompt_tokens
    return timings.reused_tokens


def calls(log: Path) -> list[str]:
    """Return the loads and releases, and how many tokens of each prompt were cached."""
    labels = {"rkllm_load_prompt_cache": "load", "rkllm_release_prompt_cache": "release"}
    return [
        labels.get(call.name) or f"held {call.values['held']}"
        for call in read_log(log)
        if call.name in labels or call.name == "context"
    ]


def files(folder: str) -> list[Path]:
    """Return the paths of the caches named "bot"."""
    return list(Path(folder).glob("*/bot.bin"))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Return the folder for caches; write tokenizer files for every model of this test."""
    write_tokenizer(tmp_path)
    return str(tmp_path / "caches")


async def test_first_prompt_is_saved_and_later_ones_reuse_it(
    rkllm_of: RkllmMaker, folder: str, call_log: Path
) -> None:
    engine = rkllm_of(SPEAKS, prompt_caches=folder)
    assert (await engine.ready()).prompt_caches
    same = AROUND + len(BOT)
    assert await ask_and_count_reused(engine, BOT, "Are they fresh?", "bot") == 0
    assert await ask_and_count_reused(engine, BOT, "How much is a pound?", "bot") == same
    assert await ask_and_count_reused(engine, BOT, "Is one ripe?", "bot") == same
    # Of an identical prompt the last token is computed, because the answer starts from it.
    prompt = (await ask(engine, (1, 2, 3), prompt_cache="ids"))[1].usage.prompt_tokens
    assert (await ask(engine, (1, 2, 3), prompt_cache="ids"))[1].usage.cached_tokens == prompt - 1
    # It also exists after a restart.
    await engine.close()
    (model,) = Path(folder).parent.glob("*.rkllm")
    engine = rkllm_of(model, prompt_caches=folder)
    assert await ask_and_count_reused(engine, BOT, "Two?", "bot") == same
    expected = [f"held {each}" for each in (same, same, 0, prompt - 1, same)]
    assert calls(call_log) == [
        *[
            "held 0",
            "load",
            expected[0],
            expected[1],
            "release",
            expected[2],
            "load",
            expected[3],
            "load",
            expected[4],
        ]
    ]


@only_threads
async def test_one_cache_is_loaded_and_none_without_a_name(
    rkllm_of: RkllmMaker, folder: str, call_log: Path
) -> None:
    engine = rkllm_of(SPEAKS, prompt_caches=folder)
    for name, system in (("bot", BOT), ("guide", GUIDE)):
        await ask_and_count_reused(engine, system, "Well?", name)
    bot, guide = (AROUND + len(system) for system in (BOT, GUIDE))
    assert await ask_and_count_reused(engine, BOT, "Again?", "bot") == bot
    assert await ask_and_count_reused(engine, GUIDE, "Again?", "guide") == guide
    assert await ask_and_count_reused(engine, GUIDE, "A third time?", None) == 0
    expected = [f"held {each}" for each in (bot, guide)]
    assert calls(call_log)[2:] == [
        "load",
        expected[0],
        "release",
        "load",
        expected[1],
        "release",
        "held 0",
    ]


@only_threads
async def test_only_chats_without_a_cache_name_reuse_the_kv_cache(
    rkllm_of: RkllmMaker, folder: str, call_log: Path
) -> None:
    engine = rkllm_of(SPEAKS, prompt_caches=folder)
    first = tuple(range(20))
    await ask(engine, first)
    await ask(engine, (*first, 30), prompt_cache="bot")
    assert (await ask(engine, (*first, 40)))[1].usage.cached_tokens == 0
    assert (await ask(engine, (*first, 30, 50), prompt_cache="bot"))[1].usage.cached_tokens == 21
    contexts = [call.values["ids"] for call in read_log(call_log) if call.name == "context"]
    assert contexts == [
        ",".join(map(str, each)) for each in (first, (*first, 30), (*first, 40), (*first, 30, 50))
    ]


@only_13
@only_threads
async def test_another_models_file_is_never_loaded(
    rkllm_of: RkllmMaker, folder: str, call_log: Path
) -> None:
    # The fake library ends the process that loads another model's cache.
    for script in (SPEAKS, SPEAKS + "  # another\n"):
        engine = rkllm_of(script, prompt_caches=folder)
        assert await ask_and_count_reused(engine, BOT, "Well?", "bot") == 0
        assert await ask_and_count_reused(engine, BOT, "Again?", "bot") > 0
        await engine.close()
    assert len(files(folder)) == 2


@only_13
@only_threads
async def test_damaged_file_is_named(rkllm_of: RkllmMaker, folder: str) -> None:
    engine = rkllm_of(SPEAKS, prompt_caches=folder)
    await ask_and_count_reused(engine, BOT, "Well?", "bot")
    (path,) = files(folder)
    path.write_text("nonsense")
    with pytest.raises(RequestRejected, match=f"did not load {path}; once it is deleted"):
        await ask_and_count_reused(engine, BOT, "Again?", "bot")
    path.unlink()
    # An incomplete cache counts as missing.
    assert await ask_and_count_reused(engine, BOT, "Again?", "bot") == 0
    path.with_suffix(".json").write_text("{")
    assert await ask_and_count_reused(engine, BOT, "Again?", "bot") == 0
    assert await ask_and_count_reused(engine, BOT, "Again?", "bot") > 0


@only_13
@only_threads
async def test_unwritable_folder_is_named(
    rkllm_of: RkllmMaker, folder: str, tmp_path: Path
) -> None:
    file = tmp_path / "tokenizer.json"
    engine = rkllm_of(SPEAKS, prompt_caches=str(file))
    with pytest.raises(RequestRejected, match=f"prompt_cache: {file}/.*cannot be written"):
        await ask_and_count_reused(engine, BOT, "Well?", "bot")
    assert await ask_and_count_reused(engine, BOT, "Well?", None) == 0


@only_13
@only_threads
async def test_model_without_prompt_cache_support_computes_every_prompt(
    rkllm_of: RkllmMaker, folder: str, call_log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = rkllm_of(f"prompt_cache not_saved\n{SPEAKS}", prompt_caches=folder)
    for _ in range(2):
        assert await ask_and_count_reused(engine, BOT, "Well?", "bot") == 0
    assert caplog.text.count("saved no prompt cache bot") == 2
    assert calls(call_log) == ["held 0"] * 2


@only_threads
async def test_prompt_of_a_cut_answer_is_saved(rkllm_of: RkllmMaker, folder: str) -> None:
    engine = rkllm_of('answer\n  spell "Answer" us=2000 times=50\n', prompt_caches=folder)
    cut: dict[str, Any] = {"max_tokens": 2, "prompt_cache": "bot"}
    await ask(engine, (1, 2, 3, 4), **cut)
    assert (await ask(engine, (1, 2, 3, 5), **cut))[1].usage.cached_tokens == 3


@only_threads
async def test_model_is_reloaded_after_an_aborted_run_that_saved_a_cache(
    rkllm_of: RkllmMaker, folder: str, call_log: Path
) -> None:
    # oRKLLM: 1.2.3 on RK3576 crashes when a cache is loaded into such a handle.
    engine = rkllm_of('answer\n  spell "Answer" us=2000 times=50\n', prompt_caches=folder)
    await ask(engine, (1, 2, 3, 4), prompt_cache="bot", stop=("s",))
    for _ in range(2):
        _, finish = await ask(engine, (1, 2, 3, 5), prompt_cache="bot", max_tokens=1)
        assert finish.usage.cached_tokens == 3
    names = [call.name for call in read_log(call_log)]
    names = [name for name in names if name in ("rkllm_init", "rkllm_load_prompt_cache")]
    assert names == ["rkllm_init", "rkllm_init", "rkllm_load_prompt_cache"]


@only_13
@only_threads
async def test_text_prompt_reuses_a_file(rkllm_of: RkllmMaker, tmp_path: Path) -> None:
    # Without a tokenizer only the runtime knows the length of the common prefix.
    engine = rkllm_of('answer\n  say "\\{seen}"\n', prompt_caches=str(tmp_path / "caches"))
    texts = [(await ask(engine, "hi there", prompt_cache="bot"))[0] for _ in range(2)]
    assert '"saves_prompt_cache":true,"prompt_cache":false' in texts[0]
    assert '"saves_prompt_cache":false,"prompt_cache":true' in texts[1]


@only_13
@only_threads
async def test_name_without_a_folder_causes_a_warning(rkllm_of: RkllmMaker, call_log: Path) -> None:
    # R16
    engine = rkllm_of(SPEAKS)
    async with await engine.generate(request("hi", prompt_cache="bot")) as stream:
        await read(stream)
    assert any(each.startswith("prompt_cache is not supported") for each in stream.warnings)
    assert not any("prompt_cache" in call.name for call in read_log(call_log))


@only_threads
async def test_adapter_has_its_own_prompt_caches(
    rkllm_of: RkllmMaker, folder: str, tmp_path: Path
) -> None:
    # The fake library ends the process that uses another adapter's cache.
    (tmp_path / "one.lora").touch()
    engine = rkllm_of(SPEAKS, prompt_caches=folder, lora=f"one={tmp_path}/one.lora")
    for reuses in (False, True):
        for lora in (None, "one"):
            _, finish = await ask(engine, (1, 2, 3, 4), prompt_cache="bot", lora=lora)
            assert finish.usage.cached_tokens == (3 if reuses else 0)
    assert len(files(folder)) == 2


@only_threads
async def test_embedding_does_not_use_a_prompt_cache(
    rkllm_of: RkllmMaker, folder: str, call_log: Path
) -> None:
    engine = rkllm_of(SPEAKS, prompt_caches=folder)
    [expected] = await engine.embed([(1, 2, 3)], Priority.INTERACTIVE)
    for _ in range(2):
        await ask(engine, (1, 2, 3, 4), prompt_cache="bot")
    assert await engine.embed([(1, 2, 3)], Priority.INTERACTIVE) == [expected]
    assert calls(call_log) == ["held 0", "held 0", "load", "held 3", "release", "held 0"]
