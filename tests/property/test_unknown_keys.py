"""Any single wrong letter in a known name is reported, and no known name is."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from handler.apis.openai.body_keys import BODY_KEYS, CALL_LINE_KEYS, DETOKENIZE_KEYS, TOKENIZE_KEYS
from handler.input.job_keys import INPUT_KEYS, JOB_KEYS, POLICY_KEYS, SAMPLING_KEYS
from handler.input.unknown_keys import KnownKeys

OBJECTS = (
    *(JOB_KEYS, POLICY_KEYS, INPUT_KEYS, SAMPLING_KEYS),
    *(*BODY_KEYS.values(), TOKENIZE_KEYS, DETOKENIZE_KEYS, CALL_LINE_KEYS),
)
# Shorter names are skipped, because one changed letter makes them another valid name.
NAMES = [(keys, name) for keys in OBJECTS for name in sorted(keys.keys) if len(name) > 3]
LETTERS = string.ascii_lowercase + "_-"


@st.composite
def misspelled(draw: st.DrawFn) -> tuple[KnownKeys, str]:
    """Return a name with one letter removed, inserted or replaced, or two letters swapped."""
    keys, name = draw(st.sampled_from(NAMES))
    at = draw(st.integers(0, len(name) - 1))
    letter = draw(st.sampled_from(LETTERS))
    wrong = draw(
        st.sampled_from(
            [
                name[:at] + name[at + 1 :],
                name[:at] + letter + name[at:],
                name[:at] + letter + name[at + 1 :],
                name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :],
            ]
        )
    )
    return keys, wrong


@given(misspelled())
def test_single_edit_of_a_known_name_is_named(case: tuple[KnownKeys, str]) -> None:  # R61
    keys, wrong = case
    if wrong in keys.keys:
        assert keys.warnings({wrong: 1}) == ()
    else:
        [warning] = keys.warnings({wrong: 1})
        assert wrong in warning
        assert "ignored" in warning


@given(st.sampled_from(OBJECTS), st.data())
def test_no_known_name_warns(keys: KnownKeys, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(keys.keys))))
    assert keys.warnings(dict.fromkeys(names, 1)) == ()


@given(st.sampled_from(OBJECTS), st.dictionaries(st.text(), st.none() | st.integers()))
def test_any_keys_at_all_are_read(keys: KnownKeys, body: dict[str, int | None]) -> None:
    for warning in keys.warnings(body):
        warning.encode()
        assert "\n" not in warning
