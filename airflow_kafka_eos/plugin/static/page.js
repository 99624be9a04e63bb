// What is on the page when, and who is asked for it. The ledger and the brokers are asked apart: one may be slow.

import { get, post, run } from "./api.js";
import { clustersBody, idsBody } from "./clusters.js";
import { ask } from "./confirm.js";
import { element } from "./dom.js";
import { loadSection } from "./load.js";
import { fillStates, loadsTable, same } from "./loads.js";

const REFRESH_MS = 10_000;
const at = (id) => document.getElementById(id);
const shown = { loads: null, chosen: null, full: null, clusters: null, drawn: "", busy: false };

function drawLoads() {
  if (shown.loads === null) return;
  const drawn = JSON.stringify([shown.loads, at("filter").value, at("state").value, shown.chosen]);
  if (drawn === shown.drawn) return; // so that nothing moves away under a mouse
  shown.drawn = drawn;
  at("loads-table").replaceChildren(
    loadsTable(shown.loads, {
      text: at("filter").value,
      state: at("state").value,
      chosen: shown.chosen,
      open: (load) => choose(load),
    }),
  );
}

function drawLoad() {
  at("load").hidden = shown.full === null;
  if (shown.full === null) return;
  const open = shown.clusters === null ? null : shown.clusters.flatMap((c) => c.transactions ?? []);
  const unseen = shown.clusters?.some((c) => c.problem !== null);
  const focused = document.activeElement?.dataset.action;
  at("load").replaceChildren(...loadSection(shown.full, unseen && open.length === 0 ? null : open, act));
  if (focused !== undefined) at("load").querySelector(`[data-action="${focused}"]`)?.focus();
  if (shown.busy) at("load").querySelectorAll("button").forEach((button) => (button.disabled = true));
}

function say(text) {
  at("problem").textContent = text;
  at("problem").hidden = text === "";
}

async function choose(load) {
  if (shown.chosen === null || !same(load, shown.chosen)) shown.full = null;
  shown.chosen = load;
  drawLoads();
  try {
    const full = await get("load", { namespace: load.namespace, name: load.name, key: load.key });
    if (!same(full.load, shown.chosen)) return; // another was chosen meanwhile
    shown.full = full;
  } catch (error) {
    say(error.message);
  }
  drawLoad();
}

async function readLedger() {
  try {
    shown.loads = await get("loads");
    say("");
  } catch (error) {
    say(error.message);
    return;
  }
  if (shown.chosen === null && run.run_id !== null && shown.loads.loads.length > 0) shown.chosen = shown.loads.loads[0];
  drawLoads();
  if (shown.chosen !== null) await choose(shown.chosen);
  at("looked").textContent = `as of ${new Date().toLocaleTimeString()}`;
}

async function readBrokers() {
  try {
    shown.clusters = (await get("transactions")).clusters;
    at("clusters-body").replaceChildren(...clustersBody(shown.clusters));
  } catch (error) {
    shown.clusters = null;
    at("clusters-body").replaceChildren(element("p", { class: "problem", role: "alert" }, error.message));
  }
  drawLoad();
}

async function readIds() {
  if (!at("ids").open) return;
  try {
    at("ids-body").replaceChildren(...idsBody(await get("ids")));
  } catch (error) {
    at("ids-body").replaceChildren(element("p", { class: "problem", role: "alert" }, error.message));
  }
}

let reading = null;

/** One at a time: a slow broker must not be asked again before it has answered. */
function refresh() {
  reading ??= Promise.all([readLedger(), readBrokers()]).finally(() => (reading = null));
  return reading;
}

async function act(action) {
  const { load } = shown.full;
  const given = action.warning === "" ? { confirm: "", reason: "" } : await ask(at("dialog"), action, load);
  if (given === null) return;
  const { namespace, name, key, attempt } = load;
  shown.busy = true;
  drawLoad();
  at("looked").textContent = `${action.title} is under way …`;
  let problem = "";
  try {
    await post(`load/${action.name}`, { namespace, name, key, attempt, ...given });
  } catch (error) {
    problem = error.message;
  }
  shown.busy = false;
  await reading;
  await refresh();
  if (problem !== "") say(`${action.title}: ${problem}`);
}

at("scope").textContent = run.run_id === null ? "all loads of the ledger" : `run ${run.run_id} of ${run.dag_id}`;
at("ids").hidden = at("filters").hidden = run.run_id !== null;
fillStates(at("state"));
at("filter").addEventListener("input", drawLoads);
at("state").addEventListener("change", drawLoads);
at("refresh").addEventListener("click", refresh);
at("ids").addEventListener("toggle", readIds);
setInterval(() => {
  if (!document.hidden && !shown.busy && !at("dialog").open) refresh();
}, REFRESH_MS);
refresh();
