# The gateway's three request bodies, a prompt, a batch and a stream, with its key (S3).
curl http://localhost:8000/v1/completions \
  -H "Authorization: Bearer YOUR_API_KEY" \
  -H "Content-Type: application/json" \
  -d '{
    "model": "text-davinci-003",
    "prompt": "The future of artificial intelligence is",
    "max_tokens": 100,
    "temperature": 0.7,
    "top_p": 1.0
  }'
echo

curl http://localhost:8000/v1/completions \
  -H "Authorization: Bearer YOUR_API_KEY" \
  -H "Content-Type: application/json" \
  -d '{
    "model": "local-model",
    "prompt": [
      "Once upon a time,",
      "In a galaxy far, far away,",
      "The quick brown fox"
    ],
    "max_tokens": 50,
    "temperature": 0.8
  }'
echo

curl http://localhost:8000/v1/completions \
  -H "Authorization: Bearer YOUR_API_KEY" \
  -H "Content-Type: application/json" \
  -d '{
    "model": "local-model",
    "prompt": "Write a short story about a robot who learns to paint:",
    "max_tokens": 200,
    "temperature": 0.9,
    "stream": true
  }'
