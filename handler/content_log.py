"""What models are asked and answer, in the log of whoever wants it there: LOG_TEXTS."""

from __future__ import annotations

import logging
from dataclasses import asdict

from engine import Chat
from handler.completed_answer import CompletedAnswer
from handler.request import TextRequest

# A logger of its own, so that no level of all the others switches it on.
NAME = __name__
logger = logging.getLogger(NAME)


def log_prompt(request: TextRequest) -> None:
    """Write down what is asked, where that is wanted."""
    if logger.isEnabledFor(logging.INFO):
        generation = request.generation
        prompt = generation.prompt
        shown = asdict(prompt)["messages"] if isinstance(prompt, Chat) else prompt
        fields = {"generation_id": generation.request_id, "prompt": shown}
        logger.info("asked", extra=fields)


def log_answer(answer: CompletedAnswer) -> None:
    """Write down what the client is answered, where that is wanted."""
    if logger.isEnabledFor(logging.INFO):
        logger.info("answered", extra={"generation_id": answer.id, "answer": answer.text})
