"""The `/v1/chat/completions` endpoint."""

from __future__ import annotations

from common.json_object import JsonObject
from engine.reply.reply_format import ToolForm
from handler.apis.core.template_variables import read_template_variables
from handler.apis.openai import logprobs
from handler.apis.openai.encoding.message import encode_message
from handler.apis.openai.endpoint_spec import EndpointContent, EndpointSpec
from handler.apis.openai.parameters import ChatInput
from handler.apis.openai.tools import read_tools
from handler.input.constraints import read_constraint
from handler.input.messages import check_continued, read_messages
from handler.input.request import read_flag


def _read_content(body: JsonObject, tool_form: ToolForm | None) -> EndpointContent:
    variables = read_template_variables(body, body.get("reasoning_effort"))
    messages, warnings = read_messages(body.get("messages"))
    continues_last = read_flag(body, "continue_final_message", default=False)
    if continues_last:
        check_continued(messages)
    constraint = read_constraint(body)
    tools, tool_warnings = read_tools(body).combine(constraint)
    return EndpointContent(
        prompts=(tools.build_chat(messages, variables, continues_last=continues_last),),
        reply_format=tools.build_reply_format(tool_form),
        constraint=constraint if tools.constraint is None else tools.constraint,
        field_names={"prompt": "messages"},
        warnings=(*warnings, *tool_warnings),
    )


CHAT = EndpointSpec(
    id_prefix="chatcmpl-",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    input_model=ChatInput,
    read_content=_read_content,
    encode_answer=lambda answer, echo: {"message": encode_message(answer, echo)},
    encode_chunk=lambda text: b'"delta":{"content":' + text + b"}",
    encode_chunk_with_role=lambda text: b'"delta":{"role":"assistant","content":' + text + b"}",
    encode_logprobs=logprobs.encode_chat_logprobs,
    has_chat_prompt=True,
    opening_choice={"delta": {"role": "assistant", "content": ""}},
    last_choice={"delta": {}},
)
