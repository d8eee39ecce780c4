// What sanitising made of a text: the places it took out, or the difference where they are not told.

// Comparing takes the product of two lengths.
const MOST_WORDS = 1_500;

/** @typedef {{kind: "same"|"gone"|"new", text: string}} Part */

/**
 * Return a text in parts. `removed` are the places that were taken out of `raw`, in characters as
 * Python counts them; `text` is what is left, or null where nobody has said.
 * @param {string} raw
 * @param {string|null} text
 * @param {[number, number][]} removed
 * @returns {Part[]}
 */
export function changes(raw, text, removed) {
  const spanned = bySpans(raw, removed);
  const left = spanned.filter((part) => part.kind === "same").map((part) => part.text).join("");
  if (text === null || left === text) return spanned;
  if (raw === text) return [{ kind: "same", text }];
  return compared(raw, text);
}

function bySpans(raw, removed) {
  const at = offsets(raw, removed.flat());
  const parts = [];
  let from = 0;
  for (const [start, end] of removed) {
    const [first, last] = [at(start), at(end)];
    if (first < from) continue;
    push(parts, "same", raw.slice(from, first));
    push(parts, "gone", raw.slice(first, last));
    from = last;
  }
  push(parts, "same", raw.slice(from));
  return parts;
}

/** A function from characters to the units that JavaScript counts, for these places. */
function offsets(text, places) {
  if (!/[\ud800-\udbff]/.test(text)) return (place) => place;
  const known = new Map();
  const wanted = [...new Set(places)].sort((a, b) => a - b);
  let units = 0;
  let characters = 0;
  for (const place of wanted) {
    while (characters < place && units < text.length) {
      units += text.codePointAt(units) > 0xffff ? 2 : 1;
      characters += 1;
    }
    known.set(place, units);
  }
  return (place) => known.get(place);
}

function compared(raw, text) {
  const [before, after] = [words(raw), words(text)];
  let head = 0;
  while (head < before.length && head < after.length && before[head] === after[head]) head += 1;
  let tail = 0;
  const most = Math.min(before.length, after.length) - head;
  while (tail < most && before[before.length - 1 - tail] === after[after.length - 1 - tail]) tail += 1;
  const parts = [];
  push(parts, "same", before.slice(0, head).join(""));
  for (const part of middle(before.slice(head, before.length - tail), after.slice(head, after.length - tail))) {
    push(parts, part.kind, part.text);
  }
  push(parts, "same", before.slice(before.length - tail).join(""));
  return parts;
}

function words(text) {
  return text.match(/\s+|[\p{L}\p{N}_]{1,40}|./gsu) ?? [];
}

/** The longest common subsequence, as it is in every book; too long a middle is replaced whole. */
function middle(before, after) {
  if (before.length * after.length > MOST_WORDS * MOST_WORDS) {
    return [
      { kind: "gone", text: before.join("") },
      { kind: "new", text: after.join("") },
    ];
  }
  const width = after.length + 1;
  const lengths = new Uint16Array((before.length + 1) * width);
  for (let i = before.length - 1; i >= 0; i -= 1) {
    for (let j = after.length - 1; j >= 0; j -= 1) {
      lengths[i * width + j] =
        before[i] === after[j]
          ? lengths[(i + 1) * width + j + 1] + 1
          : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  const parts = [];
  let [i, j] = [0, 0];
  while (i < before.length || j < after.length) {
    if (i < before.length && j < after.length && before[i] === after[j]) {
      parts.push({ kind: "same", text: before[i] });
      i += 1;
      j += 1;
    } else if (i < before.length && (j === after.length || lengths[(i + 1) * width + j] >= lengths[i * width + j + 1])) {
      parts.push({ kind: "gone", text: before[i] });
      i += 1;
    } else {
      parts.push({ kind: "new", text: after[j] });
      j += 1;
    }
  }
  return parts;
}

function push(parts, kind, text) {
  if (text === "") return;
  const last = parts[parts.length - 1];
  if (last?.kind === kind) last.text += text;
  else parts.push({ kind, text });
}
