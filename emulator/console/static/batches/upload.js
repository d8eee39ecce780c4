// A file on its way to the server; only XMLHttpRequest tells how far it has come.

import { ApiError } from "../server/api.js";
import { askKey, key, keyHeaders } from "../server/keys.js";

/** Upload a file of requests; returns what the server says of it. @param {File} file */
export async function upload(file, onProgress) {
  for (;;) {
    const used = key();
    const { status, body } = await once(file, onProgress);
    if (status === 200) return body;
    const error = new ApiError(status, body?.error?.message ?? `The server answered with status ${status}.`, body?.error?.param ?? null);
    if (status !== 401 || (key() === used && !(await askKey(used !== null)))) throw error;
  }
}

function once(file, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const form = new FormData();
    form.append("purpose", "batch");
    form.append("file", file, file.name);
    request.open("POST", "/v1/files");
    for (const [name, value] of Object.entries(keyHeaders())) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", (event) => onProgress(event.loaded / event.total));
    request.addEventListener("load", () => resolve({ status: request.status, body: parsed(request.responseText) }));
    request.addEventListener("error", () => reject(new ApiError(0, "The server cannot be reached.")));
    request.send(form);
  });
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const HEAD_BYTES = 1_000_000;

/** The route that a file's first request is for: a batch has one for all. @param {File} file */
export async function routeOf(file) {
  const [line] = (await file.slice(0, HEAD_BYTES).text()).replace(/^\ufeff/, "").trimStart().split("\n");
  return parsed(line)?.url ?? null;
}
