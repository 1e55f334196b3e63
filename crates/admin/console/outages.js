// What does not answer, on top of every page: since when, what helps, and a button where one does.

import { post } from "./api.js";
import { h, place } from "./dom.js";
import { act } from "./parts.js";
import { confirm, toast } from "./dialog.js";
import { span } from "./units.js";

const box = place("div", { class: "outages", role: "alert" });

function promote(outage, again) {
  return async () => {
    const said = await confirm({
      title: "Let this node keep the catalog?",
      words: [`${outage.summary}.`, `Do this only if ${outage.name} is lost: once another node keeps the catalog, ${outage.name} starts again without it.`],
      fields: [{ name: "accept_loss", kind: "flag", label: "Go on although acknowledged changes may be lost", help: "Needed only if the copy here may be behind; the node says so.", value: false }],
      action: "Promote",
      danger: true,
      act: ({ accept_loss }) => post("catalog/promote", { accept_loss: Boolean(accept_loss) }),
    });
    if (said) {
      toast(said.loss ? `This node keeps the catalog. ${said.loss}` : "This node keeps the catalog.");
      again();
    }
  };
}

const ACTIONS = { promote: ["Promote this node", promote] };

function draw({ lost, stale }, session, again) {
  const old = stale.filter((view) => view.as_of_ms != null).map((view) => view.as_of_ms);
  return [
    ...lost.map((outage) => {
      const action = ACTIONS[outage.action];
      return h(
        "div",
        { class: "outage" },
        h("div", {}, h("b", {}, outage.summary), h("p", { class: "muted small" }, outage.cure)),
        action && act(session, action[0], action[1](outage, again)),
      );
    }),
    stale.length > 0 && h("p", { class: "muted small" }, old.length > 0 ? `What is shown is ${span(Date.now() - Math.min(...old))} old, from when the catalog last answered, and what this node knows by itself.` : "What is shown is what this node knows by itself."),
  ];
}

/** Shows what was told; nothing if all is well. */
export function show(outages, session, again) {
  if (!box.isConnected) document.getElementById("main").before(box);
  const lost = outages?.lost ?? [];
  const told = { lost, stale: lost.length > 0 ? outages.stale : [] };
  box.hidden = lost.length === 0;
  box.update([told, Math.floor(Date.now() / 5000)], () => draw(told, session, again));
}
