# A chat, waited for (S1, overview).
curl http://localhost:8000/chat/completions \
  -H "Authorization: Bearer YOUR_KEY" \
  -H "Content-Type: application/json" \
  -d '{
    "model": "llama-3-70b-bitnet",
    "messages": [{"role": "user", "content": "Hello!"}],
    "stream": false
  }'
