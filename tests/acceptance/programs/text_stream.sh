# A streamed text completion (S0).
curl -X POST http://localhost:8080/v1/completions \
  -H "Content-Type: application/json" \
  -d '{
    "model": "qwen3-0.6b",
    "prompt": "Once upon a time",
    "max_tokens": 50,
    "stream": true
  }'
