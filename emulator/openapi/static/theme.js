// Dark or light, before the first paint: as chosen in the console, otherwise as the system has it.

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

function applyTheme() {
  const chosen = localStorage.getItem("theme") ?? "system";
  const isDark = chosen === "dark" || (chosen === "system" && systemIsDark.matches);
  document.documentElement.classList.toggle("dark-mode", isDark);
}

systemIsDark.addEventListener("change", applyTheme);
// Fired when the theme is changed in another tab.
addEventListener("storage", applyTheme);
applyTheme();
