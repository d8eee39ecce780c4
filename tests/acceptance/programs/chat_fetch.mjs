// A streamed chat by fetch, each network read decoded and parsed alone (S1, the JavaScript example).

async function streamChatCompletion(apiUrl, apiKey, messages) {
  const response = await fetch(apiUrl, {
    method: 'POST',
    headers: {
      'Authorization': `Bearer ${apiKey}`,
      'Content-Type': 'application/json'
    },
    body: JSON.stringify({
      model: 'llama-3-70b-bitnet',
      messages: messages,
      stream: true,
      max_tokens: 500
    })
  });

  if (!response.ok) {
    const error = await response.json();
    throw new Error(`Error: ${error.error.message}`);
  }

  const reader = response.body.getReader();
  const decoder = new TextDecoder('utf-8');
  let fullContent = '';

  while (true) {
    const { done, value } = await reader.read();
    if (done) break;

    const chunk = decoder.decode(value);
    const lines = chunk.split('\n');
    for (const line of lines) {
      if (line.startsWith('data: ')) {
        const dataStr = line.slice(6);
        if (dataStr === '[DONE]') {
          break;
        }
        try {
          const event = JSON.parse(dataStr);
          if (event.choices && event.choices[0].delta.content) {
            const chunkContent = event.choices[0].delta.content;
            fullContent += chunkContent;
            process.stdout.write(chunkContent);
          }
        } catch (e) {
          console.error('Failed to parse event:', e);
        }
      }
    }
  }

  process.stdout.write('\n');
  return fullContent;
}

const apiUrl = 'http://localhost:8000/chat/completions';
const apiKey = 'sk-oracle-abc123def456ghi789jkl012mno345pqr678stu901vwx234yz';
const messages = [
  { role: 'system', content: 'You are a helpful assistant.' },
  { role: 'user', content: 'Tell me a story about a brave knight.' }
];

streamChatCompletion(apiUrl, apiKey, messages)
  .then(content => console.log('\n\nFull response:', content))
  .catch(error => console.error('Error:', error.message));
