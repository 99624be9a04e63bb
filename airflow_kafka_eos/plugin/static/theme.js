// Airflow's theme: a class on its own page's root, else what its switch has stored, else the system's.

const dark = window.matchMedia("(prefers-color-scheme: dark)");

function airflowsRoot() {
  try {
    return window.parent === window ? null : window.parent.document.documentElement;
  } catch {
    return null; // framed by another origin
  }
}

function isDark() {
  const root = airflowsRoot();
  if (root?.classList.contains("dark")) return true;
  if (root?.classList.contains("light")) return false;
  const stored = window.localStorage.getItem("theme");
  return stored === "dark" || (stored !== "light" && dark.matches);
}

function apply() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
}

apply();
dark.addEventListener("change", apply);
window.addEventListener("storage", apply);
const root = airflowsRoot();
if (root !== null) new MutationObserver(apply).observe(root, { attributeFilter: ["class"] });
