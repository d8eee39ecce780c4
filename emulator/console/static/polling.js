// Asking again and again, as long as somebody looks.

/**
 * Call `work` now and every `everyMs` after it has ended; not while the page is hidden.
 * @param {() => Promise<void>} work
 * @param {number} everyMs
 * @returns {{stop: () => void, now: () => void}}
 */
export function poll(work, everyMs) {
  let timer = 0;
  let stopped = false;
  let busy = false;
  async function look() {
    clearTimeout(timer);
    if (stopped || busy) return;
    busy = true;
    try {
      if (!document.hidden) await work();
    } finally {
      // Also after what nobody has thought of: the next time it may go well.
      busy = false;
      if (!stopped) timer = setTimeout(look, everyMs);
    }
  }
  look();
  return {
    now: look,
    stop() {
      stopped = true;
      clearTimeout(timer);
    },
  };
}
