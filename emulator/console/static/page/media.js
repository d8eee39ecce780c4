// Files in the output of a job: data URLs, and pictures in base64.

/** @type {[string, RegExp][]} The types of pictures, and how each begins in base64. */
const PICTURES = [
  ["image/png", /^iVBORw0KGgo/],
  ["image/jpeg", /^\/9j\//],
  ["image/gif", /^R0lGOD(dh|lh)/],
  ["image/webp", /^UklGR.{6}XRUJQ/],
];
const MIN_BASE64_CHARS = 40;
const HEADER_CHARS = 200;
const DATA_URL = /^data:([\w.+-]+\/[\w.+-]+)?((?:;[\w.+-]+=[^;,]*)*)(;base64)?,/i;
const SUFFIXES = {
  "image/jpeg": "jpg",
  "image/svg+xml": "svg",
  "audio/mpeg": "mp3",
  "audio/x-wav": "wav",
  "text/plain": "txt",
  "application/octet-stream": "bin",
};
// What is searched for files: more would hold up the page.
const MAX_VISITED = 20_000;
const MAX_DEPTH = 12;
export const MAX_FILES = 24;

/** @typedef {{type: string, bytes: number, isPicture: boolean, url: string}} File */

/** Return the file that a text is; null if it is none. @returns {File|null} */
export function readFile(text) {
  if (/^data:/i.test(text)) return readDataUrl(text);
  if (text.length < MIN_BASE64_CHARS) return null;
  const picture = PICTURES.find(([, magic]) => magic.test(text));
  if (picture === undefined || !isBase64(text)) return null;
  return { type: picture[0], bytes: base64Bytes(text), isPicture: true, url: `data:${picture[0]};base64,${text}` };
}

function readDataUrl(text) {
  const match = DATA_URL.exec(text.slice(0, HEADER_CHARS));
  if (match === null) return null;
  const [header, type = "text/plain", , base64] = match;
  const data = text.slice(header.length);
  if (base64 && !isBase64(data)) return null;
  const bytes = base64 ? base64Bytes(data) : data.length;
  return { type: type.toLowerCase(), bytes, isPicture: Boolean(base64) && /^image\//i.test(type), url: text };
}

function isBase64(text) {
  // Looks for a wrong character: a pattern of the whole text could exceed the engine's stack.
  return !/[^A-Za-z0-9+/=\s]/.test(text);
}

function base64Bytes(text) {
  const padding = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
  return Math.max(0, Math.floor((text.length * 3) / 4) - padding);
}

/** Return the content of a file for a download. Throws if it is malformed. @param {File} file */
export function contentOf({ url, type }) {
  const at = url.indexOf(",");
  const data = url.slice(at + 1);
  if (!/;base64$/i.test(url.slice(0, at))) return new Blob([decodeURIComponent(data)], { type });
  const binary = atob(data);
  const content = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index += 1) content[index] = binary.charCodeAt(index);
  return new Blob([content], { type });
}

/** Return the name under which a file is downloaded. */
export function nameOf({ type }) {
  const plain = /^[a-z]+\/([a-z0-9]+)$/.exec(type);
  return `output.${SUFFIXES[type] ?? plain?.[1] ?? "bin"}`;
}

/**
 * Return the files in a value with the paths to them, and whether more of them may be there.
 * @returns {{files: {path: string, file: File}[], hasMore: boolean}}
 */
export function findFiles(value) {
  const found = [];
  let visited = 0;
  let hasMore = false;
  const visit = (each, path, depth) => {
    visited += 1;
    if (visited > MAX_VISITED || depth > MAX_DEPTH) {
      hasMore = true;
      return;
    }
    if (typeof each === "string") {
      const file = readFile(each);
      if (file === null) return;
      if (found.length < MAX_FILES) found.push({ path, file });
      else hasMore = true;
    } else if (Array.isArray(each)) {
      for (let index = 0; index < each.length && visited <= MAX_VISITED; index += 1) visit(each[index], `${path}[${index}]`, depth + 1);
    } else if (each !== null && typeof each === "object") {
      for (const name of Object.keys(each)) {
        if (visited > MAX_VISITED) return;
        visit(each[name], path === "" ? name : `${path}.${name}`, depth + 1);
      }
    }
  };
  visit(value, "", 0);
  return { files: found, hasMore };
}

/** Return the address if a text is one of http or https, and null otherwise. */
export function webAddress(text) {
  if (text.length > 4_000 || !/^https?:[/][/]\S+$/i.test(text)) return null;
  return URL.canParse(text) ? text : null;
}
