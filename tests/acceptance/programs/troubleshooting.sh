# Is it there, and does it take the key? (S1, troubleshooting)
curl http://localhost:8000/health

curl http://localhost:8000/system/status \
  -H "Authorization: Bearer YOUR_API_KEY"
