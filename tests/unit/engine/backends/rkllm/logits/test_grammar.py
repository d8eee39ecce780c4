"""The tokens that a schema or a grammar allows, with byte-level and SentencePiece vocabularies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLParserLimits
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.backends.rkllm.logits import grammar
from engine.backends.rkllm.logits.grammar import Constraint, GrammarCompiler
from engine.backends.rkllm.logits.vocabulary import Vocabulary
from engine.backends.rkllm.tokenizer import ChatTokenizer
from engine.errors import RequestRejected
from engine.request import SamplingParams
from engine.schema.client_grammar import MAX_GRAMMAR_CHARS
from engine.schema.grammar_cost import MAX_SCHEMA_SYMBOLS
from engine.schema.trial import MAX_GRAMMAR_SYMBOLS
from tests.fake_rkllm.tokenizer import id_of, write_tokenizer

END = "</s>"
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}


class ConstraintTester:
    """Feeds texts to constraints and checks that their tokens are allowed."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = ChatTokenizer(folder)
        self.vocabulary = Vocabulary(self.tokenizer, folder)
        self.grammars = GrammarCompiler(self.vocabulary, self.tokenizer)

    def constraint(self, **sampling: Any) -> Constraint:
        constraint = self.grammars.build_constraint(SamplingParams(**sampling))
        assert constraint is not None
        return constraint

    def allowed(self, constraint: Constraint) -> set[str]:
        return {
            self.vocabulary.text(int(token)) for token in constraint.allowed_tokens().nonzero()[0]
        }

    def text(self, tokens: list[int]) -> str:
        return b"".join(map(self.vocabulary.piece, tokens)).decode()

    def feed(self, constraint: Constraint, text: str, *, fast_forward: bool = False) -> list[str]:
        """Feed a text; return the texts forced after its tokens, which are then skipped."""
        tokens = self.tokenizer.encode(text, special=False)
        followed = []
        while tokens:
            token = tokens.pop(0)
            assert constraint.allowed_tokens()[token], self.vocabulary.text(token)
            after = constraint.advance(token, fast_forward=fast_forward)
            assert tokens[: len(after)] == after
            del tokens[: len(after)]
            followed.append(self.text(after))
        return followed


@pytest.fixture(scope="module")
def tester(tmp_path_factory: pytest.TempPathFactory) -> ConstraintTester:
    """A vocabulary with one token per byte."""
    return ConstraintTester(write_tokenizer(tmp_path_factory.mktemp("bytes")))


@pytest.fixture(scope="module")
def piece_tester(tmp_path_factory: pytest.TempPathFactory) -> ConstraintTester:
    """A SentencePiece vocabulary of words, which starts each text with a space."""
    bytes_of_others = [f"<0x{byte:02X}>" for byte in range(256)]
    return with_pieces(tmp_path_factory.mktemp("pieces"), bytes_of_others)


def with_pieces(folder: Path, bytes_of_others: Sequence[str] = ()) -> ConstraintTester:
    words = ["<unk>", END, "▁", "▁red", "re", "red", *'{}[]",:adegmnrst', *bytes_of_others]
    vocab = {word: number for number, word in enumerate(words)}
    merges = [("r", "e"), ("re", "d"), ("▁", "red")]
    made: Any = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([END])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    return ConstraintTester(folder)


def test_request_without_grammar_has_no_constraint(tester: ConstraintTester) -> None:
    assert tester.grammars.build_constraint(SamplingParams()) is None


def test_schema_allows_only_matching_tokens(tester: ConstraintTester) -> None:
    # R39
    constraint = tester.constraint(json_schema=PERSON)
    assert tester.allowed(constraint) == {"{"}
    tester.feed(constraint, '{"name": "')
    assert {"a", '"', "\\", " "} <= tester.allowed(constraint)
    assert not {"\n", END, "<|im_end|>"} & tester.allowed(constraint)
    tester.feed(constraint, 'Zoë", "tags": [')
    assert tester.allowed(constraint) == {'"', "]"}
    tester.feed(constraint, '"')
    assert tester.allowed(constraint) == {"r", "g"}
    tester.feed(constraint, 'red"')
    assert tester.allowed(constraint) == {",", "]"}
    assert not constraint.is_complete
    tester.feed(constraint, "]}")
    assert tester.allowed(constraint) == {END}
    assert constraint.is_complete


def test_grammar_allows_only_matching_tokens(tester: ConstraintTester) -> None:
    constraint = tester.constraint(grammar='root ::= "yes" | "no" digit+\ndigit ::= [0-9]')
    assert tester.allowed(constraint) == {"y", "n"}
    tester.feed(constraint, "no")
    assert tester.allowed(constraint) == set("0123456789")
    tester.feed(constraint, "4")
    assert tester.allowed(constraint) == {*"0123456789", END}
    assert not constraint.is_complete


def test_ignored_end_token_is_not_allowed(tester: ConstraintTester) -> None:
    # R10
    constraint = tester.constraint(grammar='root ::= "a"+', ignore_eos=True)
    tester.feed(constraint, "aa")
    assert tester.allowed(constraint) == {"a"}
    constraint = tester.constraint(grammar='root ::= "a"', ignore_eos=True)
    tester.feed(constraint, "a")
    assert tester.allowed(constraint) == set()
    assert constraint.is_complete


def test_every_end_token_may_end_the_answer(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": id_of("<s>")}))
    tester = ConstraintTester(tmp_path)
    constraint = tester.constraint(grammar='root ::= "a"')
    tester.feed(constraint, "a")
    assert tester.allowed(constraint) == {"<s>", END}


def test_forced_tokens_are_returned(tester: ConstraintTester) -> None:
    constraint = tester.constraint(json_schema=PERSON)
    followed = tester.feed(constraint, '{"name": "Al", "tags": ["red"]}', fast_forward=True)
    # After the bracket there is a choice; after the first letter of a tag only one text is allowed.
    assert followed == ['"name": "', "", "", ', "tags": [', "", 'ed"', "}"]
    assert constraint.is_complete


def test_forced_tokens_are_not_returned_without_fast_forward(tester: ConstraintTester) -> None:
    text = '{"name": "Al", "tags": ["red"]}'
    assert set(tester.feed(tester.constraint(json_schema=PERSON), text)) == {""}


def test_constraint_handles_tokens_with_spaces(piece_tester: ConstraintTester) -> None:
    schema = {"enum": ["red", "  red", "green"]}
    constraint = piece_tester.constraint(json_schema=schema)
    assert piece_tester.allowed(constraint) == {'"'}
    constraint.advance(
        piece_tester.tokenizer.encode("\n" + '"', special=False)[-1], fast_forward=True
    )
    assert {"r", "g", " "} <= piece_tester.allowed(constraint)


def test_forced_tokens_equal_the_text(piece_tester: ConstraintTester) -> None:
    # On its own, such a text would start with a space.
    constraint = piece_tester.constraint(json_schema={"enum": ["red"]})
    [first] = constraint.allowed_tokens().nonzero()[0]
    forced = constraint.advance(int(first), fast_forward=True)
    assert piece_tester.text([int(first), *forced]) == '"red"'
    # As the model's tokenizer writes it, not letter by letter.
    assert [piece_tester.text([token]) for token in forced] == ["red", '"']


def test_text_outside_the_tokenizer_is_forced_as_bytes(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path) / "tokenizer.json"
    content = json.loads(path.read_text()) | {"normalizer": {"type": "Lowercase"}}
    path.write_text(json.dumps(content))
    shouting = ConstraintTester(tmp_path)
    constraint = shouting.constraint(json_schema={"const": "no NO no"})
    [first] = constraint.allowed_tokens().nonzero()[0]
    assert shouting.text(constraint.advance(int(first), fast_forward=True)) == 'no NO no"'


def test_text_without_tokens_is_refused_where_it_starts(tmp_path: Path) -> None:
    dumb = with_pieces(tmp_path)
    constraint = dumb.constraint(json_schema={"const": "redREDred"})
    [first] = constraint.allowed_tokens().nonzero()[0]
    assert dumb.text(constraint.advance(int(first), fast_forward=True)) == "red"
    with pytest.raises(RequestRejected, match="json_schema: it could not be followed any further"):
        constraint.advance(int(constraint.allowed_tokens().nonzero()[0][0]), fast_forward=True)


def test_special_token_does_not_match_text(tester: ConstraintTester) -> None:
    # It can only be spelled in letters: the texts of a schema must not end a turn.
    constraint = tester.constraint(json_schema={"const": f"a{END}b"})
    text = []
    while not constraint.is_complete:
        [token] = constraint.allowed_tokens().nonzero()[0]
        text += [int(token), *constraint.advance(int(token), fast_forward=True)]
    assert id_of(END) not in text
    assert tester.text(text) == f'"a{END}b"'


REFUSED: list[tuple[Mapping[str, Any], str]] = [
    ({"grammar": "root := x"}, "it is no GBNF: Expected ::= at line 1"),
    ({"grammar": "root ::= more"}, "it is no GBNF: Rule 'more' not found"),
    ({"grammar": ""}, "it is no GBNF: No 'root' rule found"),
    (
        {"json_schema": {"type": "name"}},
        "json_schema: answers cannot be held to it: .*Invalid type: name",
    ),
    ({"json_schema": {"enum": []}}, "json_schema: answers cannot be held to it: .*Unsatisfiable"),
    (
        {"json_schema": {"not": {"type": "null"}}},
        'answers cannot be held to it: .*keys: \\["not"\\]',
    ),
    (
        {"json_schema": {"$ref": "http://127.0.0.1:9/"}},
        "json_schema: answers cannot .* must be within",
    ),
    ({"json_schema": {"type": "string", "pattern": "(?=a)"}}, "json_schema: .* not supported"),
]


@pytest.mark.parametrize(("sampling", "message"), REFUSED)
def test_unsupported_grammar_or_schema_is_refused(
    tester: ConstraintTester, sampling: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(RequestRejected, match=message) as refusal:
        tester.constraint(**sampling)
    assert refusal.value.details["param"] == next(iter(sampling))


def test_schema_that_is_too_large_is_refused(tester: ConstraintTester) -> None:
    # Refused before it is built, because building cannot be aborted.
    fields: dict[str, Any] = {f"field {number}": {} for number in range(6000)}
    with pytest.raises(
        RequestRejected,
        match="^json_schema: answers cannot be held to it: it would become a grammar of about "
        f"[0-9]+ symbols, and at most {MAX_SCHEMA_SYMBOLS} are allowed$",
    ):
        tester.constraint(json_schema={"type": "object", "properties": fields})


def test_grammar_with_too_many_alternatives_is_refused(tester: ConstraintTester) -> None:
    ways = range(2100)
    rules = "".join(f'\nway{way} ::= "{way}]"' for way in ways)
    with pytest.raises(RequestRejected, match="grammar: it cannot be followed: ") as raised:
        tester.constraint(
            grammar='root ::= "[" (' + "|".join(f"way{way}" for way in ways) + f"){rules}"
        )
    # The message is logged too, and logs contain no content.
    assert "[" not in str(raised.value)


@pytest.mark.parametrize("limit", ["step_lexer_fuel", "step_max_items", "max_lexer_states"])
@pytest.mark.parametrize("forced", [False, True])
def test_exceeded_parser_limits_raise_an_error(
    tester: ConstraintTester, monkeypatch: pytest.MonkeyPatch, limit: str, *, forced: bool
) -> None:
    lowered: dict[str, Any] = {limit: 1}
    limits = partial(LLParserLimits, **lowered)
    monkeypatch.setattr(grammar, "LLParserLimits", limits)
    with pytest.raises(
        RequestRejected, match="json_schema: it could not be followed any further: "
    ):
        tester.feed(
            tester.constraint(json_schema=PERSON), '{"name": "Al", "tags": []}', fast_forward=forced
        )


def test_grammar_that_is_too_large_is_refused(tester: ConstraintTester) -> None:
    text = "root ::= " + " ".join(f"r{number}" for number in range(MAX_GRAMMAR_SYMBOLS))
    text += "".join(f'\nr{n} ::= "a" | "b"' for n in range(MAX_GRAMMAR_SYMBOLS))
    message = f"^grammar: it must have at most {MAX_GRAMMAR_CHARS} characters, got {len(text)}$"
    with pytest.raises(RequestRejected, match=message):
        tester.constraint(grammar=text)
    # The text itself is short enough.
    text = "root ::= " + "x* " * MAX_GRAMMAR_SYMBOLS + '\nx ::= "a"'
    assert len(text) < MAX_GRAMMAR_CHARS
    # A machine that qemu emulates reaches the limit of the time first.
    reasons = "(.*grammar size|it takes too long to prepare)"
    with pytest.raises(RequestRejected, match=f"grammar: it cannot be followed: {reasons}"):
        tester.constraint(grammar=text)


def test_any_alternative_of_a_schema_is_allowed(tester: ConstraintTester) -> None:
    # As pydantic writes a union, with and without a discriminator.
    shapes = [
        {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}
        for kind in ("cat", "dog")
    ]
    constraint = tester.constraint(json_schema={"oneOf": shapes})
    assert tester.feed(constraint, '{"kind": "dog"', fast_forward=True) == ['"kind": "', 'og"']
    alike = [{"type": "object", "properties": {name: {"type": "null"}}} for name in ("a", "b")]
    tester.feed(tester.constraint(json_schema={"oneOf": alike}), '{"b": null}')


def test_schema_applies_only_after_the_reasoning(tester: ConstraintTester) -> None:
    constraint = tester.grammars.build_constraint(SamplingParams(json_schema=PERSON), "open")
    assert constraint is not None
    tester.feed(constraint, 'Is it {"a"}? </thin <th\n\n')
    assert END not in tester.allowed(constraint)
    tester.feed(constraint, "</think>")
    assert tester.allowed(constraint) == {"{", " ", "\n", "\t", "\r", "\x0b", "\x0c", "�"}
    tester.feed(constraint, '\n\n{"name": "A", "tags": []}')
    assert constraint.is_complete


@pytest.mark.parametrize("thought", ["", "<think>\nIs it {}?\n</think>\n\n", "<think></think>"])
def test_answer_may_begin_with_reasoning(tester: ConstraintTester, thought: str) -> None:
    sampling = SamplingParams(json_schema=PERSON)
    constraint = tester.grammars.build_constraint(sampling, "optional")
    assert constraint is not None
    assert tester.allowed(constraint) == {"<", "{"}
    tester.feed(constraint, f'{thought}{{"name": "A", "tags": []}}')
    assert constraint.is_complete


def test_schema_references_are_not_fetched(tester: ConstraintTester, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"const": 1}')
    with pytest.raises(RequestRejected, match="must be within the schema"):
        tester.constraint(json_schema={"$ref": f"file://{tmp_path}/other.json"})
