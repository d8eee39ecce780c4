"""Check RunPod's size limits, and split streams without loss."""

from __future__ import annotations

import json
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Delta, TokenLogprob
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.chat import CHAT
from handler.apis.openai.completions import COMPLETIONS
from handler.apis.openai.endpoint_spec import EndpointSpec
from handler.delivery import limits
from handler.errors import ResultTooLarge
from handler.response import encode_partial


@given(st.lists(st.text(max_size=30).map(Delta)), st.integers(1, 10))
def test_split_deltas_is_lossless_and_bounded(batch: list[Delta], bound: int) -> None:
    parts = list(limits.split_deltas(batch, bound))
    joined = "".join(delta.text for part in parts for delta in part)
    assert joined == "".join(delta.text for delta in batch)
    for part in parts:
        assert part
        assert sum(len(delta.text) for delta in part) <= bound


def test_batch_that_fits_is_one_part() -> None:
    batch = [Delta("ab"), Delta(""), Delta("c")]
    assert list(limits.split_deltas(batch, 3)) == [batch]
    assert list(limits.split_deltas([], 3)) == []


def test_long_delta_is_cut_and_keeps_one_logprob() -> None:
    logprob = TokenLogprob("abcde", -0.5)
    parts = list(limits.split_deltas([Delta("x"), Delta("abcde", logprob), Delta("y")], 2))
    assert [[delta.text for delta in part] for part in parts] == [["x"], ["ab"], ["cd"], ["e", "y"]]
    assert [delta.logprob for part in parts for delta in part if delta.logprob] == [logprob]


@pytest.mark.parametrize("char", ["a", '"', "\\", "\n", "\0", "\x1f", "é", "\u2028", "😀"])
@pytest.mark.parametrize("size", [1, 3, 4 * limits.PARTIAL_CHARS])
def test_each_partial_fits_a_chunk_whatever_json_escapes(char: str, size: int) -> None:
    # JSON takes six bytes for a control character, and a partial holds its text twice.
    batch = [Delta(char * size)] * (4 * limits.PARTIAL_CHARS // size)
    texts = []
    for part in limits.split_deltas(batch):
        partial = encode_partial(part)
        assert limits.sdk_size_bytes({"output": partial}) <= limits.STREAM_CHUNK_BYTES
        texts.append(partial["choices"][0]["text"])
    assert len(texts) > 1
    assert "".join(texts) == char * size * len(batch)


TOPS = tuple((f'"\\{number}', -1.23456789) for number in range(20))


@pytest.mark.parametrize("char", ["a", '"', "\\", "\0", "\x1f", "é", "\u2028", "😀"])
@pytest.mark.parametrize("shape", [COMPLETIONS, CHAT], ids=["completions", "chat"])
def test_each_event_with_logprobs_fits_a_chunk(shape: EndpointSpec, char: str) -> None:
    # Of twenty alternatives, in text that is text inside of JSON once more.
    text = char * 5
    expected = [
        TokenLogprob(text, -12.345678901234567, TOPS, text.encode(), 5 * at) for at in range(2000)
    ]
    requests = {"logprobs": 5} if shape is COMPLETIONS else {"logprobs": True, "top_logprobs": 20}
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "stream": True}
    codec = OpenAICall(shape, body | requests, "tiny")
    codec.encode_opening(0)
    parts = list(limits.split_deltas([Delta(text, each) for each in expected]))
    assert [delta.logprob for part in parts for delta in part] == expected
    for part in parts:
        for block in limits.split_events(codec.encode_delta(part)):
            size = limits.sdk_size_bytes({"output": block.decode()})
            assert size <= limits.STREAM_CHUNK_BYTES
    assert len(parts) > 5


@given(st.lists(st.binary(max_size=30), min_size=1), st.integers(1, 100))
def test_events_are_never_cut(expected: list[bytes], bound: int) -> None:
    events = [b"data: " + each.replace(b"\n", b"") + b"\n\n" for each in expected]
    with patch.object(limits, "BLOCK_BYTES", bound):
        blocks = list(limits.split_events(b"".join(events)))
    assert b"".join(blocks) == b"".join(events)
    for block in blocks:
        assert block.endswith(b"\n\n")
        assert len(block) <= bound or block.count(b"\n\n") == 1


@given(st.lists(st.integers(1, 50)), st.integers(1, 100))
def test_token_entries_are_split_without_loss(sizes: list[int], bound: int) -> None:
    with patch.object(limits, "EVENT_LOGPROB_BYTES", bound):
        parts = list(limits.split_token_entries(sizes, lambda size: size))
    assert [size for part in parts for size in part] == sizes
    assert all(sum(part) <= bound or len(part) == 1 for part in parts)
    assert len(parts) == 1 or all(parts)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_sdk_size_bytes_equals_the_posted_size(output: object) -> None:
    assert limits.sdk_size_bytes(output) == len(json.dumps(output, ensure_ascii=False).encode())


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_number_that_is_no_json_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        limits.sdk_size_bytes({"output": {"rate": number}})


@pytest.mark.parametrize(
    ("job_id", "limit"),
    [
        ("5f0c-u1", 10_000_000),
        ("", 10_000_000),
        ("x-sync-5f0c", 10_000_000),
        ("sync-5f0c-u1", 20_000_000),
    ],
)
def test_result_limit_goes_by_the_kind_of_job(job_id: str, limit: int) -> None:
    limits.PayloadLimits().check_result(job_id, limit)
    with pytest.raises(ResultTooLarge) as raised:
        limits.PayloadLimits().check_result(job_id, limit + 100_000)
    assert raised.value.message == (
        f"the result is {limit / 1e6 + 0.1:.1f} MB and RunPod takes {limit // 1_000_000} MB for it:"
        " lower max_tokens, send stream=false, which returns the text twice instead of thrice,"
        " or post the job with an s3Config"
    )
    with pytest.raises(ResultTooLarge):
        limits.PayloadLimits().check_result(job_id, limit + 1)


def test_chunk_limit() -> None:
    limits.PayloadLimits().check_chunk(1_000_000)
    with pytest.raises(ResultTooLarge, match=r"one output is 1\.5 MB and RunPod takes 1 MB"):
        limits.PayloadLimits().check_chunk(1_500_000)
    with pytest.raises(ResultTooLarge):
        limits.PayloadLimits().check_chunk(1_000_001)


def test_limits_of_a_server_are_named_in_errors() -> None:
    sizes = limits.PayloadLimits(
        run_bytes=2_000, runsync_bytes=3_000, chunk_bytes=500, platform="this server"
    )
    with pytest.raises(ResultTooLarge, match=r"is 0\.0025 MB and this server takes 0\.002 MB"):
        sizes.check_result("5f0c-u1", 2_500)
    sizes.check_result("sync-5f0c-u1", 2_500)
    with pytest.raises(ResultTooLarge, match=r"is 0\.0035 MB and this server takes 0\.003 MB"):
        sizes.check_result("sync-5f0c-u1", 3_500)
    with pytest.raises(ResultTooLarge, match=r"is 0\.0006 MB and this server takes 0\.0005 MB"):
        sizes.check_chunk(600)
