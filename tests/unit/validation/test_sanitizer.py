"""The sanitiser on two tables of answers, dirty and clean ones."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from validation.issues import Removal
from validation.rules import Example, SanitizerRule, load_rules
from validation.sanitizer import Sanitizer
from validation.sanitizer.edits import Edit, to_removals
from validation.sanitizer.sanitizer import RULE_IDS

DATA = Path(__file__).parents[2] / "data" / "sanitizer"
RULES = load_rules().sanitizer

Item = dict[str, Any]


def table(name: str) -> list[Any]:
    root = yaml.safe_load((DATA / name).read_text(encoding="utf-8"))
    common = {"prompt": root["prompt"], "system": root.get("system", "")}
    return [common | item for item in root["answers"]]


DIRTY, CLEAN = table("dirty.yaml"), table("clean.yaml")


@pytest.fixture(scope="module")
def sanitizer() -> Sanitizer:
    return Sanitizer(RULES)


def rule(*patterns: str, words: tuple[str, ...] = ()) -> SanitizerRule:
    example = Example(catches="a", leaves="b")
    return SanitizerRule(about="", words=list(words), patterns=list(patterns), examples=[example])


def applied(text: str, removals: tuple[Removal, ...]) -> str:
    """Apply removals from the end, so that earlier spans stay valid."""
    for removal in reversed(removals):
        text = text[: removal.start] + removal.replacement + text[removal.end :]
    return text


@pytest.mark.parametrize("name", RULE_IDS)
def test_missing_rule_is_disabled(name: str) -> None:
    others = {other: other_rule for other, other_rule in RULES.items() if other != name}
    for example in RULES[name].examples:
        _, removals = Sanitizer(others).clean(example.catches, example.prompt)
        assert name not in {removal.rule for removal in removals}
    only = Sanitizer({name: RULES[name]})
    for example in RULES[name].examples:
        _, removals = only.clean(example.catches, example.prompt)
        assert {removal.rule for removal in removals} == {name}


def test_without_rules_nothing_changes() -> None:
    text = "<|im_start|>assistant\nAssistant: <p>Hi!!!!!</p>\n\n\n\n\n\n\n\n"
    assert Sanitizer({}).clean(text, "Hi", "Hi") == (text, ())


def test_table_of_dirty_answers_is_long() -> None:
    assert len(DIRTY) >= 80
    assert len(CLEAN) >= 60


def test_dirty_answer_becomes_the_clean_one(
    sanitizer: Sanitizer, subtests: pytest.Subtests
) -> None:
    for item in DIRTY:
        with subtests.test(item["name"]):
            cleaned, removals = sanitizer.clean(item["raw"], item["prompt"], item["system"])
            assert cleaned == item["clean"]
            assert {removal.rule for removal in removals} == set(item["rules"])
            assert applied(item["raw"], removals) == cleaned
            assert sanitizer.clean(cleaned, item["prompt"], item["system"]) == (cleaned, ())


def test_clean_answer_does_not_change(sanitizer: Sanitizer, subtests: pytest.Subtests) -> None:
    for item in CLEAN:
        text = item["text"]
        with subtests.test(item["name"]):
            assert sanitizer.clean(text, item["prompt"], item["system"]) == (text, ())


def test_spans_refer_to_the_original_text(sanitizer: Sanitizer) -> None:
    text = "<s>Grüße 😀!!!!! Und: <|im_end|>\n\nAb.<|im_end|>"
    cleaned, removals = sanitizer.clean(text)
    assert cleaned == "Grüße 😀!!!!! Und:\n\nAb."
    assert [text[removal.start : removal.end] for removal in removals] == [
        "<s>",
        " <|im_end|>\n\n",
        "<|im_end|>",
    ]
    assert [removal.replacement for removal in removals] == ["", "\n\n", ""]


def test_removed_character_is_attributed_to_its_rule() -> None:
    glued = Sanitizer({"template_token": rule(words=("<x>", "<yy>"))})
    assert glued.clean("a<y<x>y>b") == ("ab", (Removal("template_token", 1, 8),))
    # The exclamation marks only form a run after the token between them is removed.
    two = Sanitizer(
        {"template_token": rule(words=("<x>",)), "punctuation_run": rule(r"\pL(!{5,})")}
    )
    assert two.clean("a!!!<x>!!!") == (
        "a!",
        (
            Removal("punctuation_run", 1, 4, "!"),
            Removal("template_token", 4, 7),
            Removal("punctuation_run", 7, 10),
        ),
    )


@pytest.mark.parametrize("depth", [1, 2, 5, 8])
def test_nested_tokens_are_removed_up_to_a_depth(sanitizer: Sanitizer, depth: int) -> None:
    text = "Alps." + "<|im_" * depth + "<|im_end|>" + "end|>" * depth
    assert sanitizer.clean(text)[0] == "Alps."


def test_deeply_nested_tokens_are_replaced_by_spaces(sanitizer: Sanitizer) -> None:
    text = "Alps." + "<|im_" * 500 + "<|im_end|>" + "end|>" * 500
    cleaned, _ = sanitizer.clean(text)
    assert "<|im_end|>" not in cleaned
    assert sanitizer.clean(cleaned) == (cleaned, ())


def test_text_above_the_budget_is_unchanged(sanitizer: Sanitizer) -> None:
    text = "a<|im_end|>" * 90_000
    assert sanitizer.clean(text) == (text, ())
    text = "a<|im_end|>" * 1_000
    assert sanitizer.clean(text)[0] == "a" * 1_000
    # The sanitiser only reaches its budget after some removals.
    text = ("<|im_" * 7 + "<|im_end|>" + "end|>" * 7) * 9_000
    assert sanitizer.clean(text) == (text, ())


def test_unpaired_surrogates_are_accepted(sanitizer: Sanitizer) -> None:
    assert sanitizer.clean("\ud83d <|im_end|>")[0] == "\ud83d"
    assert sanitizer.clean("a\udc00b")[0] == "a\udc00b"


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"template_tokens": rule("a")}, "sanitizer.template_tokens: no such rule"),
        ({"template_token": rule("(")}, r"sanitizer.template_token: '\(': missing \)"),
        ({"role_label": rule(r"a(?=b)")}, "sanitizer.role_label: .*invalid perl operator"),
        ({"stray_pipe": rule("a")}, "sanitizer.stray_pipe: 'a' needs one group"),
        ({"punctuation_run": rule("(a)(b)")}, "sanitizer.punctuation_run: .* needs one group"),
        ({"blank_lines": rule("a*")}, "sanitizer.blank_lines: .* without characters"),
        ({"edge_token": rule(words=("",))}, "sanitizer.edge_token: a word without letters"),
    ],
)
def test_invalid_rules_are_rejected(
    rules: dict[str, SanitizerRule], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=message):
        Sanitizer(rules)
    assert capfd.readouterr() == ("", "")


def test_edit_without_effect_is_not_reported() -> None:
    assert to_removals("ab", [Edit(0, 1, "a", "x"), Edit(1, 2, "", "y")]) == (Removal("y", 1, 2),)
    assert to_removals("ab", [Edit(0, 1, "", "x"), Edit(1, 2, "", "x")]) == (Removal("x", 0, 2),)


def test_pattern_between_characters_adds_nothing() -> None:
    own = {"blank_lines": rule(r"\b"), "template_token": rule(words=("<x>",))}
    assert Sanitizer(own).clean("a b<x>") == ("a b", (Removal("template_token", 3, 6),))


def test_sanitizer_uses_custom_rules() -> None:
    own = Sanitizer(
        {
            "template_token": rule(words=("{{end}}",)),
            "punctuation_run": rule(r"\pL(-{3,})"),
            # The replacement equals the match, which is no change and must not loop endlessly.
            "blank_lines": rule(r"\n\n"),
            "role_label": rule(words=("Robot>",)),
        }
    )
    cleaned, _ = own.clean("Robot> Alps---\n\nSea{{end}} <|im_end|>")
    assert cleaned == "Alps-\n\nSea <|im_end|>"
