# A story, streamed (S1, the cURL example).
curl http://localhost:8000/chat/completions \
  -H "Authorization: Bearer YOUR_API_KEY" \
  -H "Content-Type: application/json" \
  -d '{
    "model": "llama-3-70b-bitnet",
    "messages": [{"role": "user", "content": "Tell me a story about a brave knight."}],
    "stream": true
  }'
