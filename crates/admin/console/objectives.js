// What the break-fix loop knows: parts in trouble, budgets of objectives, work orders that nobody took.

import { enc, post } from "./api.js";
import { h, place } from "./dom.js";
import { count, digits, things } from "./units.js";
import { act, ago, badge, empty, failure, foldable, loading, meter, paged, table } from "./parts.js";
import { confirm, toast } from "./dialog.js";

const STATES = {
  degraded: "works badly; less is asked of it",
  suspect: "does not answer",
  down: "is gone",
  escalated: "should be taken out, and a person has to decide",
  quarantined: "takes no new chunks, and is being emptied",
  repair: "waits for somebody who repairs it",
  verifying: "is measured by the gate",
  shadowed: "has a cause elsewhere",
};

const OBJECTIVES = {
  drive_read_p99: "Reads of drives",
  drive_write_p99: "Writes of drives",
  drive_errors: "Errors of drives",
  read_p99: "Reads of files",
  commit_p99: "Commits on nodes",
  copy_errors: "Copies to nodes",
  drain_lag: "Drain lag",
};

/** The card, which asks by itself. */
export function objectives(context) {
  const leader = place("span");
  const body = place("div", { class: "stack" });
  body.append(loading());
  context.poll(5000, async () => {
    try {
      const told = await context.get("slo");
      leader.update([told.state, told.at_ms], () => leading(told));
      body.update({ ...told, at_ms: null, age_ms: null, words: told.state === "leads" || told.state === "silent" ? "" : told.words }, () => draw(context, told));
    } catch (error) {
      if (error.name === "AbortError") throw error;
      // The rest of the page is worth seeing without it.
      leader.update(null, () => []);
      body.update(error.message, () => failure(error));
    }
  });
  return foldable("Objectives", { note: leader, class: "objectives" }, body);
}

function leading(told) {
  if (!told.leader) return [];
  const passive = told.acts ? "" : "; it tells and does nothing (act = false)";
  return told.state === "silent" ? ["nobody looks: ", told.leader, " led last, ", ago(told.at_ms)] : [told.leader, " leads, looked ", ago(told.at_ms), passive];
}

function draw(context, told) {
  if (!told.leader) return told.state === "nobody" ? empty("Nobody leads yet. The loop begins a few seconds after the first node.") : failure({ message: "What the leading node tells is not understood.", hint: told.words });
  return [
    told.state === "silent" && h("p", { class: "warn" }, "What is here is old: no node has looked since. Is the loop switched off ([slo] enabled), or the catalog away?"),
    told.parts.length === 0 ? h("p", { class: "well" }, h("span", { class: "dot ok" }), "Every part is well, as far as is known.") : troubled(context, told),
    told.notices.length > 0 && waiting(context, told),
    budgets(told.budgets),
  ];
}

const nameOf = (part) => (part.name ? `${part.kind === "node" && part.name.startsWith("node") ? "" : `${part.kind} `}${part.name}${part.piece ? `:${part.piece}` : ""}` : part.part.replace("/", " "));

/** Nodes by the names that people gave them. */
const named = (part, words) => (part.node && part.name ? words.replaceAll(part.node, part.name) : words);

function troubled(context, told) {
  const finding = (part, { what, found, limit, periods }) =>
    h("li", {}, named(part, `${OBJECTIVES[what] ?? what}: ${found}`), limit && `, allowed ${limit}`, periods > 0 && `, ${things(periods, "period")} in a row`);
  return h(
    "div",
    {},
    h("h3", {}, "Parts in trouble"),
    paged("parts", told.parts, (parts) => table(
      [
        ["part", (part) => h("div", {}, part.node ? h("a", { class: "break", href: `#/nodes/${enc(part.name || part.node)}` }, nameOf(part)) : h("b", {}, nameOf(part)), part.has_order && h("div", { class: "muted small" }, "has a work order"))],
        ["state", (part) => h("div", {}, badge(part.state), h("div", { class: "muted small" }, STATES[part.state] ?? ""))],
        ["since", (part) => ago(part.since_ms)],
        ["why", (part) => h("div", { class: "break" }, named(part, part.reason), part.evidence.length > 0 && h("ul", { class: "words muted small" }, part.evidence.map((one) => finding(part, one)))), "wide"],
        ["", (part) => part.can_be_repaired && h("div", { class: "actions" }, act(context.session, "It was repaired", () => repaired(context, part)))],
      ],
      parts,
    )),
    told.parts_more > 0 && h("p", { class: "muted" }, `And ${things(told.parts_more, "more part")}.`),
  );
}

function waiting(context, { notices, parts }) {
  const words = (title) => parts.reduce((words, part) => named(part, words), title);
  return h(
    "div",
    {},
    h("div", { class: "card-head" }, h("h3", {}, "Work orders that nobody took"), h("div", { class: "actions" }, act(context.session, "Send again", () => retry(context, notices)))),
    table(
      [
        ["for", (notice) => notice.target],
        ["work order", (notice) => h("span", { class: "break" }, words(notice.title)), "wide"],
        ["state", (notice) => (notice.refused ? badge("error", "refused") : badge("warn", "not taken yet"))],
        ["why", (notice) => h("span", { class: "break" }, notice.why ?? "on its way")],
        ["tries", (notice) => count(notice.tries), "number"],
      ],
      notices,
    ),
  );
}

function budgets(rows) {
  const measured = rows.filter((one) => one.good + one.bad > 0);
  const silent = rows.filter((one) => !measured.includes(one)).map((one) => OBJECTIVES[one.objective] ?? one.objective);
  const left = (one) => `${one.left_percent < 0 ? "−" : ""}${digits(Math.abs(one.left_percent))} %`;
  const tone = (one) => (one.burning || one.left_percent <= 0 ? "bad" : one.left_percent < 25 ? "warn" : "ok");
  const bar = (one) =>
    h(
      "div",
      { class: "usage" },
      meter([[Math.max(0, Math.min(100, one.left_percent)), tone(one), "left"]], 100, `${left(one)} of the budget of 30 days left`),
      h("span", { class: `small ${tone(one) === "ok" ? "muted" : tone(one)}` }, one.left_percent < 0 ? `overdrawn: ${left(one)} left` : `${left(one)} left`, one.burning && ", burns too fast"),
    );
  const burn = (one) => {
    const known = [["5 min", one.burn_5m], ["1 h", one.burn_1h], ["6 h", one.burn_6h]].filter(([, rate]) => rate != null);
    return known.length === 0 ? "–" : known.map(([name, rate]) => `${digits(rate)}× (${name})`).join(", ");
  };
  return h(
    "div",
    {},
    h("h3", {}, "Budgets of 30 days"),
    table(
      [
        ["objective", (one) => h("div", {}, OBJECTIVES[one.objective] ?? one.objective, h("div", { class: "muted small" }, h("code", {}, one.objective)))],
        ["budget left", bar, "wide"],
        ["burns", (one) => h("span", { class: one.burning ? "bad" : "", title: "1× uses the budget up in 30 days" }, burn(one))],
        ["bad", (one) => `${count(one.bad)} of ${count(one.good + one.bad)}`, "number"],
      ],
      measured,
      rows.length === 0 ? "No objective is watched." : "Nothing was measured yet.",
    ),
    silent.length > 0 && measured.length > 0 && h("p", { class: "muted small" }, `Not measured yet: ${silent.join(", ")}.`),
  );
}

function repaired(context, part) {
  return confirm({
    title: `Was ${nameOf(part)} repaired?`,
    words: ["The gate measures it. If it passes, it takes chunks again and its work order is closed; if not, it stays out.", "Say so only if somebody has mended or replaced it."],
    action: "It was repaired",
    act: () => post("slo/repaired", { part: part.part }),
  }).then((done) => done && (toast(`The gate measures ${nameOf(part)}.`), context.again()));
}

function retry(context, notices) {
  return confirm({
    title: `Send ${things(notices.length, "work order")} again?`,
    words: "Also what was refused is sent once more, to where the leader's configuration says now.",
    action: "Send again",
    act: () => post("slo/retry"),
  }).then((done) => done && (toast("They are sent again within seconds."), context.again()));
}
