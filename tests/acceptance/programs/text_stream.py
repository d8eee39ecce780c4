"""A streamed text completion by OpenAI's client (S0)."""

from openai import OpenAI

client = OpenAI(base_url="http://localhost:8080/v1", api_key="not-needed")
stream = client.completions.create(
    model="qwen3-0.6b", prompt="The quick brown fox", max_tokens=50, stream=True
)
for chunk in stream:
    print(chunk.choices[0].text, end="", flush=True)
