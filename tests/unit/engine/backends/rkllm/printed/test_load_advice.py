"""Errors of the library at a load, in the words that users of boards posted, bring advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.backends.rkllm.printed.load_advice import find_load_advice

FACTS = (
    "I rkllm: rkllm-toolkit version: 1.2.1b1, max_context_limit: 4096, npu_core_num: 3, "
    "target_platform: RK3588, model_dtype: W8A8"
)
TOO_FEW = (
    "E rkllm: The number of enabled CPUs must be greater than or equal to the number of NPU cores"
)
MISMATCH = "E rkllm: Mismatch between enabled CPUs mask and expected count"


@pytest.mark.parametrize(("limit", "proposed"), [(4096, 4096), (1000, 992)])
def test_context_above_the_limit_brings_the_number_to_set(limit: int, proposed: int) -> None:
    # rkllama#60
    line = f"E rkllm: max_context[8192] must be less than the model's max_context_limit[{limit}]"
    assert find_load_advice((FACTS, line), 0) == [
        f"the model was converted for a shorter context: set CONTEXT_LENGTH={proposed}, or less "
        "(context_length in an entry of MODELS)"
    ]


def test_too_few_cpus_bring_the_number_that_the_model_needs() -> None:
    assert find_load_advice((FACTS, TOO_FEW), 0b11) == [
        "RKLLM_CPU_MASK enables 2 CPUs, and a model that was built for 3 NPU cores needs 3"
    ]
    [without_facts] = find_load_advice((TOO_FEW,), 0b11)
    assert without_facts == "RKLLM_CPU_MASK must enable a CPU for each NPU core of the model"


def test_mismatch_of_the_mask_names_the_cpus_that_are_off(tmp_path: Path) -> None:
    assert find_load_advice((MISMATCH,), 0, tmp_path) == [
        "CPUs may be off: switch them on, or name the others in RKLLM_CPU_MASK"
    ]
    offline = tmp_path / "sys/devices/system/cpu/offline"
    offline.parent.mkdir(parents=True)
    offline.write_text("6-7\n")
    assert find_load_advice((MISMATCH,), 0, tmp_path) == [
        "the CPUs 6-7 are off: switch them on, or name the others in RKLLM_CPU_MASK"
    ]


def test_model_without_a_tokenizer_brings_how_to_convert_it() -> None:
    assert find_load_advice(("E rkllm: Tokenizer is unavailable",), 0) == [
        "convert the model again, without export_tokenizer=False"
    ]


def test_other_errors_bring_no_advice() -> None:
    assert find_load_advice((FACTS, "E rkllm: failed to malloc npu memory"), 0) == []
