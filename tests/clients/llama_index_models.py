"""LlamaIndex: structured prediction with a JSON schema, and with a call of a function."""

from __future__ import annotations

from llama_index.core.prompts import PromptTemplate
from llama_index.core.types import PydanticProgramMode
from llama_index.llms.openai import OpenAI

from tests.clients.structured_output import read_arguments, report, report_stream, write_prompt

MODES = {"json": PydanticProgramMode.DEFAULT, "call": PydanticProgramMode.FUNCTION}


def main() -> None:
    arguments = read_arguments()
    for method, mode in MODES.items():
        llm = OpenAI(
            model=arguments.model_name,
            api_base=arguments.base_url,
            api_key=arguments.api_key,
            temperature=0,
            max_retries=0,
            pydantic_program_mode=mode,
        )
        for model in arguments.models:
            if method == "call" and "properties" not in model.model_json_schema():
                # LlamaIndex fails: it drops the `$ref` that is the schema of a recursive model.
                continue
            prompt = PromptTemplate(write_prompt(model, method))
            report(method, llm.structured_predict(model, prompt), model)
            report_stream(method, llm.stream_structured_predict(model, prompt), model)


if __name__ == "__main__":
    main()
