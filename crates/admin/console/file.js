// One file, explained: where it is, what is true of it, what happens next.

import { enc, post } from "./api.js";
import { h, place } from "./dom.js";
import { bytes, count, date, things } from "./units.js";
import { act, badge, card, empty, facts, meter, pageHead, stateOf, table } from "./parts.js";
import { confirm, toast } from "./dialog.js";

/** The text of percent-encoded bytes; those that are no text are shown as they were given. */
function text(encoded) {
  try {
    return decodeURIComponent(encoded);
  } catch {
    return encoded;
  }
}

export async function page(context) {
  const volume = decodeURIComponent(context.args.volume);
  const key = context.args.key;
  const name = text(key);
  const path = `volumes/${enc(volume)}`;
  const folder = name.includes("/") ? name.slice(0, name.lastIndexOf("/") + 1) : "";
  const trail = [["Volumes", "#/volumes"], [volume, `#/volumes/${enc(volume)}`], ...(folder ? [[folder, `#/volumes/${enc(volume)}?prefix=${enc(folder)}`]] : [])];
  const body = place("div", { class: "stack" });
  await context.poll(4000, async () => {
    const [told, { nodes }, { drives }] = await Promise.all([context.get(`${path}/explain?key=${key}`), context.get("nodes"), context.get("drives")]);
    if (!body.isConnected) context.show(body);
    const seen = [nodes.map((node) => [node.node, node.name, stateOf(node)]), drives.map((drive) => [drive.drive, drive.path, drive.state])];
    body.update([told, ...seen], () => draw(context, told, nodes, drives, { volume, name, trail, path }));
  });
}

function draw(context, told, nodes, drives, { volume, name, trail, path }) {
  const { file, receipt } = told;
  const names = new Map(nodes.map((node) => [node.node, node]));
  const answers = (id) => names.has(id) && !["down", "silent"].includes(stateOf(names.get(id)));
  const readable = new Set(receipt.holders.map((holder) => holder.node).filter(answers)).size;
  const paths = new Map(drives.map((drive) => [drive.drive, drive.path]));
  const change = (title, words, action, call, after) => () =>
    confirm({ title, words, action, act: () => post(`${path}/${call}`, call === "stage" ? { key: file.key } : { prefix: file.key }) }).then((said) => said && (toast(after(said)), context.again()));
  const drain = change(`Drain ${name} now?`, "It goes to the lake without waiting until it is quiet.", "Drain now", "drain", (said) => (said.files > 0 ? "It drains now." : "It is in the lake already."));
  const stage = change(`Stage ${name}?`, "Its bytes are brought from the lake onto drives.", "Stage", "stage", (said) => `${bytes(said.bytes)} came from the lake.`);
  const isLocal = told.chunks > 0 && told.chunks_local === told.chunks;
  return [
    pageHead(trail, name.slice(name.lastIndexOf("/") + 1) || name, badge(file.drain), file.drain === "dirty" && act(context.session, "Drain now", drain), !isLocal && file.drain === "clean" && act(context.session, "Stage", stage)),
    card("What is true now", {}, h("ul", { class: "words" }, told.words.map((words) => h("li", {}, words)))),
    h(
      "div",
      { class: "grid two" },
      card(
        "Receipt",
        {},
        facts([
          ["copies", `${receipt.copies === 1 ? "1" : `${receipt.copies}, on different nodes`} (class ${receipt.class})${readable < new Set(receipt.holders.map((holder) => holder.node)).size ? `; of the nodes that hold it ${readable} ${readable === 1 ? "answers" : "answer"} now` : ""}`],
          ["lake", receipt.lake ? h("span", { class: "break" }, receipt.lake) : "none"],
          ["lake etag", receipt.lake_etag],
          ["version", h("code", {}, receipt.version)],
          ["catalog commit", count(receipt.seq)],
          ["etag", h("code", {}, receipt.etag)],
          ...Object.entries(receipt.checksums).map(([kind, sum]) => [kind, h("code", {}, sum)]),
        ]),
        table(
          [
            ["holder", (holder) => h("a", { href: `#/nodes/${enc(names.get(holder.node)?.name || holder.node)}` }, names.get(holder.node)?.name || holder.node.slice(0, 8))],
            ["state", (holder) => (names.has(holder.node) ? badge(stateOf(names.get(holder.node))) : badge("gone"))],
            ["drive", (holder) => h("span", { class: "break", title: holder.drive }, paths.get(holder.drive) || "not known: its node does not answer")],
          ],
          receipt.holders,
          "No drive holds it: it is in the lake.",
        ),
      ),
      card(
        "On this node",
        {},
        told.chunks === 0
          ? empty("It has no bytes.")
          : [
              h("p", {}, `${count(told.chunks_local)} of ${things(told.chunks, "chunk")} on drives here, ${count(told.chunks_cached)} in memory.`),
              meter([[told.chunks_local, "clean", "on drives here"]], told.chunks, `${told.chunks_local} of ${told.chunks} chunks`),
              told.holders.length > 0 && table([["drive", (held) => h("span", { class: "break" }, held.drive)], ["chunks", (held) => count(held.chunks), "number"], ["bytes", (held) => bytes(held.bytes), "number"]], told.holders),
            ],
        h("h3", {}, "File"),
        facts([
          ["volume", h("a", { href: `#/volumes/${enc(volume)}` }, volume)],
          ["key", h("span", { class: "break" }, file.key)],
          ["size", `${bytes(file.size)} (${count(file.size)} bytes)`],
          ["changed", date(file.modified_ms)],
          ["type", file.content_type],
          ["parts", file.parts > 0 ? count(file.parts) : null],
          ["mode", file.mode == null ? null : (file.mode & 0o7777).toString(8)],
          ["owner", file.owner ? file.owner.join(":") : null],
          ...Object.entries(file.meta).map(([kind, value]) => [`meta ${kind}`, value]),
          ...Object.entries(file.tags).map(([kind, value]) => [`tag ${kind}`, value]),
        ]),
      ),
    ),
  ];
}
