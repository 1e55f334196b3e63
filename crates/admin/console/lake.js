// Lakes: whether they answer, how much goes there and back, and what that is taken to cost.

import { h, place } from "./dom.js";
import { bytes, dollars, percent, perSecond, rate, seconds, span, things } from "./units.js";
import { badge, card, empty, facts, loading, paged, pageHead, table } from "./parts.js";
import { history } from "./history.js";

const sum = (values, every_ms) => values.reduce((all, value) => all + (value ?? 0), 0) * (every_ms / 1000);
const last = (answer, name) => answer.series[name].at(-1);

export async function page(context) {
  const health = place("div");
  const cost = place("div");
  const volumes = place("div");
  [health, cost, volumes].forEach((part) => part.append(loading()));
  const told = (answer, window_s) => {
    cost.update([answer.at_ms.at(-1), window_s], () => costs(answer, window_s));
  };
  context.show(
    pageHead([], "Lake"),
    h("div", { class: "grid two" }, card("Health", {}, health), card("Requests and cost", { note: "of all nodes, in the time chosen below" }, cost)),
    history(context, { title: "Over time", names: ["lakeRequests", "lakeBytes", "lag", "age"], wrap: card, told }),
    card("Volumes and their lakes", {}, volumes),
  );
  context.poll(5000, async () => {
    const [status, recent] = await Promise.all([context.get("status"), context.get("history?window_s=900")]);
    health.update([status.lake_trouble, status.drains, recent.at_ms.at(-1), status.dirty_bytes], () => well(status, recent));
  });
  await context.poll(10000, async () => {
    const { volumes: all } = await context.get("volumes");
    volumes.update(all, (rows) =>
      paged("lake-volumes", rows, (rows) =>
        table(
          [
            ["volume", (volume) => h("a", { href: `#/volumes/${encodeURIComponent(volume.name)}` }, volume.name)],
            ["lake", (volume) => h("code", { class: "break" }, volume.lake ?? "none")],
            ["who else writes there", (volume) => ({ owned: "nobody", shared: "others", read_only: "others; Stoker only reads" })[volume.policy.lake_mode]],
            ["drains within", (volume) => (volume.policy.drain === "never" ? "never" : span(volume.policy.drain_lag_max_s * 1000)), "number"],
          ],
          rows,
          "No volume yet.",
        ),
      ),
    );
  });
}

function well(status, recent) {
  const [requests, errors] = [sum(recent.series.lake_requests_per_s, recent.every_ms), sum(recent.series.lake_errors_per_s, recent.every_ms)];
  const state = status.lake_trouble ? badge("error", "in trouble") : errors > 0.01 * requests && errors >= 1 ? badge("warn", "some requests fail") : badge("ok", requests >= 1 ? "answers" : "no trouble, and nothing was asked");
  return facts([
    ["state", state],
    ["last error", status.lake_trouble && h("span", { class: "bad break" }, status.lake_trouble)],
    ["waiting for it", recent.at_ms.length > 0 ? `${bytes(last(recent, "drain_lag_bytes"))}, the oldest for ${seconds(last(recent, "drain_lag_s"))}` : "not known yet"],
    ["drain rate", recent.at_ms.length > 0 ? rate(last(recent, "drain_bytes_per_s")) : null],
    ["uploads of this node", things(status.drains, "upload")],
    ["failed in 15 min", requests >= 1 ? `${things(Math.round(errors), "request")} of ${Math.round(requests)} (${percent((100 * errors) / requests)})` : "nothing was asked"],
  ]);
}

function costs(answer, window_s) {
  if (answer.at_ms.length === 0) return empty("Nothing was measured yet.");
  const of = (name) => sum(answer.series[name], answer.every_ms);
  const usd = of("lake_cost_usd_per_s");
  const measured_s = Math.max(answer.every_ms, answer.at_ms.at(-1) - answer.at_ms[0] + answer.every_ms) / 1000;
  return [
    facts([
      ["measured", `${span(measured_s * 1000)} of ${span(window_s * 1000)}`],
      ["requests", `${things(Math.round(of("lake_requests_per_s")), "request")}, ${perSecond(of("lake_requests_per_s") / measured_s)}`],
      ["sent", bytes(of("lake_sent_bytes_per_s"))],
      ["received", bytes(of("lake_received_bytes_per_s"))],
      ["taken to cost", usd > 0 ? `${dollars(usd)}; ${dollars((usd / measured_s) * 30 * 86400)} in 30 days at this rate` : "nothing: a directory has no prices"],
    ]),
    usd > 0 && h("p", { class: "muted small" }, "An estimate of requests and of bytes read, by ", h("code", {}, "price_put_1000"), ", ", h("code", {}, "price_get_1000"), " and ", h("code", {}, "price_read_gb"), " in [lake]; without them, list prices of S3 Standard."),
  ];
}
