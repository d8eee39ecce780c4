// The request on the screen as a program: one that works when it is pasted somewhere.

/** @typedef {{url: string, body: any, stream: boolean, needsKey: boolean, fault?: string,
 *   kind: import("./request_form.js").Kind}} Asked */

const PYTHON_CHOICES = '            for choice in json.loads(line[6:]).get("choices", ()):';
/** How a program prints the text of an event, by the API. */
const PYTHON_EVENTS = {
  completion: [PYTHON_CHOICES, '                print(choice["text"], end="", flush=True)'],
  chat: [PYTHON_CHOICES, '                print(choice["delta"].get("content") or "", end="", flush=True)'],
  response: [
    "            event = json.loads(line[6:])",
    '            if event["type"] == "response.output_text.delta":',
    '                print(event["delta"], end="", flush=True)',
  ],
  message: [
    "            event = json.loads(line[6:])",
    '            if event["type"] == "content_block_delta":',
    '                print(event["delta"].get("text", ""), end="", flush=True)',
  ],
};
const JAVASCRIPT_EVENTS = {
  completion: ["    for (const choice of event.choices ?? []) process.stdout.write(choice.text);"],
  chat: ['    for (const choice of event.choices ?? []) process.stdout.write(choice.delta.content ?? "");'],
  response: ['    if (event.type === "response.output_text.delta") process.stdout.write(event.delta);'],
  message: ['    if (event.type === "content_block_delta") process.stdout.write(event.delta.text ?? "");'],
};

/** @param {Asked} asked */
export function curl(asked) {
  const lines = [`curl -sS${asked.stream ? "N" : ""} ${quoted(asked.url)}`, "-H 'Content-Type: application/json'"];
  if (asked.needsKey) lines.push('-H "Authorization: Bearer $API_KEY"');
  if (asked.fault) lines.push(`-H ${quoted(`x-fault: ${asked.fault}`)}`);
  lines.push(`-d ${quoted(JSON.stringify(asked.body, null, 2))}`);
  return `${lines.join(" \\\n  ")}\n`;
}

/** As a shell takes it: nothing in it means anything. */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** @param {Asked} asked */
export function python(asked) {
  const imports = ["import json", ...(asked.needsKey ? ["import os"] : []), "import urllib.request"];
  const key = asked.needsKey ? `, "Authorization": f"Bearer {os.environ['API_KEY']}"` : "";
  const fault = asked.fault ? `, "x-fault": ${JSON.stringify(asked.fault)}` : "";
  const lines = [
    ...imports,
    "",
    `body = ${literal(asked.body, "")}`,
    "request = urllib.request.Request(",
    `    ${JSON.stringify(asked.url)},`,
    "    data=json.dumps(body).encode(),",
    `    headers={"Content-Type": "application/json"${key}${fault}},`,
    ")",
    "with urllib.request.urlopen(request) as response:",
  ];
  if (asked.stream) {
    lines.push("    for line in response:", '        if line.startswith(b"data: {"):', ...PYTHON_EVENTS[asked.kind], "print()");
  } else lines.push("    print(json.dumps(json.load(response), indent=2, ensure_ascii=False))");
  return `${lines.join("\n")}\n`;
}

/** A value as Python writes it. */
function literal(value, margin) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  // JSON's strings are Python's, but for halves of characters beyond the first plane.
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${margin}    `;
  const list = Array.isArray(value);
  const items = list
    ? value.map((each) => literal(each, inner))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each, inner)}`);
  const [open, close] = list ? "[]" : "{}";
  if (items.length === 0) return open + close;
  return `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${margin}${close}`;
}

/** @param {Asked} asked */
export function javascript(asked) {
  const key = asked.needsKey ? ", Authorization: `Bearer ${process.env.API_KEY}`" : "";
  const fault = asked.fault ? `, "x-fault": ${JSON.stringify(asked.fault)}` : "";
  const lines = [
    "// Node.js 18 or newer: save it as ask.mjs, then `node ask.mjs`.",
    `const response = await fetch(${JSON.stringify(asked.url)}, {`,
    '  method: "POST",',
    `  headers: { "Content-Type": "application/json"${key}${fault} },`,
    `  body: JSON.stringify(${JSON.stringify(asked.body, null, 2).replaceAll("\n", "\n  ")}),`,
    "});",
    "if (!response.ok) throw new Error(await response.text());",
  ];
  if (asked.stream) {
    lines.push(
      'let rest = "";',
      "for await (const part of response.body.pipeThrough(new TextDecoderStream())) {",
      '  const lines = (rest + part).split("\\n");',
      "  rest = lines.pop();",
      "  for (const line of lines) {",
      '    if (!line.startsWith("data: {")) continue;',
      "    const event = JSON.parse(line.slice(6));",
      ...JAVASCRIPT_EVENTS[asked.kind],
      "  }",
      "}",
      "console.log();",
    );
  } else lines.push("console.log(JSON.stringify(await response.json(), null, 2));");
  return `${lines.join("\n")}\n`;
}

export const SNIPPETS = { curl, Python: python, JavaScript: javascript };
