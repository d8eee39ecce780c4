"""A call of any API in the types of this project, before the engine is asked about it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from engine import Priority
from engine.errors import PromptTooLong, RequestRejected
from engine.reply.reply_format import REASONING_ONLY, ReplyFormat
from engine.request import Prompt
from handler.apis.core.api import CallContext
from handler.apis.core.parameters import Parameters
from handler.input.constraints import Constraint
from validation import NO_OPTIONS, Options


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """A generation that a client asks for.

    `id` is the name of the call in the log. `model` is the name in answers: that of the model, or
    of the adapter that `parameters` use. `reply_format` states what an output may have besides its
    text; None if all of it is text. The text, or the tool call, must match `constraint`.
    `validates` states whether answers are validated, by `options` beyond the rules.
    `reasoning_budget` is how many tokens the model may think; None for any number. `field_names`
    has the client's names of the fields that the engine names in its errors.
    """

    id: str
    model: str
    prompts: tuple[Prompt, ...]
    parameters: Parameters
    reply_format: ReplyFormat | None = REASONING_ONLY
    constraint: Constraint | None = None
    reasoning_budget: int | None = None
    validates: bool = False
    options: Options = NO_OPTIONS
    warnings: tuple[str, ...] = ()
    priority: Priority = Priority.INTERACTIVE
    timeout_s: float | None = None
    field_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def streaming(self) -> bool:
        """Whether the answers are streamed."""
        return self.parameters.streaming

    def in_context(self, context: CallContext) -> Self:
        """Return the call with the priority, the time limit and the warnings of its context."""
        return replace(
            self,
            priority=context.priority,
            timeout_s=context.timeout_s,
            warnings=(*self.warnings, *context.warnings),
        )

    def name_field(self, error: RequestRejected) -> RequestRejected:
        """Return an error of the engine with the name of the client's field."""
        param = error.details.get("param")
        if param is None and isinstance(error, PromptTooLong):
            param = "prompt"
        name = self.field_names.get(str(param))
        if self.constraint is not None and param in ("grammar", "json_schema"):
            # The client may have set another parameter, such as `regex`.
            name = self.constraint.param
        return error if name is None else error.rename_param(str(param), name)


def new_call_id(prefix: str) -> str:
    """Return a random id."""
    return f"{prefix}{os.urandom(16).hex()}"
