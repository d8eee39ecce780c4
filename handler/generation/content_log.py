"""Log prompts and answers if LOG_TEXTS is on."""

from __future__ import annotations

import logging
from dataclasses import asdict

from engine import Chat
from handler.generation.completed_answer import CompletedAnswer
from handler.input.request import TextRequest

# A separate logger: LOG_LEVEL must not switch it on.
NAME = __name__
logger = logging.getLogger(NAME)


def log_prompt(request: TextRequest) -> None:
    """Log the prompt of a request if LOG_TEXTS is on."""
    if logger.isEnabledFor(logging.INFO):
        generation = request.generation
        prompt = generation.prompt
        logged_prompt = asdict(prompt)["messages"] if isinstance(prompt, Chat) else prompt
        fields = {"generation_id": generation.request_id, "prompt": logged_prompt}
        logger.info("asked", extra=fields)


def log_answer(answer: CompletedAnswer) -> None:
    """Log the text that the client receives if LOG_TEXTS is on."""
    if logger.isEnabledFor(logging.INFO):
        logger.info("answered", extra={"generation_id": answer.id, "answer": answer.text})
