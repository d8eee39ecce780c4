"""The fake library with an n_batch above 1: arrays of inputs and results, as in the manual."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from engine.backends.rkllm.abi.structs import RKLLMInferMode
from tests.integration.engine.rkllm.conftest import DriverFactory, ProcessFactory
from tests.integration.engine.rkllm.driver import FINISH, NORMAL, Driver

SEQUENCES = 3
COUNT = 'answer\n  say "\\{i}/\\{prompt} " times=asked\n'


class BatchCallback(NamedTuple):
    """One callback: its state, and the text and token id of each sequence."""

    state: int
    sequences: list[tuple[bytes | None, int]]


def replace_handle(d: Driver, callbacks: list[BatchCallback]) -> None:
    """Create a new handle with several sequences."""

    def on_result(result: Any, userdata: int | None, state: int) -> int:
        sequences = [(result[i].text, result[i].token_id) for i in range(SEQUENCES)]
        callbacks.append(BatchCallback(state, sequences))
        return 0

    d.param.extend_param.n_batch = SEQUENCES
    d.replace_callback(on_result)


def run_batch(d: Driver, prompts: Sequence[str | Sequence[int]], **infer: Any) -> int:
    inputs = (d.abi.input * SEQUENCES)(*(d.input(prompt) for prompt in prompts))
    return d.functions.run(d.handle, inputs, d.abi.infer_param(**infer), 1)


def test_batch_steps_together_and_an_ended_sequence_has_a_negative_id(
    driver: DriverFactory,
) -> None:
    d, callbacks = driver(COUNT), list[BatchCallback]()
    replace_handle(d, callbacks)
    assert run_batch(d, [[7, 1], [8, 3], [9, 0]]) == 0
    assert [each.state for each in callbacks][-1] == FINISH
    steps = [each.sequences for each in callbacks[:-1]]
    assert all(each.state == NORMAL for each in callbacks[:-1])
    assert steps[0][:2] == [(b"0/7 1 ", 1000), (b"0/8 3 ", 1000)]
    assert [sequences[1][0] for sequences in steps[:3]] == [b"0/8 3 ", b"1/8 3 ", b"2/8 3 "]
    for sequences in steps[1:]:
        assert sequences[0][1] == sequences[2][1] == -1
        assert (sequences[0][0] or b"") == (sequences[2][0] or b"") == b""


def test_prompts_may_be_texts(driver: DriverFactory) -> None:
    d, callbacks = driver('answer\n  say "\\{prompt}"\n'), list[BatchCallback]()
    replace_handle(d, callbacks)
    assert run_batch(d, ["one", "two", "three"]) == 0
    assert [text for text, _ in callbacks[0].sequences] == [b"one", b"two", b"three"]


def test_error_ends_all_sequences_of_the_batch(driver: DriverFactory) -> None:
    d = driver(f'answer when="7"\n  say "x" times=2\n  error null\n{COUNT}')
    callbacks: list[BatchCallback] = []
    replace_handle(d, callbacks)
    assert run_batch(d, [[8, 9], [7], [9, 9]]) == -1
    assert len(callbacks) == 3
    assert callbacks[-1].state not in (NORMAL, FINISH)


def test_cache_size_is_reported_for_every_sequence(driver: DriverFactory) -> None:
    d = driver(COUNT)
    replace_handle(d, [])
    sizes = (ctypes.c_int * (SEQUENCES + 1))(*[-7] * (SEQUENCES + 1))
    assert d.functions.get_kv_cache_size(d.handle, sizes) == 0
    assert list(sizes) == [0] * SEQUENCES + [-7]


def test_logits_are_refused_and_hidden_states_are_not(driver: DriverFactory) -> None:
    d, callbacks = driver(COUNT), list[BatchCallback]()
    replace_handle(d, callbacks)
    prompts = [[1, 2], [3], [4]]
    assert run_batch(d, prompts, mode=RKLLMInferMode.RKLLM_INFER_GET_LOGITS) == -1
    assert not callbacks
    assert run_batch(d, prompts, mode=RKLLMInferMode.RKLLM_INFER_GET_LAST_HIDDEN_LAYER) == 0
    assert [each.state for each in callbacks] == [NORMAL, FINISH]


def test_undocumented_batch_features_end_the_process(process: ProcessFactory) -> None:
    program = (
        "d.destroy(); d.param.extend_param.n_batch = 2; d.init(); "
        "given = (d.abi.input * 2)(d.input([1]), d.input([2])); "
        "d.functions.run(d.handle, given, d.abi.infer_param(keep_history=1), 1)"
    )
    assert "what several sequences leave in a cache" in process(COUNT, program).error
