"""What the library prints: errors in runs that report success, and facts at the load.

The lines are those that users of boards have posted (rknn-llm#483, a board diary).
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from engine import EMBED, Priority
from engine.errors import BackendFailed
from tests.fake_rkllm.tokenizer import id_of, tokenizer, write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask, read, request

MATMUL_FAILED = "E rkllm: matmul(w8a8) run failed"
SUBMIT_FAILED = "E RKNN: failed to submit!, op id: 1, op name: MatMul"
OLD_DRIVER = "W rkllm: Warning: Your rknpu driver version is too low, please upgrade to 0.9.7."


def ids_of(text: str) -> str:
    """Return the tokens of a text in the form of a script."""
    return " ".join(map(str, tokenizer().encode(text, add_special_tokens=False).ids))


only_processes = pytest.mark.parametrize("isolation", ["process"], indirect=True)


@only_processes
@pytest.mark.long_except("matmul")
@pytest.mark.parametrize("line", [MATMUL_FAILED, SUBMIT_FAILED], ids=["matmul", "submit"])
async def test_run_that_prints_an_error_and_brings_no_text_fails_with_its_words(
    rkllm_of: RkllmMaker, line: str
) -> None:
    engine = rkllm_of(f'answer run=1\n  print "{line}"\nanswer\n  say "fine"\n')
    with pytest.raises(BackendFailed, match="printed an error during the run") as caught:
        await ask(engine, "hi")
    assert line in caught.value.message
    # The next run is judged by its own lines.
    assert (await ask(engine, "hi"))[0] == "fine"
    assert engine.restarts == 0


@only_processes
async def test_short_answer_with_an_error_fails_behind_its_text(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(f'answer\n  print "{MATMUL_FAILED}"\n  prefill_ms 100\n  say "0 " times=3\n')
    async with await engine.generate(request("hi")) as stream:
        with pytest.raises(BackendFailed, match="matmul"):
            await read(stream)


@only_processes
async def test_short_answer_with_an_error_fails_however_it_ends(
    rkllm_of: RkllmMaker, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path)
    lines = f'print "{MATMUL_FAILED}"\n  say "0 "'
    engine = rkllm_of(
        f'answer run=1\n  {lines} id={id_of("</s>")}\n  say "more"\n'
        f'answer run=4\n  print "{MATMUL_FAILED}"\n  hang\n'
        f"answer\n  {lines} times=40\n"
    )
    for limits in ({}, {"max_tokens": 3}, {"stop": ("0 0 ",)}):
        with pytest.raises(BackendFailed, match="matmul"):
            await ask(engine, "hi", **limits)
    stream = await engine.generate(request("hi"))
    stream.abort()
    await stream.wait_ended()
    assert engine.restarts == 0


@only_processes
async def test_short_answers_of_a_batch_with_an_error_fail(
    rkllm_of: RkllmMaker, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path)
    script = (
        f'answer when="{ids_of("long")}"\n  say "fine " times=20 us=4000\n'
        f'answer\n  print "{MATMUL_FAILED}"\n  say "0 " times=3 us=4000\n'
    )
    engine = rkllm_of(script, n_batch=2)
    for texts in (("short", "brief"), ("short", "long")):
        answers = await asyncio.gather(
            *(ask(engine, text, max_tokens=20) for text in texts), return_exceptions=True
        )
        assert isinstance(answers[0], BackendFailed)
        assert isinstance(answers[1], BackendFailed) is (texts[1] == "brief")


@pytest.mark.long
@only_processes
async def test_long_answer_with_an_error_stands(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(f'answer\n  print "{MATMUL_FAILED}"\n  say "word " us=1000 times=40\n')
    assert (await ask(engine, "hi"))[0] == "word " * 40


@only_processes
async def test_failed_run_has_the_words_of_the_library(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(f'answer\n  print "{SUBMIT_FAILED}"\n  error "x"\n')
    with pytest.raises(BackendFailed) as caught:
        await ask(engine, "hi")
    assert caught.value.message.startswith(
        f"the RKLLM runtime failed with the words: {SUBMIT_FAILED} (rkllm_run answered -1); "
    )


@only_processes
@pytest.mark.parametrize("mode", ["batch", "logits", "embedding"])
async def test_other_runs_that_print_an_error_fail(
    rkllm_of: RkllmMaker, tmp_path: Path, mode: str
) -> None:
    write_tokenizer(tmp_path)
    options: dict[str, dict[str, Any]] = {"batch": {"n_batch": 2}, "logits": {"mode": "logits"}}

    script = f'vocabulary 260\nanswer\n  prefill_ms 100\n  print "{MATMUL_FAILED}"\n'
    engine = rkllm_of(script, **options.get(mode, {}))
    run = (
        engine.compute(EMBED, ["a text"], Priority.INTERACTIVE)
        if mode == "embedding"
        else ask(engine, "hi", max_tokens=4)
    )
    with pytest.raises(BackendFailed, match="matmul"):
        await run
    assert engine.restarts == 0


@only_processes
async def test_facts_of_the_load_are_known_and_logged_once(
    rkllm_of: RkllmMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine = rkllm_of(f'print "{OLD_DRIVER}"\nanswer\n  say "x"\n')
    facts = (await engine.ready()).library_facts
    assert facts["driver_version"] == "0.9.8"
    assert facts["platform"] == facts["target_platform"] == "RK3588"
    assert facts["toolkit_version"] == "1.2.1b1"
    assert (facts["npu_core_num"], facts["max_context_limit"]) == (3, 16384)
    assert facts["model_dtype"] == "W8A8"
    assert facts["warnings"] == [OLD_DRIVER.removeprefix("W rkllm: ")]
    assert len(facts["enabled_cpus"]) == 4
