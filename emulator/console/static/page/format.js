// Numbers, sizes and times as people read them.

const counts = new Intl.NumberFormat("en");

/** @param {number} value */
export function count(value) {
  return counts.format(value);
}

/** A noun with its number: `plural(1, "job")` is "1 job". */
export function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** A phrase of the server as a sentence. */
export function sentence(phrase) {
  return `${phrase[0].toUpperCase()}${phrase.slice(1)}.`;
}

/** A span of time from milliseconds; a dash for none. */
export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  if (ms < 1) return "<1 ms";
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(ms < 9_995 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A rate; a dash for none. */
export function rate(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value >= 100 ? count(Math.round(value)) : value.toFixed(1);
}

/** A number of bytes. */
export function bytes(value) {
  if (value < 1000) return `${value} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let scaled = value / 1000;
  let unit = 0;
  while (scaled >= 999.5 && unit < units.length - 1) {
    scaled /= 1000;
    unit += 1;
  }
  return `${scaled.toFixed(scaled < 9.95 ? 1 : 0)} ${units[unit]}`;
}

/** The time of day of a moment in milliseconds, with its fraction where it matters. */
export function clock(ms, fraction = false) {
  const moment = new Date(ms);
  const two = (value) => String(value).padStart(2, "0");
  const shown = `${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}`;
  return fraction ? `${shown}.${String(moment.getMilliseconds()).padStart(3, "0")}` : shown;
}

/** Day and time of a moment in milliseconds. */
export function date(ms) {
  return new Date(ms).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
}

/** How long ago a moment was. */
export function ago(ms) {
  const seconds = Math.max(0, Math.round((Date.now() - ms) / 1000));
  if (seconds < 5) return "now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}
