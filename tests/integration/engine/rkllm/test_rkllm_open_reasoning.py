"""An answer continues after the runtime ended it at the end of the reasoning (1.3.0)."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import FinishReason
from tests.fake_rkllm import quoted, read_log
from tests.fake_rkllm.tokenizer import tokenizer, write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask

PROMPT = "How many? <think>\n"
# The token that the tokenizer puts before each prompt.
START = 1
THOUGHT, CLOSING, ANSWER = "Two and two.", "\n</think>\n\n", "Four."


def encode(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False).ids)


def script(after: str = f'spell "{ANSWER}"') -> str:
    """Return a script whose first run ends where `</think>` would come."""
    ids = " ".join(map(str, encode("</think>")))
    first = f'prefix_reuse off\nanswer when="{ids}"\n  {after}\n'
    return f"{first}answer\n  cache told\n  spell {quoted(THOUGHT)}\n"


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> Path:
    """Write tokenizer files for every model of this test, with one token per byte."""
    return write_tokenizer(tmp_path)


async def test_answer_goes_on_after_the_reasoning(rkllm_of: RkllmMaker, call_log: Path) -> None:
    engine = rkllm_of(script())
    text, finish = await ask(engine, PROMPT)
    assert text == THOUGHT + CLOSING + ANSWER
    assert finish.reason is FinishReason.STOP
    # The tokenizer has one token per byte.
    assert finish.usage.prompt_tokens == len(encode(PROMPT)) + START
    assert finish.usage.completion_tokens == len(encode(text))
    contexts = [call.values for call in read_log(call_log) if call.name == "context"]
    assert [int(each["held"]) for each in contexts] == [0, START + len(encode(PROMPT + THOUGHT))]
    assert contexts[1]["ids"].endswith("," + ",".join(map(str, encode(PROMPT + THOUGHT + CLOSING))))


async def test_limit_counts_both_runs(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(script())
    tokens = len(encode(THOUGHT + CLOSING)) + 2
    text, finish = await ask(engine, PROMPT, max_tokens=tokens)
    assert (text, finish.reason) == (THOUGHT + CLOSING + "Fo", FinishReason.LENGTH)
    assert finish.usage.completion_tokens == tokens


@pytest.mark.parametrize("more", [0, 3])
async def test_limit_inside_the_closing_ends_the_answer(rkllm_of: RkllmMaker, more: int) -> None:
    engine = rkllm_of(script())
    text, finish = await ask(engine, PROMPT, max_tokens=len(encode(THOUGHT)) + more)
    assert (text, finish.reason) == (THOUGHT + CLOSING[:more], FinishReason.LENGTH)


async def test_stop_string_in_the_answer_ends_it(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(script('spell "Four. Or five." us=2000'))
    text, finish = await ask(engine, PROMPT, stop=(" Or",))
    assert text.endswith("Four.")
    assert (finish.reason, finish.stop_reason) == (FinishReason.STOP, " Or")


async def test_second_run_that_reopens_reasoning_is_the_last(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    engine = rkllm_of(script('spell "<think>Hm"'))
    text, _ = await ask(engine, PROMPT)
    assert text == THOUGHT + CLOSING + "<think>Hm"
    assert sum(call.name == "rkllm_run" for call in read_log(call_log)) == 2


@pytest.mark.parametrize("prompt", ["How many?", "Is <think> a word?"])
@pytest.mark.parametrize("answer", ["Four.", "<think>Two and two.</think>Four.", "It is <think>."])
async def test_answer_without_open_reasoning_is_one_run(
    rkllm_of: RkllmMaker, call_log: Path, prompt: str, answer: str
) -> None:
    engine = rkllm_of(f"answer\n  spell {quoted(answer)}\n")
    assert (await ask(engine, prompt))[0] == answer
    assert sum(call.name == "rkllm_run" for call in read_log(call_log)) == 1
