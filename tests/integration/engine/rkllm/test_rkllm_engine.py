"""The RKLLM backend in the complete engine, with both ABIs."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import Chat, Engine, FinishReason, Message
from engine.backends.rkllm.abi.abi import ABI_12, ABI_13, ABI_131, Abi
from engine.backends.rkllm.board import nodes
from engine.errors import (
    BackendFailed,
    EngineError,
    ModelLoadFailed,
    PromptTooLong,
    RequestRejected,
    UnsupportedParameter,
)
from engine.hosts.losses.restart_policy import MAX_LOAD_RETRIES
from engine.request import Prompt
from tests.fake_rkllm import Call, quoted, read_log, write_script
from tests.fake_rkllm.tokenizer import id_of, text_of, write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask, read, request
from tests.waiting import wait_until

only_processes = pytest.mark.parametrize("isolation", ["process"], indirect=True)
only_threads = pytest.mark.parametrize("isolation", ["thread"], indirect=True)
only_12 = pytest.mark.parametrize("abi", [ABI_12], ids=["abi1.2"])
only_13 = pytest.mark.parametrize("abi", [ABI_13, ABI_131], ids=lambda abi: f"abi{abi.name}")

REPORT_INPUT = 'answer\n  say "\\{seen}"\n'
COUNT = 'answer\n  say "\\{i} " times=asked\n'
EMOJI = "Grüße 👩‍🚀, 漢!"
# The defaults of a job (R49), with which 1.2 is loaded.
DEFAULTS: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "top_k": 50}


async def read_run_input(engine: Engine, prompt: Prompt = "hi", **sampling: Any) -> dict[str, Any]:
    """Return the runtime's input, from a script that answers with `\\{seen}`."""
    run_input: dict[str, Any] = json.loads((await ask(engine, prompt, **sampling))[0])
    return run_input


async def warnings_of(engine: Engine, prompt: Prompt = "hi", **sampling: Any) -> tuple[str, ...]:
    async with await engine.generate(request(prompt, **sampling)) as stream:
        await read(stream)
    return stream.warnings


def calls(log: Path, *names: str) -> list[Call]:
    return [call for call in read_log(log) if call.name in names]


def assert_runs_do_not_overlap(log: Path) -> None:
    """Assert that each run starts after the previous one has returned, on the same thread."""
    runs = calls(log, "rkllm_run", "run_end")
    assert [call.name for call in runs] == ["rkllm_run", "run_end"] * (len(runs) // 2)
    assert len({call.thread for call in calls(log, "rkllm_run")}) == 1


def chat(*turns: tuple[str, str], **template_kwargs: Any) -> Chat:
    return Chat(tuple(Message(role, content) for role, content in turns), template_kwargs)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Write tokenizer files for every model of this test."""
    return write_tokenizer(tmp_path)


# ---- answers ----


async def test_capabilities(rkllm_of: RkllmMaker, abi: Abi) -> None:
    capabilities = await rkllm_of(COUNT).ready()
    assert (capabilities.backend, capabilities.model) == ("rkllm", "fake")
    assert (capabilities.slots, capabilities.context_length) == (1, 4096)
    assert bool(capabilities.fixed_sampling) == (abi is ABI_12)
    assert not capabilities.abort_in_prefill
    assert not capabilities.prefix_reuse
    assert f"ABI {abi.name}" in capabilities.runtime
    assert "version string" in capabilities.runtime


async def test_every_token_is_a_delta(rkllm_of: RkllmMaker) -> None:
    # R4, R29: sent immediately, none lost, none merged.
    engine = rkllm_of(COUNT)
    async with await engine.generate(request("to 300")) as stream:
        texts = [delta.text for delta in await read(stream)]
    assert texts == [f"{i} " for i in range(300)]
    assert stream.result is not None
    assert stream.result.reason is FinishReason.STOP
    assert stream.result.usage.completion_tokens == 300


@only_threads
async def test_prompt_is_counted_by_the_runtime(rkllm_of: RkllmMaker) -> None:
    # R4: without a tokenizer, only the runtime knows the number of tokens of a text.
    _, finish = await ask(rkllm_of(COUNT), "these are five words: 7")
    assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (5, 7)
    assert finish.usage.total_tokens == 12


async def test_token_ids_are_sent_as_they_are(rkllm_of: RkllmMaker) -> None:
    # R5
    engine = rkllm_of(REPORT_INPUT)
    run_input = await read_run_input(engine, (7, 0, 70_000))
    assert (run_input["input_type"], run_input["prompt"], run_input["history"]) == (
        "token",
        "7 0 70000",
        "",
    )
    assert (await ask(engine, (1, 2)))[1].usage.prompt_tokens == 2


@only_processes
async def test_impossible_token_ids_are_refused(rkllm_of: RkllmMaker) -> None:
    # The runtime would read beyond the model's embedding table.
    engine = rkllm_of(COUNT)
    for bad in ((), (-5,), (2**20,), (2**31,), (2**40,), (1, 2**32 + 1)):
        with pytest.raises(RequestRejected, match="prompt: "):
            await ask(engine, bad)
    assert (await ask(engine, "2"))[0] == "0 1 "
    assert engine.restarts == 0


@pytest.mark.parametrize("speed", ["quick", "slow"])
async def test_max_tokens_is_exact(
    rkllm_of: RkllmMaker, call_log: Path, abi: Abi, speed: str
) -> None:
    # R8
    us = 0 if speed == "quick" else 2000
    engine = rkllm_of(f'answer\n  say "\\{{i}} " us={us} times=5000\n')
    for limit in (5, 1, 2):
        text, finish = await ask(engine, max_tokens=limit)
        assert text == "".join(f"{i} " for i in range(limit))
        assert finish.reason is FinishReason.LENGTH
        assert finish.usage.completion_tokens == limit
        assert finish.stop_reason is None
    ends = calls(call_log, "run_end")
    if abi is not ABI_12:
        # The runtime receives the limit, ends there itself and reports its counts.
        assert [end.values["said"] for end in ends] == ["5", "1", "2"]
        assert not calls(call_log, "rkllm_abort")
    elif speed == "slow":
        assert [end.values["end"] for end in ends] == ["aborted"] * 3
    assert_runs_do_not_overlap(call_log)


async def test_answer_that_ends_at_its_limit(rkllm_of: RkllmMaker) -> None:
    # R8: at the fifth token, the engine cannot know that the answer is complete.
    text, finish = await ask(rkllm_of(COUNT), "5", max_tokens=5)
    assert (text, finish.reason) == ("0 1 2 3 4 ", FinishReason.LENGTH)
    assert finish.usage.completion_tokens == 5


@pytest.mark.long
@only_processes
@pytest.mark.parametrize("limit", [2**31 - 1, 2**31, 2**32 - 1])
async def test_limit_beyond_the_runtimes_numbers_is_none(rkllm_of: RkllmMaker, limit: int) -> None:
    # R8 allows limits of 32 bits, the runtime only 31.
    engine = rkllm_of(COUNT)
    text, finish = await ask(engine, "3", max_tokens=limit)
    assert (text, finish.reason) == ("0 1 2 ", FinishReason.STOP)


async def test_stop_string_ends_at_the_right_character(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    # R11, R26: across tokens, and inside one.
    engine = rkllm_of(
        r"""
        answer
          thread caller
          say "one " "tw" "o st" "op he" "re, " us=3000
          say "and on" us=3000 times=5000
          abort ms=60 finish
        """
    )
    async with await engine.generate(request("a b", stop=("never", "stop"))) as stream:
        texts = [delta.text for delta in await read(stream)]
    assert "".join(texts) == "one two "
    assert all("st" not in text for text in texts)
    assert stream.result is not None
    finish = stream.result
    assert (finish.reason, finish.stop_reason) == (FinishReason.STOP, "stop")
    # The token in which the stop string ends is the last one that is counted.
    assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (2, 4)
    # R12
    assert (await ask(engine, stop=("stop",), include_stop_str_in_output=True))[0] == "one two stop"
    first, second = calls(call_log, "run_end")
    assert (first.values["end"], second.values["end"]) == ("aborted", "aborted")
    # The run continued until the abort took effect, and no other run started meanwhile.
    assert int(first.values["said"]) > 4
    assert_runs_do_not_overlap(call_log)


@only_threads
async def test_stop_token_ends_the_answer_before_its_text(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of('answer\n  say "a" id=5\n  say "b" id=6\n  say "c" us=1000 times=5000\n')
    text, finish = await ask(engine, stop_token_ids=(6,))
    assert (text, finish.reason, finish.stop_reason) == ("a", FinishReason.STOP, 6)
    assert finish.usage.completion_tokens == 2


async def test_answer_is_complete_however_its_abort_ends(rkllm_of: RkllmMaker) -> None:
    # The text is complete, even if the runtime reports the abort as a failure.
    engine = rkllm_of(
        r"""
        answer when="status"
          say "a b" us=2000 times=5000
          returns -1
        answer when="error"
          say "a b"
          say "c" us=20000
          error "aborted"
          abort ignored
        answer when="silent"
          say "a b" us=2000 times=5000
          abort ms=0 no_finish
        """
    )
    for prompt in ("status", "error", "silent"):
        text, finish = await ask(engine, prompt, stop=(" b",))
        assert (text, finish.reason, finish.stop_reason) == ("a", FinishReason.STOP, " b")
        assert finish.usage.completion_tokens == 1


async def test_every_byte_of_a_character_may_be_a_token(rkllm_of: RkllmMaker) -> None:
    # R27
    tokens = " ".join(quoted(bytes([byte])) for byte in EMOJI.encode())
    engine = rkllm_of(f"answer\n  say {tokens}\n")
    async with await engine.generate(request()) as stream:
        texts = [delta.text for delta in await read(stream)]
    assert "".join(texts) == EMOJI
    assert stream.result is not None
    assert stream.result.usage.completion_tokens == len(EMOJI.encode())


@only_threads
async def test_character_may_be_split_anywhere(rkllm_of: RkllmMaker) -> None:
    # R27
    data = EMOJI.encode()
    cuts = range(1, len(data))
    answers = (
        f'answer when="cut {cut}."\n  say {quoted(data[:cut])} {quoted(data[cut:])}\n'
        for cut in cuts
    )
    engine = rkllm_of("".join(answers))
    for cut in cuts:
        text, finish = await ask(engine, f"cut {cut}.")
        assert (text, finish.usage.completion_tokens) == (EMOJI, 2)


async def test_waiting_null_and_empty_texts_are_tokens_without_text(rkllm_of: RkllmMaker) -> None:
    # R4: they count, and the bytes of a WAITING callback are repeated with the complete character.
    engine = rkllm_of(
        r"""
        answer when="limited"
          waiting "\xc3" null
          say null us=1000 times=5000
        answer
          waiting "\xc3"
          waiting null
          say "ü" null "" "b"
          finish "not a token"
        """
    )
    text, finish = await ask(engine)
    assert text == "üb"
    assert (finish.reason, finish.usage.completion_tokens) == (FinishReason.STOP, 6)
    text, finish = await ask(engine, "limited", max_tokens=2)
    assert (text, finish.reason, finish.usage.completion_tokens) == ("", FinishReason.LENGTH, 2)
    text, finish = await ask(engine, "limited", max_tokens=4)
    assert (text, finish.reason, finish.usage.completion_tokens) == ("", FinishReason.LENGTH, 4)


@only_threads
async def test_wrong_statistics_do_not_change_our_counts(rkllm_of: RkllmMaker) -> None:
    # R4; a board counts one token less.
    engine = rkllm_of(
        r"""
        answer when="board"
          say "a" times=4
          perf generate_tokens=-1
        answer
          say "a" times=4
          perf generate_tokens=99 prefill_tokens=-77 prefill_time_ms=-5
        """
    )
    for prompt in ("board", "else"):
        _, finish = await ask(engine, prompt)
        assert finish.usage.completion_tokens == 4
        assert finish.usage.prompt_tokens >= 0
        assert finish.timings.prefill_ms >= 0


@pytest.mark.long
@only_threads
async def test_prefill_time_is_the_runtimes(rkllm_of: RkllmMaker) -> None:
    _, finish = await ask(rkllm_of('answer\n  prefill_ms 40\n  say "a"\n'))
    assert 40 <= finish.timings.prefill_ms <= finish.timings.first_token_ms + 1


async def test_failure_affects_only_its_own_request(rkllm_of: RkllmMaker) -> None:
    # R50
    engine = rkllm_of(
        r"""
        answer when="error"
          say "half "
          error "no reason"
        answer when="status"
          say "all"
          returns 3
        answer when="unfinished"
          say "all"
          finish none
        answer when="nothing"
          error null
        answer
          say "fine"
        """
    )
    for prompt, message in (
        ("error", "failed and gave no reason"),
        ("nothing", "failed and gave no reason"),
        ("status", "rkllm_run answered 3"),
        ("unfinished", "without saying that it was done"),
    ):
        with pytest.raises(BackendFailed, match=message) as caught:
            await ask(engine, prompt)
        assert "\n" not in caught.value.message
        assert (await ask(engine))[0] == "fine"
    assert engine.restarts == 0


# ---- prompts without a tokenizer ----


@only_threads
async def test_single_turn_is_put_into_the_runtimes_template(rkllm_of: RkllmMaker) -> None:
    # R38: the documented fallback, exact for one turn.
    engine = rkllm_of(REPORT_INPUT)
    single_turn = chat(("user", "What is <b>this</b> & \n that?"))
    run_input = await read_run_input(engine, single_turn, **DEFAULTS)
    assert run_input["prompt"] == "What is <b>this</b> & \n that?"
    assert (run_input["input_type"], run_input["role"]) == ("prompt", "user")
    assert run_input["chat_template"] is None
    assert await warnings_of(engine, single_turn, **DEFAULTS) == ()


@only_threads
async def test_several_turns_are_joined_into_a_single_turn(rkllm_of: RkllmMaker) -> None:
    # R38: and causes a warning.
    engine = rkllm_of(REPORT_INPUT)
    turns = chat(
        ("developer", "Be brief."),
        ("user", "Who are you?"),
        ("assistant", "A model."),
        ("tool", '{"ok": 1}'),
        ("user", "Of what?"),
    )
    run_input = await read_run_input(engine, turns)
    assert run_input["prompt"] == (
        "System: Be brief.\n\nUser: Who are you?\n\nAssistant: A model.\n\n"
        'User: <tool_response>\n{"ok": 1}\n</tool_response>\n\nUser: Of what?\n\nAssistant:'
    )
    assert (run_input["input_type"], run_input["role"], run_input["history"]) == (
        "prompt",
        "user",
        "",
    )
    (warning,) = await warnings_of(engine, turns, **DEFAULTS)
    assert warning.startswith("messages were given to the rkllm engine as the text of one turn")


@only_threads
async def test_plain_prompt_in_a_template_causes_a_warning(rkllm_of: RkllmMaker) -> None:
    # R16
    engine = rkllm_of(REPORT_INPUT)
    assert (await read_run_input(engine, "Once upon"))["prompt"] == "Once upon"
    (warning,) = await warnings_of(engine, "Once upon", **DEFAULTS)
    assert warning.startswith("prompt was rendered with the model's chat template")
    assert await warnings_of(engine, (1, 2), **DEFAULTS) == ()


@only_threads
async def test_thinking_is_switched_on_by_the_template_kwargs(rkllm_of: RkllmMaker) -> None:
    # R39
    engine = rkllm_of(REPORT_INPUT)
    turn = ("user", "hi")
    for is_enabled in (True, False):
        run_input = await read_run_input(engine, chat(turn, enable_thinking=is_enabled))
        assert run_input["enable_thinking"] is is_enabled
    assert (await read_run_input(engine, chat(turn)))["enable_thinking"] is False


async def test_zero_character_is_refused(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(REPORT_INPUT)
    for prompt in ("a\0b", chat(("user", "a\0b")), chat(("user", "a"), ("user", "\0"))):
        with pytest.raises(RequestRejected, match="zero character"):
            await ask(engine, prompt)
    assert (await read_run_input(engine, "next"))["prompt"] == "next"


@only_threads
async def test_render_and_tokenize_need_a_tokenizer(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(REPORT_INPUT)
    with pytest.raises(UnsupportedParameter, match="RKLLM_TOKENIZER"):
        await engine.render(chat(("user", "hi")))
    with pytest.raises(UnsupportedParameter, match="RKLLM_TOKENIZER"):
        await engine.tokenize("hi")


@pytest.mark.long
@pytest.mark.parametrize("overflow", ["error", "silent"])
async def test_failure_names_the_context_as_a_possible_reason(
    rkllm_of: RkllmMaker, overflow: str
) -> None:
    # R54: without a tokenizer only the runtime can count tokens, and its errors have no reason.
    engine = rkllm_of(f"overflow {overflow}\n{COUNT}", context_length=32)
    with pytest.raises(BackendFailed, match="does not fit the context of 32 tokens"):
        await ask(engine, "word " * 40)
    assert (await ask(engine, "word " * 31 + "1"))[0] == "0 "
    assert engine.restarts == 0


async def test_answer_ends_at_the_end_of_the_context(rkllm_of: RkllmMaker) -> None:
    # R8: the runtime would shift its window and continue forever.
    engine = rkllm_of('answer\n  say "\\{i} " us=200 times=100000\n', context_length=64)
    text, finish = await ask(engine, tuple(range(10)))
    assert text == "".join(f"{i} " for i in range(54))
    assert finish.reason is FinishReason.LENGTH
    assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (10, 54)
    assert (await ask(engine, tuple(range(63))))[1].usage.completion_tokens == 1
    # Before the end only the runtime knows the length of a text.
    _, finish = await ask(engine, "a b c")
    assert finish.reason is FinishReason.LENGTH
    assert finish.usage.completion_tokens <= 64


@only_threads
async def test_token_prompt_beyond_the_context_is_refused_before_the_run(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    # R54: the error contains both lengths.
    engine = rkllm_of(COUNT, context_length=32)
    with pytest.raises(PromptTooLong, match="32 tokens do not fit the context of 32") as caught:
        await ask(engine, (1,) * 32)
    assert caught.value.details == {"prompt_tokens": 32, "context_length": 32}
    assert not calls(call_log, "rkllm_run")


# ---- prompts with a tokenizer ----


@pytest.mark.usefixtures("tokenizer")
async def test_chat_is_rendered_by_the_models_template(rkllm_of: RkllmMaker) -> None:
    # R38: exactly, with special tokens and without a prefix.
    engine = rkllm_of(REPORT_INPUT)
    turns = chat(("system", "Be brief."), ("user", "Hé 😀?"), ("assistant", "A."), ("user", "B?"))
    run_input = await read_run_input(engine, turns, **DEFAULTS)
    ids = [int(word) for word in run_input["prompt"].split()]
    assert run_input["input_type"] == "token"
    assert text_of(ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHé 😀?<|im_end|>\n"
        "<|im_start|>assistant\nA.<|im_end|>\n<|im_start|>user\nB?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert ids.count(id_of("<|im_start|>")) == 5
    assert id_of("<s>") not in ids
    assert await warnings_of(engine, turns, **DEFAULTS) == ()
    # R4: the complete rendered prompt is counted.
    assert (await ask(engine, turns))[1].usage.prompt_tokens == len(ids)
    assert text_of(ids) == await engine.render(turns)


@only_threads
@pytest.mark.usefixtures("tokenizer")
async def test_plain_prompt_starts_with_the_tokenizers_special_tokens(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(REPORT_INPUT)
    ids = [int(word) for word in (await read_run_input(engine, "Once\0 upon"))["prompt"].split()]
    assert text_of(ids) == "<s>Once\0 upon"
    assert ids == await engine.tokenize("Once\0 upon")
    assert await warnings_of(engine, "Once", **DEFAULTS) == ()


@only_threads
async def test_template_gets_its_kwargs(rkllm_of: RkllmMaker, tmp_path: Path) -> None:
    # R39
    write_tokenizer(tmp_path / "files", "{{ 'T' if enable_thinking else 'N' }}{{ style }}")
    engine = rkllm_of(REPORT_INPUT, tokenizer=str(tmp_path / "files"))

    async def rendered(**kwargs: Any) -> str:
        run_input = await read_run_input(engine, chat(("user", "x"), **kwargs))
        return text_of([int(word) for word in run_input["prompt"].split()])

    assert await rendered(enable_thinking=True, style="S") == "TS"
    assert await rendered(enable_thinking=False) == "N"


@only_processes
async def test_template_may_refuse_a_chat(rkllm_of: RkllmMaker, tmp_path: Path) -> None:
    write_tokenizer(
        tmp_path,
        "{% if messages[0].role != 'user' %}{{ raise_exception('begin as user') }}{% endif %}"
        "{% if messages|length > 1 %}{{ messages[0].content }}{% endif %}",
    )
    engine = rkllm_of(REPORT_INPUT)
    with pytest.raises(RequestRejected, match=r"messages: .* cannot take them: begin as user"):
        await ask(engine, chat(("system", "x")))
    # A template that renders a chat to an empty prompt.
    with pytest.raises(RequestRejected, match="at least one token"):
        await ask(engine, chat(("user", "x")))
    assert (await read_run_input(engine, chat(("user", "x"), ("user", "y"))))["prompt_tokens"] == 1
    assert engine.restarts == 0


@only_threads
@pytest.mark.usefixtures("tokenizer")
async def test_rendered_prompt_beyond_the_context_is_refused_before_the_run(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    # R54
    engine = rkllm_of(COUNT, context_length=64)
    for prompt, tokens in (("x" * 63, 64), (chat(("user", "x" * 60)), 79)):
        with pytest.raises(PromptTooLong, match=f"{tokens} tokens .* of 64 tokens") as caught:
            await ask(engine, prompt)
        assert caught.value.details == {"prompt_tokens": tokens, "context_length": 64}
    assert not calls(call_log, "rkllm_run")
    assert (await ask(engine, "x" * 61 + "2"))[1].reason is FinishReason.LENGTH


@only_threads
async def test_tokenizer_without_a_template_counts_and_takes_plain_prompts(
    rkllm_of: RkllmMaker, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, None)
    engine = rkllm_of(REPORT_INPUT)
    assert (await read_run_input(engine, "hi"))["input_type"] == "token"
    single_turn = chat(("user", "hi"))
    run_input = await read_run_input(engine, single_turn)
    assert (run_input["input_type"], run_input["prompt"]) == ("prompt", "hi")
    assert await warnings_of(engine, single_turn, **DEFAULTS) == ()
    with pytest.raises(PromptTooLong, match="5000 tokens do not fit the context of 4096 tokens"):
        await ask(engine, chat(("user", "x" * 5000)))
    turns = chat(("system", "S"), ("user", "hi"))
    assert (await read_run_input(engine, turns))["prompt"] == "System: S\n\nUser: hi\n\nAssistant:"
    (warning,) = await warnings_of(engine, turns, **DEFAULTS)
    assert warning.startswith("messages were given")


@only_processes
@pytest.mark.usefixtures("tokenizer")
async def test_token_ids_beyond_the_vocabulary_are_refused(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(COUNT)
    with pytest.raises(RequestRejected, match="prompt: there is no token 260"):
        await ask(engine, (1, 260))
    assert (await ask(engine, (259, 0)))[1].usage.prompt_tokens == 2


@only_threads
@only_13
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{}", "tokenizer.json is no tokenizer"),
        ("tokenizer_config.json", "{", "tokenizer_config.json is not JSON"),
        ("chat_template.jinja", "{% if %}", "the chat template in .* is damaged"),
    ],
)
async def test_damaged_files_are_named(
    rkllm_of: RkllmMaker, tokenizer: Path, name: str, content: str, message: str
) -> None:
    (tokenizer / name).write_text(content)
    error = await load_error(rkllm_of(REPORT_INPUT))
    assert error.message.startswith("RKLLM_TOKENIZER: ")
    assert re.search(message, error.message)
    assert name in error.message


# ---- sampling ----


@only_threads
@only_13
async def test_sampling_of_a_run_is_its_own(rkllm_of: RkllmMaker) -> None:
    # R9
    engine = rkllm_of(REPORT_INPUT)
    run_input = await read_run_input(
        engine,
        temperature=0.25,
        top_p=0.5,
        top_k=7,
        repetition_penalty=1.5,
        frequency_penalty=-0.5,
        presence_penalty=0.75,
        max_tokens=9,
    )
    assert run_input["max_new_tokens"] == 9
    assert run_input["sampling"] == {
        "top_k": 7,
        "top_p": 0.5,
        "temperature": 0.25,
        "repeat_penalty": 1.5,
        "frequency_penalty": -0.5,
        "presence_penalty": 0.75,
        "mirostat": 0,
        "mirostat_tau": 5,
        "mirostat_eta": 0.1,
    }
    run_input = await read_run_input(engine)
    assert run_input["sampling"]["temperature"] == 1
    assert await warnings_of(engine, (1,), temperature=1.9, top_k=-1) == ()


@only_processes
@only_13
@pytest.mark.parametrize("top_k", [-1, 10**6 + 1, 2**31, 2**32 - 1])
async def test_top_k_of_all_tokens_is_a_number_the_runtime_accepts(
    rkllm_of: RkllmMaker, top_k: int
) -> None:
    # R9: requests may contain up to 32 bits.
    engine = rkllm_of(REPORT_INPUT)
    assert (await read_run_input(engine, top_k=top_k))["sampling"]["top_k"] == 1_000_000


@only_threads
@only_13
@pytest.mark.parametrize("greedy", [{"temperature": 0.0}, {"top_p": 0.0}])
async def test_greedy_is_the_likeliest_token(rkllm_of: RkllmMaker, greedy: dict[str, Any]) -> None:
    # R9
    sampling = (await read_run_input(rkllm_of(REPORT_INPUT), **greedy))["sampling"]
    assert (sampling["top_k"], sampling["temperature"], sampling["top_p"]) == (1, 1, 1)


@only_13
@only_threads
async def test_unsupported_parameters_cause_warnings(rkllm_of: RkllmMaker) -> None:
    # R10, R16
    engine = rkllm_of(REPORT_INPUT)
    unsupported = {
        "seed": 1,
        "min_p": 0.1,
        "logprobs": 2,
        "logit_bias": {1: 1.0},
        "ignore_eos": True,
    }
    warnings = await warnings_of(engine, (1,), **unsupported)
    assert [warning.split(" ")[0] for warning in warnings] == list(unsupported)
    [warning] = await warnings_of(engine, (1,), grammar='root ::= "a"')
    assert warning.startswith("grammar is not supported")


@only_12
async def test_fixed_sampling_is_warned_about(rkllm_of: RkllmMaker, call_log: Path) -> None:
    # R9, R16: parameters are never ignored silently.
    engine = rkllm_of(REPORT_INPUT)
    run_input = await read_run_input(engine, **DEFAULTS)
    assert {name: run_input["sampling"][name] for name in DEFAULTS} == pytest.approx(DEFAULTS)
    assert run_input["sampling"]["repeat_penalty"] == 1
    assert await warnings_of(engine, (1,), **DEFAULTS) == ()
    warnings = await warnings_of(
        engine, (1,), **{**DEFAULTS, "temperature": 0, "presence_penalty": 0.5}, ignore_eos=True
    )
    assert warnings == (
        "temperature is fixed at 0.7 while the model is loaded by the rkllm engine, "
        "and 0 was ignored",
        "presence_penalty is fixed at 0 while the model is loaded by the rkllm engine, "
        "and 0.5 was ignored",
        "ignore_eos is not supported by the rkllm engine and was ignored",
    )
    assert len(calls(call_log, "rkllm_init")) == 1


@only_12
async def test_reload_changes_the_sampling_between_runs(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    # R9: and the timings report it.
    engine = rkllm_of(f"init ms=30\n{REPORT_INPUT}", sampling="reload")
    plain, finish = await ask(engine, **DEFAULTS)
    assert finish.timings.reload_ms == 0
    assert json.loads(plain)["sampling"]["temperature"] == pytest.approx(0.7)
    for sampling in ({"temperature": 1.5}, {"temperature": 0}):
        first_text, finish = await ask(engine, **{**DEFAULTS, **sampling})
        assert finish.timings.reload_ms >= 30
        assert finish.timings.first_token_ms >= finish.timings.reload_ms
        second_text, finish = await ask(engine, **{**DEFAULTS, **sampling})
        assert finish.timings.reload_ms == 0
        for run_input in (json.loads(first_text), json.loads(second_text)):
            if sampling["temperature"]:
                assert run_input["sampling"]["temperature"] == pytest.approx(1.5)
            else:
                assert run_input["sampling"]["top_k"] == 1
    assert await warnings_of(engine, (1,), temperature=1.2, top_k=3) == ()
    names = [call.name for call in calls(call_log, "rkllm_init", "rkllm_destroy")]
    assert names == ["rkllm_init", *["rkllm_destroy", "rkllm_init"] * 3]
    assert_runs_do_not_overlap(call_log)


@only_threads
@only_12
async def test_parameters_unknown_to_the_runtime_cause_no_reload(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    engine = rkllm_of(REPORT_INPUT, sampling="reload")
    await ask(engine, **DEFAULTS, max_tokens=3, stop=("x",), seed=5)
    await ask(engine, **DEFAULTS, stop_token_ids=(5,), ignore_eos=True)
    assert len(calls(call_log, "rkllm_init")) == 1
    assert await warnings_of(engine, (1,), **DEFAULTS, ignore_eos=True) == (
        "ignore_eos is not supported by the rkllm engine and was ignored",
    )


@only_13
async def test_end_of_sequence_is_ignored_by_a_reload(rkllm_of: RkllmMaker, call_log: Path) -> None:
    engine = rkllm_of(REPORT_INPUT, sampling="reload")
    assert (await read_run_input(engine, temperature=0.3))["ignore_eos_token"] is False
    text, finish = await ask(engine, ignore_eos=True)
    assert json.loads(text)["ignore_eos_token"] is True
    assert finish.timings.reload_ms > 0
    assert (await read_run_input(engine))["ignore_eos_token"] is False
    assert await warnings_of(engine, (1,), ignore_eos=True) == ()
    # Only for this: all other parameters are set per run.
    assert len(calls(call_log, "rkllm_init")) == 4


@only_12
@only_processes
async def test_failed_reload_fails_requests_until_one_succeeds(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(f"second_init fails\n{REPORT_INPUT}", sampling="reload")
    await ask(engine, **DEFAULTS)
    for _ in range(2):
        with pytest.raises(ModelLoadFailed, match="was not loaded: rkllm_init failed with -1"):
            await ask(engine, temperature=1.5)
    assert engine.restarts == 0
    assert engine.failure is None


@only_threads
async def test_board_settings_reach_the_runtime(rkllm_of: RkllmMaker) -> None:
    run_input = await read_run_input(
        rkllm_of(REPORT_INPUT, cpu_mask=0x70, base_domain_id=3, context_length=2048)
    )
    assert (run_input["enabled_cpus_mask"], run_input["base_domain_id"]) == (0x70, 3)
    assert (run_input["max_context_len"], run_input["skip_special_token"]) == (2048, True)
    assert run_input["lora"] is run_input["function_tools"] is None


# ---- models that do not load ----


async def load_error(engine: Engine) -> EngineError:
    with pytest.raises(ModelLoadFailed) as caught:
        await engine.ready()
    assert "\n" not in caught.value.message
    assert engine.restarts <= MAX_LOAD_RETRIES
    return caught.value


@only_threads
@only_13
@pytest.mark.parametrize("tokens", [100, 16_416, 4095])
async def test_unsupported_context_length_is_refused(rkllm_of: RkllmMaker, tokens: int) -> None:
    error = await load_error(rkllm_of(COUNT, context_length=tokens))
    assert error.message == (
        "CONTEXT_LENGTH must be a multiple of 32 and at most 16384 for the RKLLM runtime, "
        f"got {tokens}"
    )


@pytest.mark.long
async def test_context_beyond_the_model_is_refused(rkllm_of: RkllmMaker) -> None:
    error = await load_error(rkllm_of(f"context 4096\n{COUNT}", context_length=8192))
    assert "rkllm_init failed with -1" in error.message
    assert "set CONTEXT_LENGTH=4096, or less" in error.message


@only_threads
async def test_context_of_zero_is_the_default(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(REPORT_INPUT, context_length=0)
    assert (await engine.ready()).context_length == 4096
    assert (await read_run_input(engine))["max_context_len"] == 4096


@only_processes
@only_13
@pytest.mark.parametrize(
    ("make_model", "message"),
    [
        (lambda path: None, "MODEL_PATH: there is no file "),
        (lambda path: path.touch(), " is empty"),
        (lambda path: path.mkdir(), " is not a file"),
        (
            lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid …"),
            " is a Git LFS pointer: `git lfs pull` brings the model",
        ),
        (lambda path: path.write_bytes(b"GGUF\x03"), " is a GGUF model: set ENGINE=llamacpp"),
        (lambda path: path.write_bytes(b"\0" * 500), "was not loaded: rkllm_init failed with -1"),
    ],
    ids=["missing", "empty", "folder", "pointer", "GGUF", "another"],
)
async def test_bad_model_is_named(
    rkllm_of: RkllmMaker, tmp_path: Path, make_model: Callable[[Path], object], message: str
) -> None:
    # R54
    make_model(tmp_path / "bad.rkllm")
    error = await load_error(rkllm_of(tmp_path / "bad.rkllm"))
    assert error.message.startswith("MODEL_PATH: ")
    assert message in error.message
    assert "bad.rkllm" in error.message


@only_threads
@only_13
async def test_unreadable_model_error_gives_the_reason(
    rkllm_of: RkllmMaker, tmp_path: Path
) -> None:
    # As in an inaccessible folder, which does not exist for root.
    error = await load_error(rkllm_of(tmp_path / f"{'a' * 300}.rkllm"))
    assert error.message.startswith("MODEL_PATH: ")
    assert error.message.endswith(" cannot be read: File name too long")


@only_processes
@only_13
async def test_path_with_invalid_characters_is_refused(
    rkllm_of: RkllmMaker, tmp_path: Path
) -> None:
    error = await load_error(rkllm_of(Path(os.fsdecode(bytes(tmp_path) + b"/\xff.rkllm"))))
    assert "cannot be passed on to its process, for it is not UTF-8" in error.message


@only_threads
@only_13
async def test_no_model_at_all(rkllm_of: RkllmMaker) -> None:
    error = await load_error(rkllm_of(Path("")))
    assert error.message.startswith("MODEL_PATH must name a .rkllm model")


@pytest.mark.long
@only_processes
async def test_failed_init_lists_possible_causes(rkllm_of: RkllmMaker) -> None:
    error = await load_error(rkllm_of("init fails=-7"))
    assert "rkllm_init failed with -7" in error.message
    for hint in ("converted for this chip", "memory", "CONTEXT_LENGTH", "NPU driver"):
        assert hint in error.message


@only_processes
async def test_first_load_is_repeated(
    rkllm_of: RkllmMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # rknn-llm#335, #522: another process still holds memory of the NPU.
    path = write_script(tmp_path / "later.rkllm", "init fails=-7")
    engine = rkllm_of(path)
    loading = asyncio.create_task(engine.ready())
    await wait_until(lambda: "rkllm_init failed with -7" in caplog.text)
    write_script(path, COUNT)
    await loading
    assert (await ask(engine, "5"))[1].usage.completion_tokens == 5
    assert engine.restarts <= MAX_LOAD_RETRIES


async def test_load_that_reports_an_error_and_returns_0_fails(rkllm_of: RkllmMaker) -> None:
    # ezrknpu#11, rknn-llm#129
    log_line = "invalid rknn llm model magic, rknn_init fail! ret=-1"
    error = await load_error(rkllm_of(f'init fails=0 "{log_line}"\nanswer\n  say "garbage"\n'))
    assert "rkllm_init succeeded, but reported an error (the library said: " in error.message
    assert f"E rkllm: {log_line}). The model must be" in error.message


@pytest.mark.long
async def test_failed_load_has_the_librarys_own_reason(rkllm_of: RkllmMaker) -> None:
    # rkllama#60
    engine = rkllm_of("context 512\nanswer\n", context_length=1024)
    error = await load_error(engine)
    reason = "max_context[1024] must be less than the model's max_context_limit[512]"
    assert f"rkllm_init failed with -1 (the library said: E rkllm: {reason})" in error.message
    assert "set CONTEXT_LENGTH=512, or less" in error.message
    assert engine.restarts == 0


@only_threads
async def test_failed_load_names_nodes_that_cannot_be_opened(
    rkllm_of: RkllmMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sentence = "/dev/dri/renderD129 cannot be opened by this user: add the user to the group render"
    monkeypatch.setattr(nodes, "find_closed_nodes", lambda *root: [sentence])
    error = await load_error(rkllm_of("init fails=-7"))
    assert error.message.endswith(f"; {sentence}")
    assert [record.getMessage() for record in caplog.records].count(sentence) == 1


@only_threads
async def test_wrong_abi_is_refused_before_any_call(
    rkllm_of: RkllmMaker, call_log: Path, abi: Abi
) -> None:
    # rknn-llm#509: called with the other ABI, it segfaults.
    wrong = "1.3" if abi is ABI_12 else "1.2"
    error = await load_error(rkllm_of(COUNT, abi=wrong))
    assert error.message.startswith(f"RKLLM_ABI is {wrong}, and the library is {abi.name}: ")
    assert not calls(call_log, "rkllm_init")
