"""A parameter of the model server's that OpenAI's client does not know (S4).

The document leaves out how its client and its model are named, and what becomes of the answer.
"""

from openai import OpenAI

client = OpenAI(base_url="http://localhost/v3", api_key="unused")
model = "llama3"
response = client.completions.create(
    model=model,
    prompt="hello",
    max_tokens=100,
    extra_body={"top_k": 1},
    stream=False,
)
print(response.choices[0].text)
