from pathlib import Path

import pytest

from validation.rules import DEFAULT_RULES, RulesError, load_rules


def test_default_rules_are_valid() -> None:
    assert load_rules().sanitizer


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("intents: {general: {about: x}}\nsanitizer: {}\n", 1, "checks"),
        (
            "intents: {general: {about: x}}\nsanitizer: {}\nchecks: {}\nthreshold: much\n",
            4,
            "threshold",
        ),
        (
            "sanitizer: {}\nchecks: {}\nintents:\n  pay:\n    about: x\n    cues:\n"
            "      - any: [a]\n        weight: x\n",
            8,
            "intents.pay.cues.0.weight",
        ),
        ("intents: {general: {about: x}}\nsanitizer: {}\nchecks: {}\nmore: 1\n", 4, "more"),
        (
            "intents: {general: {about: x}}\nsanitizer: {}\nchecks: {}\nplaces:\n  - names: [' ']\n"
            "    currencies: [X]\n",
            5,
            "places.0.names.0",
        ),
        (
            "intents: {general: {about: x}}\nsanitizer: {}\nchecks: {}\ncurrencies:\n  X: ['']\n",
            5,
            "currencies.X.0",
        ),
        ("intents: {\n", 2, "expected"),
        ("- 1\n", 1, "the file"),
    ],
)
def test_error_names_file_and_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RulesError) as caught:
        load_rules(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert message in str(caught.value)


def test_missing_file_raises_rules_error(tmp_path: Path) -> None:
    with pytest.raises(RulesError, match="cannot be read"):
        load_rules(tmp_path / "none.yaml")
    assert DEFAULT_RULES.exists()
