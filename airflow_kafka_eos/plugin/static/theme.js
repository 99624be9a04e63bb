// Airflow's theme: a class on its own page's root, else what its switch has stored, else the system's.

const dark = window.matchMedia("(prefers-color-scheme: dark)");

function airflowsPage() {
  try {
    return window.parent === window ? null : window.parent.document;
  } catch {
    return null; // framed by another origin
  }
}

const airflow = airflowsPage();

function isDark() {
  const classes = airflow?.documentElement.classList;
  if (classes?.contains("dark")) return true;
  if (classes?.contains("light")) return false;
  const stored = window.localStorage.getItem("theme");
  return stored === "dark" || (stored !== "light" && dark.matches);
}

function apply() {
  const root = document.documentElement;
  root.dataset.theme = isDark() ? "dark" : "light";
  if (airflow === null) return;
  // an Airflow may have colours of its own ([api] theme)
  for (const element of [airflow.documentElement, airflow.body]) {
    const { backgroundColor, color } = window.parent.getComputedStyle(element);
    if (backgroundColor === "rgba(0, 0, 0, 0)") continue; // transparent
    root.style.setProperty("--ground", backgroundColor);
    root.style.setProperty("--text", color);
    return;
  }
}

apply();
dark.addEventListener("change", apply);
window.addEventListener("storage", apply);
if (airflow !== null) new MutationObserver(apply).observe(airflow.documentElement, { attributeFilter: ["class"] });
