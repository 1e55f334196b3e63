// The pieces that pages are made of.

import { h } from "./dom.js";
import { bytes, date, span } from "./units.js";
import { toast } from "./dialog.js";

const GOOD = ["up", "witness", "live", "published", "clean", "ready", "in sync", "info", "ok"];
const CAREFUL = ["suspect", "leaving", "joining", "unreachable", "quarantined", "evacuating", "dirty", "open", "warn", "unknown", "stopping", "removing", "cordoned", "degraded", "repair", "verifying", "shadowed"];
const BAD = ["down", "failed", "gone", "conflict", "expired", "aborted", "error", "silent", "not ready", "escalated"];

export const tone = (state) =>
  GOOD.includes(state) ? "ok" : CAREFUL.includes(state) ? "warn" : BAD.includes(state) ? "bad" : "plain";

/** What a node is in one word: one that does not answer is silent, whatever was decided about it before. */
export const stateOf = (node) => (node.silent_since_ms && node.state !== "down" ? "silent" : node.state);

/** Words of more than a few letters may need a second line. */
export const badge = (state, words) => h("span", { class: `badge ${tone(state)}${(words ?? state).length > 24 ? " long" : ""}` }, words ?? state);
export const loading = (what = "Loading…") => h("p", { class: "loading", "aria-busy": "true" }, what);
export const empty = (words, ...more) => h("div", { class: "empty" }, h("p", {}, words), ...more);

export function failure(error) {
  const hint = error.status === 503 ? "This page asks again by itself, and shows it as soon as there is an answer." : error.hint;
  return h("div", { class: "failure", role: "alert" }, h("b", {}, sentence(error.message)), hint && h("p", { class: "muted" }, hint));
}

/** A sentence with a capital unless it begins with a name, and what is to be typed in the letters of a terminal. */
export function sentence(text) {
  // Many nodes are called so.
  const [first, ...rest] = text.replace(/\bnode (?=node)/g, "").split("`");
  const isName = /^\S*[-\d]/.test(first);
  const words = [isName ? first : first.charAt(0).toUpperCase() + first.slice(1), ...rest];
  return words.map((part, at) => (at % 2 === 1 && at < words.length - 1 ? h("code", {}, part) : part));
}

export function card(title, attributes, ...children) {
  const { actions, note, ...rest } = attributes ?? {};
  const head = title && h("div", { class: "card-head" }, h("h2", {}, title), note && h("span", { class: "muted small" }, note), actions && h("div", { class: "actions" }, actions));
  return h("section", { ...rest, class: `card ${rest.class ?? ""}` }, head, ...children);
}

/** That a view is what it was when the catalog last answered, if it is; `outages` is what the node tells. */
export function agedNote(outages, view) {
  const stale = (outages.stale ?? []).find((one) => one.view === view);
  const isDark = (outages.lost ?? []).some((one) => one.what === "catalog");
  if (!stale && !isDark) return null;
  return h("p", { class: "warn small" }, stale?.as_of_ms ? ["As it was ", ago(stale.as_of_ms), ": the catalog does not answer."] : "The catalog does not answer: this may be old, and may lack something.");
}

/** A page's head: where one is, what it is called, what can be done. */
export function pageHead(trail, title, state, ...actions) {
  const steps = trail.map(([name, link]) => [h("a", { href: link }, name.replace(/\/$/, "")), h("span", { class: "muted" }, " / ")]);
  return h(
    "div",
    { class: "page-head" },
    h("div", {}, trail.length > 0 && h("p", { class: "trail" }, steps), h("h1", {}, title, " ", state)),
    h("div", { class: "actions" }, actions),
  );
}

/** Rows of name and value; those without a value are left out. */
export function facts(rows) {
  const kept = rows.filter(([, value]) => value != null && value !== "");
  return h("dl", { class: "facts" }, kept.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** Columns are [title, cell(row), class]. On narrow screens each row becomes a block with its titles. */
export function table(columns, rows, none) {
  if (rows.length === 0) return empty(none ?? "Nothing here.");
  const shown = columns.filter(Boolean);
  return h(
    "div",
    { class: "table-wrap" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, shown.map(([title, , kind]) => h("th", { class: kind, scope: "col" }, title)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, shown.map(([title, cell, kind]) => drawCell(title, cell(row), kind))))),
    ),
  );
}

/** What is not known or not there is left out on a narrow screen. */
const drawCell = (title, value, kind) => h("td", { class: [kind, (value === "–" || value === "") && "none"].filter(Boolean).join(" ") || null, "data-label": title }, value);

/** Which page of a long list is open, by the list; it stays while the list is drawn anew. */
const pages = new Map();

/** Rows a page at a time, with a way to the others; `draw(rows)` shows those of one page. */
export function paged(key, rows, draw, size = 20) {
  if (rows.length <= size) return draw(rows);
  const box = h("div", { class: "paged" });
  const last = Math.ceil(rows.length / size) - 1;
  const show = (wanted, button) => {
    const at = Math.max(0, Math.min(last, wanted));
    pages.set(key, at);
    const turn = (name, to, mark) => h("button", { type: "button", "data-key": `${key}-${mark}`, disabled: to < 0 || to > last, onclick: () => show(to, mark) }, name);
    const [first, end] = [at * size + 1, Math.min(rows.length, (at + 1) * size)];
    box.replaceChildren(
      draw(rows.slice(first - 1, end)),
      h("div", { class: "pager" }, turn("Previous", at - 1, "previous"), h("span", { class: "muted small" }, `${first} to ${end} of ${rows.length}`), turn("Next", at + 1, "next")),
    );
    if (button) box.querySelector(`[data-key="${CSS.escape(`${key}-${button}`)}"]`)?.focus();
  };
  show(pages.get(key) ?? 0);
  return box;
}

/** The rows of the page that is open now. */
export function openPage(key, rows, size = 20) {
  const at = Math.min(pages.get(key) ?? 0, Math.max(0, Math.ceil(rows.length / size) - 1));
  return rows.slice(at * size, (at + 1) * size);
}

/** What the colours of bars mean: [[class, words]]. */
export const legend = (keys) => h("p", { class: "bars muted small" }, keys.map(([kind, words]) => h("span", {}, h("i", { class: `swatch ${kind}` }), words)));
export const DRIVE_LEGEND = [["keep", "must stay: the lake lacks it"], ["clean", "may go: the lake has it"], ["free", "free"]];

const isNarrow = () => matchMedia("(max-width: 760px)").matches;

/** A card that is closed at first on a narrow screen, where everything at once is too long. */
export function foldable(title, attributes, ...children) {
  const { note, actions, ...rest } = attributes ?? {};
  const head = h("summary", { class: "card-head" }, h("h2", {}, title), note && h("span", { class: "muted small" }, note));
  return h("details", { ...rest, class: `card fold ${rest.class ?? ""}`, open: !isNarrow() }, head, actions && h("div", { class: "actions fold-actions" }, actions), ...children);
}

/** A bar of parts: [[bytes, class, name]] of a whole. */
export function meter(parts, whole, label) {
  const share = (value) => `${whole > 0 ? Math.min(100, (100 * value) / whole) : 0}%`;
  const words = label ?? parts.map(([value, , name]) => `${name} ${bytes(value)}`).join(", ");
  return h(
    "div",
    { class: "meter", role: "img", "aria-label": words, title: words },
    parts.map(([value, kind]) => value > 0 && h("span", { class: kind, style: { width: share(value), "min-width": "2px" } })),
  );
}

/** A time that stays true while it is looked at. */
export function ago(millis) {
  if (!millis) return "–";
  const element = h("time", { "data-at": millis, title: date(millis) });
  tick(element);
  return element;
}

function tick(element) {
  element.textContent = `${span(Date.now() - Number(element.dataset.at))} ago`;
}

setInterval(() => document.querySelectorAll("time[data-at]").forEach(tick), 1000);

export function copyLine(line) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(line);
      toast("Copied.");
    } catch {
      getSelection().selectAllChildren(code);
      toast("Selected: press Ctrl-C.", "warn");
    }
  };
  const code = h("code", {}, line);
  return h("div", { class: "copy" }, code, h("button", { type: "button", onclick: copy }, "Copy"));
}

/** The directory of the node that serves the page, for lines to be copied: the line for a first file names it. */
export const dirOf = (about) => about.first_line?.match(/ --dir (.+)$/)?.[1] ?? "DIR";

/** In the order of people: node-2 before node-10. */
export const byName = (rows) => [...rows].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));

/** A button for operators; those who look see that it is there and why they cannot use it. */
export function act(session, name, onclick, kind = "") {
  const may = session.role === "operator";
  const why = may ? null : "You are logged in to look. Log in with the operators' token to change something.";
  return h("button", { type: "button", class: kind, "data-key": name, disabled: !may, title: why, onclick }, name);
}
