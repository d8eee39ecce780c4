# A streamed chat, line by line through a pretty-printer (S1, the cURL example's pipe).
curl http://localhost:8000/chat/completions \
  -H "Authorization: Bearer YOUR_API_KEY" \
  -H "Content-Type: application/json" \
  -d '{"model": "llama-3-70b-bitnet", "messages": [{"role": "user", "content": "Hello!"}], "stream": true}' \
  | while IFS= read -r line; do
    if [[ "$line" != "data: " ]]; then
      echo "$line" | jq . 2>/dev/null || echo "$line"
    fi
  done
