// Numbers as people write them: sizes in GiB, rates in MB/s, times in ms.

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const DECIMAL = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"];

export function digits(value) {
  if (value === 0) return "0";
  const places = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return value.toFixed(places).replace(/\.0+$|(\.\d*[1-9])0+$/, "$1");
}

function scaled(value, step, names) {
  let at = 0;
  while (Math.abs(value) >= step && at < names.length - 1) {
    value /= step;
    at += 1;
  }
  return `${at === 0 ? Math.round(value) : digits(value)} ${names[at]}`;
}

export const bytes = (value) => (value == null ? "–" : scaled(value, 1024, BINARY));
export const rate = (value) => (value == null ? "–" : scaled(value, 1000, DECIMAL));
export const count = (value) => (value == null ? "–" : Math.round(value).toLocaleString("en").replaceAll(",", "\u202f"));
export const things = (value, thing) => `${count(value)} ${thing}${value === 1 ? "" : "s"}`;
export const percent = (value) => (value == null ? "–" : `${digits(value)} %`);
export const perSecond = (value) => (value == null ? "–" : `${digits(value)} /s`);

export function ms(value) {
  if (value == null) return "–";
  return value >= 1000 ? `${digits(value / 1000)} s` : `${digits(value)} ms`;
}

export function us(value) {
  if (value == null) return "–";
  return value >= 1000 ? ms(value / 1000) : `${Math.round(value)} µs`;
}

export function span(millis) {
  if (millis == null) return "–";
  const s = Math.max(0, Math.round(millis / 1000));
  if (s < 1) return "0 s";
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

const two = (value) => String(value).padStart(2, "0");

export function clockTime(millis, withSeconds = false) {
  const at = new Date(millis);
  return `${two(at.getHours())}:${two(at.getMinutes())}${withSeconds ? `:${two(at.getSeconds())}` : ""}`;
}

export function date(millis) {
  if (!millis) return "–";
  const at = new Date(millis);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clockTime(millis, true)}`;
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

export function dayMonth(millis) {
  const at = new Date(millis);
  return `${at.getDate()} ${MONTHS[at.getMonth()]}`;
}

export const seconds = (value) => (value == null ? "–" : span(value * 1000));

/** Small sums of money matter here: a request costs a fraction of a cent. */
export const dollars = (value) => (value == null ? "–" : `$${value >= 100 ? count(value) : value >= 0.01 || value === 0 ? value.toFixed(2) : value.toPrecision(2)}`);

/** Ends of an axis that people can read: 1, 2 or 5 times a power of the unit's base. */
export function niceTop(value, base) {
  if (!(value > 0)) return 1;
  let unit = 1;
  if (base === 1024) while (value / unit >= 1024) unit *= 1024;
  const scaledValue = value / unit;
  const power = 10 ** Math.floor(Math.log10(scaledValue));
  for (const step of [1, 2, 4, 5, 10]) {
    if (scaledValue <= step * power) return step * power * unit;
  }
  return 10 * power * unit;
}
