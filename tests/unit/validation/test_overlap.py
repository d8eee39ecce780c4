import pytest

from validation.overlap import find_shared_passages


@pytest.mark.parametrize(
    ("source", "answer", "passages"),
    [
        ("a b c d e", "x a b c y", ["a b c"]),
        ("a b c d e", "a b c d", ["a b c d"]),
        ("a b c d e f", "a b c x d e f", ["a b c", "d e f"]),
        ("a b c", "a b x b c", []),
        ("a b", "a b", []),
        ("", "a b c", []),
        ("a b c", "", []),
    ],
)
def test_shared_passages(source: str, answer: str, passages: list[str]) -> None:
    assert find_shared_passages(source.split(), answer.split(), 3) == passages
