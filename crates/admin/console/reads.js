// Where reads of this node go, and the times by which sources are chosen.

import { h, place } from "./dom.js";
import { count, percent, us } from "./units.js";
import { badge, card, loading, meter, pageHead, table } from "./parts.js";

const KINDS = { drive: "drive here", peer: "another node", turn: "another node, out of the lake if need be", lake: "lake of a volume" };

export async function page(context) {
  const body = place("div");
  body.append(loading());
  context.show(
    pageHead([], "Reads"),
    card("Read weights of this node", { note: "a read goes where it is answered soonest, and to a second source if the first is late" }, body),
  );
  await context.poll(3000, async () => {
    const status = await context.get("status");
    body.update(status.sources, (sources) => {
      const all = sources.reduce((sum, source) => sum + source.reads, 0);
      const times = (mean, p95) => (mean == null ? h("span", { class: "muted" }, "not seen lately") : `${us(mean)}${p95 == null ? "" : `, P95 ${us(p95)}`}`);
      return table(
        [
          ["source", (source) => h("div", {}, h("span", { class: "break" }, source.name), h("div", { class: "muted small" }, KINDS[source.kind]))],
          ["share of reads", (source) => h("div", { class: "usage" }, meter([[source.reads, "clean", "reads"]], all, percent(all > 0 ? (100 * source.reads) / all : 0)), h("span", { class: "small" }, percent(all > 0 ? (100 * source.reads) / all : 0))), "wide"],
          ["reads", (source) => count(source.reads), "number"],
          ["small reads", (source) => times(source.small_mean_us, source.small_p95_us)],
          ["large reads", (source) => times(source.large_mean_us, source.large_p95_us)],
          ["failed", (source) => (source.failures > 0 ? badge("error", count(source.failures)) : "0"), "number"],
        ],
        sources,
        "Nothing was read through this node yet.",
      );
    });
  });
}
