"""The settings of a server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.backends.llamacpp.server import DraftConfig, ServerConfig

PLAN = ServerConfig(path=Path("m"), name="m", context=4096, slots=4, threads=1)


def test_batches_are_small_for_fast_aborts() -> None:
    # R31
    assert PLAN.batch == 64


def test_drafted_tokens_of_all_slots_fit_one_batch() -> None:
    # R17: otherwise llama.cpp ends the process.
    drafted = replace(PLAN, draft_path=Path("d"))
    assert drafted.batch == 64
    assert replace(drafted, draft=DraftConfig(64, 0.0)).batch == 4 * 65
    assert replace(PLAN, draft=DraftConfig(64, 0.0)).batch == 64


def test_embedding_text_fits_one_batch() -> None:
    assert replace(PLAN, embeddings=True, context=2049).batch == 2049


def test_tokens_of_an_image_fit_one_batch() -> None:
    # Gemma 3 has 256 of them, which llama.cpp computes together.
    assert replace(PLAN, projector_path=Path("p")).batch == 512
