// The audit log of this node: who did what to which file, page by page.

import { h, place } from "./dom.js";
import { badge, card, empty, failure, loading, pageHead, table } from "./parts.js";
import { date, digits } from "./units.js";

const PAGE = 100;
const FIELDS = [
  ["path", "Path begins with", "volume/folder/"],
  ["user", "Who", "acme/alice, operator, …"],
  ["action", "Action", "Create, Delete, …"],
  ["from", "From", "2026-11-19T00:00:00Z"],
  ["to", "Before", "2026-11-20"],
];
const RESULTS = [["", "any result"], ["ok", "done"], ["denied", "denied"], ["failed", "failed"]];

function columns() {
  return [
    ["when", (entry) => h("span", { title: entry.time }, date(entry.at_ms))],
    ["who", (entry) => h("div", { class: "break" }, entry.principal, entry.address && h("div", { class: "muted small" }, entry.address))],
    ["what", (entry) => h("div", {}, h("span", { class: "break" }, entry.action), h("div", { class: "muted small" }, entry.door && `through ${entry.door}`, entry.request_id && ` · ${entry.request_id}`, entry.session && ` · session ${entry.session}`), entry.detail && h("div", { class: "muted small break" }, entry.detail))],
    ["path", (entry) => h("span", { class: "break" }, entry.path || "–"), "wide"],
    ["bytes", (entry) => (entry.bytes > 0 ? digits(entry.bytes) : "")],
    ["result", (entry) => badge(entry.result === "ok" ? "ok" : entry.result === "denied" ? "error" : "warn", entry.result)],
  ];
}

function filters(query) {
  const kept = new URLSearchParams();
  for (const [name] of [...FIELDS, ["result"]]) if (query.get(name)) kept.set(name, query.get(name));
  return kept;
}

function search(query) {
  const input = ([name, label, hint]) => h("label", { class: "small" }, label, h("input", { name, value: query.get(name) ?? "", placeholder: hint, autocomplete: "off" }));
  const options = RESULTS.map(([value, words]) => h("option", { value, selected: (query.get("result") ?? "") === value }, words));
  const onsubmit = (event) => {
    event.preventDefault();
    location.hash = `#/audit?${filters(new URLSearchParams(new FormData(event.target)))}`;
  };
  return h(
    "form",
    { class: "filters", onsubmit },
    FIELDS.map(input),
    h("label", { class: "small" }, "Result", h("select", { name: "result" }, options)),
    h("button", { type: "submit" }, "Search"),
  );
}

export async function page(context) {
  const wanted = filters(context.query);
  const rows = [];
  const found = place("div");
  found.append(loading());
  const note = "calls through this node; each node has its own log";
  context.show(pageHead([], "Audit"), card("Search", {}, search(context.query)), card("Calls", { note }, found));
  const more = async (before) => {
    const asked = new URLSearchParams(wanted);
    asked.set("limit", PAGE);
    if (before != null) asked.set("before", before);
    try {
      draw(await context.get(`audit?${asked}`));
    } catch (error) {
      if (error.name !== "AbortError") found.replaceChildren(failure(error));
    }
  };
  const draw = (told) => {
    rows.push(...told.entries);
    found.update([told.configured, rows, told.next], () =>
      told.configured
        ? [
            table(columns(), rows, "No call fits."),
            told.next != null && h("button", { class: "quiet", "data-key": "older", onclick: () => more(told.next) }, "Older"),
          ]
        : empty("This node writes no audit log: `[audit] level` is off."),
    );
  };
  await more(null);
}
