"""Ollama's client for Python, and those of LangChain and LlamaIndex, as a program."""

from __future__ import annotations

from typing import Any

import ollama
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.llms.ollama import Ollama
from pydantic import BaseModel

from tests.clients.telling import CITY, WEATHER, Asked, asked, tell, turns

OPTIONS = {"temperature": 0, "num_ctx": 8192}
QUESTION = "What is the weather in Oslo?"


class City(BaseModel):
    """A city."""

    name: str
    people: int


def get_weather(city: str) -> str:
    """Tells the weather of a city."""
    return "sunny"


def ask_ollama(given: Asked) -> None:
    client = ollama.Client(given.base_url, headers={"Authorization": f"Bearer {given.key}"})
    model = given.model
    whole = client.chat(model, turns("hello"), options=OPTIONS)
    tell("ollama", step="chat", text=whole.message.content, reason=whole.done_reason)
    lines = list(client.chat(model, turns("hello"), stream=True, options=OPTIONS))
    text = "".join(line.message.content or "" for line in lines)
    tell("ollama", step="stream", text=text, done=[line.done for line in lines].count(True))
    generated = client.generate(model, "hello", system="Be brief.", options=OPTIONS)
    tell("ollama", step="generate", text=generated.response, tokens=generated.eval_count)
    thought = client.chat(model, turns("think"), think=True)
    tell("ollama", step="think", text=thought.message.content, thinking=thought.message.thinking)
    conversation = turns(QUESTION)
    called = client.chat(model, conversation, tools=[get_weather])
    [call] = list(called.message.tool_calls)
    tell("ollama", step="call", name=call.function.name, arguments=dict(call.function.arguments))
    result = {"role": "tool", "content": "sunny", "tool_name": call.function.name}
    answered = client.chat(model, [*conversation, called.message, result], tools=[get_weather])
    tell("ollama", step="result", text=answered.message.content)
    for is_streamed in (False, True):
        texts: list[str] = []
        try:
            answer = client.chat(model, turns("die"), stream=is_streamed)
            texts += [line.message.content or "" for line in answer] if is_streamed else ["whole"]
        except ollama.ResponseError as error:
            tell("ollama", step=f"die {is_streamed}", texts=texts, text=error.error)
    city = client.chat(model, turns("a city as JSON"), format=CITY)
    tell("ollama", step="format", text=city.message.content)
    vectors = client.embed(model, ["a", "b"]).embeddings
    tell("ollama", step="embed", count=len(vectors), size=len(vectors[0]))
    names = [each.model for each in client.list().models]
    running = [each.model for each in client.ps().models]
    shown = client.show(model)
    tell("ollama", step="models", names=names, running=running, can=shown.capabilities)
    refused: dict[str, Any] = {"404": {"model": "x"}, "400": {"options": {"temperature": 9}}}
    for step, fields in refused.items():
        try:
            client.chat(**{"model": model, "messages": turns("hello"), **fields})
        except ollama.ResponseError as error:
            tell("ollama", step=step, status=error.status_code, text=error.error)


def ask_langchain(given: Asked) -> None:
    headers = {"client_kwargs": {"headers": {"Authorization": f"Bearer {given.key}"}}}
    common: dict[str, Any] = {"model": given.model, "base_url": given.base_url, **headers}
    chat = ChatOllama(**common, temperature=0, validate_model_on_init=True)
    tell("langchain", step="chat", text=chat.invoke("hello").content)
    tell("langchain", step="stream", text="".join(str(e.content) for e in chat.stream("hello")))
    with_tools = chat.bind_tools([WEATHER])
    called = with_tools.invoke(QUESTION)
    assert isinstance(called, AIMessage)
    (call,) = called.tool_calls
    tell("langchain", step="call", name=call["name"], arguments=call["args"])
    result = ToolMessage("sunny", tool_call_id=call["id"])
    answered = with_tools.invoke([HumanMessage(QUESTION), called, result])
    tell("langchain", step="result", text=answered.content)
    city = chat.with_structured_output(City, method="json_schema").invoke("a city as JSON")
    assert isinstance(city, City)
    tell("langchain", step="format", text=city.name)
    vectors = OllamaEmbeddings(**common).embed_documents(["a", "b"])
    tell("langchain", step="embed", count=len(vectors), size=len(vectors[0]))


def ask_llama_index(given: Asked) -> None:
    headers = {"Authorization": f"Bearer {given.key}"}
    llm = Ollama(
        model=given.model,
        client=ollama.Client(given.base_url, headers=headers),
        temperature=0,
        context_window=4096,
    )
    message = ChatMessage(role="user", content="hello")
    tell("llama-index", step="chat", text=llm.chat([message]).message.content)
    deltas = [each.delta or "" for each in llm.stream_chat([message])]
    tell("llama-index", step="stream", text="".join(deltas))
    tell("llama-index", step="generate", text=llm.complete("hello").text)
    tool = FunctionTool.from_defaults(get_weather)
    called = llm.chat_with_tools([tool], user_msg=QUESTION)
    (call,) = llm.get_tool_calls_from_response(called)
    tell("llama-index", step="call", name=call.tool_name, arguments=call.tool_kwargs)
    embedding = OllamaEmbedding(
        model_name=given.model, base_url=given.base_url, client_kwargs={"headers": headers}
    )
    vectors = embedding.get_text_embedding_batch(["a", "b"])
    tell("llama-index", step="embed", count=len(vectors), size=len(vectors[0]))


if __name__ == "__main__":
    given = asked()
    ask_ollama(given)
    ask_langchain(given)
    ask_llama_index(given)
