// Asking again and again, as long as somebody looks.

/** Does `work` from `start` to `stop`: at once, and every so often after it has ended. */
export class Polling {
  #work;
  #everyMs;
  #timer = 0;
  #on = false;
  #busy = false;

  /**
   * @param {() => Promise<void>} work
   * @param {number} everyMs
   */
  constructor(work, everyMs) {
    this.#work = work;
    this.#everyMs = everyMs;
  }

  start() {
    if (this.#on) return;
    this.#on = true;
    this.now();
  }

  stop() {
    this.#on = false;
    clearTimeout(this.#timer);
  }

  /** Do it now rather than later; nothing before `start`, or while the page is hidden. */
  async now() {
    clearTimeout(this.#timer);
    if (!this.#on || this.#busy) return;
    this.#busy = true;
    try {
      if (!document.hidden) await this.#work();
    } finally {
      // Also after what nobody has thought of: the next time it may go well.
      this.#busy = false;
      if (this.#on) this.#timer = setTimeout(() => this.now(), this.#everyMs);
    }
  }
}
