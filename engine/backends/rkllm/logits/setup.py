"""Set up RKLLM_MODE=logits; its optional dependencies are imported only when it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.backends.rkllm.prompts import ChatTokenizer
from engine.backends.rkllm.runtime import Runtime
from engine.errors import ModelLoadFailed

if TYPE_CHECKING:
    from engine.backends.rkllm.logits.token_loop import TokenLoop


def build_token_loop(
    runtime: Runtime, tokenizer: ChatTokenizer | None, folder: Path | None, context_length: int
) -> TokenLoop:
    """Return the token loop, which generates from the runtime's logits.

    Raises:
        ModelLoadFailed: the tokenizer files or numpy are missing, or the files are incomplete.
    """
    if tokenizer is None or folder is None:
        raise ModelLoadFailed(
            "RKLLM_MODE=logits needs the tokenizer files of the model, for tokens become text here "
            "(RKLLM_TOKENIZER)"
        )
    try:
        # Imported here because the backend needs no numpy in its other mode.
        from engine.backends.rkllm.logits.grammar import GrammarCompiler
        from engine.backends.rkllm.logits.token_loop import TokenLoop
    except ImportError as error:
        raise ModelLoadFailed(
            "RKLLM_MODE=logits needs numpy: `pip install 'worker-rkllm[logits]'` adds it"
        ) from error
    from engine.backends.rkllm.logits.vocabulary import Vocabulary

    vocabulary = Vocabulary(tokenizer, folder)
    return TokenLoop(runtime, vocabulary, context_length, GrammarCompiler(vocabulary, tokenizer))
