"""The page is what the rules say, and shows each example to the letter."""

import ast
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tools.docs.validation import option_rules, page
from validation.rules import EXAMPLE_PROMPT, Example, Intent, Rules, SanitizerRule, load_rules

ROOT = Path(__file__).resolve().parents[4]
RULES = load_rules()


def fences(markdown: str) -> list[str]:
    """What a reader of Markdown finds in the fences, escapes undone."""
    result = [token for token in MarkdownIt().parse(markdown) if token.type == "fence"]
    texts = [token.content.removesuffix("\n") for token in result]
    return [ast.literal_eval(text) if text[0] in "'\"" else text for text in texts]


def with_example(about: str, example: Example) -> Rules:
    rule = SanitizerRule(about=about, examples=[example])
    intents = {"general": Intent(about="-")}
    return Rules(intents=intents, sanitizer={"role_label": rule}, checks={})


def test_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "validation.md").read_text() == page(RULES), "run `make docs`"


def test_every_rule_has_a_heading_and_examples() -> None:
    made = page(RULES)
    for name in (*RULES.sanitizer, *RULES.checks, *option_rules()):
        assert f"\n### `{name}`\n" in made
    examples = [example for rule in RULES.sanitizer.values() for example in rule.examples]
    examples += [example for rule in RULES.checks.values() for example in rule.examples]
    examples += [example for rule in option_rules().values() for example in rule.examples]
    fenced = fences(made)
    for example in examples:
        assert {example.catches, example.leaves, example.prompt} <= {*fenced}


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\n",
        "a\n\n\n\nb",
        "ends with a space ",
        "\n\nbegins with a blank line",
        "a\ttab",
        "a\u200bjoiner",
        '"quoted"',
        "'quoted'",
        "```\nfenced\n```",
        "````\n```\n~~~\n````",
        "~~~\n<script>\n</script>",
        "# heading\n\n| a | b |\n|---|---|",
    ],
)
def test_text_is_printed_unchanged(text: str) -> None:
    made = page(with_example("-", Example(catches=text, leaves="-")))
    assert fences(made)[:3] == [EXAMPLE_PROMPT, text, "-"]
    assert all(line.isprintable() for line in made.split("\n"))


def test_prose_is_escaped() -> None:
    about = "a < b, <b>, *star*, _line_, [link](x), # one | $2 & ~3~ ` \\"
    made = page(with_example(about, Example(catches="a", leaves="b")))
    paragraph = next(
        token
        for token in MarkdownIt().parse(made)
        if token.type == "inline" and token.content.startswith("a ")
    )
    assert "".join(child.content for child in paragraph.children or ()) == about
