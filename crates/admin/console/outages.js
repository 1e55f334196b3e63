// What does not answer, on top of every page: since when, what helps, and a button where one does.

import { h, place } from "./dom.js";
import { act, sentence } from "./parts.js";
import { promote } from "./catalog.js";
import { remove } from "./removal.js";
import { span } from "./units.js";

const box = place("div", { class: "outages", role: "alert" });

const ACTIONS = {
  promote: [() => "Promote this node", (outage, again) => () => promote(again, outage)],
  remove: [(outage) => `Remove ${outage.name}`, (outage, again, session) => () => remove({ session, again }, { node: outage.node, name: outage.name, state: "down" })],
};

function draw({ lost, stale }, session, again) {
  const old = stale.filter((view) => view.as_of_ms != null).map((view) => view.as_of_ms);
  return [
    ...lost.map((outage) => {
      const action = ACTIONS[outage.action];
      return h(
        "div",
        { class: "outage" },
        h("div", {}, h("b", {}, sentence(outage.summary)), h("p", { class: "muted small" }, sentence(outage.cure))),
        action && act(session, action[0](outage), action[1](outage, again, session)),
      );
    }),
    stale.length > 0 && h("p", { class: "muted small" }, old.length > 0 ? `What is shown is ${span(Date.now() - Math.min(...old))} old, from when the catalog last answered, and what this node knows by itself.` : "What is shown is what this node knows by itself."),
  ];
}

export const isShown = () => box.isConnected && !box.hidden;

/** Shows what was told; nothing if all is well. */
export function show(outages, session, again) {
  if (!box.isConnected) document.getElementById("main").before(box);
  const lost = outages?.lost ?? [];
  const told = { lost, stale: lost.length > 0 ? outages.stale : [] };
  box.hidden = lost.length === 0;
  box.update([told, Math.floor(Date.now() / 5000)], () => draw(told, session, again));
}
