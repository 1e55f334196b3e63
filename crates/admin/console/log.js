// What happened, and who changed what.

import { h, place } from "./dom.js";
import { date } from "./units.js";
import { badge, card, empty, loading, paged, pageHead, table } from "./parts.js";
import { apiCalls, callWords, kindWords, namer } from "./words.js";

export async function page(context) {
  const events = place("div");
  const audit = place("div");
  const lost = place("div");
  events.append(loading());
  audit.append(loading());
  context.show(pageHead([], "Log"), lost, card("Events", {}, events), card("Changes through this node", { note: h("a", { href: "#/audit" }, "all calls") }, audit));
  await context.poll(4000, async () => {
    const [told, calls, gone] = await Promise.all([context.get("events?limit=200"), context.get("audit?door=admin&limit=200").then(apiCalls), context.get("lost").catch(() => ({ files: [] }))]);
    const [nodes, drives] = await Promise.all(["nodes", "drives"].map((path) => context.get(path).catch(() => ({}))));
    const named = namer(nodes.nodes, drives.drives);
    lost.update(gone.files, (files) =>
      files.length === 0
        ? []
        : card(
            "Cannot be read now",
            {},
            paged("lost", files, (files) => table(
              [
                ["file", (file) => h("span", { class: "break" }, `${file.volume}/${file.key || "(a shard without a name)"}`)],
                ["copies are on", (file) => file.nodes.join(", ")],
                ["may come back", (file) => (file.may_return ? "yes: bring one of these nodes back" : "no")],
              ],
              files,
            )),
          ),
    );
    events.update(told, (told) =>
      told.configured
        ? paged("events", [...told.events].reverse(), (rows) =>
            table(
              [
                ["when", (event) => date(event.at_ms)],
                ["level", (event) => badge(event.level)],
                ["about", (event) => h("div", { class: "break" }, named(event.name) || kindWords(event.subject), event.name && h("div", { class: "muted small", title: event.subject }, kindWords(event.subject)))],
                ["what", (event) => h("span", { class: "break" }, named(event.words)), "wide"],
              ],
              rows,
              "Nothing happened yet.",
            ),
          )
        : empty("This node keeps no events yet. What it logs is on its stderr or in the journal."),
    );
    audit.update(calls.entries, (entries) =>
      paged("audit", entries, (entries) =>
        table(
          [
            ["when", (entry) => date(entry.at_ms)],
            ["who", (entry) => `${entry.principal}, ${entry.address}`],
            ["what", (entry) => h("div", {}, h("span", { class: "break" }, callWords(entry)), h("div", { class: "muted small" }, h("code", { class: "break" }, entry.action)), entry.detail && entry.detail !== "{}" && h("div", { class: "muted small break" }, entry.detail)), "wide"],
            ["outcome", (entry) => badge(entry.result === "ok" ? "ok" : "error", entry.result === "ok" ? "done" : entry.result)],
          ],
          entries,
          "Nobody changed anything through the console or the API of this node.",
        ),
      ),
    );
  });
}
