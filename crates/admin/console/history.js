// Figures over time, of the whole cluster or of one node, with a choice of how far back.

import { enc } from "./api.js";
import { h, place } from "./dom.js";
import { bytes, ms, perSecond, rate, seconds } from "./units.js";
import { gapped, plot } from "./plot.js";

const WINDOWS = [[900, "15 min"], [86400, "24 h"], [604800, "7 days"], [2592000, "30 days"]];
const NONE = "Nothing was measured in this time.";

const PLOTS = {
  throughput: () =>
    plot("Throughput", [
      { name: "read_bytes_per_s", label: "read" },
      { name: "write_bytes_per_s", label: "written" },
      { name: "drain_bytes_per_s", label: "drained" },
      { name: "lake_read_bytes_per_s", label: "read from lakes" },
    ], { format: rate, floor: 1e6, none: NONE }),
  latency: () =>
    plot("Latency of S3 requests", [
      { name: "read_p99_ms", label: "read P99" },
      { name: "write_p99_ms", label: "write P99" },
    ], { format: ms, floor: 1, none: "No S3 request in this time.", note: "slowest node" }),
  requests: () =>
    plot("Requests", [
      { name: "requests_per_s", label: "S3 requests" },
      { name: "errors_per_s", label: "failed" },
      { name: "commits_per_s", label: "commits" },
    ], { format: perSecond, floor: 1, none: NONE }),
  lag: () => plot("Drain lag", [{ name: "drain_lag_bytes", label: "waiting for the lake" }], { format: bytes, floor: 2 ** 20, base: 1024, none: NONE, note: "bytes" }),
  age: () => plot("Drain age", [{ name: "drain_lag_s", label: "oldest change that waits" }], { format: seconds, floor: 60, none: NONE, note: "seconds" }),
  space: () =>
    plot("Space", [
      { name: "clean_bytes", label: "may go" },
      { name: "keep_bytes", label: "must stay" },
      { name: "space_bytes", label: "all drives" },
    ], { format: bytes, floor: 2 ** 30, base: 1024, none: NONE }),
  lakeRequests: () =>
    plot("Requests to lakes", [
      { name: "lake_requests_per_s", label: "requests" },
      { name: "lake_errors_per_s", label: "failed" },
    ], { format: perSecond, floor: 1, none: NONE }),
  lakeBytes: () =>
    plot("Bytes to and from lakes", [
      { name: "lake_received_bytes_per_s", label: "received" },
      { name: "lake_sent_bytes_per_s", label: "sent" },
    ], { format: rate, floor: 1e6, none: NONE }),
};

let chosen = 0;

/** Plots that ask by themselves; `told(history)` hears each answer. */
export function history(context, { title, names, node = null, wrap, told = () => {} }) {
  const plots = names.map((name) => PLOTS[name]());
  const missing = place("span", { class: "muted small" });
  const buttons = WINDOWS.map(([, words], at) =>
    h("button", { type: "button", "aria-pressed": String(at === chosen), onclick: () => choose(at) }, words),
  );
  let turn = 0;
  const ask = async () => {
    const mine = (turn += 1);
    const [window_s] = WINDOWS[chosen];
    const answer = await context.get(`history?window_s=${window_s}${node ? `&node=${enc(node)}` : ""}`);
    if (mine !== turn) return;
    // The last minutes are shown as long as they are: a cluster that has just begun has few of them.
    const data = gapped(answer, window_s > WINDOWS[0][0] ? window_s * 1000 : null);
    plots.forEach((one) => one.show(data));
    const away = answer.nodes.filter((one) => !one.answers).map((one) => one.name || one.node.slice(0, 8));
    missing.update([answer.nodes.length, away], ([count, away]) => {
      const whose = node ? "" : count - away.length === 1 ? "one node" : `sum of ${count - away.length} nodes`;
      return [[whose, away.length > 0 && `without ${away.slice(0, 3).join(", ")}${away.length > 3 ? ` and ${away.length - 3} more` : ""}, which ${away.length === 1 ? "does" : "do"} not answer`].filter(Boolean).join(", ")];
    });
    told(answer, window_s);
  };
  const choose = (at) => {
    chosen = at;
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(index === at)));
    ask().catch(() => {});
  };
  context.poll(5000, ask);
  const range = h("div", { class: "range", role: "group", "aria-label": "How far back" }, buttons);
  return wrap(title, { note: missing, actions: range, class: "over-time" }, h("div", { class: "grid two" }, plots));
}
