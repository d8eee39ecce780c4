"""Find out at a load whether the runtime itself skips what two prompts have in common."""

from __future__ import annotations

import logging
import threading

from engine.backends.rkllm.runs.run import ignore_token
from engine.backends.rkllm.runtime import Runtime
from engine.errors import BackendFailed
from engine.request import SamplingParams

logger = logging.getLogger(__name__)

# Valid in any vocabulary; their text does not matter.
_FIRST_TOKEN = 100
_PROMPT_TOKENS = 24
_ANSWER_TOKENS = 2
_GREEDY = SamplingParams(temperature=0.0)
# A prompt of so few tokens takes a fraction of a second. Without a limit, a library that hangs
# would be noticed only at the end of LOAD_TIMEOUT_S.
_LIMIT_S = 15.0


def find_prefix_reuse(runtime: Runtime) -> bool | None:
    """Return whether the second of two equal prompts is skipped, and answered as the first.

    Returns None if the runs do not show it: they failed, the runtime reports no counts, or the two
    answers differ. Then the runtime is not trusted with it. The doctor tries more, and what it
    writes into RKLLM_PROFILE makes this trial unnecessary.
    """
    prompt = list(range(_FIRST_TOKEN, _FIRST_TOKEN + _PROMPT_TOKENS))
    runs = []
    timer = threading.Timer(_LIMIT_S, runtime.abort)
    timer.daemon = True
    timer.start()
    try:
        for _ in range(2):
            run = runtime.run(prompt, _GREEDY, _ANSWER_TOKENS, ignore_token, threading.Event())
            if run.failed or run.code or run.stopped or not run.finished:
                return None
            runs.append(run)
    except BackendFailed as error:
        logger.warning("whether the runtime skips common beginnings was not found out: %s", error)
        return None
    finally:
        timer.cancel()
    first, second = runs
    if first.prefill_tokens < _PROMPT_TOKENS:
        # The first run computed its whole prompt, and the runtime counts fewer tokens.
        return None
    if second.prefill_tokens > _PROMPT_TOKENS // 2:
        return False
    if first.ids != second.ids:
        logger.warning(
            "the runtime skipped the common beginning of two equal prompts, and answered them "
            "differently: the cache is cleared between chats"
        )
        return None
    return True
