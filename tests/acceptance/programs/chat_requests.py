"""A streamed chat by requests (S1, the Python example)."""

import json

import requests


def stream_chat_completion(api_url, api_key, messages):
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    data = {
        "model": "llama-3-70b-bitnet",
        "messages": messages,
        "stream": True,
        "max_tokens": 500,
    }
    response = requests.post(api_url, headers=headers, json=data, stream=True)
    if response.status_code != 200:
        error = response.json()["error"]
        raise Exception(f"Error: {error['message']}")

    full_content = ""
    for line in response.iter_lines():
        if line:
            line = line.decode("utf-8")
            if line.startswith("data: "):
                data_str = line[6:]
                if data_str == "[DONE]":
                    break
                try:
                    event = json.loads(data_str)
                    if event["choices"]:
                        delta = event["choices"][0]["delta"]
                        if "content" in delta:
                            chunk = delta["content"]
                            full_content += chunk
                            print(chunk, end="", flush=True)
                except json.JSONDecodeError:
                    continue
    print()
    return full_content


api_url = "http://localhost:8000/chat/completions"
api_key = "sk-oracle-abc123def456ghi789jkl012mno345pqr678stu901vwx234yz"
messages = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Tell me a story about a brave knight."},
]
response = stream_chat_completion(api_url, api_key, messages)
print(f"\n\nFull response: {response}")
