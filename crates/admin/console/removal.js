// A node leaves for good: the question, and how far it is. The nodes carry it out; this page only looks.

import { enc, get, post } from "./api.js";
import { h } from "./dom.js";
import { bytes, things } from "./units.js";
import { act, badge, card, facts, meter, sentence } from "./parts.js";
import { confirm, toast } from "./dialog.js";

const LOST_SHOWN = 5;

const STEPS = {
  waiting: "It waits.",
  evacuating: "Other nodes take what it holds. Then it leaves and stops.",
  protecting: "It is lost. The others make up for what it held, then it leaves.",
  loss: "What is left is only there. Bring the node back, or give these files up.",
};

const lostWords = (told) => {
  const names = told.lost.slice(0, LOST_SHOWN).map((file) => `${file.volume}/${file.key}`);
  const more = told.lost_files - names.length;
  return `${things(told.lost_files, "file")} (${bytes(told.lost_bytes)}) would be lost with it${names.length > 0 ? `: ${names.join(", ")}${more > 0 ? ` and ${more} more` : ""}` : ""}.`;
};

/** Asks, and orders it. `node` is as the list of nodes has it. */
export async function remove(context, node) {
  const name = node.name || node.node;
  const isLost = node.state === "down" || Boolean(node.silent_since_ms);
  const about = await get("about").catch(() => ({}));
  const words = isLost
    ? ["It does not answer. The others make up for what it held, then it leaves the cluster.", "Should it start again, it is refused. Its machine can join as a new node with an empty directory."]
    : ["Other nodes take what it holds and the lake lacks, then it leaves the cluster and stops. Nothing is lost. Until then it can be kept.", "Its machine can join again as a new node with an empty directory."];
  const told = await confirm({
    title: `Remove ${name} for good?`,
    words: [...words, about.node === node.node && "It is the node that serves this page: the page ends with it. The consoles of other nodes go on."].filter(Boolean),
    fields: [
      isLost
        ? { name: "accept_loss", kind: "flag", label: "Although files are lost that no other node has", help: "Needed only if there are some; they are named first." }
        : { name: "force", kind: "flag", label: "Although too few nodes may be left for some volumes" },
    ],
    typed: name,
    action: "Remove",
    danger: true,
    act: async (values) => {
      const told = await post(`nodes/${enc(node.node)}/remove`, values);
      if (told.step === "loss") throw new Error(lostWords(told));
      return told;
    },
  });
  if (!told) return;
  if (told.step === "removed") return gone(name);
  toast(`${name} is being removed.`);
  if (location.hash === `#/nodes/${enc(name)}`) context.again();
  else location.hash = `#/nodes/${enc(name)}`;
}

function gone(name) {
  toast(`${name} is no node of the cluster any more.`);
  location.hash = "#/nodes";
}

/** What became of a node that is not there any more; none if it never was. */
export async function goneFor(context, name) {
  const told = await context.get(`removals?node=${enc(name)}`).catch(() => ({ removals: [] }));
  const [one] = told.removals;
  if (one?.step !== "removed") return null;
  return [
    card(
      null,
      { class: "verdict ok" },
      h("b", {}, `${one.name} is no node of the cluster any more.`),
      h("p", {}, one.lost_files > 0 ? `${things(one.lost_files, "file")}, ${bytes(one.lost_bytes)}, were lost with it.` : "Nothing was lost with it."),
      h("p", {}, h("a", { href: "#/nodes" }, "All nodes")),
    ),
  ];
}

/** The most bytes that were left since the page is open, by node: what a bar is a part of. */
const most = new Map();

function progress(told) {
  most.set(told.node, Math.max(most.get(told.node) ?? 0, told.bytes_left));
  const whole = most.get(told.node);
  const done = whole - told.bytes_left;
  return [
    h("p", {}, STEPS[told.step] ?? told.step),
    whole > 0 && told.step !== "loss" && meter([[done, "clean", "brought away"], [told.bytes_left, "keep", "left"]], whole, `${bytes(done)} of ${bytes(whole)} brought away`),
    facts([
      ["brought away", whole > 0 && told.step !== "loss" ? `${bytes(done)} of ${bytes(whole)} since this page is open` : null],
      ["left there", told.files_left > 0 ? `${things(told.files_left, "file")}, ${bytes(told.bytes_left)}` : "nothing"],
      ["only there", told.lost_files > 0 ? h("span", { class: told.step === "loss" ? "bad" : "" }, `${things(told.lost_files, "file")}, ${bytes(told.lost_bytes)}`) : null],
      ["it waits because", told.trouble && h("span", { class: "warn" }, sentence(told.trouble))],
    ]),
    told.step === "loss" && h("ul", { class: "words small break" }, told.lost.slice(0, LOST_SHOWN).map((file) => h("li", {}, `${file.volume}/${file.key}`))),
  ];
}

function keep(context, told) {
  return confirm({
    title: `Keep ${told.name} after all?`,
    words: "Its removal ends, and it takes copies again.",
    action: "Keep it",
    act: () => post(`nodes/${enc(told.node)}/rejoin`),
  }).then((done) => done && (toast(`${told.name} stays.`), context.again()));
}

function giveUp(context, told) {
  return confirm({
    title: `Give up what only ${told.name} has?`,
    words: lostWords(told),
    typed: told.name,
    action: "Remove it with them",
    danger: true,
    act: () => post(`nodes/${enc(told.node)}/remove`, { accept_loss: true }),
  }).then((done) => done && (toast(`${told.name} is being removed.`), context.again()));
}

/** How far a removal is. */
export function removalCard(context, told) {
  const state = { waiting: badge("warn", "waits"), loss: badge("error", "a person has to decide") }[told.step] ?? badge("evacuating", "under way");
  return card(
    "Removal",
    { class: "removal", note: state, actions: [told.step === "loss" && act(context.session, "Give them up", () => giveUp(context, told), "danger"), act(context.session, "Keep it", () => keep(context, told))] },
    progress(told),
  );
}

/** The same in a line of a list; its page says more. */
export const removalWords = (told) =>
  told.step === "loss" ? "its removal waits for a person" : told.files_left > 0 ? `is being removed, ${bytes(told.bytes_left)} left` : "is being removed";
