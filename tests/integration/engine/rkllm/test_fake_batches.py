"""The fake library with an n_batch above 1: arrays of inputs and results, as in the manual."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from engine.backends.rkllm.abi.structs import RKLLMInferMode
from tests.integration.engine.rkllm.conftest import DriverFactory, ProcessFactory
from tests.integration.engine.rkllm.driver import FINISH, NORMAL, Driver

PLACES = 3
COUNT = 'answer\n  say "\\{i}/\\{prompt} " times=asked\n'


class Seen(NamedTuple):
    """One callback: its state, and the text and token id of each sequence."""

    state: int
    places: list[tuple[bytes | None, int]]


def batched(d: Driver, seen: list[Seen]) -> None:
    """Create a new handle with several sequences."""

    def on_result(result: Any, userdata: int | None, state: int) -> int:
        places = [(result[i].text, result[i].token_id) for i in range(PLACES)]
        seen.append(Seen(state, places))
        return 0

    d.param.extend_param.n_batch = PLACES
    d.replace_callback(on_result)


def run_of(d: Driver, prompts: Sequence[str | Sequence[int]], **infer: Any) -> int:
    given = (d.abi.input * PLACES)(*(d.input(prompt) for prompt in prompts))
    return d.functions.run(d.handle, given, d.abi.infer_param(**infer), 1)


def test_batch_steps_together_and_an_ended_sequence_has_a_negative_id(
    driver: DriverFactory,
) -> None:
    d, seen = driver(COUNT), list[Seen]()
    batched(d, seen)
    assert run_of(d, [[7, 1], [8, 3], [9, 0]]) == 0
    assert [each.state for each in seen][-1] == FINISH
    steps = [each.places for each in seen[:-1]]
    assert all(each.state == NORMAL for each in seen[:-1])
    assert steps[0][:2] == [(b"0/7 1 ", 1000), (b"0/8 3 ", 1000)]
    assert [places[1][0] for places in steps[:3]] == [b"0/8 3 ", b"1/8 3 ", b"2/8 3 "]
    for places in steps[1:]:
        assert places[0][1] == places[2][1] == -1
        assert (places[0][0] or b"") == (places[2][0] or b"") == b""


def test_prompts_may_be_texts(driver: DriverFactory) -> None:
    d, seen = driver('answer\n  say "\\{prompt}"\n'), list[Seen]()
    batched(d, seen)
    assert run_of(d, ["one", "two", "three"]) == 0
    assert [text for text, _ in seen[0].places] == [b"one", b"two", b"three"]


def test_error_ends_the_whole_batch(driver: DriverFactory) -> None:
    d = driver(f'answer when="7"\n  say "x" times=2\n  error null\n{COUNT}')
    seen: list[Seen] = []
    batched(d, seen)
    assert run_of(d, [[8, 9], [7], [9, 9]]) == -1
    assert len(seen) == 3
    assert seen[-1].state not in (NORMAL, FINISH)


def test_cache_size_is_reported_for_every_sequence(driver: DriverFactory) -> None:
    d = driver(COUNT)
    batched(d, [])
    sizes = (ctypes.c_int * (PLACES + 1))(*[-7] * (PLACES + 1))
    assert d.functions.get_kv_cache_size(d.handle, sizes) == 0
    assert list(sizes) == [0] * PLACES + [-7]


def test_logits_are_refused_and_hidden_states_are_not(driver: DriverFactory) -> None:
    d, seen = driver(COUNT), list[Seen]()
    batched(d, seen)
    prompts = [[1, 2], [3], [4]]
    assert run_of(d, prompts, mode=RKLLMInferMode.RKLLM_INFER_GET_LOGITS) == -1
    assert not seen
    assert run_of(d, prompts, mode=RKLLMInferMode.RKLLM_INFER_GET_LAST_HIDDEN_LAYER) == 0
    assert [each.state for each in seen] == [NORMAL, FINISH]


def test_undocumented_batch_features_end_the_process(process: ProcessFactory) -> None:
    program = (
        "d.destroy(); d.param.extend_param.n_batch = 2; d.init(); "
        "given = (d.abi.input * 2)(d.input([1]), d.input([2])); "
        "d.functions.run(d.handle, given, d.abi.infer_param(keep_history=1), 1)"
    )
    assert "what several sequences leave in a cache" in process(COUNT, program).error
