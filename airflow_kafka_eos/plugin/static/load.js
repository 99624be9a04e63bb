// One load: its attempts on a common line of time, its transactions, and the buttons.

import { badge, code, duration, element, moment, state, table } from "./dom.js";
import { same } from "./loads.js";

/**
 * @param full what the ledger knows of it
 * @param open open transactions that the brokers show, or null while nobody has answered
 * @param act what a button does
 */
export function loadSection(full, open, act) {
  const { load } = full;
  const mine = open === null ? null : open.filter((t) => t.load !== null && same(t.load, load));
  return [
    element("h2", {}, `${load.name} `, element("small", {}, load.key), " ", state(load)),
    facts(load, full),
    buttons(full, mine, act),
    ...cursorBlock(full.cursor),
    element("h3", {}, "Attempts"),
    ...full.attempts.map((attempt) => attemptBlock(attempt, span(full.attempts))),
    full.hidden_attempts > 0
      ? element("p", { class: "quiet" }, `${full.hidden_attempts} attempts of DAGs that you may not see`)
      : "",
    element("h3", {}, "Transactions"),
    transactions(full, mine),
    full.repairs.length > 0 ? repairs(full.repairs) : "",
  ];
}

function facts(load, full) {
  const pairs = [
    ["Namespace", load.namespace],
    ["Decision", badge(load.decision) ?? "none yet"],
    ["What comes next", load.outlook],
    ["Records", load.records?.toLocaleString()],
    ["Written", load.how],
    ["Run", load.dag_id === null ? null : `${load.dag_id} / ${load.run_id}`],
    ["Decided", load.decided_at === null ? null : `${load.decided_at} by ${load.decided_by}`],
    ["Note", load.note],
    ["Why", load.reason],
    ["You may", full.may_act ? null : "look; the buttons need permission to edit the DAG's runs"],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  return element("dl", {}, ...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function buttons(full, mine, act) {
  const shown = full.actions.filter((action) => !action.if_open || (mine !== null && mine.length > 0));
  if (shown.length === 0) return "";
  const made = shown.map((action) =>
    element(
      "button",
      { type: "button", "data-action": action.name, class: action.wants_name ? "danger" : null, onclick: () => act(action) },
      action.title,
    ),
  );
  return element("p", { class: "buttons" }, ...made);
}

function cursorBlock(cursor) {
  if (!cursor) return [];
  const parts = [
    `Cursor at ${cursor.position}`,
    cursor.held_by && `held by ${cursor.held_by}`,
    cursor.doubt && `IN DOUBT: ${cursor.doubt}`,
  ];
  return [element("p", { class: "quiet" }, parts.filter(Boolean).join(" · "))];
}

function span(attempts) {
  const times = attempts.flatMap((a) => a.timeline.map((event) => Date.parse(event.at)));
  return { from: Math.min(...times), to: Math.max(...times) };
}

function attemptBlock(attempt, { from, to }) {
  const place = (at) => `${to === from ? 0 : ((Date.parse(at) - from) / (to - from)) * 100}%`;
  const [first, last] = [attempt.timeline[0], attempt.timeline.at(-1)];
  const bar = element("span", { class: "bar" });
  bar.style.left = place(first.at);
  bar.style.right = `calc(100% - ${place(last.at)})`;
  const dots = attempt.timeline.map((event) => {
    const dot = element("span", { class: "dot", "data-is": event.what, title: `${event.what} ${event.at}` });
    dot.style.left = place(event.at);
    return dot;
  });
  const steps = attempt.timeline.map((event, n) => {
    const before = attempt.timeline[n - 1];
    const after = before ? ` (+${duration(Date.parse(event.at) - Date.parse(before.at))})` : "";
    return element("li", {}, element("strong", {}, event.what), " ", moment(event.at), after);
  });
  return element(
    "article",
    { class: "attempt", "aria-label": `Attempt ${attempt.number}` },
    element("h4", {}, `Attempt ${attempt.number} `, badge(attempt.decision) ?? badge("undecided")),
    element("div", { class: "timeline", "aria-hidden": "true" }, bar, ...dots),
    element("ol", { class: "steps" }, ...steps),
    element("p", { class: "quiet" }, [attempt.by, attempt.how, attempt.reads, attempt.reason].filter(Boolean).join(" · ")),
  );
}

function transactions(full, mine) {
  const open = new Map((mine ?? []).map((t) => [`${t.transactional_id} ${t.prepared_txn_state}`, t]));
  const known = full.transactions.map((t) => {
    const key = `${t.transactional_id} ${t.prepared_txn_state}`;
    const seen = open.get(key);
    open.delete(key);
    return { ...t, seen };
  });
  const unreported = [...open.values()].map((t) => ({ ...t, seen: t, spark_partition: null, records: null, outcome: null }));
  const rows = [...known, ...unreported];
  const pruned = full.attempts.filter((a) => a.pruned_at !== null).map((a) => a.number);
  const forgotten =
    pruned.length > 0
      ? element("p", { class: "quiet" }, `Those of attempts ${pruned.join(", ")} were pruned: the ledger has forgotten them.`)
      : "";
  if (rows.length === 0)
    return forgotten || element("p", { class: "quiet" }, "No transaction was reported as prepared.");
  const columns = [
    ["Transactional id", (t) => code(t.transactional_id)],
    ["PreparedTxnState", (t) => code(t.prepared_txn_state)],
    ["Attempt", (t) => t.attempt],
    ["Spark partition", (t) => t.spark_partition],
    ["Topic partitions", (t) => t.topic_partitions.join(", ")],
    ["Records", (t) => t.records?.toLocaleString()],
    ["Log", (t) => badge(t.outcome)],
    ["At the broker", (t) => (t.seen ? badge(t.seen.standing) : mine === null ? "not looked at yet" : "not open")],
    ["Open for", (t) => (t.seen ? duration(t.seen.running_ms) : null)],
    ["Time left", (t) => (t.seen ? left(t.seen) : null)],
  ];
  const off = full.transactions_left_off;
  const more = off > 0 ? element("p", { class: "quiet" }, `${off} more are not shown.`) : "";
  return element("div", {}, table("Transactions of the load", columns, rows), more, forgotten);
}

/** How long the broker leaves a transaction open by itself. */
export function left(transaction) {
  return transaction.two_phase_commit ? "no timeout (two-phase commit)" : duration(transaction.time_left_ms);
}

function repairs(rows) {
  const columns = [
    ["Repair", (r) => r.number],
    ["State", (r) => badge(r.state)],
    ["Lost", (r) => code(r.lost)],
    ["Replacement", (r) => code(r.replacement)],
    ["Opened", (r) => moment(r.opened_at)],
    ["By", (r) => r.opened_by],
    ["Reason", (r) => r.reason],
  ];
  return element("div", {}, element("h3", {}, "Repairs"), table("Repairs", columns, rows));
}
