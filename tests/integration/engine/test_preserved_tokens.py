"""Special tokens that are marks come as text from llama.cpp itself."""

from __future__ import annotations

from pathlib import Path

from engine.backends.llamacpp.backend import LlamaCppBackend
from engine.backends.options import LlamaCppOptions
from engine.request import SamplingParams


def test_preserved_token_is_written_as_text(model_path: Path) -> None:
    backend = LlamaCppBackend(
        LlamaCppOptions(model_path=str(model_path), model_name="tiny", context_length=256, slots=1)
    )
    backend.load()
    [token] = backend._tokenize_without_bos("<|im_start|>")
    sampling = SamplingParams(max_tokens=2, temperature=0, logit_bias={token: 100})
    texts = []
    for run_id, preserved in enumerate(((), ("<|im_start|>",))):
        # The embedded model has no mark among its special tokens, so another one stands for it.
        backend._answer_marks = preserved
        pieces: list[bytes] = []
        backend.run(
            run_id, "Hi", sampling, lambda piece, *_, pieces=pieces: bool(pieces.append(piece))
        )
        texts.append(b"".join(pieces))
    backend.close()
    assert texts == [b"", b"<|im_start|>" * 2]
