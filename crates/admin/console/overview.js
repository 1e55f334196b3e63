// Everything at a glance, what is at risk first.

import { h, place } from "./dom.js";
import { bytes, count, ms, perSecond, rate, span, things } from "./units.js";
import { ago, badge, byName, callWords, card, copyLine, empty, loading, meter, table, tone } from "./parts.js";
import { objectives } from "./objectives.js";
import { merged, plot } from "./plot.js";

const TIERS_MAX = 12;

export async function page(context) {
  const risk = place("section", { class: "card risk", "aria-label": "Risk" });
  const tiles = place("div", { class: "tiles" });
  const first = place("div");
  const map = place("div", { class: "cells" });
  const volumes = place();
  const events = place();
  const plots = [
    plot("Throughput", [
      { name: "read_bytes_per_s", label: "read" },
      { name: "write_bytes_per_s", label: "written" },
      { name: "drain_bytes_per_s", label: "drained" },
      { name: "lake_read_bytes_per_s", label: "read from lakes" },
    ], { format: rate, floor: 1e6, none: "Nothing was measured." }),
    plot("Latency of S3 requests", [
      { name: "read_p50_ms", label: "read P50" },
      { name: "read_p99_ms", label: "read P99" },
      { name: "write_p50_ms", label: "write P50" },
      { name: "write_p99_ms", label: "write P99" },
    ], { format: ms, floor: 1, none: "No S3 request in this time." }),
    plot("Commits by class", [
      { name: "commits_one_per_s", label: "one" },
      { name: "commits_two_per_s", label: "two" },
      { name: "commits_three_per_s", label: "three" },
      { name: "commits_lake_per_s", label: "by the lake" },
    ], { format: perSecond, floor: 1, none: "Nothing was measured." }),
    plot("Drain lag", [{ name: "drain_lag_bytes", label: "waiting for the lake" }], { format: bytes, floor: 2 ** 20, base: 1024, none: "Nothing was measured." }),
  ];
  risk.append(loading());
  tiles.append(loading());
  map.append(loading());
  volumes.append(loading());
  context.show(
    risk,
    first,
    tiles,
    card("Cell map", { note: "states as this node sees them" }, map),
    objectives(context),
    h("div", { class: "section-head" }, h("h2", {}, "This node, lately"), h("span", { class: "muted small" }, "what came in and went out through it")),
    h("div", { class: "grid two" }, plots),
    card("Volumes", { actions: h("a", { href: "#/volumes" }, "All volumes") }, volumes),
    card("Events", { actions: h("a", { href: "#/log" }, "Log") }, events),
  );

  let series = null;
  const every = (await context.get("about").catch(() => ({ series_every_ms: 2000 }))).series_every_ms;
  context.poll(every, async () => {
    const after = series?.at_ms.at(-1) ?? 0;
    series = merged(series, await context.get(`series?after_ms=${after}`));
    plots.forEach((one) => one.show(series));
  });
  context.poll(5000, async () => {
    const [report, status, nodes, drives, all] = await Promise.all(
      ["risk", "status", "nodes", "drives", "volumes"].map(context.get),
    );
    risk.update(report, drawRisk);
    tiles.update([status, nodes.nodes, drives.drives].map((part) => part), () => drawTiles(status, nodes.nodes, drives.drives));
    map.update({ nodes: nodes.nodes, drives: drives.drives, peers: status.nodes }, drawMap);
    const about = await context.get("about");
    const nothing = all.volumes.every((volume) => volume.files === 0);
    first.update({ nothing, line: about.first_line }, ({ nothing, line }) =>
      nothing ? [card(null, { class: "start" }, h("h2", {}, "No data yet. Copy this line."), line ? copyLine(line) : h("p", { class: "muted" }, "Write a file through any door."))] : [],
    );
  });
  context.poll(10000, async () => {
    const { volumes: all } = await context.get("volumes");
    const shown = all.slice(0, TIERS_MAX);
    const tiers = await Promise.all(shown.map((volume) => context.get(`volumes/${encodeURIComponent(volume.name)}/tiers`).catch(() => null)));
    volumes.update([shown, tiers], () => volumeTable(shown, tiers));
    events.update(await lately(context), drawEvents);
  });
}

function drawRisk(report) {
  const worst = report.nodes.reduce((worst, node) => (node.lost_bytes + node.lost_files > worst.lost_bytes + worst.lost_files ? node : worst), { lost_bytes: 0, lost_files: 0, name: "" });
  const few = report.nodes.reduce((sum, node) => Math.max(sum, node.one_copy_files), 0);
  const lost = report.lost_files > 0;
  const [kind, words] = lost
    ? ["bad", `${things(report.lost_files, "file")} (${bytes(report.lost_bytes)}) cannot be read now`]
    : worst.lost_files > 0
      ? ["bad", `If ${worst.name} dies now, ${things(worst.lost_files, "file")} (${bytes(worst.lost_bytes)}) are lost`]
      : few > 0
        ? ["warn", `No loss if one node dies, but ${things(few, "file")} have one copy`]
        : ["ok", "If any one node dies now, nothing is lost"];
  const row = (name, link) => [
    name,
    (risk) => (link ? h("a", { href: `#/nodes/${encodeURIComponent(risk.name || risk.node)}` }, risk.name || risk.node.slice(0, 8)) : risk.name || "(no name)"),
  ];
  const columns = (title, link) => [
    row(title, link),
    ["would be lost", (risk) => h("span", { class: risk.lost_files > 0 ? "bad" : "" }, bytes(risk.lost_bytes), risk.doubtful_bytes > 0 && ` (perhaps ${bytes(risk.doubtful_bytes)} more)`), "number"],
    ["not in the lake", (risk) => bytes(risk.undrained_bytes), "number"],
    ["oldest", (risk) => (risk.undrained_files > 0 ? span(risk.oldest_age_ms) : "–"), "number"],
    ["with one copy", (risk) => bytes(risk.one_copy_bytes), "number"],
  ];
  return [
    h("div", { class: `headline ${kind}` }, h("span", { class: "dot" }), h("h1", {}, words)),
    table(columns("if this node dies now", true), byName(report.nodes)),
    report.cells.length > 1 && table(columns("if this cell dies now", false), byName(report.cells)),
    lost && h("p", {}, h("a", { href: "#/log" }, "Which files: "), h("code", {}, "stoker risk --lost")),
    report.at_least && h("p", { class: "muted" }, "There is more than was looked at: each number is at least that."),
  ];
}

function tile(name, value, kind, note) {
  return h("div", { class: `tile ${kind ?? ""}` }, h("span", { class: "muted small" }, name), h("b", {}, value), note && h("span", { class: "muted small" }, note));
}

function drawTiles(status, nodes, drives) {
  const up = nodes.filter((node) => node.state === "up" && !node.silent_since_ms).length;
  const live = drives.filter((drive) => drive.state === "live").length;
  const resting = drives.filter((drive) => drive.state === "resting").length;
  const space = drives.reduce((sum, drive) => sum + drive.bytes, 0);
  const used = drives.reduce((sum, drive) => sum + drive.keep_bytes, 0);
  return [
    tile("This node", status.ready ? "ready" : "not ready", status.ready ? "ok" : "bad", ["started ", ago(status.started_ms)]),
    tile("Nodes up", `${up} of ${nodes.length}`, up === nodes.length ? "ok" : "bad"),
    tile("Drives live", `${live} of ${drives.length}`, live === drives.length ? "ok" : live + resting === drives.length ? "warn" : "bad", resting > 0 ? `${resting} resting` : `${bytes(used)} to keep of ${bytes(space)}`),
    tile("Not in the lake", bytes(status.dirty_bytes), status.lake_trouble ? "warn" : "", status.dirty_files > 0 ? things(status.dirty_files, "file") : "all drained"),
    tile("Conflicts", count(status.conflicts), status.conflicts > 0 ? "bad" : "ok", status.conflicts > 0 ? "stoker conflict ls" : "none"),
    tile("Memory cache", bytes(status.cache_bytes), "", "of hot pieces"),
  ];
}

function drawMap({ nodes, drives, peers }) {
  const cells = new Map();
  for (const node of byName(nodes)) cells.set(node.cell, [...(cells.get(node.cell) ?? []), node]);
  const suspect = new Set(peers.filter((peer) => peer.suspect).map((peer) => peer.node));
  return [...cells].sort(([a], [b]) => a.localeCompare(b)).map(([cell, members]) =>
    h(
      "div",
      { class: "cell" },
      h("h3", {}, cell === "" ? (cells.size > 1 ? "no cell" : "One cell") : /^cell/i.test(cell) ? cell : `Cell ${cell}`, " ", h("span", { class: "muted" }, things(members.length, "node"))),
      h("div", { class: "nodes" }, members.map((node) => nodeBox(node, drives.filter((drive) => drive.node === node.node), suspect.has(node.node)))),
    ),
  );
}

function nodeBox(node, drives, isSuspect) {
  const state = node.silent_since_ms && node.state !== "down" ? "silent" : isSuspect ? "suspect" : node.state;
  const labels = [node.tor, node.power].filter(Boolean).join(" · ");
  return h(
    "a",
    { class: `node ${tone(state)}`, href: `#/nodes/${encodeURIComponent(node.name || node.node)}` },
    h("span", { class: "node-head" }, h("b", {}, node.name || node.node.slice(0, 8)), badge(state)),
    h("span", { class: "muted small" }, [labels, node.answers].filter(Boolean).join(" · ")),
    drives.map((drive) =>
      h(
        "span",
        { class: `drive ${tone(drive.state)}` },
        h("span", { class: "small drive-head" }, h("span", { class: "cut", title: drive.path }, drive.path.split("/").slice(-2).join("/") || drive.drive.slice(0, 8)), h("span", {}, drive.state === "live" ? bytes(drive.bytes) : drive.state)),
        driveMeter(drive),
      ),
    ),
    h("span", { class: "muted small" }, node.undrained_bytes > 0 ? `${bytes(node.undrained_bytes)} not in the lake` : "everything is in the lake"),
  );
}

export const driveMeter = (drive) => meter([[drive.keep_bytes, "keep", "must stay"], [drive.clean_bytes, "clean", "may go"]], drive.bytes);

export function volumeTable(volumes, tiers) {
  const tier = new Map(volumes.map((volume, at) => [volume.name, tiers[at]]));
  const usage = (volume) => {
    const known = tier.get(volume.name);
    if (!known) return "–";
    if (volume.bytes === 0) return h("span", { class: "muted" }, "empty");
    const kept = known.dirty.bytes + known.never.bytes + known.conflict.bytes;
    const whole = kept + known.clean.bytes;
    return h(
      "div",
      { class: "usage" },
      meter([[kept, "keep", "only on drives"], [known.clean.bytes, "clean", "in the lake"]], whole),
      h("span", { class: "muted small" }, `${bytes(known.clean.bytes)} in the lake, ${bytes(kept)} only on drives${known.at_least ? " (of the first 10 000 files)" : ""}`),
    );
  };
  return table(
    [
      ["volume", (volume) => h("a", { href: `#/volumes/${encodeURIComponent(volume.name)}` }, volume.name)],
      ["files", (volume) => count(volume.files), "number"],
      ["size", (volume) => bytes(volume.bytes), "number"],
      ["class", (volume) => volume.policy.class],
      ["where its bytes are", usage, "wide"],
      ["quota", (volume) => (volume.policy.quota_bytes > 0 ? `${bytes(volume.bytes)} of ${bytes(volume.policy.quota_bytes)}` : "none")],
    ],
    volumes,
    "No volume yet. Make one with stoker volume create NAME.",
  );
}

async function lately(context) {
  const [told, audit] = await Promise.all([context.get("events?limit=8"), context.get("audit?limit=8")]);
  const events = told.events.map((event) => ({ at: event.at_ms, kind: event.level, words: `${event.name || event.subject}: ${event.words}` }));
  const calls = audit.entries.map((entry) => ({ at: entry.at_ms, kind: entry.status < 400 ? "info" : "warn", words: `${entry.role}: ${callWords(entry)}${entry.status < 400 ? "" : `, refused: ${entry.error}`}` }));
  return [...events, ...calls].sort((a, b) => b.at - a.at).slice(0, 8);
}

function drawEvents(rows) {
  if (rows.length === 0) return empty("Nothing happened yet.");
  return h("ul", { class: "events" }, rows.map((row) => h("li", {}, badge(row.kind), h("span", { class: "words" }, row.words), h("span", { class: "muted small" }, ago(row.at)))));
}
