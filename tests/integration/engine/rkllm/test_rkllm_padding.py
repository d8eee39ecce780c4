"""A model that generates nothing but padding fails its request, and no other one."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import BackendFailed
from tests.fake_rkllm.tokenizer import write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask


@pytest.mark.parametrize("n_batch", [1, 2])
async def test_endless_padding_fails_the_request(
    rkllm_of: RkllmMaker, tmp_path: Path, n_batch: int
) -> None:
    # rknn-llm#467, #469
    write_tokenizer(tmp_path)
    engine = rkllm_of(
        'answer when="2 2"\n  say "[PAD151935]" times=5000 us=500\n'
        'answer\n  say "[PAD151935]" times=15\n  say "fine" "[PAD1]"\n',
        n_batch=n_batch,
    )
    with pytest.raises(BackendFailed, match="generates nothing but padding tokens: it is damaged"):
        await ask(engine, (2, 2), max_tokens=2_000)
    text, _ = await ask(engine, (3, 3), max_tokens=2_000)
    assert text == "[PAD151935]" * 15 + "fine[PAD1]"
