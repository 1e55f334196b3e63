// The catalog: who keeps it and who follows, how another node takes over, how it is backed up.

import { post } from "./api.js";
import { h } from "./dom.js";
import { count } from "./units.js";
import { act, badge, copyLine, facts, table } from "./parts.js";
import { confirm, toast } from "./dialog.js";

/** This node keeps the catalog from now on. `outage` says what is lost, if somebody comes because of that. */
export async function promote(again, outage = null) {
  const words = outage
    ? [`${outage.summary}.`, `Do this only if ${outage.name} is lost: once another node keeps the catalog, ${outage.name} starts again without it.`]
    : ["This node must follow the catalog and have all of it; it says so if not.", "The node that keeps it now acknowledges nothing more, and follows from then on."];
  const said = await confirm({
    title: "Let this node keep the catalog?",
    words,
    fields: [{ name: "accept_loss", kind: "flag", label: "Although acknowledged changes may be lost", help: "Needed only if the copy here may be behind; the node says so." }],
    typed: "promote",
    action: "Promote",
    danger: true,
    act: (values) => post("catalog/promote", values),
  });
  if (!said) return;
  toast(said.loss ? `This node keeps the catalog. Lost: ${said.loss}` : "This node keeps the catalog, and no change was lost.");
  again();
}

function detach(context, followers) {
  return confirm({
    title: "Let a follower of the catalog go for good?",
    words: "The catalog waits for it no longer. It has to join anew to follow again.",
    fields: [{ name: "node", kind: "choice", label: "Which one", choices: followers, value: followers[0] }],
    action: "Detach",
    danger: true,
    act: (values) => post("catalog/detach", values),
  }).then((done) => done && (toast("It follows no longer."), context.again()));
}

/** Only the node that keeps the catalog can give all of it. */
function backup(where, own, dir, nameOf) {
  const isHere = !where.holder || where.holder === own;
  return [
    h("p", { class: "muted small spaced" }, isHere ? "A backup of the catalog, on this machine, while everything runs:" : `A backup of the catalog, on the machine of ${nameOf(where.holder)}, which keeps it; DIR is its directory:`),
    copyLine(`stoker catalog backup catalog.backup --dir ${isHere ? dir : "DIR"}`),
  ];
}

/** Who follows, and what it acknowledges, only the node knows that keeps it. */
function silent(context, where, own, nameOf) {
  const named = where.trouble.replace(/\b[0-9a-f]{32}\b/g, nameOf).replace(/\bnode (?=node)/g, "");
  return [
    facts([
      ["kept by", where.holder ? nameOf(where.holder) : where.engine],
      ["state", badge("error", "does not answer")],
      ["last error", h("span", { class: "break" }, named)],
      ["last commit", `${count(where.seq)}, as far as this node knows`],
    ]),
    h("p", { class: "muted small" }, "Who follows it is not known meanwhile. Nothing is published until it answers, or another node keeps it."),
    where.holder && where.holder !== own && h("div", { class: "actions spaced" }, act(context.session, "Promote this node", () => promote(context.again))),
  ].filter(Boolean);
}

/** What is known of the catalog, and what can be done. `names` are those of nodes by their ids. */
export function catalogParts(context, where, own, dir, names) {
  const nameOf = (id) => names.get(id) ?? id.slice(0, 8);
  if (where.trouble) return silent(context, where, own, nameOf);
  const followers = where.standbys.map((standby) => nameOf(standby.node)).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const rows = [...where.standbys].sort((a, b) => nameOf(a.node).localeCompare(nameOf(b.node), "en", { numeric: true }));
  return [
    facts([
      ["kept by", where.holder ? nameOf(where.holder) : where.engine],
      ["engine", where.engine],
      ["last commit", count(where.seq)],
      ["state", where.stalled ? badge("error", "acknowledges nothing: too few followers answer") : badge("ok", "acknowledges")],
    ]),
    table(
      [
        ["follower", (standby) => nameOf(standby.node)],
        ["state", (standby) => (standby.in_sync ? badge("in sync") : badge("warn", "behind"))],
        ["last commit", (standby) => count(standby.seq), "number"],
      ],
      rows,
      where.holder ? "Nobody follows it: names are on one node." : "Names are in the database; its own standbys protect them.",
    ),
    h(
      "div",
      { class: "actions spaced" },
      where.holder && where.holder !== own && act(context.session, "Promote this node", () => promote(context.again)),
      followers.length > 0 && act(context.session, "Detach a follower", () => detach(context, followers)),
    ),
    ...backup(where, own, dir, nameOf),
  ];
}
