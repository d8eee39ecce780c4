"""Parse sampling parameters: error messages, unset values and warnings."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common.value_description import describe_value
from engine import SamplingParams
from handler.errors import InvalidRequest
from handler.input.sampling import (
    JOB_DEFAULTS,
    SamplingDefaults,
    SamplingInput,
    read_sampling,
    read_token_ids,
)

POSITIVE_INTEGER = "a whole number from 1 to 4294967295"
STOPS = "a non-empty string or an array of up to 16 of them, each of up to 1024 characters"
BIASES = "an object of up to 10000 token ids and numbers from -100 to 100"
FLAG = "true or false"
NAN, INFINITY = math.nan, math.inf


def read(**body: Any) -> SamplingParams:
    return read_sampling(body, SamplingDefaults())[0]


# R8-R12: field, value, allowed values, printed value.
REFUSED: list[tuple[str, Any, str, str]] = [
    ("max_tokens", 0, POSITIVE_INTEGER, "0"),
    ("max_tokens", -5, POSITIVE_INTEGER, "-5"),
    ("max_tokens", 1.5, POSITIVE_INTEGER, "1.5"),
    ("max_tokens", 5.5, POSITIVE_INTEGER, "5.5"),
    ("max_tokens", 1e300, POSITIVE_INTEGER, "1e+300"),
    ("max_tokens", math.nan, POSITIVE_INTEGER, "nan"),
    ("max_tokens", "5", POSITIVE_INTEGER, '"5"'),
    ("max_tokens", 10**12, POSITIVE_INTEGER, "1000000000000"),
    ("max_tokens", 2**32, POSITIVE_INTEGER, "4294967296"),
    ("max_tokens", True, POSITIVE_INTEGER, "true"),
    ("max_tokens", [5], POSITIVE_INTEGER, "[5]"),
    ("max_tokens", 10**400, POSITIVE_INTEGER, "1" + "0" * 56 + "..."),
    ("max_completion_tokens", "5", POSITIVE_INTEGER, '"5"'),
    ("max_completion_tokens", 0, POSITIVE_INTEGER, "0"),
    ("temperature", "hot", "a number from 0 to 2", '"hot"'),
    ("temperature", "0.5", "a number from 0 to 2", '"0.5"'),
    ("temperature", NAN, "a number from 0 to 2", "nan"),
    ("temperature", INFINITY, "a number from 0 to 2", "inf"),
    ("temperature", -1, "a number from 0 to 2", "-1"),
    ("temperature", True, "a number from 0 to 2", "true"),
    ("temperature", 2.1, "a number from 0 to 2", "2.1"),
    ("temperature", {}, "a number from 0 to 2", "{}"),
    ("top_p", -0.1, "a number from 0 to 1", "-0.1"),
    ("top_p", 1.01, "a number from 0 to 1", "1.01"),
    ("top_p", NAN, "a number from 0 to 1", "nan"),
    ("top_p", "1", "a number from 0 to 1", '"1"'),
    ("top_k", 1.5, "a whole number, -1 or 0 for all tokens", "1.5"),
    ("top_k", -2, "a whole number, -1 or 0 for all tokens", "-2"),
    ("top_k", "50", "a whole number, -1 or 0 for all tokens", '"50"'),
    ("top_k", 2**32, "a whole number, -1 or 0 for all tokens", "4294967296"),
    ("min_p", 1.5, "a number from 0 to 1", "1.5"),
    ("repetition_penalty", 0, "a number above 0, at most 100", "0"),
    ("repetition_penalty", -1, "a number above 0, at most 100", "-1"),
    ("frequency_penalty", 2.5, "a number from -2 to 2", "2.5"),
    ("presence_penalty", -2.5, "a number from -2 to 2", "-2.5"),
    ("presence_penalty", False, "a number from -2 to 2", "false"),
    ("seed", "x", "a whole number of up to 64 bits", '"x"'),
    ("seed", 1.5, "a whole number of up to 64 bits", "1.5"),
    ("seed", True, "a whole number of up to 64 bits", "true"),
    ("seed", 2**63, "a whole number of up to 64 bits", "9223372036854775808"),
    ("seed", -(2**63) - 1, "a whole number of up to 64 bits", "-9223372036854775809"),
    ("stop", "", STOPS, '""'),
    ("stop", [""], STOPS, '[""]'),
    ("stop", [5], STOPS, "[5]"),
    ("stop", 5, STOPS, "5"),
    ("stop", True, STOPS, "true"),
    ("stop", {"a": "b"}, STOPS, '{"a":"b"}'),
    ("stop", ["ok", None], STOPS, '["ok",null]'),
    ("stop", [f"s{n}" for n in range(17)], STOPS, "an array of 17"),
    ("stop", "x" * 1025, STOPS, '"' + "x" * 56 + "..."),
    ("stop", "half \ud83d", STOPS, '"half \\ud83d"'),
    ("stop", ["half \ud83d"], STOPS, '["half \\ud83d"]'),
    ("min_tokens", -1, "a whole number from 0 to 4294967295", "-1"),
    ("min_tokens", 1.5, "a whole number from 0 to 4294967295", "1.5"),
    ("allowed_token_ids", [], "an array of 1 to 1000 token ids", "[]"),
    ("allowed_token_ids", [-1], "an array of 1 to 1000 token ids", "[-1]"),
    ("stop_token_ids", [-1], "an array of up to 16 token ids", "[-1]"),
    ("stop_token_ids", [2**31], "an array of up to 16 token ids", "[2147483648]"),
    ("stop_token_ids", [10**30], "an array of up to 16 token ids", f"[{10**30}]"),
    ("stop_token_ids", ["1"], "an array of up to 16 token ids", '["1"]'),
    ("stop_token_ids", [True], "an array of up to 16 token ids", "[true]"),
    ("stop_token_ids", list(range(100, 117)), "an array of up to 16 token ids", "an array of 17"),
    ("include_stop_str_in_output", "yes", FLAG, '"yes"'),
    ("include_stop_str_in_output", 1, FLAG, "1"),
    ("stop_in_reasoning", "no", FLAG, '"no"'),
    ("stop_in_reasoning", "no", FLAG, '"no"'),
    ("ignore_eos", "no", FLAG, '"no"'),
    ("logit_bias", [1], BIASES, "[1]"),
    ("logit_bias", {"7": "x"}, BIASES, '{"7":"x"}'),
    ("logit_bias", {"7": 101}, BIASES, '{"7":101}'),
    ("logit_bias", {"7": NAN}, BIASES, '{"7":null}'),
    ("logit_bias", {"x": 1}, BIASES, 'the key "x"'),
    ("logit_bias", {"-1": 1}, BIASES, 'the key "-1"'),
    ("logit_bias", {"": 1}, BIASES, 'the key ""'),
    ("logit_bias", {"²": 1}, BIASES, 'the key "²"'),
    ("logit_bias", {str(2**31): 1}, BIASES, 'the key "2147483648"'),
    ("logit_bias", {"9" * 30: 1}, BIASES, f'the key "{"9" * 30}"'),
    ("logit_bias", {"9" * 5000: 1}, BIASES, f'the key "{"9" * 56}...'),
    ("logit_bias", {"\udfff": 1}, BIASES, 'the key "\\udfff"'),
    ("num_assistant_tokens", 0, "a whole number from 1 to 64", "0"),
    ("num_assistant_tokens", 2.5, "a whole number from 1 to 64", "2.5"),
    ("num_assistant_tokens", True, "a whole number from 1 to 64", "true"),
    ("assistant_confidence_threshold", 1.5, "a number from 0 to 1", "1.5"),
    ("assistant_confidence_threshold", "1", "a number from 0 to 1", '"1"'),
    ("truncate_prompt_tokens", 0, f"{POSITIVE_INTEGER}, or -1 for all that fit", "0"),
    ("truncate_prompt_tokens", -2, f"{POSITIVE_INTEGER}, or -1 for all that fit", "-2"),
    ("skip_special_tokens", 0, FLAG, "0"),
    ("n", 2, "1", "2"),
    ("n", 0, "1", "0"),
    ("stream", "yes", FLAG, '"yes"'),
    ("stream", 1, FLAG, "1"),
]


@pytest.mark.parametrize("path", ["", "input.sampling_params."])
def test_refused_in_one_sentence(path: str, subtests: pytest.Subtests) -> None:
    for field, value, allowed, got in REFUSED:
        with subtests.test(field=field, value=value):
            with pytest.raises(InvalidRequest) as raised:
                read_sampling({"temperature": 0.5, field: value}, JOB_DEFAULTS, path)
            assert raised.value.message == f"{path}{field} must be {allowed}, got {got}"
            assert raised.value.param == f"{path}{field}"
            raised.value.message.encode()


def test_every_field_describes_allowed_values() -> None:
    tested = {field for field, *_ in REFUSED}
    for name, field in SamplingInput.model_fields.items():
        assert field.description, name
        assert name in tested, f"no refused value of {name} is tested"


def test_special_tokens_and_truncation_are_read() -> None:
    assert (read().skip_special_tokens, read().truncate_prompt_tokens) == (True, None)
    assert not read(skip_special_tokens=False).skip_special_tokens
    assert [read(truncate_prompt_tokens=each).truncate_prompt_tokens for each in (-1, 5)] == [-1, 5]


def test_bounds_belong_to_the_range() -> None:
    # R8, R9
    low = read(
        max_tokens=1,
        temperature=0,
        top_p=0,
        top_k=-1,
        min_p=0,
        repetition_penalty=0.01,
        frequency_penalty=-2,
        presence_penalty=-2,
        seed=-(2**63),
    )
    assert (low.max_tokens, low.temperature, low.top_p, low.top_k) == (1, 0, 0, -1)
    assert (low.frequency_penalty, low.presence_penalty) == (-2, -2)
    assert low.seed == -(2**63)
    high = read(
        max_tokens=2**32 - 1,
        temperature=2,
        top_p=1,
        top_k=2**32 - 1,
        min_p=1,
        repetition_penalty=100,
        frequency_penalty=2,
        presence_penalty=2,
        seed=2**63 - 1,
    )
    assert high.max_tokens == 2**32 - 1
    assert (high.temperature, high.top_p, high.top_k, high.min_p) == (2, 1, 2**32 - 1, 1)
    assert high.seed == 2**63 - 1


def test_temperature_zero_is_not_unset() -> None:
    # R9
    assert read_sampling({"temperature": 0}, JOB_DEFAULTS)[0].temperature == 0
    assert read_sampling({"temperature": 0.0}, JOB_DEFAULTS)[0].temperature == 0
    assert read_sampling({"top_p": 0}, JOB_DEFAULTS)[0].top_p == 0


def test_job_defaults() -> None:
    # R49
    sampling, stream, warnings = read_sampling({}, JOB_DEFAULTS)
    assert sampling == SamplingParams(max_tokens=150, temperature=0.7, top_p=0.9, top_k=50)
    assert stream is False
    assert warnings == ()


def test_openai_defaults() -> None:
    # R8, R9
    assert read() == SamplingParams(max_tokens=None, temperature=1.0, top_p=1.0, top_k=-1)


def test_null_counts_as_unset() -> None:
    body = dict.fromkeys(SamplingInput.model_fields)
    assert read_sampling(body, JOB_DEFAULTS) == read_sampling({}, JOB_DEFAULTS)
    assert read_sampling({"echo": None, "best_of": None}, SamplingDefaults())[2] == ()


def test_unknown_keys_are_ignored() -> None:
    # R16
    assert read_sampling({"colour": "blue", "": 1, "\ud800": []}, SamplingDefaults()) == (
        SamplingParams(),
        False,
        (),
    )


@pytest.mark.parametrize(
    ("stop", "stops"), [("five", ("five",)), ([], ()), (["a", "b"], ("a", "b"))]
)
def test_stop_is_a_string_or_an_array(stop: Any, stops: tuple[str, ...]) -> None:
    # R11
    assert read(stop=stop).stop == stops


def test_sixteen_stops_are_served() -> None:
    # R11
    assert len(read(stop=[f"stop {n}" for n in range(16)]).stop) == 16


def test_everything_reaches_the_engine() -> None:
    assert read_sampling(
        {
            "max_tokens": 5,
            "temperature": 0.1,
            "top_p": 0.2,
            "top_k": 3,
            "min_p": 0.4,
            "repetition_penalty": 1.5,
            "frequency_penalty": 0.6,
            "presence_penalty": -0.7,
            "seed": 8,
            "stop": "nine",
            "stop_token_ids": [10, 2**31 - 1],
            "include_stop_str_in_output": True,
            "ignore_eos": True,
            "logit_bias": {"12": -13, str(2**31 - 1): 0.5},
            "n": 1,
            "stream": True,
        },
        JOB_DEFAULTS,
    ) == (
        SamplingParams(
            max_tokens=5,
            temperature=0.1,
            top_p=0.2,
            top_k=3,
            min_p=0.4,
            repetition_penalty=1.5,
            frequency_penalty=0.6,
            presence_penalty=-0.7,
            seed=8,
            stop=("nine",),
            stop_token_ids=(10, 2**31 - 1),
            include_stop_str_in_output=True,
            ignore_eos=True,
            logit_bias={12: -13, 2**31 - 1: 0.5},
        ),
        True,
        (),
    )


@pytest.mark.parametrize("top_k", [0, -1, None])
def test_top_k_for_all_tokens(top_k: int | None) -> None:
    # R9: unset is the dialect's default, which is all for OpenAI.
    assert read(top_k=top_k).top_k == -1


def test_max_completion_tokens_is_the_name_for_chat() -> None:
    # R8
    assert read(max_completion_tokens=7).max_tokens == 7
    assert read(max_completion_tokens=7, max_tokens=9).max_tokens == 7
    assert read(max_completion_tokens=None, max_tokens=9).max_tokens == 9


@pytest.mark.parametrize(
    ("field", "value"),
    [("best_of", 2), ("suffix", ""), ("echo", True), ("logprobs", 0), ("use_beam_search", True)],
)
def test_ignored_parameter_is_warned_about(field: str, value: Any) -> None:
    # R16
    _, _, warnings = read_sampling({field: value, "top_p": 0.5}, SamplingDefaults(), "p.")
    assert warnings == (f"p.{field} is not supported and was ignored",)


def test_min_tokens_above_max_tokens_is_refused() -> None:
    message = "^min_tokens must be at most max_tokens, which is 5, got 6$"
    with pytest.raises(InvalidRequest, match=message):
        read_sampling({"max_tokens": 5, "min_tokens": 6}, SamplingDefaults())
    sampling, *_ = read_sampling({"max_tokens": 5, "min_tokens": 5}, SamplingDefaults())
    assert sampling.min_tokens == 5


def test_each_ignored_parameter_has_a_warning_of_its_own() -> None:
    # R16
    body = {"echo": True, "top_n_sigma": 5, "early_stopping": False, "detokenize": None}
    assert len(read_sampling(body, SamplingDefaults())[2]) == 2


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    )
)
@example("\ud800")
@example({"\udfff": 1})
@example(10**5000)
@example([10**5000])
@example(float("nan"))
def test_describe_value_is_valid_utf8_for_any_value(value: Any) -> None:
    text = describe_value(value)
    text.encode()
    assert text
    assert len(text) <= 70


def test_describe_value_handles_too_deep_nesting() -> None:
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    assert describe_value(nested)


def test_an_ignored_parameter_is_named_where_each_body_has_it() -> None:
    """Two bodies with the same parameters in different places."""
    body = {"best_of": 3}
    for path in ("", "input.", "input.sampling_params.", ""):
        _, _, warnings = read_sampling(body, SamplingDefaults(), path)
        assert warnings == (f"{path}best_of is not supported and was ignored",)


def test_read_sampling_reads_whole_numbers_as_integers() -> None:  # R66
    body = {"max_tokens": 16.0, "seed": -3.0, "top_k": 5.0, "stop_token_ids": [2.0, 3]}
    sampling, _, warnings = read_sampling(body, JOB_DEFAULTS)
    assert warnings == ()
    result = (sampling.max_tokens, sampling.seed, sampling.top_k, *sampling.stop_token_ids)
    assert result == (16, -3, 5, 2, 3)
    assert all(type(each) is int for each in result)


@pytest.mark.parametrize("seed", [2.0**53, -(2.0**63)])
def test_read_sampling_refuses_floats_too_large_to_be_exact(
    seed: float,
) -> None:
    with pytest.raises(InvalidRequest, match="seed must be"):
        read_sampling({"seed": seed}, JOB_DEFAULTS)


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ([1, 2.0], (1, 2)),
        ([], ()),
        ([1, True], None),
        ([1.5], None),
        ([-1], None),
        ([2**31], None),
        ([math.inf], None),
        (["1"], None),
        ("1", None),
        (None, None),
    ],
)
def test_read_token_ids_accepts_only_whole_numbers(
    value: object, ids: tuple[int, ...] | None
) -> None:  # R66
    assert read_token_ids(value) == ids


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_minus_1_is_no_limit(name: str) -> None:
    sampling, _, _ = read_sampling({name: -1}, SamplingDefaults(max_tokens=7))
    assert sampling.max_tokens == 7
