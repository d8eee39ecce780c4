// What a model has said, delta by delta, and when each one arrived.

export class DeltaLog {
  /** @param {number} began when it was asked for, by performance.now() */
  constructor(began) {
    this.began = began;
    /** @type {string[]} */
    this.texts = [];
    /** @type {number[]} Milliseconds since it was asked for. */
    this.times = [];
    this.chars = 0;
  }

  get count() {
    return this.texts.length;
  }

  /** Milliseconds until the first one; null before it. */
  get firstMs() {
    return this.times.length === 0 ? null : this.times[0];
  }

  /** Milliseconds until the last one so far; null before the first. */
  get lastMs() {
    return this.times.length === 0 ? null : this.times[this.times.length - 1];
  }

  /** Deltas a second, after the first. */
  get rate() {
    const spanMs = (this.lastMs ?? 0) - (this.firstMs ?? 0);
    return this.count > 1 && spanMs > 0 ? ((this.count - 1) / spanMs) * 1000 : null;
  }

  add(text, now = performance.now()) {
    this.texts.push(text);
    this.times.push(now - this.began);
    this.chars += text.length;
  }

  /** Milliseconds between a delta and the one before, or the question. */
  gapMs(index) {
    return this.times[index] - (index === 0 ? 0 : this.times[index - 1]);
  }

  text() {
    return this.texts.join("");
  }

  /** Take the deltas of another log from a character on. */
  copy(log, fromChar) {
    this.clear();
    let end = 0;
    log.texts.forEach((text, at) => {
      end += text.length;
      const shown = end > fromChar ? text.slice(Math.max(0, text.length - (end - fromChar))) : "";
      if (shown !== "") this.add(shown, log.times[at] + log.began);
    });
  }

  clear() {
    this.texts = [];
    this.times = [];
    this.chars = 0;
  }
}
