"""Continue an answer that the runtime ended at the end of the model's reasoning.

1.3.0 ends a run at `</think>` and swallows the token, so the answer itself is missing. A second run
continues after the mark; the key-value cache has everything before it.
"""

from __future__ import annotations

from engine.backends.rkllm.runs.run import Run
from engine.backends.rkllm.tokenizer import ChatTokenizer
from engine.prompts.reasoning import find_open_mark

# The end of a prompt that may have the opening mark; long enough for one token per letter.
_TAIL_TOKENS = 32


def find_closing(
    run: Run, prompt: list[int], output: str, tokenizer: ChatTokenizer
) -> list[tuple[int, str]] | None:
    """Return the tokens that close the reasoning which a run left open, each with its text.

    None if it did not end there: a run that reached its limit or was stopped is complete. `output`
    is the text of the run, whose tokens must be in the vocabulary: they are sent again.
    """
    if not run.finished or run.stopped or run.reached_limit or run.tokens > run.limit:
        return None
    if not all(map(tokenizer.has_token, run.ids)):
        return None
    prompt_end = tokenizer.decode(prompt[-_TAIL_TOKENS:])
    mark = find_open_mark(prompt_end, output)
    if mark is None:
        return None
    line_end = "" if output.endswith("\n") else "\n"
    closing = f"{line_end}{mark}\n\n"
    return list(
        zip(tokenizer.encode(closing, special=False), tokenizer.pieces(closing), strict=True)
    )
