// Volumes: the list, and the page of one of them with its files and sets.

import { enc, encKey, post } from "./api.js";
import { h, place } from "./dom.js";
import { bytes, count, date, span, things } from "./units.js";
import { act, agedNote, badge, card, empty, facts, failure, legend, loading, meter, openPage, paged, pageHead, table, ago } from "./parts.js";
import { confirm, toast } from "./dialog.js";
import { VOLUMES_SHOWN, volumeTable } from "./overview.js";
import { setTable } from "./sets.js";

const PAGE = 100;

export const drainWords = (drain) => (typeof drain === "object" ? `every ${drain.every} publishes` : { always: "always", never: "never", on_demand: "on demand" }[drain]);

export async function list(context) {
  const body = place("div");
  body.append(loading());
  const conflicts = place("div");
  context.show(pageHead([], "Volumes", null, act(context.session, "New volume", () => create(context), "primary")), card(null, {}, body), conflicts);
  await context.poll(6000, async () => {
    const [all, { conflicts: waiting = [] }] = await Promise.all([context.get("volumes"), context.attempt("conflicts")]);
    const outages = await context.attempt("outages");
    // Where bytes are is asked for those that are seen: it is work for the node.
    const seen = new Set(openPage("volumes", all.volumes, VOLUMES_SHOWN).map((volume) => volume.name));
    const tiers = await Promise.all(all.volumes.map((volume) => seen.has(volume.name) && context.get(`volumes/${enc(volume.name)}/tiers`).catch(() => null)));
    body.update([all.volumes, tiers, outages.stale], () => [agedNote(outages, "volumes"), volumeTable(all.volumes, tiers)]);
    conflicts.update(waiting, (rows) => (rows.length === 0 ? [] : [card("Conflicts", { note: "the lake holds something else: decide" }, conflictTable(context, rows))]));
  });
}

function conflictTable(context, rows) {
  const resolve = (row) =>
    confirm({
      title: `Resolve the conflict of ${row.volume}/${row.file.key}`,
      words: row.refused ? `The lake refuses it: ${row.refused}` : "Somebody else changed the object in the lake.",
      fields: [{ name: "resolution", kind: "choice", label: "Which one stays", choices: ["keep_both", "ours", "theirs"], value: "keep_both", help: "keep_both: the lake's stays, ours moves to another key" }],
      action: "Resolve",
      danger: true,
      act: ({ resolution }) => post(`volumes/${enc(row.volume)}/resolve`, { key: row.file.key, resolution }),
    }).then((done) => done && (toast("Resolved."), context.again()));
  return paged("conflicts", rows, (rows) => table(
    [
      ["file", (row) => h("a", { href: `#/file/${enc(row.volume)}/${encKey(row.file)}` }, `${row.volume}/${row.file.key}`)],
      ["size", (row) => bytes(row.file.size), "number"],
      ["since", (row) => ago(row.since_ms)],
      ["why", (row) => row.refused ?? "the lake holds another object"],
      ["", (row) => act(context.session, "Resolve", () => resolve(row))],
    ],
    rows,
  ));
}

function create(context) {
  return confirm({
    title: "New volume",
    words: "It is also an S3 bucket.",
    fields: [
      { name: "name", label: "Name", needed: true },
      { name: "lake", label: "Lake", help: "s3://…, gs://…, az://… or file://…; empty: a folder of its own in the node's lake" },
      { name: "class", kind: "choice", label: "Class: copies on different nodes", choices: ["auto", "one", "two", "three"], value: "auto" },
    ],
    action: "Make",
    act: ({ name, lake, class: wanted }) => post("volumes", { name, lake: lake || null, policy: wanted === "auto" ? {} : { class: wanted } }),
  }).then((made) => made && (location.hash = `#/volumes/${enc(made.name)}`));
}

export async function page(context) {
  const volume = decodeURIComponent(context.args.volume);
  const path = `volumes/${enc(volume)}`;
  const prefix = context.query.get("prefix") ?? "";
  const head = place("div");
  const about = place("div");
  const tiers = place("div");
  const files = place("div");
  const sets = place("div");
  [about, tiers, files, sets].forEach((part) => part.append(loading()));
  const parts = [head, h("div", { class: "grid two" }, card("Policy", {}, about), card("Where its bytes are", {}, tiers)), card("Files", { actions: trail(volume, prefix) }, files), card("Checkpoint sets", {}, sets)];
  let after = "";
  let shown = [];
  const more = async () => {
    const page = await context.get(`${path}/files?limit=${PAGE}&prefix=${enc(prefix)}&after=${after}`);
    shown = [...shown, ...page.entries];
    const last = page.entries.at(-1);
    after = last ? encKey(last, last.prefix == null ? "key" : "prefix") : after;
    files.update([shown, page.more], () => fileTable(volume, prefix, shown, page.more, more));
  };
  await context.poll(6000, async () => {
    const [info, tier, all] = await Promise.all([known(context, volume, path), ...["tiers", "sets?limit=20"].map((part) => context.attempt(`${path}/${part}`))]);
    if (!head.isConnected) context.show(...parts);
    head.update(info.name, () => pageHead([["Volumes", "#/volumes"]], info.name, null, actions(context, info, path)));
    about.update(info, policy);
    tiers.update([info, tier.error?.message ?? tier], () => (tier.error ? failure(tier.error) : tierFacts(info, tier)));
    sets.update(all.error?.message ?? all.sets, () => (all.error ? failure(all.error) : setTable(all.sets)));
    if (shown.length <= PAGE) {
      [after, shown] = ["", []];
      await more().catch((error) => {
        if (error.name === "AbortError") throw error;
        files.update(error.message, () => failure(error));
      });
    }
  });
}

/** A volume, as it was when the catalog last answered if it does not. */
function known(context, volume, path) {
  return context.get(path).catch(async (error) => {
    if (error.status !== 503) throw error;
    const found = (await context.get("volumes")).volumes.find((one) => one.name === volume);
    if (!found) throw error;
    return found;
  });
}

function trail(volume, prefix) {
  const steps = prefix.split("/").slice(0, -1);
  const link = (name, to) => h("a", { href: `#/volumes/${enc(volume)}?prefix=${enc(to)}` }, name);
  return h("span", { class: "trail" }, link(volume, ""), steps.map((step, at) => [" / ", link(step, `${steps.slice(0, at + 1).join("/")}/`)]));
}

function fileTable(volume, prefix, entries, isMore, more) {
  const name = (entry) => (entry.prefix == null ? entry.key.slice(prefix.length) || entry.key : entry.prefix.slice(prefix.length));
  const list = table(
    [
      ["name", (entry) => h("a", { class: "break", href: entry.prefix == null ? `#/file/${enc(volume)}/${encKey(entry)}` : `#/volumes/${enc(volume)}?prefix=${encKey(entry, "prefix")}` }, name(entry))],
      ["size", (entry) => (entry.prefix == null ? bytes(entry.size) : "–"), "number"],
      ["changed", (entry) => (entry.prefix == null ? ago(entry.modified_ms) : "–")],
      ["lake", (entry) => (entry.prefix == null ? badge(entry.drain) : "")],
    ],
    entries,
    prefix ? "No file has a key that begins like this." : "No file yet.",
  );
  return [list, isMore && h("button", { type: "button", "data-key": "more", onclick: more }, "Show more")];
}

function policy(info) {
  const wants = info.policy;
  return facts([
    ["class", `${wants.class}, copies ${{ node: "on different nodes", tor: "behind different switches", power: "on different power feeds" }[wants.spread]}`],
    ["with too few nodes", { refuse: "writes are refused", lake: "writes wait for the lake" }[wants.when_alone]],
    ["drain", `${drainWords(wants.drain)}, after ${span(wants.drain_quiet_s * 1000)} without a change, within ${span(wants.drain_lag_max_s * 1000)}`],
    ["lake", h("span", { class: "break" }, info.lake ?? "none")],
    ["who else writes there", { owned: "nobody", shared: "others", read_only: "others, and Stoker must not" }[wants.lake_mode]],
    ["quota", wants.quota_bytes > 0 ? bytes(wants.quota_bytes) : "none"],
    ["local readers read drives", wants.leases ? "yes" : "no"],
    ["made", date(info.created_ms)],
  ]);
}

function tierFacts(info, tier) {
  const row = (name, sum) => [name, sum.files > 0 ? `${things(sum.files, "file")}, ${bytes(sum.bytes)}` : null];
  const kept = tier.dirty.bytes + tier.never.bytes + tier.conflict.bytes;
  const whole = (what) => tier.clean[what] + tier.dirty[what] + tier.never[what] + tier.conflict[what];
  return [
    info.bytes > 0 && meter([[kept, "keep", "only on drives"], [tier.clean.bytes, "clean", "in the lake"]], kept + tier.clean.bytes),
    info.bytes > 0 && legend([["keep", "only on drives"], ["clean", "in the lake, too"]]),
    facts([
      // Counted with the rows below, so that they add up; what was written since is counted next time.
      ["in all", tier.at_least ? `${things(info.files, "file")}, ${bytes(info.bytes)}` : `${things(whole("files"), "file")}, ${bytes(whole("bytes"))}`],
      row("in the lake", tier.clean),
      row("only on drives, will drain", tier.dirty),
      row("only on drives, never drain", tier.never),
      row("in conflict", tier.conflict),
      ["quota used", info.policy.quota_bytes > 0 ? `${((100 * info.bytes) / info.policy.quota_bytes).toFixed(1)} %` : null],
    ]),
    tier.at_least && h("p", { class: "muted small" }, "The first 10 000 files were looked at."),
    info.files === 0 && empty("Nothing is in it."),
  ];
}

function actions(context, info, path) {
  const done = (words) => {
    toast(words);
    context.again();
  };
  const drain = () =>
    confirm({
      title: `Drain ${info.name} now?`,
      words: "Files go to the lake without waiting until they are quiet.",
      fields: [{ name: "prefix", label: "Only keys that begin with", value: "" }],
      action: "Drain now",
      act: ({ prefix }) => post(`${path}/drain`, { prefix }),
    }).then((said) => said && done(said.files > 0 ? `${things(said.files, "file")} drain now.` : "Everything is in the lake already."));
  const change = () =>
    confirm({
      title: `Policy of ${info.name}`,
      words: "It holds for what is written from now on.",
      fields: [
        { name: "class", kind: "choice", label: "Class: copies on different nodes", choices: ["auto", "one", "two", "three"], value: info.policy.class },
        { name: "drain_quiet_s", kind: "number", label: "Drain after so many seconds without a change", value: info.policy.drain_quiet_s },
        { name: "drain_lag_max_s", kind: "number", label: "Drain after so many seconds at the latest", value: info.policy.drain_lag_max_s },
        { name: "quota_gib", kind: "number", label: "Quota in GiB; 0 for none", value: Math.round(info.policy.quota_bytes / 2 ** 30) },
      ],
      action: "Change",
      act: ({ quota_gib, ...rest }) => post(`${path}/policy`, { ...rest, quota_bytes: quota_gib * 2 ** 30 }),
    }).then((said) => said && done("Changed."));
  const remove = () =>
    confirm({
      title: `Remove ${info.name}?`,
      words: info.files > 0 ? `It holds ${count(info.files)} files, and only an empty volume can be removed.` : "Objects in its lake stay as they are.",
      typed: info.name,
      action: "Remove",
      danger: true,
      act: () => post(`${path}/remove`),
    }).then((said) => said && (toast(`${info.name} is gone.`), (location.hash = "#/volumes")));
  return [act(context.session, "Drain now", drain), act(context.session, "Change policy", change), act(context.session, "Remove", remove, "danger")];
}
