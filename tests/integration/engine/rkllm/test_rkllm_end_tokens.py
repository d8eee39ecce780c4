"""Answers end at the model's own end tokens, even if the runtime generates more tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine import FinishReason
from engine.backends.rkllm.tokenizer import ChatTokenizer
from tests.fake_rkllm.tokenizer import id_of, write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask

END, TURN_END = id_of("</s>"), id_of("<|im_end|>")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Write tokenizer files with two end tokens, one of them only in the generation config."""
    folder = write_tokenizer(tmp_path)
    config = {"eos_token_id": [TURN_END, END]}
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


def script(end: int) -> str:
    return f'answer\n  say "One" " two"\n  say "" id={end}\n  say " three" times=50 us=1000\n'


@pytest.mark.usefixtures("tokenizer")
@pytest.mark.parametrize("end", [END, TURN_END])
@pytest.mark.parametrize("n_batch", [1, 2])
async def test_answer_ends_at_an_end_token(rkllm_of: RkllmMaker, end: int, n_batch: int) -> None:
    # rknn-llm#534: 1.3.0 went on to max_new_tokens.
    engine = rkllm_of(script(end), n_batch=n_batch)
    for _ in range(2):
        text, finish = await ask(engine, "Count.", max_tokens=40)
        assert (text, finish.reason, finish.stop_reason) == ("One two", FinishReason.STOP, None)
        assert finish.usage.completion_tokens == 2


@pytest.mark.usefixtures("tokenizer")
async def test_ignore_eos_goes_on_after_an_end_token(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(script(END))
    text, finish = await ask(engine, "Count.", max_tokens=5, ignore_eos=True)
    assert (text, finish.reason) == ("One two three three", FinishReason.LENGTH)


def test_end_tokens_are_those_of_both_files(tokenizer: Path) -> None:
    assert ChatTokenizer(tokenizer).end_tokens == {END, TURN_END}
