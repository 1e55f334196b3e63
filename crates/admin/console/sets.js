// Checkpoint sets: which there are, what they lack, and the receipts of their shards.

import { enc, encKey, post } from "./api.js";
import { h, place } from "./dom.js";
import { bytes, count, date, span, things } from "./units.js";
import { act, ago, badge, card, copyLine, dirOf, empty, facts, loading, meter, paged, pageHead, table } from "./parts.js";
import { confirm, toast } from "./dialog.js";

export function setTable(sets, withVolume = false) {
  return paged(withVolume ? "sets" : "volume-sets", sets, (sets) => table(
    [
      ["set", (set) => h("a", { class: "break", href: `#/sets/${enc(set.volume)}/${set.set}` }, set.path)],
      withVolume && ["volume", (set) => h("a", { href: `#/volumes/${enc(set.volume)}` }, set.volume)],
      ["state", (set) => badge(set.state)],
      ["shards", (set) => count(set.shards), "number"],
      ["owner", (set) => set.owner],
      ["begun", (set) => ago(set.begun_ms)],
      ["took", (set) => (set.closed_ms > 0 ? span(set.closed_ms - set.begun_ms) : `ends in ${span(set.deadline_ms - Date.now())}`), "number"],
    ],
    sets,
    "No checkpoint set yet.",
  ));
}

export async function list(context) {
  const dir = dirOf(await context.get("about").catch(() => ({})));
  const body = place("div");
  body.append(loading());
  context.show(pageHead([], "Checkpoint sets"), card(null, {}, body));
  await context.poll(5000, async () => {
    const { volumes } = await context.get("volumes");
    const pages = await Promise.all(volumes.slice(0, 50).map((volume) => context.get(`volumes/${enc(volume.name)}/sets?limit=50`)));
    const sets = pages.flatMap((page) => page.sets).sort((a, b) => b.begun_ms - a.begun_ms);
    body.update([sets, volumes[0]?.name], () =>
      sets.length > 0 ? setTable(sets, true) : empty("No checkpoint set yet. Copy this line.", copyLine(`stoker set put ${volumes[0]?.name ?? "data"}/step-1000/ ./step-1000 --dir ${dir}`)),
    );
  });
}

export async function page(context) {
  const volume = decodeURIComponent(context.args.volume);
  const path = `volumes/${enc(volume)}/sets/${enc(context.args.set)}`;
  const body = place("div", { class: "stack" });
  await context.poll(4000, async () => {
    const status = await context.get(path);
    const receipts = status.info.state === "published" ? await context.get(`${path}/receipts?limit=200`) : null;
    const { nodes } = await context.get("nodes");
    if (!body.isConnected) context.show(body);
    body.update([status, receipts, nodes.map((node) => node.name)], () => draw(context, path, status, receipts, nodes));
  });
}

function draw(context, path, status, receipts, nodes) {
  const { info } = status;
  const names = new Map(nodes.map((node) => [node.node, node.name || node.node.slice(0, 8)]));
  const isOpen = info.state === "open";
  const ask = (title, words, action, call, danger) => () =>
    confirm({ title, words, action, danger, act: () => post(`${path}/${call}`) }).then((said) => said && (toast(`The set is ${said.state}.`), context.again()));
  return [
    pageHead(
      [["Checkpoint sets", "#/sets"], [info.volume, `#/volumes/${enc(info.volume)}`]],
      info.path,
      badge(info.state),
      isOpen && act(context.session, "Publish", ask(`Publish ${info.path}?`, "All shards become visible at once.", "Publish", "publish", false), "primary"),
      isOpen && act(context.session, "Abort", ask(`Give ${info.path} up?`, "What was written for it goes.", "Abort", "abort", true), "danger"),
    ),
    h(
      "div",
      { class: "grid two" },
      card(
        "Set",
        {},
        facts([
          ["id", `${info.volume}:${info.set}`],
          ["owner", info.owner],
          ["shards", `${count(status.present)} of ${count(info.shards)}`],
          ["size", bytes(status.bytes)],
          ["in the lake", badge(status.drain)],
        ]),
        meter([[status.present, "clean", "there"]], info.shards, `${status.present} of ${info.shards} shards`),
      ),
      card(
        "Times",
        {},
        facts([
          ["begun", date(info.begun_ms)],
          [isOpen ? "given up at" : "deadline was", date(info.deadline_ms)],
          ["closed", info.closed_ms > 0 ? date(info.closed_ms) : null],
          ["took", info.closed_ms > 0 ? span(info.closed_ms - info.begun_ms) : null],
          ["catalog commit", info.seq > 0 ? count(info.seq) : null],
        ]),
        status.laggards.length > 0 && h("p", {}, `${things(status.laggards.length, "shard")} lack: ${status.laggards.slice(0, 30).join(", ")}${status.laggards.length > 30 ? "…" : ""}`),
      ),
    ),
    card(
      "Receipts",
      { note: receipts?.more ? "the first 200 shards" : null },
      receipts
        ? table(
            [
              ["shard", (receipt) => h("a", { class: "break", href: `#/file/${enc(info.volume)}/${encKey(receipt)}` }, receipt.key.slice(info.path.length) || receipt.key)],
              ["size", (receipt) => bytes(receipt.size), "number"],
              ["copies", (receipt) => receipt.copies, "number"],
              ["on", (receipt) => [...new Set(receipt.holders.map((holder) => names.get(holder.node) ?? holder.node.slice(0, 8)))].join(", ") || "the lake alone"],
              ["lake", (receipt) => badge(receipt.drain)],
              ["checksum", (receipt) => h("code", { class: "small" }, Object.values(receipt.checksums)[0] ?? "–")],
            ],
            receipts.receipts,
          )
        : empty("Shards have receipts when the set is published."),
    ),
  ];
}
