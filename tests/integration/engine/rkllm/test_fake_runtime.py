"""The fake library's answers and its reports of its input, with the bindings of both ABIs."""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from engine.backends.rkllm.abi.abi import ABI_12, ABI_13, ABI_131, Abi
from engine.backends.rkllm.abi.abi13 import LLMGetEmbedCallback, LLMTokenizerCallback
from engine.backends.rkllm.abi.structs import (
    CallbackAnswer,
    RKLLMCrossAttnParam,
    RKLLMInferMode,
    RKLLMLoraAdapter,
    RKLLMLoraParam,
)
from tests.fake_rkllm import EMBEDDING_WIDTH, quoted, read_log
from tests.fake_rkllm.tokenizer import id_of, tokenizer
from tests.integration.engine.rkllm.conftest import DriverFactory
from tests.integration.engine.rkllm.driver import (
    ERROR,
    FINISH,
    IMAGE_MARKS,
    NORMAL,
    WAITING,
    Driver,
    images_prompt,
)
from tests.waiting import wait_until_blocking

pytestmark = pytest.mark.long

EMOJI = "Grüße 👩‍🚀!"


def test_default_parameters(driver: DriverFactory, abi: Abi) -> None:
    param = driver("answer").functions.createDefaultParam()
    assert (param.max_context_len, param.max_new_tokens, param.n_keep) == (512, -1, -1)
    assert (param.top_k, param.mirostat) == (40, 0)
    floats = (param.top_p, param.temperature, param.repeat_penalty, param.mirostat_eta)
    assert floats == pytest.approx((0.9, 0.8, 1.1, 0.1))
    assert (param.skip_special_token, param.is_async) == (True, False)
    extend = param.extend_param
    assert (extend.n_batch, extend.embed_flash, extend.enabled_cpus_num) == (1, 1, 4)
    assert extend.enabled_cpus_mask in {0x0F, 0xF0}
    assert not any(extend.reserved)
    if abi is not ABI_12:
        assert param.ignore_eos_token is False
    else:
        assert (param.img_start, param.img_end, param.img_content) == (b"", b"", b"")


def test_padding_of_the_default_parameters_is_not_zero(driver: DriverFactory, abi: Abi) -> None:
    # The ABI must be detected from fields: a real library leaves stack content in the padding.
    param = driver("answer").functions.createDefaultParam()
    padding = ctypes.addressof(param) + abi.param.is_async.offset + 1
    assert any(ctypes.string_at(padding, 1))


def test_every_byte_of_a_character_may_be_a_token(driver: DriverFactory) -> None:
    tokens = " ".join(quoted(bytes([byte])) for byte in EMOJI.encode())
    d = driver(f"answer\n  say {tokens}\n")
    assert d.generate() == EMOJI.encode()
    assert len(d.states) == len(EMOJI.encode()) + 1


def test_tokens_have_ids_and_escapes(driver: DriverFactory) -> None:
    d = driver(r"""
        answer   # comments end a line
          say "a\t\"b\"\\\n" "\xff" id=7
          say null ""
    """)
    assert d.run() == 0
    assert [r.text for r in d.results[:-1]] == [b'a\t"b"\\\n', b"\xff", None, b""]
    assert [r.token_id for r in d.results[:-1]] == [7, 7, 1002, 1003]


def test_states_and_the_end(driver: DriverFactory) -> None:
    d = driver(r"""
        answer when="plain"
          waiting "\xc3"
          waiting null
          say "ü"
          finish "bye"
        answer when="error"
          say "a"
          error "out of luck"
          say "never"
        answer when="silent"
          say "a"
          finish none
        answer when="status"
          returns 3
    """)
    assert d.run("plain") == 0
    assert d.states == [WAITING, WAITING, NORMAL, FINISH]
    assert [r.text for r in d.results] == [b"\xc3", None, "ü".encode(), b"bye"]
    del d.results[:]
    assert d.run("error") == -1
    assert [(r.state, r.text) for r in d.results] == [(NORMAL, b"a"), (ERROR, b"out of luck")]
    assert d.generate("silent") == b"a"
    assert d.states == [NORMAL]
    assert d.run("status") == 3


def test_answers_are_chosen_by_run_and_by_prompt(driver: DriverFactory) -> None:
    d = driver(r"""
        answer run=2
          say "second"
        answer when="two words"
          say "both"
        answer
          say "else \{run}:\{prompt}"
    """)
    answers = [d.generate(prompt) for prompt in ("hi", "two words", "two words", "hi")]
    assert answers == [b"else 1:hi", b"second", b"both", b"else 4:hi"]


def test_token_ids_match_as_numbers(driver: DriverFactory) -> None:
    d = driver('answer when="7 8"\n  say "seven"\nanswer\n  say "\\{prompt}"\n')
    assert d.generate([6, 7, 8]) == b"seven"
    assert d.generate([1, 2]) == b"1 2"


def test_repetition_uses_the_number_in_the_prompt(driver: DriverFactory) -> None:
    d = driver(r"""
        answer when="count"
          say "\{i} " times=asked
        answer
          say "a" "b" times=2
          say "c" times=0
    """)
    assert d.generate() == b"abab"
    assert d.generate("count 3 to 12.") == b"0 1 2 3 4 5 6 7 8 9 10 11 "


def test_a_hundred_thousand_tokens(driver: DriverFactory) -> None:
    d = driver('answer\n  thread foreign\n  say "\\{i} " times=100000\n  finish null\n')
    texts: list[bytes | None] = []

    def on_result(result: Any, userdata: int | None, state: int) -> int:
        texts.append(result.contents.text)
        return 0

    d.replace_callback(on_result)
    assert d.run() == 0
    assert texts == [*(b"%d " % i for i in range(100_000)), None]


def test_delays_are_kept(driver: DriverFactory) -> None:
    d = driver('answer\n  prefill_ms 50\n  say "a" us=2000 times=50\n')
    begin = time.monotonic_ns()
    d.run()
    assert time.monotonic_ns() - begin >= 150_000_000
    assert d.results[0].ns - begin >= 50_000_000


def test_clock_as_text(driver: DriverFactory) -> None:
    d = driver('answer\n  say "\\{ns}" us=1000 times=5\n')
    d.run()
    delays_ns = [r.ns - int(r.text) for r in d.results[:-1] if r.text]
    assert len(delays_ns) == 5
    assert all(0 <= ns < 5_000_000_000 for ns in delays_ns)


def test_threads_of_the_callbacks(driver: DriverFactory) -> None:
    d = driver(r"""
        answer when="caller"
          thread caller
          say "a" times=4
        answer when="foreign"
          thread foreign
          say "a" times=4
        answer when="alternate"
          thread alternate
          say "a" times=4
    """)
    threads = {}
    for kind in ("caller", "foreign", "alternate"):
        d.generate(kind)
        threads[kind] = [r.thread for r in d.results]
    this_thread = threading.get_native_id()
    assert set(threads["caller"]) == {this_thread}
    assert len(set(threads["foreign"])) == 1
    assert this_thread not in threads["foreign"]
    other, *rest = threads["alternate"]
    assert other != this_thread
    assert rest == [this_thread, other, this_thread, other]


def test_random_choices_depend_on_the_seed(
    driver: DriverFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    this_thread = threading.get_native_id()

    def run_with_seed(seed: int) -> list[tuple[bool, bytes | None]]:
        monkeypatch.setenv("FAKE_RKLLM_SEED", str(seed))
        d = driver('answer\n  say "a" times=2\n')
        for _ in range(20):
            d.run()
        return [(r.thread == this_thread, r.text) for r in d.results]

    first = run_with_seed(1)
    assert first == run_with_seed(1) != run_with_seed(2)
    assert {on_this_thread for on_this_thread, _ in first} == {True, False}
    assert {text for _, text in first} == {b"a", b"", None}


def test_perf_is_correct_unless_the_script_changes_it(driver: DriverFactory) -> None:
    d = driver(r"""
        answer when="wrong"
          say "a"
          perf generate_tokens=99 prefill_tokens=+2 prefill_time_ms=0.5 memory_usage_mb=-1
        answer
          prefill_ms 20
          waiting "\xc3"
          say "ü" "b" us=5000
    """)
    d.run("three words here")
    perf = d.results[-1].perf
    assert (perf.prefill_tokens, perf.generate_tokens) == (3, 3)
    assert perf.prefill_time_ms >= 20
    assert perf.generate_time_ms >= 10
    assert perf.memory_usage_mb > 1
    # Before FINISH it contains garbage.
    assert d.results[0].perf.generate_tokens not in range(10)
    right = perf.memory_usage_mb
    d.run("wrong")
    perf = d.results[-1].perf
    assert (perf.prefill_tokens, perf.generate_tokens) == (3, 99)
    assert perf.prefill_time_ms == 0.5
    assert perf.memory_usage_mb >= right - 1


REPORT_INPUT = 'answer\n  say "\\{seen}"\n'


def test_placeholder_for_the_run_input_contains_all_parameters(driver: DriverFactory) -> None:
    d = driver(REPORT_INPUT, top_k=7, temperature=0.25, max_new_tokens=9, max_context_len=64)
    run_input = d.run_input('a "quoted"\nprompt', role="user", thinking=True)
    assert run_input["prompt"] == 'a "quoted"\nprompt'
    assert (run_input["input_type"], run_input["prompt_tokens"], run_input["mode"]) == (
        "prompt",
        3,
        "generate",
    )
    assert (run_input["role"], run_input["enable_thinking"], run_input["keep_history"]) == (
        "user",
        True,
        False,
    )
    assert (run_input["sampling"]["top_k"], run_input["sampling"]["temperature"]) == (7, 0.25)
    assert (run_input["max_new_tokens"], run_input["max_context_len"]) == (9, 64)
    assert (run_input["chat_template"], run_input["function_tools"], run_input["lora"]) == (
        None,
        None,
        None,
    )
    run_input = d.run_input([5, 6])
    assert (run_input["input_type"], run_input["prompt"], run_input["prompt_tokens"]) == (
        "token",
        "5 6",
        2,
    )


def test_images_are_reported(driver: DriverFactory, abi: Abi) -> None:
    marks = [text.encode() for text in IMAGE_MARKS]
    names = ("img_start", "img_end", "img_content")
    d = driver(REPORT_INPUT, **(dict(zip(names, marks, strict=True)) if abi is ABI_12 else {}))
    prompt = images_prompt("<image> and <image>", 0.5, -2)
    run_input = d.run_input(prompt)
    assert (run_input["input_type"], run_input["prompt"]) == ("multimodal", "<image> and <image>")
    assert run_input["images"] == [0.5 * 2 * EMBEDDING_WIDTH, -2 * 2 * EMBEDDING_WIDTH]
    assert (run_input["image_tokens"], run_input["image_size"]) == (2, [28, 28])
    assert tuple(run_input["image_marks"].values()) == IMAGE_MARKS
    assert run_input["prompt_tokens"] == 3 + 4
    assert d.run_input("text")["images"] == []


def test_template_and_tools_are_kept(driver: DriverFactory) -> None:
    d = driver(REPORT_INPUT)
    assert d.functions.set_chat_template(d.handle, b"", b"<u>", b"</u>") == 0
    assert d.functions.set_function_tools(d.handle, b"sys", b"[]", b"tool_response") == 0
    run_input = d.run_input()
    assert run_input["chat_template"] == {"system": "", "prefix": "<u>", "postfix": "</u>"}
    assert run_input["function_tools"]["tool_response"] == "tool_response"


def sampling(driver: Driver, **values: Any) -> dict[str, Any]:
    """Return the fields of a run with its own sampling parameters."""
    assert driver.abi.sampling is not None
    names = (field[0] for field in driver.abi.sampling._fields_)
    defaults = {name: getattr(driver.param, name) for name in names}
    return {"sampling_params": ctypes.pointer(driver.abi.sampling(**{**defaults, **values}))}


def test_sampling_per_run_where_supported(driver: DriverFactory, abi: Abi) -> None:
    d = driver(REPORT_INPUT, top_k=7)
    if abi.sampling_per_run:
        own = sampling(d, top_k=1, top_p=0.5)
        run_input = d.run_input(max_new_tokens=4, **own)
        assert (run_input["sampling"]["top_k"], run_input["sampling"]["top_p"]) == (1, 0.5)
        assert run_input["max_new_tokens"] == 4
    assert d.run_input()["sampling"]["top_k"] == 7
    assert d.run_input()["max_new_tokens"] == -1


def test_max_new_tokens_ends_the_answer(driver: DriverFactory, abi: Abi) -> None:
    d = driver('answer\n  say "a" times=10\n  crash\n', max_new_tokens=5)
    assert d.generate() == b"aaaaa"
    assert d.results[-1].perf.generate_tokens == 5
    if abi.sampling_per_run:
        assert d.generate(max_new_tokens=3) == b"aaa"
        assert d.generate(max_new_tokens=7) == b"aaaaaaa"


def test_history_is_kept_on_request(driver: DriverFactory) -> None:
    d = driver('answer when="seen"\n  say "\\{seen}"\nanswer\n  say "fine"\n')
    sizes = (ctypes.c_int * 1)()
    d.run("how are you", keep_history=1)
    d.run("and now", keep_history=1)
    run_input = d.run_input("seen", keep_history=1)
    assert run_input["history"] == "how are you\nfine\nand now\nfine\n"
    assert run_input["history_tokens"] == 3 + 1 + 2 + 1
    assert d.functions.get_kv_cache_size(d.handle, sizes) == 0
    assert sizes[0] == 7 + 1 + 1
    assert d.functions.clear_kv_cache(d.handle, 0, None, None) == 0
    assert d.run_input("seen", keep_history=1)["history"] == ""
    assert d.run_input("seen")["history_tokens"] == 0


def size_of(d: Driver) -> int:
    sizes = (ctypes.c_int * 1)()
    assert d.functions.get_kv_cache_size(d.handle, sizes) == 0
    return sizes[0]


@pytest.mark.parametrize(("cached", "extra_tokens"), [("told", 0), ("less", -1), ("more", 1)])
def test_cache_content_follows_the_script(
    driver: DriverFactory, call_log: Path, cached: str, extra_tokens: int
) -> None:
    d = driver(f'answer\n  spell "abc"\n  cache {cached}\n')
    assert d.generate([7, 8], keep_history=1) == b"abc"
    assert [result.token_id for result in d.results[:3]] == [id_of(letter) for letter in "abc"]
    assert size_of(d) == 5 + extra_tokens
    d.run([9], keep_history=1)
    contexts = [call.values for call in read_log(call_log) if call.name == "context"]
    assert [(c["held"], c["new"]) for c in contexts] == [("0", "2"), (str(5 + extra_tokens), "1")]
    cached_ids = [7, 8, *map(id_of, "abc"), 999][: 5 + extra_tokens]
    assert contexts[1]["ids"] == ",".join(map(str, [*cached_ids, 9]))


def test_every_byte_is_spelled_with_the_tokenizers_id(driver: DriverFactory) -> None:
    text = "".join(map(chr, range(1, 0x180)))
    d = driver(f"answer\n  spell {quoted(text)}\n")
    assert d.generate() == text.encode()
    ids = [result.token_id for result in d.results if result.state == NORMAL]
    assert ids == tokenizer().encode(text, add_special_tokens=False).ids


def test_failed_run_leaves_its_prompt(driver: DriverFactory) -> None:
    d = driver('answer\n  say "a"\n  error "no"\n')
    assert d.run([7, 8], keep_history=1) == -1
    assert size_of(d) == 2


def test_clear_and_cache_size_can_fail(driver: DriverFactory) -> None:
    for fault, status in (("clear fails", -1), ("clear lies", 0)):
        d = driver(f'{fault}\nanswer\n  say "a"\n')
        d.run([7, 8], keep_history=1)
        assert d.functions.clear_kv_cache(d.handle, 0, None, None) == status
        assert size_of(d) == 3
    d = driver('cache_size fails\nanswer\n  say "a"\n')
    assert d.functions.get_kv_cache_size(d.handle, (ctypes.c_int * 1)()) == -1


@pytest.mark.parametrize("overflow", ["error", "silent"])
def test_prompt_too_long(driver: DriverFactory, overflow: str) -> None:
    d = driver(f'overflow {overflow}\nanswer\n  say "a"\n', max_context_len=4)
    assert d.run("one two three four five") == -1
    assert d.states == ([ERROR] if overflow == "error" else [])
    assert d.generate("one two three four") == b"a"
    d.run("one two three", keep_history=1)
    assert d.run("four", keep_history=1) == -1


def test_answer_beyond_the_context(driver: DriverFactory) -> None:
    d = driver('answer\n  say "a" times=10\n', max_context_len=4)
    assert d.generate() == b"a" * 10
    d = driver('window ends\nanswer\n  say "a" times=10\n', max_context_len=4)
    assert d.generate() == b"aaa"
    assert d.states[-1] == FINISH


def test_no_answer_is_an_error(driver: DriverFactory) -> None:
    d = driver('answer when="nothing"\n')
    assert d.run() == -1
    assert d.states == [ERROR]


def test_tool_results_must_be_json(driver: DriverFactory) -> None:
    d = driver('answer\n  say "a"\n')
    assert (d.run("no json", role="tool"), d.results) == (-1, [])
    assert d.run('[{"temperature": 20}]', role="tool") == 0


def test_userdata_comes_back(driver: DriverFactory, abi: Abi) -> None:
    d = driver('answer\n  say "a"\n')
    d.run(userdata=2**40 + 1)
    d.run()
    assert {r.userdata for r in d.results} == {2**40 + 1, None}
    if abi.callbacks is None:
        return
    d.callback.result_userdata = 5
    assert (d.destroy(), d.init()) == (0, 0)
    del d.results[:]
    d.run(userdata=7)
    d.run()
    # R: a run's own userdata, if it is not NULL, has priority over that of init.
    assert [r.userdata for r in d.results] == [7, 7, 5, 5]


@pytest.mark.parametrize("is_async", [False, True])
def test_asynchronous_runs_return_immediately(
    driver: DriverFactory, abi: Abi, is_async: bool
) -> None:
    d = driver('answer\n  say "a"\n  hang\n  abort ms=0\n', is_async=is_async)
    call = d.functions.run if is_async else d.functions.run_async
    assert call(d.handle, d.input("hi"), d.abi.infer_param(), 3) == 0
    # As documented in the two headers.
    running, idle = (1, 0) if abi is not ABI_12 else (0, 1)
    assert d.functions.is_running(d.handle) == running
    assert d.first.wait(20)
    assert d.abort() == 0
    wait_until_blocking(lambda: d.functions.is_running(d.handle) == idle)
    assert d.text == b"a"
    assert {r.userdata for r in d.results} == {3}


def test_paused_run_is_resumed_by_the_next(driver: DriverFactory) -> None:
    d = driver('answer\n  say "a" "b" "c"\n')
    d.answer = CallbackAnswer.PAUSE
    assert d.generate() == b"a"
    assert d.states == [NORMAL]
    assert d.functions.clear_kv_cache(d.handle, 0, (ctypes.c_int * 1)(), (ctypes.c_int * 1)(1)) == 0
    d.answer = CallbackAnswer.GO_ON
    assert d.generate() == b"bc"
    assert d.generate() == b"abc"


def test_hidden_states_and_logits(driver: DriverFactory, abi: Abi) -> None:
    d = driver("answer")
    d.answer = CallbackAnswer.RELEASE_OUTPUT if abi is not ABI_12 else CallbackAnswer.GO_ON
    d.run("two words", mode=RKLLMInferMode.RKLLM_INFER_GET_LAST_HIDDEN_LAYER)
    d.run("three more words", mode=RKLLMInferMode.RKLLM_INFER_GET_LOGITS)
    hidden, _, logits, _ = (r.rows for r in d.results)
    for rows, count, width in ((hidden, 2, 8), (logits, 3, 16)):
        assert [len(row) for row in rows] == [width] * count
        assert rows[-1] == pytest.approx([count - 1 + column / 100 for column in range(width)])
    assert d.states == [NORMAL, FINISH] * 2


def test_lora_is_loaded_once_and_chosen_per_run(driver: DriverFactory, tmp_path: Path) -> None:
    d = driver(REPORT_INPUT)
    weights = tmp_path / "tiny.lora"
    adapter = RKLLMLoraAdapter(str(weights).encode(), b"tiny", 1.0)
    assert d.functions.load_lora(d.handle, adapter) == -1
    weights.touch()
    assert d.functions.load_lora(d.handle, adapter) == 0
    chosen = ctypes.pointer(RKLLMLoraParam(b"tiny"))
    assert d.run_input(lora_params=chosen)["lora"] == "tiny"
    assert d.run(lora_params=ctypes.pointer(RKLLMLoraParam(b"other"))) == -1


def test_cross_attention_is_set_and_reset(driver: DriverFactory) -> None:
    d = driver(REPORT_INPUT)
    numbers, places = (ctypes.c_float * 4)(), (ctypes.c_int32 * 4)()
    param = RKLLMCrossAttnParam(numbers, numbers, numbers, places, 4)
    assert d.functions.set_cross_attn_params(d.handle, param) == 0
    assert d.run_input()["cross_attention"] is True
    assert d.functions.set_cross_attn_params(d.handle, None) == 0
    assert d.run_input()["cross_attention"] is False


@pytest.mark.parametrize("abi", [ABI_13, ABI_131], ids=lambda abi: f"abi{abi.name}")
def test_callers_tokenizer_and_embeddings_are_used(driver: DriverFactory) -> None:
    arguments: list[Any] = []

    def tokenize(userdata: int | None, text: bytes, length: int, ids: Any, room: int) -> int:
        arguments.append((userdata, text, length, room))
        ids[0], ids[1] = 11, 12
        return 2

    def embed(userdata: int | None, ids: Any, count: int, numbers: int, size: int) -> int:
        arguments.append((userdata, ids[:count], size))
        ctypes.memset(numbers, 1, size)
        return 0

    d = driver(REPORT_INPUT, max_context_len=32)
    d.destroy()
    d.callback.tokenizer_callback = LLMTokenizerCallback(tokenize)
    d.callback.tokenizer_userdata = 1
    d.callback.embed_callback = LLMGetEmbedCallback(embed)
    d.callback.embed_userdata = 2
    assert d.init() == 0
    assert d.run_input("a b c")["prompt_tokens"] == 2
    assert arguments == [(1, b"a b c", 5, 32), (2, [11, 12], 32)]


def test_calls_are_logged_in_order(driver: DriverFactory, call_log: Path) -> None:
    d = driver('answer\n  thread foreign\n  say "a" times=3\n')
    d.run("one two", userdata=5)
    d.run()
    d.abort()
    d.destroy()
    d.handle.value = None
    calls = read_log(call_log)
    assert [call.name for call in calls] == [
        "rkllm_createDefaultParam",
        "rkllm_init",
        *["rkllm_run", "run_end"] * 2,
        "rkllm_abort",
        "rkllm_destroy",
    ]
    assert calls[2].values == {
        "run": "1",
        "tokens": "2",
        "places": "1",
        "userdata": "0x5",
        "mode": "0",
        "history": "0",
        "saves": "0",
        "lora": "-",
    }
    assert calls[3].values == {"run": "1", "said": "3", "end": "finished", "status": "0"}
    assert [call.ns for call in calls] == sorted(call.ns for call in calls)
    assert {call.thread for call in calls} == {threading.get_native_id()}
