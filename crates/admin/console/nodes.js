// Nodes: the list, and the page of one of them with what can be done to it.

import { enc, get, post } from "./api.js";
import { h, place } from "./dom.js";
import { bytes, count, digits, perSecond, rate, span, things } from "./units.js";
import { act, badge, byName, card, copyLine, dirOf, DRIVE_LEGEND, empty, facts, failure, legend, loading, paged, pageHead, sentence, stateOf, table, ago } from "./parts.js";
import { confirm, toast } from "./dialog.js";
import { driveMeter } from "./overview.js";
import { catalogParts } from "./catalog.js";
import { history } from "./history.js";
import { goneFor, removalCard, removalWords, remove } from "./removal.js";

export async function list(context) {
  const nodes = place("div");
  nodes.append(loading());
  const catalog = place("div");
  const rebuild = place("div");
  const load = place("div");
  load.append(loading());
  const told = h("div");
  const about = await context.get("about").catch(() => ({}));
  const dir = dirOf(about);
  context.show(
    pageHead([], "Nodes", null, act(context.session, "Add a node", () => addNode(context, told), "primary")),
    told,
    card(null, {}, nodes),
    card("Load and clients", { note: "in the last seconds" }, load),
    h("div", { class: "grid two" }, card("Catalog", {}, catalog), card("Rebuild", {}, rebuild)),
  );
  context.poll(5000, async () => {
    const { nodes: all } = await context.get("history?window_s=900");
    load.update(all, (all) => paged("load", byName(all), loadTable));
  });
  await context.poll(4000, async () => {
    const [all, where, left, { removals = [] }] = await Promise.all([context.get("nodes"), ...["catalog", "rebuild", "removals"].map(context.attempt)]);
    const removing = new Map(removals.map((told) => [told.node, told]));
    const names = new Map(all.nodes.map((node) => [node.node, node.name || node.node.slice(0, 8)]));
    nodes.update([byName(all.nodes), removals], ([all]) =>
      paged("nodes", all, (rows) => table(
        [
          ["node", (node) => h("a", { href: `#/nodes/${enc(node.name || node.node)}` }, node.name || node.node.slice(0, 8))],
          ["state", (node) => (removing.has(node.node) && node.state !== "down" ? badge("removing") : badge(stateOf(node)))],
          ["since", (node) => ago(node.silent_since_ms ?? node.since_ms)],
          ["cell", (node) => node.cell || "–"],
          ["switch", (node) => node.tor || "–"],
          ["power", (node) => node.power || "–"],
          ["drives", (node) => (node.drives_gone > 0 ? `${node.drives} (${node.drives_gone} gone)` : node.drives), "number"],
          ["not in the lake", (node) => bytes(node.undrained_bytes), "number"],
          ["now", (node) => (removing.has(node.node) ? removalWords(removing.get(node.node)) : node.answers)],
        ],
        rows,
      )),
    );
    catalog.update([where.error?.message ?? where, [...names]], () => (where.error ? failure(where.error) : catalogParts(context, where, about.node, dir, names)));
    rebuild.update([left.error?.message ?? left, where.trouble], () =>
      left.error
        ? failure(left.error)
        : where.trouble
        ? empty("Not known while the catalog does not answer.")
        : left.files_left + left.lost_files === 0
        ? empty("Every file has its copies.")
        : facts([
            ["left", `${things(left.files_left, "file")}, ${bytes(left.bytes_left)}`],
            ["with one copy", left.one_copy_files > 0 ? `${things(left.one_copy_files, "file")}, ${bytes(left.one_copy_bytes)}` : "none"],
            ["lost", left.lost_files > 0 ? h("b", { class: "bad" }, `${things(left.lost_files, "file")}, ${bytes(left.lost_bytes)}`) : "none"],
            ["rate", `${bytes(left.bytes_per_s)}/s of at most ${bytes(left.bytes_per_s_max)}/s`],
            ["done in", left.end_in_ms == null ? "nothing moves now" : span(left.end_in_ms)],
            ["because of", left.losses.join(", ")],
            ["trouble", left.trouble],
          ]),
    );
  });
}

const share = (latest, name, format) => (latest == null ? "–" : format(latest[name]));

function loadTable(rows) {
  return table(
    [
      ["node", (one) => h("a", { href: `#/nodes/${enc(one.name || one.node)}` }, one.name || one.node.slice(0, 8))],
      ["reads", (one) => (one.answers ? share(one.latest, "read_bytes_per_s", rate) : badge("warn", "does not answer")), "number"],
      ["writes", (one) => share(one.latest, "write_bytes_per_s", rate), "number"],
      ["S3", (one) => share(one.latest, "requests_per_s", perSecond), "number"],
      ["S3 clients", (one) => share(one.latest, "s3_connections", count), "number"],
      ["NFS clients", (one) => share(one.latest, "nfs_connections", count), "number"],
      ["local programs", (one) => share(one.latest, "door_connections", count), "number"],
      ["cores", (one) => share(one.latest, "cpu_cores", digits), "number"],
      ["memory", (one) => share(one.latest, "memory_bytes", bytes), "number"],
    ],
    rows,
    "Nothing was measured yet.",
  );
}

async function addNode(context, told) {
  const made = await confirm({
    title: "Add a node",
    words: "This makes a join token. The line that is shown then is run on the new machine.",
    fields: [
      { name: "uses", kind: "number", label: "How many nodes it lets join", value: 1 },
      { name: "hours", kind: "number", label: "Hours that it works", value: 1 },
    ],
    action: "Make a join token",
    act: ({ uses, hours }) => post("join-tokens", { uses, ttl_s: hours * 3600 }),
  });
  if (!made) return;
  const status = await get("status").catch(() => null);
  const own = status?.nodes.find((peer) => peer.node === status.node);
  const line = `STOKER_JOIN_TOKEN=${made.join_token} stoker join ${own?.addresses[0] ?? "ADDRESS"}`;
  told.replaceChildren(card("The token is told once", { class: "start" }, h("p", {}, "Run this on the new machine, with an address of this node that it can reach."), copyLine(line)));
}

export async function page(context) {
  const node = decodeURIComponent(context.args.node);
  const path = `nodes/${enc(node)}`;
  const head = place("div");
  const body = place("div", { class: "stack" });
  const verdict = h("div", { role: "status" });
  const plots = h("div");
  await context.poll(3000, async () => {
    const page = await context.get(path).catch(async (error) => {
      const words = error.status === 404 && (await goneFor(context, node));
      if (!words) throw error;
      context.show(pageHead([["Nodes", "#/nodes"]], node, badge("gone", "removed")), ...words);
      return null;
    });
    if (!page) return;
    const [{ removals: [removal] }, { lost = [] }] = await Promise.all([context.get(`removals?node=${enc(page.node.node)}`), context.attempt("outages")]);
    const isDark = lost.some((one) => one.what === "catalog");
    const state = removal && page.node.state !== "down" ? "removing" : stateOf(page.node);
    const evacuation = page.node.state === "evacuating" && !removal ? await context.get(`${path}/evacuation`) : null;
    if (!head.isConnected) {
      context.show(head, verdict, body, plots);
    }
    // Its past is with the node itself.
    const [isAway, wasAway] = [isLost(page.node), plots.dataset.away];
    if (wasAway !== String(isAway)) {
      plots.dataset.away = isAway;
      plots.replaceChildren(isAway ? card("Over time", {}, empty("It keeps its figures itself, and does not answer. They are here again when it does.")) : history(context, { title: "Over time", names: ["throughput", "latency", "lag", "space"], node: page.node.node, wrap: card }));
    }
    head.update([page.node.name, state, Boolean(removal)], () => pageHead([["Nodes", "#/nodes"]], page.node.name || node, badge(state), actions(context, page.node, path, verdict, Boolean(removal))));
    body.update({ ...page, evacuation, removal, isDark }, () => [
      removal && removalCard(context, removal),
      evacuation && card("Evacuation", {}, progress(evacuation)),
      h("div", { class: "grid two" }, card("About", {}, about(page.node, isDark)), card(page.node.state === "down" ? "Lost with it" : "If it dies now", {}, isDark ? empty("Not known while the catalog does not answer.") : risk(page.risk))),
      card("Drives", { actions: !isLost(page.node) && act(context.session, "Add a drive", () => addDrive(context, page.node.name, path)) }, drives(context, page, path, isDark)),
    ]);
  });
}

const isLost = (node) => node.state === "down" || Boolean(node.silent_since_ms);

const about = (node, isDark) =>
  facts([
    ["id", h("code", {}, node.node)],
    ["cell", node.cell || "no name"],
    ["switch", node.tor || "–"],
    ["power feed", node.power || "–"],
    ["in this state", ago(node.since_ms)],
    ["now", node.answers],
    ["not in the lake", isDark ? "not known now" : `${things(node.undrained_files, "file")}, ${bytes(node.undrained_bytes)}`],
  ]);

function risk(risk) {
  if (!risk) return empty("Nothing is known.");
  return facts([
    ["lost", h("b", { class: risk.lost_files > 0 ? "bad" : "ok" }, `${things(risk.lost_files, "file")}, ${bytes(risk.lost_bytes)}`)],
    ["perhaps lost", risk.doubtful_files > 0 ? `${things(risk.doubtful_files, "file")}, ${bytes(risk.doubtful_bytes)}` : null],
    ["unfinished uploads", risk.lost_parts > 0 ? things(risk.lost_parts, "part") : null],
    ["not in the lake", `${things(risk.undrained_files, "file")}, ${bytes(risk.undrained_bytes)}`],
    ["the oldest of them", risk.undrained_files > 0 ? span(risk.oldest_age_ms) : null],
    ["with one copy", `${things(risk.one_copy_files, "file")}, ${bytes(risk.one_copy_bytes)}`],
  ]);
}

const progress = (told) =>
  told.done
    ? h("p", { class: "ok" }, "Empty: nothing is only there, and nothing there counts as a copy. It can be taken away.")
    : facts([
        ["left", `${things(told.files_left, "file")}, ${bytes(told.bytes_left)}`],
        ["only there", `${things(told.files_only_there, "file")}, ${bytes(told.bytes_only_there)}`],
        ["trouble", told.trouble],
      ]);

function drives(context, page, path, isDark) {
  const list = (rows) => table(
    [
      ["drive", (drive) => h("div", {}, h("span", { class: "break" }, drive.path || "a drive"), h("div", { class: "muted small" }, drive.drive))],
      ["state", (drive) => h("div", {}, badge(drive.state), drive.why && h("div", { class: "small" }, sentence(drive.why)))],
      ["use", (drive) => (drive.bytes === 0 ? h("span", { class: "muted" }, "not known") : h("div", { class: "usage" }, driveMeter(drive), h("span", { class: "muted small" }, `${bytes(drive.keep_bytes)} to keep, ${bytes(drive.clean_bytes)} may go, of ${bytes(drive.bytes)}`))), "wide"],
      ["not in the lake", (drive) => (isDark ? "not known now" : `${things(drive.undrained_files, "file")}, ${bytes(drive.undrained_bytes)}`), "number"],
      !isLost(page.node) && ["", (drive) => h("div", { class: "actions" }, cordon(context, page.node.name, drive, path), act(context.session, "Remove", () => removeDrive(context, page.node.name, drive, path), "danger"))],
    ],
    rows,
    "No drive is known.",
  );
  return [paged(`drives-${page.node.node}`, page.drives, list), page.drives.length > 0 && legend(DRIVE_LEGEND)];
}

function actions(context, node, path, verdict, isRemoving) {
  const name = node.name || node.node;
  const force = { name: "force", kind: "flag", label: "Although too few nodes may be left for some volumes" };
  const ask = async () => {
    verdict.replaceChildren(loading("Asking…"));
    try {
      const said = await get(`${path}/can-stop`);
      verdict.replaceChildren(
        h("div", { class: `card verdict ${said.can_stop ? "ok" : "warn"}` }, h("b", {}, said.can_stop ? `${name} can stop without anybody noticing.` : `${name} should not stop now:`), said.reasons.length > 0 && h("ul", {}, said.reasons.map((reason) => h("li", {}, reason)))),
      );
    } catch (error) {
      verdict.replaceChildren(failure(error));
    }
  };
  const after = (words) => {
    toast(words);
    context.again();
  };
  const quarantine = () =>
    confirm({
      title: `Quarantine ${name}?`,
      words: "Nothing new is copied to it. It is read from, and its own clients still write there.",
      fields: [force],
      action: "Quarantine",
      act: (values) => post(`${path}/quarantine`, values),
    }).then((done) => done && after(`${name} is quarantined.`));
  const evacuate = () =>
    confirm({
      title: `Evacuate ${name}?`,
      words: ["Everything there that is not in the lake is copied to other nodes and drained by them. Nothing new goes there.", "Send its writers elsewhere first."],
      fields: [force],
      typed: name,
      action: "Evacuate",
      danger: true,
      act: (values) => post(`${path}/evacuate`, values),
    }).then((done) => done && after(`The evacuation of ${name} began.`));
  const rejoin = () =>
    confirm({
      title: `Let ${name} rejoin?`,
      words: "It takes copies again.",
      action: "Rejoin",
      act: () => post(`${path}/rejoin`),
    }).then((done) => done && after(`${name} takes copies again.`));
  const isOut = ["quarantined", "evacuating"].includes(node.state);
  // Its own card says how a removal can be ended.
  if (isRemoving) return [];
  if (isLost(node)) return [isOut && act(context.session, "Rejoin", rejoin), act(context.session, "Remove", () => remove(context, node), "danger")];
  return [
    h("button", { type: "button", "data-key": "can-stop", onclick: ask }, "Can it stop?"),
    isOut ? act(context.session, "Rejoin", rejoin, "primary") : act(context.session, "Quarantine", quarantine),
    node.state !== "evacuating" && act(context.session, "Evacuate", evacuate, "danger"),
    act(context.session, "Remove", () => remove(context, node), "danger"),
  ];
}

function addDrive(context, node, path) {
  return confirm({
    title: `Add a drive to ${node}`,
    words: "A directory, a file or a block device on that node. It must be there.",
    fields: [
      { name: "path", label: "Path on that node", needed: true },
      { name: "gib", kind: "number", label: "Size of the ring in GiB, if it has to be made", value: 0, help: "0: as the node thinks fit" },
    ],
    action: "Add",
    act: ({ path: at, gib }) => post(`${path}/drives`, { path: at, size_bytes: gib > 0 ? gib * 2 ** 30 : null }),
  }).then((done) => done && (toast("The drive is in service."), context.again()));
}

/** What can be done with a drive that works: it is cordoned, or uncordoned. */
function cordon(context, node, drive, path) {
  const name = drive.path || drive.drive;
  const ask = (cordoned, question) =>
    confirm({ ...question, act: () => post(`${path}/drives/cordon`, { drive: drive.drive, cordoned }) }).then(
      (done) => done && (toast(cordoned ? "The drive is cordoned." : "The drive takes chunks again."), context.again()),
    );
  if (drive.state === "cordoned")
    return act(context.session, "Uncordon", () => ask(false, { title: `Uncordon ${name} of ${node}?`, words: "It takes new chunks again.", action: "Uncordon" }));
  if (drive.state !== "live") return null;
  const words = ["Nothing new is put there, and what is not in the lake is copied to other drives. It stays in service and is read from.", "This holds through restarts, until somebody ends it."];
  return act(context.session, "Cordon", () => ask(true, { title: `Cordon ${name} of ${node}?`, words, action: "Cordon" }));
}

async function removeDrive(context, node, drive, path) {
  const at = `${path}/drives/${enc(drive.drive)}`;
  const losses = await get(`${at}/losses`).catch(() => ({ files: [] }));
  const lost = losses.files.length;
  return confirm({
    title: `Remove the drive ${drive.path || drive.drive} of ${node}?`,
    words: [
      "What is not in the lake is copied to other drives, then the drive is taken out of service.",
      lost > 0 ? `Taken out by force, ${things(lost, "file")} would be lost now, ${losses.files[0].volume}/${losses.files[0].key} for one.` : "Nothing is only there now.",
    ],
    fields: [{ name: "force", kind: "flag", label: "At once, although that loses what is only there" }],
    typed: node,
    action: "Remove",
    danger: true,
    act: (values) => post(`${at}/remove`, values),
  }).then((done) => done && (toast("The drive leaves."), context.again()));
}
