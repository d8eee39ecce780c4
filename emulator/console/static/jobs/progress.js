// The progress that a handler reports: a number, a text with a percentage, or any JSON.

const PERCENTAGE = /(?:^|[^\d.])(\d{1,3}(?:\.\d+)?)\s?%/;
const KEYS = ["progress", "percent", "percentage"];

/**
 * Return how much is done as a number from 0 to 1; null if it is not known.
 * @param {any} progress what the handler has reported
 * @param {boolean} isFraction whether it has reported fractions, so that 1 is the whole and not 1 %
 */
export function fractionOf(progress, isFraction) {
  if (typeof progress === "number") return fractionOfNumber(progress, isFraction);
  if (typeof progress === "string") {
    const match = PERCENTAGE.exec(progress.slice(0, 1_000));
    if (match !== null) return fractionOfNumber(Number(match[1]), false, true);
    return progress.trim() !== "" && progress.length < 20 ? fractionOfNumber(Number(progress), isFraction) : null;
  }
  const key = KEYS.find((each) => isScalar(progress?.[each]));
  return key === undefined ? null : fractionOf(progress[key], isFraction);
}

/** Return whether a reported progress is a fraction of 1, such as 0.25. */
export function isFractional(progress) {
  const value = isScalar(progress) ? Number(progress) : NaN;
  if (value > 0 && value < 1) return true;
  return KEYS.some((key) => isScalar(progress?.[key]) && isFractional(progress[key]));
}

function isScalar(value) {
  return typeof value === "number" || typeof value === "string";
}

function fractionOfNumber(value, isFraction, isPercentage = false) {
  if (!(value >= 0 && value <= 100)) return null;
  if (!isPercentage && (value < 1 || (value === 1 && isFraction))) return value;
  return value / 100;
}
