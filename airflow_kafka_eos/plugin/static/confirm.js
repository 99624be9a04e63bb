// Asking before something is ended for good. Airflow's frame allows no window.confirm, so it is a dialog of the page.

import { element } from "./dom.js";

/** Resolves to {confirm, reason}, or null when the user thinks better of it. */
export function ask(dialog, action, load) {
  const name = field("confirm", `Type ${load.name} to confirm`);
  const reason = field("reason", "Reason, kept in the ledger");
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  return new Promise((resolve) => {
    const close = (value) => {
      dialog.close();
      resolve(value);
    };
    const go = () => {
      const given = { confirm: name.input.value.trim(), reason: reason.input.value.trim() };
      const wrong =
        action.wants_name && given.confirm !== load.name
          ? `That is not ${load.name}.`
          : action.wants_reason && given.reason === ""
            ? "Give a reason."
            : "";
      if (wrong === "") return close(given);
      problem.textContent = wrong;
      problem.hidden = false;
    };
    dialog.replaceChildren(
      element("h2", {}, `${action.title}: ${load.name} ${load.key}`),
      element("p", {}, action.warning),
      ...(action.wants_reason ? [reason.label] : []),
      ...(action.wants_name ? [name.label] : []),
      problem,
      element(
        "p",
        { class: "buttons" },
        element("button", { type: "button", class: "danger", "data-answer": "yes", onclick: go }, action.title),
        element("button", { type: "button", "data-answer": "no", onclick: () => close(null) }, "Cancel"),
      ),
    );
    dialog.addEventListener("cancel", () => resolve(null), { once: true });
    dialog.showModal();
  });
}

function field(name, title) {
  const input = element("input", { type: "text", name, autocomplete: "off" });
  return { input, label: element("label", {}, title, input) };
}
