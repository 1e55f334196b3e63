// The planner: instruments first, then what somebody expects, then the answer. Every number comes from the node.

import { post } from "./api.js";
import { h, place } from "./dom.js";
import { bytes, count, date, digits, percent, rate } from "./units.js";
import { act, badge, card, empty, facts, failure, foldable, loading, meter, pageHead, table } from "./parts.js";
import { confirm, toast } from "./dialog.js";
import { curve } from "./curve.js";

const KINDS = { io: "I/O analyzer", design: "Storage designer", sim: "Days, simulated", gravity: "Data gravity", kv: "KV cache", slo: "Targets" };
const TONES = { ok: "good", warn: "watch", bad: "does not work", plain: "" };
const STEPS = 1000;
/** Instruments that are always shown. */
const FIRST = 7;
const PAUSE_MS = 150;

/** A time as the planner reads it. */
function time(value) {
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1], ["ms", 1e-3]]) if (value >= size) return `${digits(value / size)}${unit}`;
  return value === 0 ? "0s" : `${digits(value * 1e6)}us`;
}

const WRITE = {
  count: (value) => String(Math.round(value)),
  bytes: (value) => bytes(value).replace(" ", ""),
  bytes_per_s: (value) => rate(value).replace(" ", ""),
  s: time,
  share: (value) => `${digits(value * 100)}%`,
};
const write = (field, value) => (WRITE[field.kind] ?? ((one) => String(Number(one.toPrecision(3)))))(value);

/** Sliders of wide ranges go by powers. */
function scale({ min, max, default: usual }) {
  const low = min > 0 ? min : Math.min(usual > 0 ? usual / 1000 : 1, max / 1e6);
  if (max / Math.max(low, 1e-12) <= 1000 && max / (usual || max) <= 100) {
    return { at: (value) => ((value - min) / (max - min)) * STEPS, value: (at) => min + (at / STEPS) * (max - min) };
  }
  // What nobody has is reached by typing.
  const top = Math.min(max, usual > 0 ? usual * 1000 : max);
  const span = Math.log(top / low);
  return {
    at: (value) => (value <= low ? 0 : Math.min(STEPS, (Math.log(value / low) / span) * STEPS)),
    value: (at) => (at <= 0 ? min : low * Math.exp((at / STEPS) * span)),
  };
}

export async function page(context) {
  const told = await context.get("plan");
  const query = context.query;
  const state = { kind: KINDS[query.get("kind")] ? query.get("kind") : "io", model: query.get("model") === "lab" ? "lab" : "stoker", given: {}, guess: query.get("guess"), measured: query.get("measured") === "1" };
  const specOf = () => told.models.find((one) => one.kind === state.kind && one.model === state.model) ?? told.models.find((one) => one.kind === state.kind);
  for (const { name } of specOf().fields) if (query.has(name)) state.given[name] = query.get(name);

  const form = h("div", { class: "knobs" });
  const wrong = h("p", { class: "bad", role: "alert" });
  const answer = h("div", { class: "stack" }, loading());
  const bar = place("div", { class: "actions" });
  const ledgerBox = place("div");
  let calibration = null;
  let turn = 0;
  let waiting = null;

  const remember = () => {
    const search = new URLSearchParams({ kind: state.kind });
    if (state.model === "lab") search.set("model", "lab");
    for (const [name, value] of Object.entries(state.given)) search.set(name, value);
    if (state.guess != null) search.set("guess", state.guess);
    if (state.measured) search.set("measured", "1");
    // So that a link leads to the same page; no entry for each move of a slider.
    history.replaceState(null, "", `#/planner?${search}`);
  };

  const ask = async () => {
    const mine = (turn += 1);
    remember();
    try {
      if (state.measured && !calibration) calibration = await context.get("plan-calibration");
      const body = { model: specOf().model, inputs: state.given };
      if (state.measured) body.calibration = calibration;
      const plan = await post(`plan/${state.kind}`, body);
      if (mine !== turn) return;
      refuse(null);
      draw(plan);
    } catch (error) {
      if (error.name === "AbortError" || mine !== turn) return;
      if (error.status !== 400) return answer.replaceChildren(failure(error));
      refuse(error);
    }
  };
  // What does not fit is said where the answer would be, and its instrument is marked.
  const refuse = (error) => {
    const named = new Set([...(error?.message ?? "").matchAll(/`(\w+)`:/g)].map(([, name]) => name));
    for (const input of form.querySelectorAll("[data-input]")) {
      const isNamed = named.has(input.dataset.input);
      if (isNamed) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
      if (isNamed) input.closest("details")?.setAttribute("open", "");
    }
    wrong.hidden = error == null;
    wrong.textContent = error == null ? "" : [error.message, error.hint].filter(Boolean).join(" – ");
    if (error != null) answer.replaceChildren(card("No answer", { note: "an instrument is set to what cannot be" }, wrong));
  };
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(ask, PAUSE_MS);
  };

  const choose = (kind, model) => {
    Object.assign(state, { kind, model, given: {}, guess: null });
    if (specOf().model !== model) state.model = specOf().model;
    drawForm();
    ask();
  };

  const drawForm = () => {
    const hasLab = told.models.some((one) => one.kind === state.kind && one.model === "lab");
    bar.update([state.kind, state.model, state.measured, hasLab], () => [
      h("div", { class: "range", role: "group", "aria-label": "Plan" }, Object.entries(KINDS).map(([kind, words]) => h("button", { type: "button", "data-key": kind, "aria-pressed": String(kind === state.kind), onclick: () => choose(kind, kind === state.kind ? state.model : "stoker") }, words))),
      hasLab && h("div", { class: "range", role: "group", "aria-label": "Model" }, ["stoker", "lab"].map((model) => h("button", { type: "button", "data-key": model, "aria-pressed": String(model === state.model), onclick: () => choose(state.kind, model) }, model === "lab" ? "Lab's model" : "Our model"))),
    ]);
    const fields = specOf().fields;
    const knobs = (some) => some.map((field) => knob(field, state, soon));
    const rest = fields.slice(FIRST);
    // On a phone the prediction should not be a long way below what it is about.
    const isOpen = matchMedia("(min-width: 900px)").matches || rest.some(({ name }) => name in state.given);
    const more = rest.length > 0 && h("details", { class: "more knobs-more", open: isOpen }, h("summary", {}, `${rest.length} more instruments`), h("div", { class: "knobs" }, knobs(rest)));
    form.replaceChildren(...[...knobs(fields.slice(0, FIRST)), more].filter(Boolean));
  };

  const draw = (plan) => {
    const first = plan.figures[0];
    if (state.guess == null) return answer.replaceChildren(guessing(first, state, () => draw(plan)));
    remember();
    answer.replaceChildren(...answered(plan, state, context, ask));
  };

  const share = async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      toast("The link is in the clipboard: it opens this plan with these instruments.");
    } catch {
      toast("This browser gives no clipboard here: copy the address, which is the link.");
    }
  };
  const measured = h("input", { type: "checkbox", id: "measured", checked: state.measured, onchange: (event) => ((state.measured = event.target.checked), ask()) });
  context.show(
    pageHead([], "Planner", null, h("div", { class: "actions no-print" }, h("button", { type: "button", onclick: share }, "Copy link"), h("button", { type: "button", onclick: () => print() }, "Print"))),
    bar,
    h(
      "div",
      { class: "grid planner" },
      card("Instruments", { class: "no-print-break" }, h("p", { class: "muted small" }, specOf().words), form, h("label", { class: "check" }, measured, h("span", {}, "Use what this cluster measured"))),
      answer,
    ),
    card("Design ledger", { note: "what was predicted, and what came of it", class: "no-print" }, ledgerBox),
  );
  drawForm();
  await ask();
  await context.poll(15000, async () => ledgerBox.update(await context.get("plan-ledger"), ledger));
}

/** One input: a name, a slider, and a text that takes units. */
function knob(field, state, soon) {
  const id = `knob-${field.name}`;
  const name = field.name.replaceAll("_", " ").replace(/\b(gpu|mtbf|kv)(?=s?\b)/g, (word) => word.toUpperCase());
  const hint = h("span", { class: "muted small", id: `${id}-words` }, field.words);
  const set = (value) => {
    if (value === "" || value == null) delete state.given[field.name];
    else state.given[field.name] = value;
    soon();
  };
  if (field.kind === "choice") {
    const now = state.given[field.name] ?? field.choices[field.default].word;
    const options = field.choices.map(({ word, words }) => h("option", { value: word, selected: word === now }, `${word}: ${words}`));
    return h("div", { class: "knob" }, h("label", { for: id }, name), h("select", { id, "data-input": field.name, "aria-describedby": hint.id, onchange: (event) => set(event.target.value) }, options), hint);
  }
  const { at, value } = scale(field);
  const given = state.given[field.name];
  const text = h("input", { type: "text", id, "data-input": field.name, value: given ?? write(field, field.default), "aria-describedby": hint.id, autocomplete: "off", spellcheck: "false", inputmode: field.kind === "count" ? "numeric" : "text" });
  const slider = h("input", { type: "range", min: 0, max: STEPS, step: 1, value: at(numberOf(given) ?? field.default), "aria-label": `${name}, slider` });
  const describe = () => slider.setAttribute("aria-valuetext", text.value);
  slider.addEventListener("input", () => {
    const wanted = value(Number(slider.value));
    const shown = write(field, Math.min(field.max, Math.max(field.min, field.kind === "count" ? Math.round(wanted) : wanted)));
    text.value = shown;
    describe();
    set(shown);
  });
  text.addEventListener("change", () => {
    const number = numberOf(text.value);
    if (number != null) slider.value = at(number);
    describe();
    set(text.value.trim());
  });
  describe();
  return h("div", { class: "knob" }, h("label", { for: id }, name), h("div", { class: "knob-row" }, slider, text), hint);
}

const UNITS = { b: 1, kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12, pb: 1e15, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40, pib: 2 ** 50, us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, d: 86400, y: 31557600, "%": 0.01 };

/** Where the slider goes for a text; the node reads it exactly. */
function numberOf(text) {
  const [, number, unit] = String(text ?? "").trim().toLowerCase().match(/^([\d.eE+-]+)\s*([a-z%]*)(?:\/s)?$/) ?? [];
  const value = Number(number) * (unit ? UNITS[unit] ?? NaN : 1);
  return number && Number.isFinite(value) ? value : null;
}

function guessing(first, state, show) {
  const isShare = first.unit === "share";
  const input = h("input", { type: "text", inputmode: "decimal", id: "guess", autocomplete: "off" });
  const go = (guess) => {
    state.guess = guess;
    show();
  };
  const submit = (event) => {
    event.preventDefault();
    go(input.value.trim() || "-");
  };
  return card(
    "Your prediction",
    { note: "first say what you expect, then look" },
    h(
      "form",
      { class: "guess", onsubmit: submit },
      h("label", { for: "guess" }, `What do you expect for “${first.label}”${isShare ? ", in percent" : first.unit ? `, in ${first.unit}` : ""}?`),
      h("div", { class: "knob-row" }, input, h("button", { type: "submit", class: "primary" }, "Show the answer")),
      h("button", { type: "button", class: "quiet", onclick: () => go("-") }, "Only show it"),
    ),
  );
}

function compared(first, guess) {
  const number = Number(guess.replace(",", ".").replace("%", ""));
  if (!Number.isFinite(number) || guess === "-") return null;
  if (first.unit === "share") {
    const off = Math.abs(100 * (first.value ?? 0) - number);
    return `You expected ${digits(number)} %; the model says ${first.text}: ${digits(off)} points apart.`;
  }
  return `You expected ${digits(number)}; the model says ${first.text}.`;
}

function answered(plan, state, context, ask) {
  const [first] = plan.figures;
  const words = compared(first, state.guess);
  const share = (figure) => (figure.unit === "share" && figure.value >= 0 ? meter([[Math.min(1, figure.value), figure.tone === "plain" ? "clean" : figure.tone, figure.label]], 1, `${figure.label}: ${figure.text}`) : null);
  const keep = () =>
    confirm({
      title: "Keep this prediction",
      words: "The design ledger keeps it in the catalog. When the job ran, `stoker plan ledger record` writes down what came of it.",
      fields: [{ name: "job", label: "Job", kind: "text", value: "" }],
      action: "Keep",
      act: async ({ job }) => {
        const { id } = await post("plan-ledger", { kind: state.kind, model: plan.model, inputs: state.given, job });
        toast(`Kept as ${id}.`);
      },
    });
  const measuredCount = plan.constants.filter((one) => one.measured != null).length;
  return [
    card(
      "Answer",
      { actions: [act(context.session, "Keep for a job", keep), h("button", { type: "button", class: "quiet", onclick: () => ((state.guess = null), ask()) }, "Guess again")] },
      h("p", { class: `plan-title ${plan.tone}`, role: "status" }, plan.tone !== "plain" && badge({ ok: "ok", warn: "warn", bad: "error" }[plan.tone], TONES[plan.tone]), " ", plan.title),
      words && h("p", { class: "muted" }, words),
      h("div", { class: "plan-figures" }, plan.figures.slice(0, 6).map((figure) => h("div", { class: `tile ${figure.tone}` }, h("span", { class: "muted small" }, figure.label), h("b", {}, figure.text), share(figure)))),
      plan.reasons.length > 0 && h("ul", { class: "words" }, plan.reasons.map((line) => h("li", {}, line))),
    ),
    plan.changes.length > 0 && card("What would help most", {}, table([["change", (change) => change.what, "wide"], ["effect", (change) => change.text, "number"]], plan.changes)),
    ...plan.curves.map(curve),
    plan.figures.length > 6 && foldable("All figures", {}, facts(plan.figures.map((figure) => [figure.label, h("span", { class: figure.tone }, figure.text)]))),
    (plan.constants.length > 0 || plan.assumptions.length > 0) &&
      foldable(
        "Constants and assumptions",
        { note: plan.constants.length > 0 ? `${measuredCount} of ${plan.constants.length} measured here` : null },
        plan.constants.length > 0 &&
          table([["constant", (one) => h("div", {}, one.name.replaceAll("_", " "), h("div", { class: "muted small" }, one.words))], ["value", (one) => one.text, "number"], ["from", (one) => one.from]], plan.constants),
        h("ul", { class: "words spaced" }, plan.assumptions.map((line) => h("li", {}, line))),
      ),
  ].filter(Boolean);
}

function ledger(told) {
  if (told.entries.length === 0) return empty("Nothing was predicted for a job yet.");
  const error = (entry) => {
    const name = Object.keys(entry.measured).find((one) => one in entry.prediction.figures && entry.measured[one] !== 0);
    return name == null ? null : [name, entry.prediction.figures[name], entry.measured[name]];
  };
  return [
    told.errors.length > 0 && table([["of", (sum) => sum.of], ["predictions", (sum) => count(sum.count), "number"], ["median error", (sum) => percent(100 * sum.median), "number"], ["P90 error", (sum) => percent(100 * sum.p90), "number"]], told.errors),
    table(
      [
        ["job", (entry) => h("span", { class: "break" }, entry.prediction.job)],
        ["plan", (entry) => `${KINDS[entry.prediction.kind] ?? entry.prediction.kind}`],
        ["when", (entry) => date(entry.prediction.at_ms)],
        ["figure", (entry) => error(entry)?.[0] ?? "not measured yet"],
        ["error", (entry) => (error(entry) ? percent((100 * (error(entry)[1] - error(entry)[2])) / error(entry)[2]) : "–"), "number"],
        ["id", (entry) => h("code", {}, entry.prediction.id)],
      ],
      [...told.entries].reverse().slice(0, 20),
    ),
  ];
}
