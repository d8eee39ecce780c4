// Where on the page an address leads: which screen, and what of it.

/**
 * Return the screen of an address, the first one where it names none, and what stands behind it.
 * @param {string} hash the part of the address from "#" on
 * @param {string[]} names of the screens
 * @returns {{name: string, rest: string[]}}
 */
export function placeOf(hash, names) {
  const [, asked, ...rest] = hash.split("/");
  return { name: names.includes(asked) ? asked : names[0], rest: rest.map(decoded) };
}

/** Whether it leads to a place on the screen that is shown, as the skip link does. */
export function isWithin(hash) {
  return hash !== "" && !hash.startsWith("#/");
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    // Whatever somebody has typed: nothing has such a name.
    return part;
  }
}
