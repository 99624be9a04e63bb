// Elements from data. Texts only ever become text nodes: nothing that a load is called can become markup.

/** An element with attributes, and children that are elements or texts. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A table; columns are [title, row => element or text]. What is not known is a dash. */
export function table(caption, columns, rows) {
  const head = element("tr", {}, ...columns.map(([title]) => element("th", { scope: "col" }, title)));
  const body = rows.map((row) =>
    element("tr", row.attributes ?? {}, ...columns.map(([, cell]) => element("td", {}, known(cell(row))))),
  );
  return element(
    "div",
    { class: "scroll" },
    element("table", { "aria-label": caption }, element("thead", {}, head), element("tbody", {}, ...body)),
  );
}

function known(value) {
  if (value === null || value === undefined || value === "") return "–";
  return value instanceof Node ? value : String(value);
}

/** A state, a decision or a standing, in its colour. */
export function badge(text) {
  return text === null ? null : element("span", { class: "badge", "data-is": text.toLowerCase() }, text);
}

/** A load's state, and who goes on with it, or that nobody does. */
export function state(load) {
  return element("span", { title: load.outlook }, badge(load.state), " ", badge(load.prospect));
}

export function code(text) {
  return element("code", {}, text);
}

const UNITS = [
  [86_400_000, "d"],
  [3_600_000, "h"],
  [60_000, "min"],
  [1_000, "s"],
];

/** "2 min 5 s", the two largest units. */
export function duration(ms) {
  if (ms === null) return null;
  const parts = [];
  let left = Math.abs(ms);
  for (const [size, unit] of UNITS) {
    const count = Math.floor(left / size);
    if (count > 0 && parts.length < 2) parts.push(`${count} ${unit}`);
    else if (parts.length > 0) break;
    left -= count * size;
  }
  const text = parts.join(" ") || "0 s";
  return ms < 0 ? `overdue by ${text}` : text;
}

/** A UTC time in the reader's zone, with the ledger's own text to hover. */
export function moment(text) {
  if (!text) return null;
  return element("time", { datetime: text, title: text }, new Date(text).toLocaleString());
}
