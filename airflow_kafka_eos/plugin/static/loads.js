// The list of loads.

import { badge, element, moment, state as stateOf, table } from "./dom.js";

const STATES = [
  "PREPARING", "PREPARED", "COMMITTING", "COMMITTED", "ABORTING", "ABORTED", "REPAIRING", "IN_DOUBT", "GIVEN_UP",
];

export function fillStates(select) {
  select.append(...STATES.map((state) => element("option", { value: state }, state)));
}

/** @param open what to do with a load that is chosen; @param chosen the one that is shown, or null */
export function loadsTable(answer, { text, state, chosen, open }) {
  const rows = answer.loads.filter(
    (load) =>
      (state === "" || load.state === state) &&
      `${load.namespace}/${load.name}/${load.key}`.toLowerCase().includes(text.toLowerCase()),
  );
  if (rows.length === 0) {
    const why = answer.loads.length === 0 ? "There are no loads that you may see." : "No load matches.";
    return element("p", { class: "quiet" }, why);
  }
  const columns = [
    ["Load", (load) => element("button", { class: "link", type: "button", onclick: () => open(load) }, load.name)],
    ["Key", (load) => load.key],
    ["Namespace", (load) => load.namespace],
    ["State", stateOf],
    ["Attempt", (load) => load.attempt],
    ["Decision", (load) => badge(load.decision)],
    ["Records", (load) => load.records?.toLocaleString()],
    ["Changed", (load) => moment(load.updated_at)],
    ["Reason", (load) => [load.note, load.reason].filter(Boolean).join(" ")],
  ];
  const marked = rows.map((load) => ({
    ...load,
    attributes: { "aria-current": chosen !== null && same(load, chosen) ? "true" : null },
  }));
  const more = "There are more, which changed before these: each run's own tab, and airflow-kafka-eos loads list, show them.";
  const left = answer.more ? element("p", { class: "quiet" }, more) : "";
  return element("div", {}, table("Loads", columns, marked), left);
}

export function same(one, other) {
  return one.namespace === other.namespace && one.name === other.name && one.key === other.key;
}
