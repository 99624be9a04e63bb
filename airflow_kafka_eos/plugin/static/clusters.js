// What the brokers show: open transactions, what readers wait for because of them, hanging ones; ids.

import { badge, code, duration, element, table } from "./dom.js";
import { left } from "./load.js";

export function clustersBody(clusters) {
  if (clusters.length === 0) return [element("p", { class: "quiet" }, "No loads, so nothing was looked for.")];
  return clusters.flatMap((cluster) => [
    element("h3", {}, cluster.kafka_conn_id === null ? "Unknown connection" : `Connection ${cluster.kafka_conn_id}`),
    ...(cluster.problem === null ? seen(cluster) : [problem(cluster.problem)]),
  ]);
}

function problem(text) {
  return element("p", { class: "problem", role: "alert" }, `Not looked at: ${text}`);
}

function seen(cluster) {
  return [
    cluster.transactions.length > 0 ? open(cluster.transactions) : element("p", {}, "Nothing of these loads is open."),
    ...(cluster.lag.length > 0 ? [lag(cluster.lag)] : []),
    ...(cluster.hanging.length > 0 ? [hanging(cluster.hanging)] : []),
  ];
}

function open(rows) {
  return table(
    "Open transactions",
    [
      ["Open transaction", (t) => code(t.transactional_id)],
      ["PreparedTxnState", (t) => code(t.prepared_txn_state)],
      ["Waits", (t) => badge(t.standing)],
      ["Coordinator", (t) => t.coordinator_state],
      ["Open for", (t) => duration(t.running_ms)],
      ["Time left", left],
      ["Topic partitions", (t) => t.topic_partitions.join(", ")],
      ["Load", (t) => (t.load === null ? null : `${t.load.name} ${t.load.key}`)],
      ["Attempt", (t) => t.attempt],
    ],
    rows,
  );
}

function lag(rows) {
  return table(
    "Readers wait because of us",
    [
      ["Readers wait because of us in", (row) => row.topic_partition],
      ["Records behind the last stable offset", (row) => row.records.toLocaleString()],
    ],
    rows,
  );
}

function hanging(rows) {
  return table(
    "Hanging transactions",
    [
      ["Hanging in", (h) => h.topic_partition],
      ["Producer", (h) => code(h.producer)],
      ["Since offset", (h) => h.start_offset],
      ["Silent for", (h) => duration(h.idle_ms)],
      ["Whose", (h) => badge(h.whose)],
      ["Transactional id", (h) => (h.transactional_id === null ? null : code(h.transactional_id))],
      ["Why", (h) => h.why],
    ],
    rows,
  );
}

export function idsBody(answer) {
  if (answer.namespaces.length === 0) return [element("p", { class: "quiet" }, "None of loads that you may see.")];
  return answer.namespaces.flatMap((report) => [
    element(
      "p",
      {},
      `Namespace ${report.namespace}; an unused id is kept `,
      report.expiration_ms === null ? "for an unknown time" : duration(report.expiration_ms),
    ),
    table(
      `Ids of ${report.namespace}`,
      [
        ["Load name", (n) => n.load_name],
        ["Ids", (n) => n.ids],
        ["Pooled", (n) => n.pooled],
        ["Incrementing", (n) => n.incrementing],
        ["Slots", (n) => n.slots],
        ["Leased", (n) => n.leased],
        ["In quarantine", (n) => n.quarantined],
        ["In doubt", (n) => (n.in_doubt > 0 ? badge(String(n.in_doubt)) : n.in_doubt)],
        ["Oldest", (n) => duration(n.oldest_s === null ? null : n.oldest_s * 1000)],
        ["Brokers' memory", (n) => `${Math.ceil(n.bytes / 1024)} KiB`],
      ],
      report.names,
    ),
  ]);
}
