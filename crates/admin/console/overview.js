// Everything at a glance: what wants a person first, then what is at risk.

import { h, place } from "./dom.js";
import { bytes, count, percent, rate, seconds, span, things } from "./units.js";
import { agedNote, ago, badge, byName, card, copyLine, DRIVE_LEGEND, empty, failure, foldable, legend, loading, meter, paged, sentence, stateOf, table, tone } from "./parts.js";
import { history } from "./history.js";
import { objectives } from "./objectives.js";
import { apiCalls, callWords, kindWords, namer } from "./words.js";

const TIERS_MAX = 12;
/** Volumes of a page of the list. */
export const VOLUMES_SHOWN = 20;
const NODES_SHOWN = 24;
const ALERTS_SHOWN = 4;

export async function page(context) {
  const alerts = place("section", { class: "card alerts", "aria-label": "Alerts" });
  const risk = place("section", { class: "card risk", "aria-label": "Risk" });
  const tiles = place("div", { class: "tiles" });
  const first = place("div");
  const map = place("div");
  const volumes = place("div");
  const events = place("div");
  [alerts, risk, tiles, map, volumes].forEach((part) => part.append(loading()));
  // What tiles are made of comes from three polls; each draws with what the others told last.
  const seen = { status: null, nodes: null, drives: null, recent: null, capacity: null, report: null, isDark: false };
  const drawTiles = () => seen.status && seen.nodes && tiles.update([seen.status, seen.nodes, seen.drives, seen.recent?.at_ms.at(-1), seen.capacity, seen.report, seen.isDark], () => tileRow(seen));
  context.show(
    alerts,
    risk,
    first,
    tiles,
    history(context, { title: "The cluster over time", names: ["throughput", "latency", "requests", "space", "lag", "age"], wrap: foldable }),
    foldable("Topology", { note: "states as this node sees them" }, map),
    objectives(context),
    foldable("Volumes", { actions: h("a", { href: "#/volumes" }, "All volumes") }, volumes),
    foldable("Events", { actions: h("a", { href: "#/log" }, "Log") }, events),
  );
  context.poll(5000, async () => {
    const told = await Promise.all(["risk", "status", "nodes", "drives", "volumes", "about", "outages"].map(context.attempt));
    const [report, status, nodes, drives, all, about, outages] = told;
    // What was true when the catalog last answered is not what is true.
    const stale = new Map((outages.stale ?? []).map((view) => [view.view, view.as_of_ms]));
    const isDark = (outages.lost ?? []).some((one) => one.what === "catalog");
    if (told.every((one) => one.error)) throw report.error;
    const asOf = isDark || stale.has("risk") ? (stale.get("risk") ?? 0) : null;
    risk.update([report.error?.message ?? report, asOf], () => (report.error ? failure(report.error) : drawRisk(report, asOf)));
    if (!status.error && !nodes.error && !drives.error) {
      Object.assign(seen, { status, nodes: nodes.nodes, drives: drives.drives, report: report.error ? null : report, isDark });
      drawTiles();
      map.update({ nodes: nodes.nodes, drives: drives.drives, peers: status.nodes, isDark }, drawMap);
    }
    const nothing = !all.error && !isDark && !stale.has("volumes") && all.volumes.every((volume) => volume.files === 0);
    first.update({ nothing, line: about.first_line }, ({ nothing, line }) =>
      nothing ? [card(null, { class: "start" }, h("h2", {}, line ? "No data yet. Copy this line." : "No data yet."), line ? copyLine(line) : h("p", { class: "muted" }, "Write a file through any door."))] : [],
    );
  });
  context.poll(5000, async () => {
    const [told, recent] = await Promise.all([context.get("alerts"), context.get("history?window_s=900")]);
    Object.assign(seen, { recent, capacity: told.capacity });
    alerts.update([told.alerts, told.not_known], () => drawAlerts(told));
    drawTiles();
  });
  context.poll(10000, async () => {
    const { volumes: all } = await context.get("volumes");
    const shown = all.slice(0, TIERS_MAX);
    const tiers = await Promise.all(shown.map((volume) => context.get(`volumes/${encodeURIComponent(volume.name)}/tiers`).catch(() => null)));
    const outages = await context.attempt("outages");
    volumes.update([shown, tiers, outages.stale], () => [agedNote(outages, "volumes"), volumeTable(shown, tiers)]);
    events.update(await lately(context, namer(seen.nodes, seen.drives)), drawEvents);
  });
}

function drawAlerts({ alerts, not_known }) {
  const one = (alert) =>
    h(
      "li",
      {},
      badge(alert.severity === "page" ? "error" : "warn", alert.severity === "page" ? "act now" : "look today"),
      h("div", {}, h("b", {}, alert.node ? h("a", { href: `#/nodes/${encodeURIComponent(alert.node)}` }, sentence(alert.summary)) : sentence(alert.summary)), h("div", { class: "muted small" }, sentence(alert.action))),
    );
  const list = (rows) => h("ul", { class: "alerts-list" }, rows.map(one));
  return [
    alerts.length === 0
      ? h("p", { class: "well" }, h("span", { class: `dot ${not_known.length > 0 ? "warn" : "ok"}` }), not_known.length > 0 ? "No active alert, as far as is known." : "No active alert.")
      : [h("h2", {}, things(alerts.length, "active alert")), paged("alerts", alerts, list, ALERTS_SHOWN)],
    not_known.length > 0 && h("p", { class: "warn small break" }, `Not known now: ${not_known.join("; ")}`),
  ];
}

/** `asOf`: when it was true, if that is not now; 0 if only this node's own part is known. */
function drawRisk(report, asOf) {
  const worst = report.nodes.reduce((worst, node) => (node.lost_bytes + node.lost_files > worst.lost_bytes + worst.lost_files ? node : worst), { lost_bytes: 0, lost_files: 0, name: "" });
  const few = report.nodes.reduce((sum, node) => Math.max(sum, node.one_copy_files), 0);
  const lost = report.lost_files > 0;
  const [kind, said] = lost
    ? ["bad", `${things(report.lost_files, "file")} (${bytes(report.lost_bytes)}) cannot be read now`]
    : worst.lost_files > 0
      ? ["bad", `If ${worst.name} dies now, ${things(worst.lost_files, "file")} (${bytes(worst.lost_bytes)}) are lost`]
      : few > 0
        ? ["warn", `No loss if one node dies, but ${things(few, "file")} have one copy`]
        : ["ok", report.nodes.length === 1 ? "If this node dies now, nothing is lost" : "If any one node dies now, nothing is lost"];
  const [colour, words] = asOf == null ? [kind, said] : ["warn", "What would be lost now is not known: the catalog does not answer"];
  const row = (name, link) => [
    name,
    (risk) => (link ? h("span", {}, h("a", { href: `#/nodes/${encodeURIComponent(risk.name || risk.node)}` }, risk.name || risk.node.slice(0, 8)), risk.state === "down" && [" ", badge("down")]) : risk.name || "(no name)"),
  ];
  const columns = (title, link) => [
    row(title, link),
    ["would be lost", (risk) => h("span", { class: risk.lost_files > 0 ? "bad" : "" }, bytes(risk.lost_bytes), risk.doubtful_bytes > 0 && ` (perhaps ${bytes(risk.doubtful_bytes)} more)`), "number"],
    ["not in the lake", (risk) => bytes(risk.undrained_bytes), "number"],
    ["oldest", (risk) => (risk.undrained_files > 0 ? span(risk.oldest_age_ms) : "–"), "number"],
    ["with one copy", (risk) => bytes(risk.one_copy_bytes), "number"],
  ];
  return [
    h("div", { class: `headline ${colour}` }, h("span", { class: "dot" }), h("h1", {}, words)),
    asOf != null && h("p", { class: "muted small" }, asOf === 0 ? "Below is what this node knows by itself." : ["Below is what was true ", ago(asOf), ` (${said}).`]),
    h(
      "details",
      { class: "more", open: worst.lost_files > 0 || !matchMedia("(max-width: 760px)").matches },
      h("summary", { class: "muted small" }, "By node"),
      paged("risk", byName(report.nodes), (rows) => table(columns("if this node dies now", true), rows), 12),
      report.cells.length > 1 && paged("risk-cells", byName(report.cells), (rows) => table(columns("if this cell dies now", false), rows), 12),
    ),
    lost && h("p", {}, h("a", { href: "#/log" }, "Which files: "), h("code", {}, "stoker risk --lost")),
    report.at_least && h("p", { class: "muted" }, "There is more than was looked at: each number is at least that."),
  ];
}

function tile(name, value, kind, note, href) {
  return h(href ? "a" : "div", { class: `tile ${kind ?? ""}`, href }, h("span", { class: "muted small" }, name), h("b", {}, value), note && h("span", { class: "muted small" }, note));
}

/** The newest figures of all nodes together. */
const newest = (recent) => (name) => recent?.series[name]?.at(-1) ?? null;

function tileRow({ status, nodes, drives, recent, capacity, report, isDark }) {
  const up = nodes.filter((node) => ["up", "witness"].includes(node.state) && !node.silent_since_ms).length;
  const live = drives.filter((drive) => drive.state === "live").length;
  const of = (state) => drives.filter((drive) => drive.state === state).length;
  const [cordoned, unknown] = [of("cordoned"), of("unknown")];
  const notLive = [cordoned > 0 && `${cordoned} cordoned`, unknown > 0 && `${unknown} not known: no answer`, live + cordoned + unknown < drives.length && `${drives.length - live - cordoned - unknown} out`].filter(Boolean).join(", ");
  const now = newest(recent);
  const clients = ["s3_connections", "nfs_connections", "door_connections"].map(now);
  const known = clients.filter((value) => value != null);
  // What a node that is lost had to drain is counted by nobody until others take it over; the copies of it are.
  const copies = (report?.nodes ?? []).reduce((most, node) => (node.undrained_bytes > most.undrained_bytes ? node : most), { undrained_bytes: 0, oldest_age_ms: 0 });
  const waits = Math.max(now("drain_lag_bytes") ?? status.dirty_bytes, copies.undrained_bytes);
  const waitsFor = Math.max((now("drain_lag_s") ?? status.dirty_age_ms / 1000), copies.oldest_age_ms / 1000);
  const full = capacity?.full_in_s;
  const used = capacity?.space_bytes > 0 ? (100 * capacity.keep_bytes) / capacity.space_bytes : null;
  return [
    tile("Nodes up", `${up} of ${nodes.length}`, up === nodes.length ? "ok" : "bad", status.ready ? "this node is ready" : "this node is not ready", "#/nodes"),
    tile("Drives live", `${live} of ${drives.length}`, live === drives.length ? "ok" : live + cordoned + unknown === drives.length ? "warn" : "bad", notLive || "all in service"),
    tile("Space that must stay", used == null ? "–" : percent(used), used > 80 || (full != null && full < 86400) ? "bad" : "", used == null ? "not known yet" : `${bytes(capacity.keep_bytes)} of ${bytes(capacity.space_bytes)}; ${full != null ? `full in ${span(full * 1000)} at this rate` : capacity.fill_bytes_per_s == null ? "no forecast yet" : "does not fill up"}`),
    isDark
      ? tile("Waiting for the lake", "–", "warn", "not known while the catalog does not answer", "#/lake")
      : tile("Waiting for the lake", bytes(waits), status.lake_trouble ? "warn" : "", waits > 0 ? `oldest for ${seconds(waitsFor)}` : "all drained", "#/lake"),
    tile("Read", rate(now("read_bytes_per_s")), "", "all nodes"),
    tile("Written", rate(now("write_bytes_per_s")), "", now("commits_per_s") == null ? "all nodes" : `${now("commits_per_s").toFixed(1)} commits/s`),
    tile("Client connections", known.length === 0 ? "–" : count(known.reduce((sum, value) => sum + value, 0)), "", known.length === 0 ? "not known yet" : `S3 ${count(clients[0])}, NFS ${count(clients[1])}, local ${count(clients[2])}`, "#/nodes"),
    tile("Conflicts", count(status.conflicts), status.conflicts > 0 ? "bad" : "ok", status.conflicts > 0 ? "decide which stays" : "none", "#/volumes"),
  ];
}

/** Nodes by a label, in the order of names. */
function grouped(nodes, label) {
  const groups = new Map();
  for (const node of nodes) groups.set(label(node), [...(groups.get(label(node)) ?? []), node]);
  return [...groups].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
}

function drawMap({ nodes, drives, peers, isDark }) {
  const suspect = new Set(peers.filter((peer) => peer.suspect).map((peer) => peer.node));
  const box = (node) => nodeBox(node, drives.filter((drive) => drive.node === node.node), suspect.has(node.node), isDark);
  const cells = grouped(byName(nodes), (node) => node.cell);
  const racks = (cell, members) => {
    const all = grouped(members, (node) => node.tor);
    // One switch for all says nothing.
    if (all.length === 1 && all[0][0] === "") return paged(`map-${cell}`, members, (rows) => h("div", { class: "nodes" }, rows.map(box)), NODES_SHOWN);
    return paged(
      `map-${cell}`,
      all,
      (rows) => h("div", { class: "racks" }, rows.map(([tor, some]) => h("div", { class: "rack" }, h("h4", { class: "muted small" }, tor === "" ? "no switch named" : `Rack ${tor}`), h("div", { class: "nodes" }, some.map(box))))),
      NODES_SHOWN,
    );
  };
  const one = ([cell, members]) =>
    h(
      "div",
      { class: "cell" },
      h("h3", {}, cell === "" ? (cells.length > 1 ? "no cell" : "One cell") : /^cell/i.test(cell) ? cell : `Cell ${cell}`, " ", h("span", { class: "muted" }, things(members.length, "node"))),
      racks(cell, members),
    );
  return [paged("cells", cells, (some) => h("div", { class: "cells" }, some.map(one)), 12), legend(DRIVE_LEGEND)];
}

function nodeBox(node, drives, isSuspect, isDark) {
  const state = isSuspect && stateOf(node) === node.state && node.state !== "down" ? "suspect" : stateOf(node);
  const labels = node.power ? (/^power/i.test(node.power) ? node.power : `power ${node.power}`) : "";
  return h(
    "a",
    { class: `node ${tone(state)}`, href: `#/nodes/${encodeURIComponent(node.name || node.node)}` },
    h("span", { class: "node-head" }, h("b", {}, node.name || node.node.slice(0, 8)), badge(state)),
    h("span", { class: "muted small" }, [labels, node.answers].filter(Boolean).join(" · ")),
    drives.map((drive) =>
      h(
        "span",
        { class: `drive ${tone(drive.state)}` },
        h("span", { class: "small drive-head" }, h("span", { class: "cut", title: drive.path }, drive.path.split("/").slice(-2).join("/") || "a drive"), h("span", {}, drive.state === "live" ? bytes(drive.bytes) : drive.state)),
        driveMeter(drive),
      ),
    ),
    h("span", { class: "muted small" }, isDark ? "what it holds is not known now" : held(node)),
  );
}

function held(node) {
  if (node.undrained_bytes > 0) return `${bytes(node.undrained_bytes)} not in the lake`;
  return node.state === "down" ? "nothing waits for it" : "everything is in the lake";
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
  const columns = [
    ["volume", (volume) => h("a", { href: `#/volumes/${encodeURIComponent(volume.name)}` }, volume.name)],
    ["files", (volume) => count(volume.files), "number"],
    ["size", (volume) => bytes(volume.bytes), "number"],
    ["class", (volume) => volume.policy.class],
    ["where its bytes are", usage, "wide"],
    ["quota", (volume) => (volume.policy.quota_bytes > 0 ? `${bytes(volume.bytes)} of ${bytes(volume.policy.quota_bytes)}` : "none")],
  ];
  return [
    paged("volumes", volumes, (rows) => table(columns, rows, "No volume yet. Make one with stoker volume create NAME."), VOLUMES_SHOWN),
    volumes.length > 0 && legend([["keep", "only on drives"], ["clean", "in the lake, too"]]),
  ];
}

async function lately(context, named) {
  const [told, audit] = await Promise.all([context.get("events?limit=8"), context.get("audit?door=admin&limit=50").then(apiCalls)]);
  const events = told.events.map((event) => ({ at: event.at_ms, kind: event.level, words: named(event.words.startsWith(event.name) && event.name ? event.words : `${event.name || kindWords(event.subject)}: ${event.words}`) }));
  const calls = audit.entries.map((entry) => ({ at: entry.at_ms, kind: entry.result === "ok" ? "info" : "warn", words: `${entry.principal}: ${callWords(entry)}${entry.result === "ok" ? "" : `, ${entry.result}`}` }));
  return [...events, ...calls].sort((a, b) => b.at - a.at).slice(0, 8);
}

function drawEvents(rows) {
  if (rows.length === 0) return empty("Nothing happened yet.");
  return h("ul", { class: "events" }, rows.map((row) => h("li", {}, badge(row.kind), h("span", { class: "words" }, row.words), h("span", { class: "muted small" }, ago(row.at)))));
}
