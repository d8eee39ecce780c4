"""Set up RKLLM_MODE=logits; its optional dependencies are imported only when it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.backends.rkllm.abi.abi import Abi
from engine.backends.rkllm.board.profile import Profile
from engine.backends.rkllm.runtime import Runtime
from engine.backends.rkllm.tokenizer import ChatTokenizer
from engine.errors import ModelLoadFailed

if TYPE_CHECKING:
    from engine.backends.rkllm.logits.token_loop import TokenLoop


def check_logits(abi: Abi, profile: Profile) -> None:
    """Raise ModelLoadFailed if RKLLM_MODE=logits would end the process at the second token.

    1.2.3 ended so on an RK3588 (oRKLLM 51643f0), so with that ABI the doctor must have found that
    this board's library does not.
    """
    if profile.logits_with_history is False:
        raise ModelLoadFailed(
            "RKLLM_MODE=logits does not work with this library: it cannot compute logits of tokens "
            "that follow others, as the doctor found (RKLLM_PROFILE)"
        )
    if profile.logits_with_history is None and not abi.sampling_per_run:
        raise ModelLoadFailed(
            f"RKLLM_MODE=logits ends the process with some libraries of ABI {abi.name}: let "
            "`python -m handler doctor` (`worker-rkllm doctor` of an installation) find out "
            "whether it does here, with RKLLM_PROFILE as the file for the outcome"
        )


def build_token_loop(
    runtime: Runtime, tokenizer: ChatTokenizer | None, folder: Path | None, context_length: int
) -> TokenLoop:
    """Return the token loop, which generates from the runtime's logits.

    Raises:
        ModelLoadFailed: the tokenizer files or numpy are missing, or the files are incomplete.
    """
    if tokenizer is None or folder is None:
        raise ModelLoadFailed(
            "RKLLM_MODE=logits needs the tokenizer files of the model to turn tokens into text "
            "(RKLLM_TOKENIZER)"
        )
    try:
        # Imported here because the backend needs no numpy in its other mode.
        from engine.backends.rkllm.logits.grammar import GrammarCompiler
        from engine.backends.rkllm.logits.token_loop import TokenLoop
    except ImportError as error:
        raise ModelLoadFailed(
            "RKLLM_MODE=logits needs numpy: `pip install numpy` adds it"
        ) from error
    from engine.backends.rkllm.logits.vocabulary import Vocabulary

    vocabulary = Vocabulary(tokenizer, folder)
    return TokenLoop(runtime, vocabulary, context_length, GrammarCompiler(vocabulary, tokenizer))
