"""Instructor in the mode TOOLS: the model calls a function that is named after the class."""

from __future__ import annotations

from typing import Any

import instructor
from openai import OpenAI
from pydantic import BaseModel

from tests.clients.structured_output import read_arguments, report, report_stream, write_prompt


def write_messages(model: type[BaseModel], method: str) -> list[Any]:
    return [{"role": "user", "content": write_prompt(model, method)}]


def main() -> None:
    arguments = read_arguments()
    client = instructor.from_openai(
        OpenAI(base_url=arguments.base_url, api_key=arguments.api_key, max_retries=0),
        mode=instructor.Mode.TOOLS,
    )
    for model in arguments.models:
        request: dict[str, Any] = {
            "model": arguments.model_name,
            "response_model": model,
            "temperature": 0,
            "max_retries": 0,
        }
        report("call", client.create(messages=write_messages(model, "call"), **request), model)
        # For partial objects, Instructor names the function "PartialPlan" instead of "Plan", and
        # its strict validation accepts no enum.
        partials = client.create_partial(
            messages=write_messages(model, "partial call"), strict=False, **request
        )
        report_stream("call", partials, model)


if __name__ == "__main__":
    main()
