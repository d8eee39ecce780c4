"""A streamed chat by OpenAI's client, whose address has no /v1 (S1, Python with the SDK)."""

from openai import OpenAI

client = OpenAI(
    api_key="sk-oracle-abc123def456ghi789jkl012mno345pqr678stu901vwx234yz",
    base_url="http://localhost:8000",
)
stream = client.chat.completions.create(
    model="llama-3-70b-bitnet",
    messages=[
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Tell me a story about a brave knight."},
    ],
    stream=True,
    max_tokens=500,
)
for chunk in stream:
    if chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, end="", flush=True)
print()
