"""A streamed chat by requests that waits on status 429 (S1, error handling).

The document forgets `import time`; it is the one line that is added.
"""

import json
import time

import requests


def stream_with_error_handling(api_url, api_key, messages):
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    data = {
        "model": "llama-3-70b-bitnet",
        "messages": messages,
        "stream": True,
        "max_tokens": 500,
    }
    try:
        response = requests.post(api_url, headers=headers, json=data, stream=True)
        if response.status_code == 429:
            error = response.json()["error"]
            retry_after = error["details"]["retry_after"]
            print(f"Rate limit exceeded. Waiting {retry_after} seconds...")
            time.sleep(retry_after)
            return stream_with_error_handling(api_url, api_key, messages)
        elif response.status_code != 200:
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
                            delta = event["choices"][0].get("delta", {})
                            if "content" in delta:
                                full_content += delta["content"]
                                print(delta["content"], end="", flush=True)
                    except json.JSONDecodeError:
                        continue
        print()
        return full_content
    except requests.exceptions.RequestException as e:
        raise Exception(f"Request failed: {e!s}")


messages = [{"role": "user", "content": "Hello!"}]
response = stream_with_error_handling(
    "http://localhost:8000/chat/completions",
    "sk-oracle-abc123def456ghi789jkl012mno345pqr678stu901vwx234yz",
    messages,
)
