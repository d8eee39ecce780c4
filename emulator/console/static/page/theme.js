// Dark or light: as the system has it, until somebody chooses.

const PLACE = "theme";
const ORDER = ["system", "light", "dark"];
const button = /** @type {HTMLElement} */ (document.getElementById("theme-button"));

function chosen() {
  return localStorage.getItem(PLACE) ?? "system";
}

function show() {
  const theme = chosen();
  if (theme === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
  button.setAttribute("aria-label", `Theme: ${theme}`);
  button.title = `Theme: ${theme}`;
}

button.addEventListener("click", () => {
  localStorage.setItem(PLACE, ORDER[(ORDER.indexOf(chosen()) + 1) % ORDER.length]);
  show();
  document.dispatchEvent(new Event("themechange"));
});
show();

/** The colour a name stands for at this moment, for what is drawn by hand. */
export function colour(name) {
  const probe = document.createElement("span");
  probe.className = `probe probe-${name}`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
