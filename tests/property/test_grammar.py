"""Any output that a schema's grammar allows is valid for the schema, and can be completed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.rkllm.logits.grammar import GrammarCompiler
from engine.backends.rkllm.logits.vocabulary import Vocabulary
from engine.backends.rkllm.tokenizer import ChatTokenizer
from engine.request import SamplingParams
from tests.fake_rkllm.tokenizer import write_tokenizer

_WORDS = st.text(st.characters(codec="utf-8"), max_size=8)
_PLAIN: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({"type": "null"}),
    st.just({"type": "boolean"}),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-99, 99),
        st.integers(0, 200),
    ),
    st.builds(
        lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    st.builds(lambda values: {"enum": values}, st.lists(_WORDS, min_size=1, max_size=4)),
    st.sampled_from(
        [
            {"type": "string", "pattern": "^[a-c]{2,4}$"},
            {"type": "number", "minimum": -2.5, "maximum": 9},
        ]
    ),
)


def _objects(of: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    def made(fields: dict[str, Any], missing: int) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": fields,
            "required": [*fields][missing:],
            "additionalProperties": False,
        }

    return st.builds(made, st.dictionaries(_WORDS, of, max_size=4), st.integers(0, 2))


def _arrays(of: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda items, max_items: {"type": "array", "items": items, "maxItems": max_items},
        of,
        st.integers(0, 3),
    )


_SCHEMAS = st.recursive(
    _PLAIN,
    lambda of: st.one_of(
        _objects(of),
        _arrays(of),
        st.builds(lambda shapes: {"anyOf": shapes}, st.lists(of, min_size=1, max_size=3)),
    ),
    max_leaves=6,
)
# Tokens after which the test chooses the closing ones, so that each answer ends.
_LONG = 60
_CLOSING = ["</s>", *'"}],e0']


class _Model:
    """A tokenizer with one token per byte, and its grammars."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = ChatTokenizer(folder)
        self.vocabulary = Vocabulary(self.tokenizer, folder)
        self.grammars = GrammarCompiler(self.vocabulary, self.tokenizer)
        self.closing = [self.tokenizer.encode(text, special=False)[0] for text in _CLOSING]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> _Model:
    return _Model(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@given(schema=_SCHEMAS, seed=st.integers(0, 2**32), fast_forward=st.booleans())
def test_any_answer_fits_its_schema(
    model: _Model, schema: dict[str, Any], seed: int, fast_forward: bool
) -> None:
    # R39
    constraint = model.grammars.build_constraint(SamplingParams(json_schema=schema))
    assert constraint is not None
    dice, answer = random.Random(seed), list[int]()
    while not constraint.is_complete:
        allowed = {int(token) for token in constraint.allowed_tokens().nonzero()[0]}
        if len(answer) > _LONG:
            allowed = set([end for end in model.closing if end in allowed][:1]) or allowed
        token = dice.choice(sorted(allowed))
        if token in model.vocabulary.end_tokens:
            break
        answer += [token, *constraint.advance(token, fast_forward=fast_forward)]
    text = b"".join(map(model.vocabulary.piece, answer)).decode()
    jsonschema_rs.validator_for(schema).validate(json.loads(text))
