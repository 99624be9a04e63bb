// What the brokers show: open transactions, what readers wait for because of them, hanging ones; ids.

import { badge, code, duration, element, table } from "./dom.js";
import { left } from "./load.js";

export function clustersBody(clusters) {
  if (clusters.length === 0) return [element("p", { class: "quiet" }, "There are no loads to look for.")];
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
    ...cluster.hidden.map((text) => element("p", { class: "problem", role: "alert" }, `This may not be all: ${text}`)),
    cluster.transactions.length > 0 ? open(cluster.transactions) : element("p", {}, nothing(cluster)),
    ...(cluster.lag.length > 0 ? [lag(cluster.lag)] : []),
    ...(cluster.hanging.length > 0 ? [hanging(cluster.hanging)] : []),
  ];
}

function nothing(cluster) {
  return cluster.hidden.length > 0 ? "Nothing of these loads is shown as open." : "Nothing of these loads is open.";
}

function open(rows) {
  return table(
    "Open transactions",
    [
      ["Open transaction", (t) => code(t.transactional_id)],
      ["PreparedTxnState", (t) => code(t.prepared_txn_state)],
      ["Status", (t) => badge(t.standing)],
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
    "Readers held back by these transactions",
    [
      ["Readers are held back in", (row) => row.topic_partition],
      ["Records behind the last stable offset", (row) => row.records.toLocaleString()],
    ],
    rows,
  );
}

function hanging(rows) {
  return table(
    "Hanging transactions",
    [
      ["Open in", (h) => h.topic_partition],
      ["Hanging", (h) => badge(h.proven ? "hanging" : "may be alive")],
      ["Producer", (h) => code(h.producer)],
      ["Since offset", (h) => h.start_offset],
      ["No record for", (h) => duration(h.idle_ms)],
      ["Whose", (h) => (h.proven ? badge(h.whose) : null)],
      ["Transactional id", (h) => (h.transactional_id === null ? null : code(h.transactional_id))],
      ["Why", (h) => (h.doubt === null ? h.why : `${h.why}; ${h.doubt}`)],
      ["What to do", (h) => h.what_to_do],
    ],
    rows,
  );
}

export function idsBody(answer) {
  if (answer.namespaces.length === 0) return [element("p", { class: "quiet" }, "There are no ids of loads that you may see.")];
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
