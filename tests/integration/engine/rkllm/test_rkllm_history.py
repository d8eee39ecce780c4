"""Only the new tokens of a chat's next turn are computed, and chats are isolated."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import EMBED, Chat, Engine, FinishReason, Message, Priority, SamplingParams
from engine.backends.base import RunResult
from engine.backends.options import RkllmOptions
from engine.backends.rkllm.abi.abi import ABI_12, ABI_13, ABI_131, Abi
from engine.backends.rkllm.backend import RkllmBackend
from engine.backends.rkllm.board.profile import Profile, write_profile
from engine.backends.rkllm.tokenizer import ChatTokenizer
from engine.errors import BackendFailed, EngineCrashed
from tests.fake_rkllm import Call, read_log
from tests.fake_rkllm.tokenizer import tokenizer, write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask

only_processes = pytest.mark.parametrize("isolation", ["process"], indirect=True)
only_threads = pytest.mark.parametrize("isolation", ["thread"], indirect=True)
only_12 = pytest.mark.parametrize("abi", [ABI_12], ids=["abi1.2"])
only_13 = pytest.mark.parametrize("abi", [ABI_13, ABI_131], ids=lambda abi: f"abi{abi.name}")

SYSTEM = Message("system", "You are a guide who answers in few words and knows every town.")
NUMBERED_ANSWERS = 'answer\n  spell "Word number \\{run}, and no more."\n'


@pytest.fixture
def rkllm_of(rkllm_of: RkllmMaker) -> RkllmMaker:
    """Build engines whose runtime skips nothing by itself, so that the history is reused."""

    def make(script: str | Path, **options: Any) -> Engine:
        if isinstance(script, str):
            script = f"prefix_reuse off\n{script}"
        return rkllm_of(script, **options)

    return make


def ids_of(text: str) -> str:
    """Return the tokens of a text as in the script."""
    return " ".join(map(str, tokenizer().encode(text, add_special_tokens=False).ids))


def contexts(log: Path) -> list[Call]:
    """Return each run's context, and how many of its tokens were in the cache."""
    return [call for call in read_log(log) if call.name == "context"]


def cached_counts(log: Path) -> list[int]:
    return [int(call.values["held"]) for call in contexts(log)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write tokenizer files for every model of this test."""
    return write_tokenizer(tmp_path)


@pytest.fixture
def render_ids(folder: Path) -> Callable[[list[Message]], str]:
    """Return the complete context of a chat, as in the log."""
    chats = ChatTokenizer(folder)

    def encode_turns(turns: list[Message]) -> str:
        ids = chats.encode(chats.render(Chat(tuple(turns))), special=False)
        return ",".join(map(str, ids))

    return encode_turns


async def turn(
    engine: Engine, turns: list[Message], question: str, **sampling: Any
) -> tuple[int, int]:
    """Send a chat's next question, keep the answer; return prompt tokens and reused tokens."""
    turns.append(Message("user", question))
    text, finish = await ask(engine, Chat(tuple(turns)), **sampling)
    turns.append(Message("assistant", text))
    return finish.usage.prompt_tokens, finish.usage.cached_tokens


# ---- chats ----


async def test_each_of_ten_turns_computes_only_new_tokens(
    rkllm_of: RkllmMaker, render_ids: Callable[[list[Message]], str], call_log: Path
) -> None:
    engine = rkllm_of(NUMBERED_ANSWERS)
    turns, in_cache = [SYSTEM], 0
    for number in range(1, 11):
        prompt, reused = await turn(engine, turns, f"And what of town {number}?")
        assert reused == in_cache
        context = contexts(call_log)[-1].values
        assert context["ids"] == render_ids(turns[:-1])
        assert (int(context["held"]), int(context["new"])) == (reused, prompt - reused)
        in_cache = prompt + len(turns[-1].content)
    # Only the end of the answer, the question and its two markers are new.
    news = [int(call.values["new"]) for call in contexts(call_log)[1:]]
    assert max(news) - min(news) <= 1


@only_threads
async def test_contexts_equal_those_without_reuse(
    rkllm_of: RkllmMaker, folder: Path, call_log: Path
) -> None:
    for reuse in (True, False):
        engine = rkllm_of(NUMBERED_ANSWERS, kv_reuse=reuse)
        assert (await engine.ready()).prefix_reuse is reuse
        turns = [SYSTEM]
        for number in range(10):
            _, reused = await turn(engine, turns, f"And what of town {number}?")
            assert (reused > 0) is (reuse and number > 0)
        await engine.close()
    prompts = [call.values["ids"] for call in contexts(call_log)]
    assert prompts[:10] == prompts[10:]
    assert cached_counts(call_log)[10:] == [0] * 10


@only_threads
async def test_edited_history_is_computed_completely(
    rkllm_of: RkllmMaker, render_ids: Callable[[list[Message]], str], call_log: Path
) -> None:
    engine = rkllm_of(NUMBERED_ANSWERS)
    turns = [SYSTEM]
    await turn(engine, turns, "And what of Bath?")
    await turn(engine, turns, "And what of Ely?")
    turns[2] = Message("assistant", turns[2].content.replace("number", "Number"))
    edited = await turn(engine, turns, "And what of York?")
    assert edited[1] == 0
    assert contexts(call_log)[-1].values["ids"] == render_ids(turns[:-1])
    # The removed turns leave the cache longer than the prompt.
    del turns[-2:]
    assert (await turn(engine, turns, "And York?"))[1] == 0
    del turns[-1]
    turns.pop()
    assert (await turn(engine, turns, "And York?"))[1] == 0
    assert contexts(call_log)[-1].values["ids"] == render_ids(turns[:-1])
    assert (await turn(engine, turns, "And Wells?"))[1] > 0


@only_threads
async def test_interleaved_chats_are_isolated(
    rkllm_of: RkllmMaker, render_ids: Callable[[list[Message]], str], call_log: Path
) -> None:
    engine = rkllm_of(NUMBERED_ANSWERS)
    chats = [[SYSTEM], [SYSTEM], [Message("user", "Hello?"), Message("assistant", "Yes?")]]
    for number in range(6):
        turns = chats[number % 3]
        assert (await turn(engine, turns, f"Question {number}?"))[1] == 0
        assert contexts(call_log)[-1].values["ids"] == render_ids(turns[:-1])
    clears = [call for call in read_log(call_log) if call.name == "rkllm_clear_kv_cache"]
    assert len(clears) == 6


# "qqq" fails after a few tokens; for "zzz" run returns an error.
RANDOM = f"""prefix_reuse off
answer when="{ids_of("qqq")}"
  spell "Half"
  error "no"
answer when="{ids_of("zzz")}"
  spell "Whole, or so it seems."
  returns 3
answer when="{ids_of("yyy")}"
  spell "That is all \\{{run}}."
  cache ended
answer when="{ids_of("xxx")}"
  spell "Hold on \\{{run}}."
  cache more
answer
  spell "Turn \\{{run}} says so much, and \\{{run}} is no more than that."
"""


class Caller:
    """Drives a backend without an engine."""

    def __init__(self, model: Path, library: Path) -> None:
        profile = model.with_suffix(".profile.json")
        write_profile(profile, library, model, Profile(prefix_reuse=False))
        options = RkllmOptions(
            model_path=str(model),
            model_name="fake",
            context_length=2048,
            lib_path=str(library),
            profile=str(profile),
        )
        self.backend = RkllmBackend(options)
        self.backend.load()
        self._runs = 0

    def ask(
        self, turns: list[Message], limit: int | None = None, stop_after: int = 0
    ) -> tuple[str, RunResult]:
        """Send a chat; the answer is cut after some tokens, by the caller or by the limit."""
        self._runs += 1
        pieces: list[bytes] = []

        def on_piece(piece: bytes, token: int, logprob: object) -> bool:
            if not stop_after or len(pieces) < stop_after:
                pieces.append(piece)
            return len(pieces) == stop_after

        sampling = SamplingParams(max_tokens=limit)
        end = self.backend.run(self._runs, Chat(tuple(turns)), sampling, on_piece)
        return b"".join(pieces[:limit]).decode(), end


@pytest.fixture
def caller(
    folder: Path, model: Callable[[str], Path], library: Path, call_log: Path
) -> Iterator[Caller]:
    started = Caller(model(RANDOM), library)
    yield started
    started.backend.close()


@pytest.mark.long
@pytest.mark.timeout(120)
def test_random_turns_of_several_chats(
    caller: Caller, render_ids: Callable[[list[Message]], str], call_log: Path, scale: int
) -> None:
    rng = random.Random(seed := random.randrange(2**32))
    chats: list[list[Message]] = [[SYSTEM], [SYSTEM], []]
    expected: list[str] = []
    chat = 0
    for _ in range(500 * scale):
        if rng.random() < 0.15:
            chat = rng.randrange(3)
        turns = chats[chat]
        if len(turns) > 20:
            del turns[1:]
        if len(turns) > 2 and rng.random() < 0.1:
            index = rng.randrange(len(turns))
            turns[index] = Message(turns[index].role, turns[index].content[:-1] + "?")
        if len(turns) > 2 and rng.random() < 0.1:
            # Repeat the question, or the previous one.
            del turns[-1]
            while turns and turns[-1].role != "assistant":
                del turns[-1]
        kind = rng.choice([""] * 9 + ["qqq ", "zzz ", "yyy ", "xxx "])
        turns.append(Message("user", f"{kind}Why {rng.randrange(10)}?"))
        expected.append(render_ids(turns))
        cut: dict[str, Any] = rng.choice(
            [{}, {}, {}, {}, {"limit": rng.randint(1, 30)}, {"stop_after": rng.randint(1, 30)}]
        )
        try:
            text, _ = caller.ask(turns, **cut)
        except BackendFailed:
            turns.pop()
        else:
            turns.append(Message("assistant", text))
    logged_contexts = contexts(call_log)
    assert [call.values["ids"] for call in logged_contexts] == expected, f"seed {seed}"
    # The number depends on the random choices: it was from 53 to 183 in some runs.
    assert sum(1 for number in cached_counts(call_log) if number) > 30


# ---- content of the cache ----


@only_threads
@pytest.mark.parametrize("cached", ["told", "less", "more"])
async def test_cut_answer_is_reused_up_to_the_known_cache(
    rkllm_of: RkllmMaker,
    render_ids: Callable[[list[Message]], str],
    call_log: Path,
    abi: Abi,
    cached: str,
) -> None:
    engine = rkllm_of(f"{NUMBERED_ANSWERS}  cache {cached}\n  abort ms=0\n")
    turns = [SYSTEM]
    prompt, _ = await turn(engine, turns, "And what of Bath?", max_tokens=9)
    _, reused = await turn(engine, turns, "And what of Ely?", stop=("umb",))
    assert contexts(call_log)[-1].values["ids"] == render_ids(turns[:-1])
    if abi is not ABI_12:
        assert reused == {"told": prompt + 9, "less": prompt + 8, "more": 0}[cached]
    else:
        # The limit needs an abort here, and one more token may arrive before it takes effect.
        assert reused in {prompt + 9, prompt + 8, 0}
    # A stop string is in the cache but not in the chat.
    assert (await turn(engine, turns, "And what of York?"))[1] == 0
    assert contexts(call_log)[-1].values["ids"] == render_ids(turns[:-1])


@only_threads
async def test_end_token_in_the_cache_is_reused_if_it_was_reported(
    rkllm_of: RkllmMaker, render_ids: Callable[[list[Message]], str], call_log: Path
) -> None:
    engine = rkllm_of(f"{NUMBERED_ANSWERS}  cache ended\n")
    turns = [SYSTEM]
    prompt, _ = await turn(engine, turns, "And what of Bath?")
    answer = len(turns[-1].content)
    assert (await turn(engine, turns, "And what of Ely?"))[1] == prompt + answer + 1
    assert contexts(call_log)[-1].values["ids"] == render_ids(turns[:-1])


@only_13
@only_threads
async def test_answer_that_tokenises_differently_is_not_reused(
    rkllm_of: RkllmMaker, render_ids: Callable[[list[Message]], str], call_log: Path
) -> None:
    # The same text in other tokens: the cache differs from the new prompt.
    engine = rkllm_of('answer\n  say "Ba" "th" id=300\n')
    turns = [SYSTEM]
    await turn(engine, turns, "Which town?")
    assert (await turn(engine, turns, "And the next?"))[1] == 0
    assert contexts(call_log)[-1].values["ids"] == render_ids(turns[:-1])


@only_13
@only_threads
async def test_multi_token_characters_are_matched_by_token_id(
    rkllm_of: RkllmMaker, folder: Path, call_log: Path
) -> None:
    first, second = tokenizer().encode("é", add_special_tokens=False).ids
    answer_script = f'answer\n  waiting null id={first}\n  say "\\xc3\\xa9" id={second}\n'
    engine = rkllm_of(answer_script)
    turns = [SYSTEM]
    prompt, _ = await turn(engine, turns, "Which letter?")
    assert (await turn(engine, turns, "And the next?"))[1] == prompt + 2


@only_13
@only_threads
async def test_answer_that_fills_the_context_is_not_reused(
    rkllm_of: RkllmMaker, folder: Path, call_log: Path
) -> None:
    engine = rkllm_of('answer\n  spell "abcdefghij" times=40\n', context_length=128)
    _, finish = await ask(engine, tuple(range(100)))
    assert finish.reason is FinishReason.LENGTH
    extended_prompt = (*range(100), *tokenizer().encode("abcdefghij", add_special_tokens=False).ids)
    assert (await ask(engine, extended_prompt))[1].usage.cached_tokens == 0


@only_threads
async def test_nothing_is_reused_after_a_failure(
    rkllm_of: RkllmMaker, folder: Path, call_log: Path
) -> None:
    failures = {"aaa": 'error "no"', "bbb": "returns 3", "ccc": "finish none"}
    failing_answers = "".join(
        f'answer when="{ids_of(trigger)}"\n  {failure}\n' for trigger, failure in failures.items()
    )
    engine = rkllm_of(failing_answers + NUMBERED_ANSWERS)
    prompt = tuple(range(20))
    for trigger in failures:
        prompt = (*prompt, 1)
        assert (await ask(engine, prompt))[1].usage.cached_tokens == 0
        with pytest.raises(BackendFailed):
            await ask(engine, tuple(map(int, ids_of(trigger).split())))
    assert cached_counts(call_log) == [0] * 6


@only_threads
@only_12
async def test_nothing_is_reused_after_a_reload(
    rkllm_of: RkllmMaker, folder: Path, call_log: Path
) -> None:
    engine = rkllm_of(NUMBERED_ANSWERS, sampling="reload")
    turns = [SYSTEM]
    for temperature, reuses in ((0.5, False), (0.5, True), (0.6, False), (0.6, True)):
        _, reused = await turn(engine, turns, "And?", temperature=temperature)
        assert (reused > 0) is reuses


@only_processes
@only_13
async def test_nothing_is_reused_after_a_crash(
    rkllm_of: RkllmMaker, folder: Path, call_log: Path
) -> None:
    engine = rkllm_of(f'answer when="{ids_of("zzz")}"\n  crash\n{NUMBERED_ANSWERS}')
    turns = [SYSTEM]
    await turn(engine, turns, "And?")
    with pytest.raises(EngineCrashed):
        await turn(engine, [*turns], "zzz")
    assert (await turn(engine, turns, "And?"))[1] == 0
    assert (await turn(engine, turns, "And?"))[1] > 0


@only_threads
async def test_text_prompt_never_reuses_tokens(rkllm_of: RkllmMaker, call_log: Path) -> None:
    # Without a tokenizer a prompt has tokens only if the client sends token ids.
    engine = rkllm_of(f'answer when="hi"\n  say "\\{{seen}}"\n{NUMBERED_ANSWERS}')
    prompt = tuple(range(20))
    await ask(engine, prompt)
    text, finish = await ask(engine, "hi")
    assert '"history":""' in text
    assert '"history_tokens":0' in text
    assert finish.usage.cached_tokens == 0
    await ask(engine, "hi")
    assert (await ask(engine, (*prompt, 1)))[1].usage.cached_tokens == 0
    names = [call.name for call in read_log(call_log) if "kv_cache" in call.name]
    assert names == ["rkllm_clear_kv_cache", "rkllm_get_kv_cache_size"] * 3


@only_13
@only_threads
@pytest.mark.parametrize("fault", ["clear lies", "cache_size fails"])
async def test_cache_that_cannot_be_cleared_disables_reuse(
    rkllm_of: RkllmMaker,
    render_ids: Callable[[list[Message]], str],
    call_log: Path,
    caplog: pytest.LogCaptureFixture,
    fault: str,
) -> None:
    engine = rkllm_of(f"{fault}\n{NUMBERED_ANSWERS}")
    chats = [[SYSTEM], [Message("system", "Be brief.")]]
    for number in range(4):
        turns = chats[number % 2]
        await turn(engine, turns, "And?")
        assert contexts(call_log)[-1].values["ids"] == render_ids(turns[:-1])
    assert [record.message for record in caplog.records if "RKLLM_KV_REUSE" in record.message][
        1:
    ] == []
    inits = [call for call in read_log(call_log) if call.name == "rkllm_init"]
    assert len(inits) == 2
    _, reused = await turn(engine, chats[1], "And?")
    assert reused == 0


@only_13
@only_threads
async def test_reuse_can_be_turned_off(rkllm_of: RkllmMaker, folder: Path, call_log: Path) -> None:
    engine = rkllm_of(NUMBERED_ANSWERS, kv_reuse=False)
    turns = [SYSTEM]
    for _ in range(3):
        assert (await turn(engine, turns, "And?"))[1] == 0
    assert not any("kv_cache" in call.name for call in read_log(call_log))


# ---- adapters and embeddings on the same handle ----


@only_threads
async def test_adapters_never_reuse_each_others_cache(
    rkllm_of: RkllmMaker, render_ids: Callable[[list[Message]], str], call_log: Path, tmp_path: Path
) -> None:
    # The fake library ends the process otherwise.
    (tmp_path / "one.lora").touch()
    engine = rkllm_of(NUMBERED_ANSWERS, lora=f"one={tmp_path}/one.lora,two={tmp_path}/one.lora")
    turns = [SYSTEM]
    adapters = [None, None, "one", "one", "two", "one", None, None]
    for number, lora in enumerate(adapters):
        _, reused = await turn(engine, turns, f"Question {number}?", lora=lora)
        assert (reused > 0) is (number > 0 and adapters[number - 1] == lora)
        context = contexts(call_log)[-1].values
        assert (context["ids"], context["lora"]) == (render_ids(turns[:-1]), lora or "-")


@only_threads
@pytest.mark.parametrize("reuse", [True, False])
async def test_embedding_between_two_turns_changes_no_prompt(
    rkllm_of: RkllmMaker,
    render_ids: Callable[[list[Message]], str],
    call_log: Path,
    *,
    reuse: bool,
) -> None:
    engine = rkllm_of(NUMBERED_ANSWERS, kv_reuse=reuse)
    turns = [SYSTEM]
    await turn(engine, turns, "And what of Bath?")
    vectors = [await engine.compute(EMBED, ["Which town?"], Priority.INTERACTIVE)]
    # The text is not preceded by the chat.
    assert contexts(call_log)[-1].values["held"] == "0"
    for is_second in (False, True):
        _, reused = await turn(engine, turns, "And what of Ely?")
        assert (reused > 0) is (reuse and is_second)
        assert contexts(call_log)[-1].values["ids"] == render_ids(turns[:-1])
    vectors.append(await engine.compute(EMBED, ["Which town?"], Priority.INTERACTIVE))
    assert vectors[0] == vectors[1]
