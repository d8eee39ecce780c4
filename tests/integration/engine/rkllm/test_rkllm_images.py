"""Images in chats with a vision encoder: their embeddings reach the runtime, and nothing else."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import Engine, FinishReason
from engine.backends.rkllm.abi.abi import ABI_12, ABI_13, ABI_131
from engine.backends.rkllm.board.profile import Profile, write_profile
from engine.errors import (
    BackendFailed,
    ModelLoadFailed,
    PromptTooLong,
    RequestRejected,
)
from engine.request import Chat, ChatImage, Message
from tests import fake_rknnlite
from tests.fake_rkllm import EMBEDDING_WIDTH, read_log
from tests.fake_rkllm.tokenizer import tokenizer, write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask, read, request
from tests.unit.handler.input.images import png

only_threads = pytest.mark.parametrize("isolation", ["thread"], indirect=True)
only_12 = pytest.mark.parametrize("abi", [ABI_12], ids=["abi1.2"])
only_13 = pytest.mark.parametrize("abi", [ABI_13, ABI_131], ids=lambda abi: f"abi{abi.name}")
only_131 = pytest.mark.parametrize("abi", [ABI_131], ids=["abi1.3.1"])

REPORT_INPUT = 'answer\n  say "\\{seen}"\n'
TEXT = "Describe this please."


def image(value: int) -> ChatImage:
    """Return a grey image, at the second word of a text."""
    file = png(28, 28, (value, value, value))
    return ChatImage(base64.b64encode(file).decode(), len("Describe"))


def chat(*values: int, text: str = TEXT, **fields: Any) -> Chat:
    return Chat((Message("user", text, images=tuple(map(image, values))),), **fields)


def embedding_sum(value: int) -> int:
    """Return the sum of an image's embeddings, which the fake library reports."""
    return (value + value + 1) * EMBEDDING_WIDTH


@pytest.fixture(autouse=True)
def rknn(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_rknnlite.install(monkeypatch)


@pytest.fixture
def vision_of(rkllm_of: RkllmMaker, tmp_path: Path) -> RkllmMaker:
    """Return a function that builds an engine with a vision encoder and a tokenizer."""
    vision = fake_rknnlite.write_encoder(tmp_path / "vision.rknn")
    folder = write_tokenizer(tmp_path / "tokenizer")

    def make(script: str | Path, **options: Any) -> Engine:
        defaults = {"vision": str(vision), "vision_size": 28, "tokenizer": str(folder)}
        return rkllm_of(script, **{**defaults, **options})

    return make


def call_names(log: Path) -> list[str]:
    """Return the names of the calls into the library; none if it was not loaded."""
    return [call.name for call in read_log(log)] if log.exists() else []


async def read_run_input(engine: Engine, prompt: Any, **options: Any) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((await ask(engine, prompt, **options))[0])
    return report


@only_13
async def test_images_reach_the_runtime_in_their_order(vision_of: RkllmMaker) -> None:
    engine = vision_of(REPORT_INPUT)
    await engine.ready()
    assert engine.capabilities is not None
    assert engine.capabilities.images
    run_input = await read_run_input(engine, chat(9, 4))
    assert run_input["input_type"] == "multimodal"
    assert run_input["prompt"] == (
        "<|im_start|>user\nDescribe<image><image> this please.<|im_end|>\n<|im_start|>assistant\n"
    )
    # The text is rendered already, so the runtime must not apply its template again.
    assert run_input["chat_template"] == {"system": "", "prefix": "", "postfix": ""}
    assert run_input["images"] == [embedding_sum(9), embedding_sum(4)]
    assert (run_input["image_tokens"], run_input["image_size"]) == (2, [28, 28])
    assert list(run_input["image_marks"].values()) == [
        *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
    ]
    assert not run_input["keep_history"]


@only_12
@only_threads
async def test_runtime_before_13_sees_the_last_image_and_warns(vision_of: RkllmMaker) -> None:
    engine = vision_of(REPORT_INPUT)
    async with await engine.generate(request(chat(9, 4))) as stream:
        text = "".join(delta.text for delta in await read(stream))
    run_input = json.loads(text)
    assert run_input["images"] == [embedding_sum(4)]
    assert run_input["prompt"].count("<image>") == 1
    assert "[image left out" in run_input["prompt"]
    [warning] = [each for each in stream.warnings if "image" in each]
    assert "1 of 2 images were left out, the last is seen" in warning


@only_13
async def test_images_of_all_turns_are_sent(vision_of: RkllmMaker) -> None:
    engine = vision_of(REPORT_INPUT)
    messages = (
        *chat(1).messages,
        Message("assistant", "A cat."),
        *chat(2, text="Describe").messages,
    )
    run_input = await read_run_input(engine, Chat(messages))
    assert run_input["images"] == [embedding_sum(1), embedding_sum(2)]
    assert run_input["prompt"].index("<image>") < run_input["prompt"].index("A cat.")


async def test_other_images_give_other_answers_also_at_the_same_time(
    vision_of: RkllmMaker,
) -> None:
    engine = vision_of(REPORT_INPUT)
    chats = [chat(number) for number in range(4)]
    reports = await asyncio.gather(*(read_run_input(engine, each) for each in chats))
    assert [each["images"] for each in reports] == [[embedding_sum(number)] for number in range(4)]


async def test_marks_of_another_model_are_used(vision_of: RkllmMaker) -> None:
    engine = vision_of(REPORT_INPUT, vision_tokens=",, <IMG_CONTEXT>")
    run_input = await read_run_input(engine, chat(1))
    assert list(run_input["image_marks"].values()) == ["", "", "<IMG_CONTEXT>"]


async def test_chat_without_template_is_one_turn_with_images(
    vision_of: RkllmMaker, tmp_path: Path
) -> None:
    engine = vision_of(REPORT_INPUT, tokenizer=None)
    run_input = await read_run_input(engine, chat(1))
    assert (run_input["prompt"], run_input["chat_template"]) == (
        "Describe<image> this please.",
        None,
    )
    messages = (Message("system", "Be brief."), *chat(1).messages)
    run_input = await read_run_input(engine, Chat(messages))
    assert run_input["prompt"].startswith("System: Be brief.\n\nUser: Describe<image> this")
    assert run_input["images"] == [embedding_sum(1)]


@only_13
async def test_image_tokens_count_and_limit_the_answer(vision_of: RkllmMaker) -> None:
    engine = vision_of('answer\n  say "a" times=1000\n', context_length=128)
    _, finish = await ask(engine, chat(1), max_tokens=3)
    assert (finish.usage.completion_tokens, finish.reason) == (3, FinishReason.LENGTH)
    assert finish.usage.prompt_tokens > 2
    _, finish = await ask(engine, chat(1))
    marks = len("<|vision_start|><|vision_end|>")
    text = "<|im_start|>user\nDescribe this please.<|im_end|>\n<|im_start|>assistant\n"
    length = len(tokenizer().encode(text, add_special_tokens=False).ids) + marks + 2
    assert finish.usage.completion_tokens == 128 - length
    with pytest.raises(
        PromptTooLong, match=r"^messages: \d+ tokens, 20 of them for images, do not"
    ):
        await ask(engine, chat(*range(10)))


@only_threads
@pytest.mark.parametrize("mark", ["<image>", "<|image_pad|>", "<|vision_start|>", "<|im_end|>"])
async def test_text_that_looks_like_an_image_gets_a_space(vision_of: RkllmMaker, mark: str) -> None:
    # An agent would repeat a refused request for ever.
    engine = vision_of(REPORT_INPUT)
    run_input = await read_run_input(engine, chat(1, text=f"Describe {mark}"))
    assert f"{mark[0]} {mark[1:]}" in str(run_input)
    async with await engine.generate(request(chat(1, text=f"Describe {mark}"))) as stream:
        assert "special tokens of the model" in str(stream.warnings)
    # Without an image it is nothing but text.
    assert (await read_run_input(engine, chat(text=mark)))["input_type"] == "token"


@only_threads
async def test_zero_character_beside_an_image_is_refused(vision_of: RkllmMaker) -> None:
    engine = vision_of(REPORT_INPUT)
    with pytest.raises(RequestRejected, match=r"^messages must not contain"):
        await ask(engine, chat(1, text="a\0b and more"))


async def test_damaged_image_is_refused_and_others_are_served(vision_of: RkllmMaker) -> None:
    engine = vision_of(REPORT_INPUT)
    damaged = Message("user", TEXT, images=(ChatImage("AAAA"),))
    with pytest.raises(RequestRejected, match=r"^messages: an image cannot be decoded"):
        await ask(engine, Chat((damaged,)))
    assert (await read_run_input(engine, chat(5)))["images"] == [embedding_sum(5)]


async def test_image_without_a_vision_encoder_is_left_out(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(REPORT_INPUT)
    run_input = await read_run_input(engine, chat(1))
    assert "[image left out: this model reads only text]" in str(run_input)
    async with await engine.generate(request(chat(1))) as stream:
        [warning] = [each for each in stream.warnings if "image" in each]
    assert warning.endswith("is loaded without a vision encoder (RKLLM_VISION)")


# ---- caches ----


async def test_prompts_with_images_use_and_leave_no_cache(
    vision_of: RkllmMaker, call_log: Path
) -> None:
    engine = vision_of('prefix_reuse off\nanswer\n  spell "yes"\n  cache told\n')
    turns = list(chat().messages)
    for _ in range(2):
        text, finish = await ask(engine, Chat(tuple(turns)))
        turns += [Message("assistant", text), Message("user", "And?")]
    assert finish.usage.cached_tokens > 0
    turns += chat(1).messages
    for _ in range(2):
        _, finish = await ask(engine, Chat(tuple(turns)))
        assert finish.usage.cached_tokens == 0
    _, finish = await ask(engine, Chat(tuple(turns[:-1])))
    assert finish.usage.cached_tokens == 0
    runs = [call.values["history"] for call in read_log(call_log) if call.name == "rkllm_run"]
    assert runs == ["1", "1", "0", "0", "1"]


@only_threads
@pytest.mark.parametrize("prefix_reuse", [True, None], ids=["measured", "unknown"])
async def test_runtime_that_skips_prefixes_does_not_mix_up_images(
    vision_of: RkllmMaker,
    call_log: Path,
    library: Path,
    model: Callable[[str], Path],
    tmp_path: Path,
    prefix_reuse: bool | None,
) -> None:
    # With ABI 1.2 the property stays unknown, unless the doctor has measured it.
    path = model('prefix_reuse on\nanswer\n  say "\\{seen}"\n')
    write_profile(tmp_path / "profile", library, path, Profile(prefix_reuse=prefix_reuse))
    engine = vision_of(path, profile=str(tmp_path / "profile"))
    await engine.ready()
    finishes = [(await ask(engine, chat(*values)))[1] for values in ((1,), (2,), (2,), (), ())]
    assert len({finish.usage.prompt_tokens for finish in finishes[:3]}) == 1
    names = {"rkllm_clear_kv_cache": "clear", "rkllm_run": "run"}
    calls = " ".join(names[call.name] for call in read_log(call_log) if call.name in names)
    # The cache is empty before the first image, and cleared before each other one and the text
    # behind them. A load tries the property with two runs.
    order = r"(run run clear )?run( clear run){3}( clear)? run"
    assert re.fullmatch(order, calls), calls


# ---- loads, aborts and recordings ----


async def test_template_stays_empty_after_a_reload(vision_of: RkllmMaker) -> None:
    engine = vision_of(REPORT_INPUT, sampling="reload")
    for options in ({}, {"ignore_eos": True, "temperature": 0.1}):
        run_input = await read_run_input(engine, chat(3), **options)
        assert run_input["chat_template"] == {"system": "", "prefix": "", "postfix": ""}
        assert run_input["image_marks"]["content"] == "<|image_pad|>"


async def test_aborted_answer_about_an_image_leaves_the_engine_usable(
    vision_of: RkllmMaker,
) -> None:
    engine = vision_of('answer run=1\n  say "a" us=10000 times=10000\nanswer\n  say "\\{seen}"\n')
    async with await engine.generate(request(chat(1), max_tokens=10_000)) as stream:
        async for _ in stream:
            break
    assert (await read_run_input(engine, chat(2)))["images"] == [embedding_sum(2)]


@only_threads
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mode": "logits"}, "RKLLM_MODE must be generate if RKLLM_VISION is set"),
        ({"n_batch": 2}, "RKLLM_N_BATCH must be 1 if RKLLM_VISION is set"),
        ({"vision_size": 56}, "did not take an image of 56 x 56 pixels.*RKLLM_VISION_SIZE"),
        ({"vision": "/nowhere/vision.rknn"}, "RKLLM_VISION: there is no file /nowhere/vision.rknn"),
    ],
)
async def test_unsuitable_settings_fail_the_load(
    vision_of: RkllmMaker, options: dict[str, Any], reason: str, call_log: Path
) -> None:
    with pytest.raises(ModelLoadFailed, match=reason):
        await vision_of(REPORT_INPUT, **options).ready()
    calls = call_names(call_log)
    assert calls.count("rkllm_init") == calls.count("rkllm_destroy")


@only_threads
@only_131
async def test_encoder_that_fails_fails_the_request(
    vision_of: RkllmMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = vision_of(REPORT_INPUT)
    await engine.ready()
    with monkeypatch.context() as patch:
        patch.setattr("rknnlite.api.RKNNLite.inference", lambda self, inputs: None)
        with pytest.raises(BackendFailed, match="the vision encoder failed"):
            await ask(engine, chat(1))
    assert (await read_run_input(engine, chat(1)))["images"] == [embedding_sum(1)]


@only_13
async def test_runs_with_images_are_recorded(vision_of: RkllmMaker, tmp_path: Path) -> None:
    engine = vision_of(REPORT_INPUT, record=str(tmp_path / "board.jsonl"))
    await ask(engine, chat(1, 2))
    events = map(json.loads, (tmp_path / "board.jsonl").read_text().splitlines()[1:])
    [prompt] = [event[4]["prompts"][0] for event in events if event[3:4] == ["run"]]
    assert (prompt["images"], prompt["image_tokens"], prompt["image_size"]) == (2, 2, [28, 28])
    assert "text" not in prompt
