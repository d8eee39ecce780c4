"""The sanitiser takes less than a second per megabyte, also for hostile texts."""

import time

import pytest

from validation.rules import load_rules
from validation.sanitizer import Sanitizer

SIZE = 1 << 20
LIMIT_S = 1.0
SANITIZER = Sanitizer(load_rules().sanitizer)
NEST = "<|im_" * 20 + "<|im_end|>" + "end|>" * 20 + "\n\n"
QUESTION = "What is the capital of France?"

UNITS = (
    *("<", "<|", "|", "!", "\n", "```", "`", "~", " ", "\t", "é", "😀", "\ud800", "&", "(", "["),
    *("a`", "``a", "`a` <|im_end|> ", "`<|im_end|>\n\n", "``a <|eot_id|>` ", "```\n", "```\na"),
    *("```\n<|im_end|>\n", "    <|im_end|>\n", "    a\n", "a\n", "\r\n", "a ", "# a\n", "- a\n"),
    *("<b>", "</b>", "<b></b>", "a<b></b>", "<p>", "<p>a</p>", "<ul><li>a", "a<br>", "< "),
    *("&amp;", "<p>&amp;</p>", "<p>a &lt;p&gt;</p>", "<ol><li>a</li></ol>", "a < b "),
    *("[INST]", "a[INST]", "a [INST] token ", "<|im_", "<|im_end|>", "<|im_end|>x", "<|im_end|> "),
    *("<s>", "a.<s>", "a.</s> ", "<s> </s>x", "<unk> ", "<unk> x ", '"<|im_end|>"', "é<|im_end|>"),
    *("<|start_header_id|>", "<|start_header_id|>a", "<think>", "<think> ", " </think>"),
    *("a|", "a. |\n\n", "a.\n\n|--|\n\nb ", "| |\n\n", "|\na\n", "|\n", "|--|\n", "\n\n|"),
    *("!!!!! ", "a!!!!! ", "a?!?!?!\n", "a,,,, ", ",", "\n\n\n\n\n\n\na", "\n \n"),
    *("Assistant: ", "Assistant:\n", "assistant\n", "### Response:\n", "Question: ", "Context: "),
    *("Sure! Here is it:\n", "Assistant: Sure! Here is it:\n", "As an AI, I have ", "Sure! "),
    *("I hope this helps! ", "Is there anything else I can help with?\n", "Let me know if "),
)
HOSTILE_TEXTS = {
    "tokens in tokens": "<|im_" * (SIZE // 11) + "<|im_end|>" + "end|>" * (SIZE // 11),
    "eight deep, often": ("<|im_" * 7 + "<|im_end|>" + "end|>" * 7) * (SIZE // 80),
    "twenty deep, often": NEST * (SIZE // 210),
    "lists in lists": "<ul><li>a" * 15_000,
    "tags in tags": "<p>" + "<b>" * (SIZE // 7) + "a" + "</b>" * (SIZE // 7),
    "token and label": "<|im_start|>assistant\nAssistant: " * (SIZE // 33),
    "backticks and a token": "a`" * (SIZE // 2) + "<|im_end|>x",
    "double backticks and a token": "``a" * (SIZE // 3) + "<|im_end|>x",
    "longer and longer backticks": " ".join("`" * n for n in range(1, 1_400)) + "<|im_end|>x",
    # The nested tokens before each text make the sanitiser run all its passes.
    "many passes, backticks": NEST + "``a" * (SIZE // 3) + "<|im_end|>x",
    "many passes, fences": NEST + "```\n" * (SIZE // 4) + "<|im_end|>x",
    "many passes, lines": NEST + "\na" * (SIZE // 2),
    "many passes, wide characters": NEST + "é" * SIZE,
    "many passes, marks": NEST + "a!!!!! " * 15_000,
    "many passes, comparisons": NEST + "< " * (SIZE // 2),
}
TEXTS_WITH_PROMPTS = {
    "short prompt, echoed all over": (f"{QUESTION}\n" * (SIZE // 31), QUESTION),
    "tiny prompt, echoed all over": ("a b c\n" * (SIZE // 6), "a b c"),
    "long prompt, echoed": ("ab cd ef " * (SIZE // 9) + "\nx", "ab cd ef " * (SIZE // 9)),
    "long prompt, all but echoed": ("ab cd ef " * (SIZE // 9), "ab cd ef " * (SIZE // 9) + "y"),
    "context": ("Context: a b c d\n" * (SIZE // 17), "Context: a b c d\n" * (SIZE // 17)),
    "many passes, long prompt": (NEST + "Context: a b c", "Context: a b c\n" * (SIZE // 15)),
    "html and a long prompt": ("<p>a</p>", "x " * (SIZE // 2)),
}


def seconds(text: str, prompt: str = "", system: str = "") -> float:
    """Return the minimum processor time of several runs, because the machine may be busy."""
    minimum_s = float("inf")
    for _ in range(3):
        start = time.thread_time()
        SANITIZER.clean(text, prompt, system)
        minimum_s = min(minimum_s, time.thread_time() - start)
        if minimum_s < LIMIT_S:
            break
    return minimum_s


def repeat_to(unit: str, size: int) -> str:
    return (unit * (size // len(unit) + 1))[:size]


@pytest.mark.long_except("'<'", "'```'", "'`a` <|im_end|> '", "'<ul><li>a'")
@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_megabyte_of_a_repeated_unit_is_fast(unit: str) -> None:
    assert seconds(repeat_to(unit, SIZE)) < LIMIT_S


@pytest.mark.long_except("tokens in tokens", "many passes, fences")
@pytest.mark.parametrize("name", HOSTILE_TEXTS)
def test_megabyte_of_hostile_text_is_fast(name: str) -> None:
    assert seconds(HOSTILE_TEXTS[name]) < LIMIT_S


@pytest.mark.parametrize("name", TEXTS_WITH_PROMPTS)
def test_megabyte_with_its_prompt_is_fast(name: str) -> None:
    text, prompt = TEXTS_WITH_PROMPTS[name]
    assert seconds(text, prompt, prompt) < LIMIT_S


def test_time_is_linear_in_the_length(scale: int) -> None:
    # Linear growth takes four times as long and quadratic growth sixteen times; the factor of
    # two between them allows for noise.
    units = UNITS[:: 4 if scale > 1 else 12]
    quarter_s = sum(seconds(repeat_to(unit, SIZE // 4)) for unit in units)
    full_s = sum(seconds(repeat_to(unit, SIZE)) for unit in units)
    assert full_s < 8 * quarter_s


def test_megabyte_of_an_ordinary_answer_is_fast() -> None:
    paragraph = (
        "The Rhine is 1,230 km long, `a < b`.\n\n```py\nx = [1, 2]\n```\n\n| a | b |\n|---|---|\n"
    )
    text = paragraph * (SIZE // len(paragraph))
    assert seconds(text) < LIMIT_S / 4
