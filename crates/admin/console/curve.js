// A curve that is not over time: how one thing depends on another, with the place where the instruments are.

import { h, s } from "./dom.js";
import { bytes, digits, dollars, percent, rate, seconds, count } from "./units.js";

const HEIGHT = 230;
const LEFT = 66;
const RIGHT = 14;
const TOP = 10;
const BOTTOM = 40;

const FORMAT = { share: (value) => percent(100 * value), B: bytes, "B/s": rate, s: seconds, usd: dollars, "/s": (value) => `${count(value)}/s` };
const formatOf = (unit) => FORMAT[unit] ?? ((value) => (Math.abs(value) >= 1000 ? count(value) : digits(value)));

const isWide = (values) => values.every((value) => value > 0) && Math.max(...values) / Math.min(...values) > 100;

/** A plot of one curve of a plan, and the same as a table for those who do not see it. */
export function curve({ title, x_label, x_unit, y_label, y_unit, x, lines, mark }) {
  const area = h("div", { class: "plot-area" });
  const [writeX, writeY] = [formatOf(x_unit), formatOf(y_unit)];
  const values = lines.flatMap((line) => line.y).filter((value) => value != null);
  const wideX = isWide(x);
  // Nines are a logarithm already.
  const wideY = y_unit !== "share" && y_unit !== "nines" && isWide(values);
  const scaled = (value, wide) => (wide ? Math.log(Math.max(value, 1e-12)) : value);
  const ends = (all, wide) => {
    const low = wide ? Math.min(...all) : Math.min(0, ...all);
    const high = Math.max(...all);
    return [scaled(low, wide), scaled(high > low ? high : low + 1, wide)];
  };
  const [x0, x1] = ends(x, wideX);
  const [y0, y1] = ends(values, wideY);
  const back = (at, wide) => (wide ? Math.exp(at) : at);
  const nearest = x.reduce((best, value, at) => (Math.abs(scaled(value, wideX) - scaled(mark, wideX)) < Math.abs(scaled(x[best], wideX) - scaled(mark, wideX)) ? at : best), 0);
  const words = lines.map((line) => `${line.name} ${line.y[nearest] == null ? "–" : writeY(line.y[nearest])}`).join(", ");

  const draw = () => {
    const width = area.clientWidth;
    if (width === 0) return;
    const place = (value) => LEFT + ((scaled(value, wideX) - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
    const height = (value) => TOP + (1 - (scaled(value, wideY) - y0) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM);
    const svg = s("svg", { width, height: HEIGHT, role: "img", "aria-label": `${title}: ${y_label} by ${x_label}; at ${writeX(x[nearest])}: ${words}` });
    for (const part of [0, 0.25, 0.5, 0.75, 1]) {
      const value = back(y0 + (y1 - y0) * part, wideY);
      svg.append(
        s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: height(value), y2: height(value) }),
        s("text", { class: "tick", x: LEFT - 8, y: height(value) + 4, "text-anchor": "end" }, writeY(value)),
      );
    }
    const steps = width < 420 ? 2 : 4;
    for (let step = 0; step <= steps; step += 1) {
      const value = back(x0 + ((x1 - x0) * step) / steps, wideX);
      svg.append(s("text", { class: "tick", x: place(value), y: HEIGHT - 22, "text-anchor": step === 0 ? "start" : step === steps ? "end" : "middle" }, writeX(wideX ? value : Math.round(value * 100) / 100)));
    }
    svg.append(s("text", { class: "tick", x: width - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, x_label));
    if (scaled(mark, wideX) >= x0 && scaled(mark, wideX) <= x1) svg.append(s("line", { class: "cross", x1: place(mark), x2: place(mark), y1: TOP, y2: HEIGHT - BOTTOM }));
    lines.forEach((line, number) => {
      const points = x.map((value, at) => [value, line.y[at]]).filter(([, value]) => value != null);
      const path = points.map(([value, y], at) => `${at === 0 ? "M" : "L"}${place(value).toFixed(1)},${height(y).toFixed(1)}`).join("");
      svg.append(s("path", { class: `line s${number + 1}`, d: path }));
      if (line.y[nearest] != null) svg.append(s("circle", { class: `dot s${number + 1}`, cx: place(x[nearest]), cy: height(line.y[nearest]), r: 3.5 }));
    });
    area.replaceChildren(svg);
  };

  const legend = h("div", { class: "legend" }, lines.map((line, number) => h("span", {}, h("i", { class: `key s${number + 1}` }), line.name, " ", h("b", {}, line.y[nearest] == null ? "–" : writeY(line.y[nearest])))));
  const rows = x.map((value, at) => h("tr", {}, h("th", { scope: "row" }, writeX(value)), lines.map((line) => h("td", { "data-label": line.name }, line.y[at] == null ? "–" : writeY(line.y[at])))));
  const asTable = h(
    "details",
    { class: "more small no-print" },
    h("summary", { class: "muted" }, "As a table"),
    h("div", { class: "table-wrap" }, h("table", {}, h("thead", {}, h("tr", {}, [x_label, ...lines.map((line) => line.name)].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows))),
  );
  const element = h("figure", { class: "card plot", "aria-label": title }, h("figcaption", { class: "card-head" }, h("h2", {}, title)), area, legend, asTable);
  new ResizeObserver(draw).observe(area);
  return element;
}
