"""The facts in the lines of a load; the lines are those of boards that users have posted."""

from __future__ import annotations

from engine.backends.rkllm.printed.library_facts import describe_facts, read_facts

LINES = (
    "I rkllm: rkllm-runtime version: 1.2.3, rknpu driver version: 0.9.8, platform: RK3588",
    "I rkllm: loading rkllm model from /models/qwen: small, 4.rkllm",
    "I rkllm: rkllm-toolkit version: 1.2.1b1, max_context_limit: 4096, npu_core_num: 3, "
    "target_platform: RK3588, model_dtype: W8A8",
    "I rkllm: Enabled cpus: [4, 5, 6, 7]",
    "I rkllm: Enabled cpus num: 4",
    "W rkllm: Warning: Your rknpu driver version is too low",
    "W rkllm: Warning: Your rknpu driver version is too low",
    "rknn llm lib version: 2.3.3b0",
)


def test_facts_are_read_from_the_lines_of_real_libraries() -> None:
    assert read_facts(LINES) == {
        "runtime_version": "1.2.3",
        "driver_version": "0.9.8",
        "platform": "RK3588",
        "toolkit_version": "1.2.1b1",
        "max_context_limit": 4096,
        "npu_core_num": 3,
        "target_platform": "RK3588",
        "model_dtype": "W8A8",
        "enabled_cpus": [4, 5, 6, 7],
        "warnings": ["Warning: Your rknpu driver version is too low"],
    }


def test_facts_of_other_output_are_empty() -> None:
    assert read_facts(["loading", "I rkllm:", "I rkllm: Enabled cpus: []", ""]) == {}
    assert describe_facts({}) == ""


def test_number_in_an_unknown_form_is_kept_as_text() -> None:
    assert read_facts(["I rkllm: max_context_limit: 4k, npu_core_num: 2"]) == {
        "max_context_limit": "4k",
        "npu_core_num": 2,
    }


def test_description_has_the_warnings_last() -> None:
    text = describe_facts(read_facts(LINES))
    assert text.startswith("runtime_version 1.2.3, driver_version 0.9.8, platform RK3588, ")
    assert text.endswith(", Warning: Your rknpu driver version is too low")
