"""RKLLM_MODE=logits, where it can be had: what it needs is looked for when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.backends.rkllm.prompts import ChatTokenizer
from engine.backends.rkllm.runtime import Runtime
from engine.errors import ModelLoadFailed

if TYPE_CHECKING:
    from engine.backends.rkllm.token_loop import Stepwise


def build_token_loop(
    runtime: Runtime, tokenizer: ChatTokenizer | None, folder: Path | None, context_length: int
) -> Stepwise:
    """Return what generates out of logits.

    Raises:
        ModelLoadFailed: the tokenizer files or numpy are not there, or the files lack something.
    """
    if tokenizer is None or folder is None:
        raise ModelLoadFailed(
            "RKLLM_MODE=logits needs the tokenizer files of the model, for tokens become text here "
            "(RKLLM_TOKENIZER)"
        )
    try:
        # Not with the backend, which does without numpy in its other mode.
        from engine.backends.rkllm.grammar import GrammarCompiler
        from engine.backends.rkllm.token_loop import Stepwise
    except ImportError as error:
        raise ModelLoadFailed(
            "RKLLM_MODE=logits needs numpy: `pip install 'worker-rkllm[logits]'` adds it"
        ) from error
    from engine.backends.rkllm.vocabulary import Vocabulary

    vocabulary = Vocabulary(tokenizer, folder)
    return Stepwise(runtime, vocabulary, context_length, GrammarCompiler(vocabulary, tokenizer))
