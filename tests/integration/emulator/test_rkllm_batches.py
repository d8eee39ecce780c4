"""RKLLM_N_BATCH from the variable to the bytes: prompts of one HTTP request share a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.backends.rkllm.batching import scheduler
from tests.fake_rkllm import build, read_log, write_script
from tests.fake_rkllm.tokenizer import write_tokenizer
from tests.integration.emulator.conftest import Serve
from tests.waiting import PATIENCE


@pytest.mark.long_except("1.3")
@pytest.mark.parametrize("abi", ["1.2", "1.3"])
async def test_prompts_of_one_request_share_a_run(
    serve: Serve,
    tmp_path: Path,
    fake_rkllm_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    abi: str,
) -> None:
    log = tmp_path / "calls.log"
    monkeypatch.setenv("FAKE_RKLLM_LOG", str(log))
    monkeypatch.setattr(scheduler, "GATHER_WINDOW_S", 0.5 * PATIENCE)
    write_tokenizer(tmp_path)
    server = await serve(
        write_script(tmp_path / "model.rkllm", 'answer\n  say "\\{i}/\\{prompt} " times=asked\n'),
        engine="rkllm",
        rkllm_lib_path=build(abi, fake_rkllm_folder),
        rkllm_n_batch=4,
    )
    body: dict[str, Any] = {"prompt": [[5, 3], [6, 2], [7, 4], [8, 1]], "max_tokens": 3}
    async with server.client() as client:
        answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200
    assert [choice["text"] for choice in answer.json()["choices"]] == [
        "0/5 3 1/5 3 2/5 3 ",
        "0/6 2 1/6 2 ",
        "0/7 4 1/7 4 2/7 4 ",
        "0/8 1 ",
    ]
    assert answer.json()["usage"]["completion_tokens"] == 9
    runs = [call.values["places"] for call in read_log(log) if call.name == "rkllm_run"]
    assert runs == ["4"]
    assert server.engine.slots == 4
