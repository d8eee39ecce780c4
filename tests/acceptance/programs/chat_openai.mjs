// A streamed chat by OpenAI's client, whose address has no /v1 (S1, JavaScript with the SDK).

import OpenAI from 'openai';

const client = new OpenAI({
  apiKey: 'sk-oracle-abc123def456ghi789jkl012mno345pqr678stu901vwx234yz',
  baseURL: 'http://localhost:8000'
});

async function main() {
  const stream = await client.chat.completions.create({
    model: 'llama-3-70b-bitnet',
    messages: [
      { role: 'system', content: 'You are a helpful assistant.' },
      { role: 'user', content: 'Tell me a story about a brave knight.' }
    ],
    stream: true,
    max_tokens: 500
  });

  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta?.content) {
      process.stdout.write(chunk.choices[0].delta.content);
    }
  }
  process.stdout.write('\n');
}

main();
