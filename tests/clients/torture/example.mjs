// The program tests/acceptance/programs/chat_fetch.mjs against this server. The placeholders are
// filled in, and what it prints after the answer is left out: a newline and a copy of the text.

import { readFile } from "node:fs/promises";

const placeholders = {
  "http://localhost:8000": process.env.OPENAI_BASE_URL,
  "sk-oracle-abc123def456ghi789jkl012mno345pqr678stu901vwx234yz": process.env.OPENAI_API_KEY,
  "llama-3-70b-bitnet": process.env.TORTURE_MODEL,
};
const program = new URL("../../acceptance/programs/chat_fetch.mjs", import.meta.url);
let source = await readFile(program, "utf8");
for (const [placeholder, value] of Object.entries(placeholders)) {
  source = source.replaceAll(placeholder, value);
}

// The program writes pieces of the answer, then one newline, then the copy with console.log.
const write = process.stdout.write.bind(process.stdout);
let heldNewline = "";
process.stdout.write = (text) => {
  const held = heldNewline + text;
  heldNewline = held.endsWith("\n") ? "\n" : "";
  return write(held.slice(0, held.length - heldNewline.length));
};
console.log = () => {};
await import(`data:text/javascript,${encodeURIComponent(source)}`);
