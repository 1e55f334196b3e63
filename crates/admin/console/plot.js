// Lines over time, drawn by hand: a grid that can be read, gaps where nothing is known, values under the pointer.

import { h, s } from "./dom.js";
import { clockTime, date, dayMonth, niceTop, span } from "./units.js";

const HEIGHT = 170;
const LEFT = 62;
const RIGHT = 12;
const TOP = 8;
const BOTTOM = 24;

/** `lines` are [{name, label}], `format` writes a value, `floor` is the smallest end of the axis, `none` says that nothing was measured. */
export function plot(title, lines, { format, floor, base = 1000, none, note }) {
  const legend = h("div", { class: "legend" });
  const when = h("span", { class: "muted small when" });
  const area = h("div", { class: "plot-area" });
  const element = h("figure", { class: "card plot", "aria-label": title }, h("figcaption", { class: "card-head" }, h("h2", {}, title), note && h("span", { class: "muted small" }, note), when), area, legend);
  let data = null;
  let pointed = null;

  const draw = () => {
    const width = area.clientWidth;
    if (!data || width === 0) return;
    const times = data.at_ms;
    if (times.length === 0) {
      area.replaceChildren(h("p", { class: "muted" }, data.window_ms > 900000 ? none : "The first points come in a few seconds."));
      return;
    }
    const end = times[times.length - 1];
    const range = data.window_ms ?? Math.max(120000, Math.min(900000, end - times[0]));
    const begin = end - range;
    const x = (at) => LEFT + ((at - begin) / range) * (width - LEFT - RIGHT);
    const values = lines.flatMap((line) => data.series[line.name]).filter((value) => value != null);
    const top = niceTop(Math.max(...values, floor), base);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
    const svg = s("svg", { width, height: HEIGHT, role: "img", "aria-label": `${title}, the last ${span(range)}` });
    for (const part of [0, 0.25, 0.5, 0.75, 1]) {
      const at = y(part * top);
      svg.append(
        s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: at, y2: at }),
        s("text", { class: "tick", x: LEFT - 8, y: at + 4, "text-anchor": "end" }, format(part * top)),
      );
    }
    if (values.length === 0) svg.append(s("text", { class: "none", x: (LEFT + width) / 2, y: HEIGHT / 2 - 6, "text-anchor": "middle" }, none));
    const steps = width < 420 ? 3 : 5;
    for (let step = 0; step <= steps; step += 1) {
      const at = begin + (range * step) / steps;
      const anchor = step === 0 ? "start" : step === steps ? "end" : "middle";
      svg.append(s("text", { class: "tick", x: x(at), y: HEIGHT - 6, "text-anchor": anchor }, range > 2 * 86400000 ? dayMonth(at) : clockTime(at, range < 300000)));
    }
    lines.forEach((line, number) => {
      const points = data.series[line.name];
      let path = "";
      points.forEach((value, at) => {
        if (value == null) return;
        const starts = at === 0 || points[at - 1] == null;
        const ends = at === points.length - 1 || points[at + 1] == null;
        const place = `${x(times[at]).toFixed(1)},${y(value).toFixed(1)}`;
        path += `${starts ? "M" : "L"}${place}`;
        if (starts && ends) svg.append(s("circle", { class: `dot s${number + 1}`, cx: x(times[at]), cy: y(value), r: 1.8 }));
      });
      svg.append(s("path", { class: `line s${number + 1}`, d: path }));
    });
    let at = times.length - 1;
    if (pointed != null) {
      const wanted = begin + ((pointed - LEFT) / (width - LEFT - RIGHT)) * range;
      at = times.reduce((best, time, index) => (Math.abs(time - wanted) < Math.abs(times[best] - wanted) ? index : best), 0);
      svg.append(s("line", { class: "cross", x1: x(times[at]), x2: x(times[at]), y1: TOP, y2: HEIGHT - BOTTOM }));
    }
    area.replaceChildren(svg);
    legend.replaceChildren(
      ...lines.map((line, number) =>
        h("span", {}, h("i", { class: `key s${number + 1}` }), line.label, " ", h("b", {}, format(data.series[line.name][at]))),
      ),
    );
    when.textContent = pointed == null ? "now" : range > 86400000 ? date(times[at]) : clockTime(times[at], true);
  };

  area.addEventListener("pointermove", (event) => {
    pointed = event.clientX - area.getBoundingClientRect().left;
    draw();
  });
  area.addEventListener("pointerleave", () => {
    pointed = null;
    draw();
  });
  new ResizeObserver(draw).observe(area);
  element.show = (series) => {
    data = series;
    draw();
  };
  return element;
}

/** What nodes told of their past, with a gap wherever nobody knows: before the first point, and where points lack. */
export function gapped({ every_ms, at_ms, series }, window_ms) {
  const times = [];
  const places = [];
  at_ms.forEach((at, index) => {
    if (index > 0 && at - at_ms[index - 1] > 1.5 * every_ms) {
      times.push(at_ms[index - 1] + every_ms);
      places.push(null);
    }
    times.push(at);
    places.push(index);
  });
  const fill = (values) => places.map((place) => (place == null ? null : values[place]));
  return { at_ms: times, window_ms, series: Object.fromEntries(Object.entries(series).map(([name, values]) => [name, fill(values)])) };
}
