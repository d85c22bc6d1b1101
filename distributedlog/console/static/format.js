// Format numbers and times for display. Unknown values are "–", never 0.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function known(value) {
  return value !== null && value !== undefined;
}

export function bytes(value) {
  if (!known(value)) return "–";
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

// A part of a whole, in the unit of the whole: "0.1 of 76 GiB".
export function portion(part, whole) {
  if (!known(part) || !known(whole)) return "–";
  let unit = 0;
  let factor = 1;
  while (whole / factor >= 1024 && unit < UNITS.length - 1) {
    factor *= 1024;
    unit += 1;
  }
  const digits = (value) => (value === 0 ? 0 : value < 0.05 ? "<0.1" : value < 10 && unit > 0 ? value.toFixed(1) : Math.round(value));
  return `${digits(part / factor)} of ${digits(whole / factor)} ${UNITS[unit]}`;
}

export function rate(value, format) {
  return known(value) ? `${format(value)}/s` : "–";
}

export function count(value) {
  return known(value) ? value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 }) : "–";
}

export function some(value, what) {
  return `${count(value)} ${what}${value === 1 ? "" : "s"}`;
}

// For an axis, where 320,000 is too wide.
export function short(value) {
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= limit) return `${(value / limit).toFixed(value < 10 * limit ? 1 : 0)}${unit}`;
  }
  return String(Math.round(value * 10) / 10);
}

export function seconds(value) {
  if (!known(value)) return "–";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;
}

// Always in UTC, with the suffix.
export function time(ms) {
  const at = new Date(ms);
  return Number.isNaN(at.getTime()) ? "–" : `${at.toISOString().slice(11, 23)} UTC`;
}

export function moment(ms) {
  const at = new Date(ms);
  return Number.isNaN(at.getTime()) ? "–" : `${at.toISOString().slice(0, 23).replace("T", " ")} UTC`;
}

// Why a record cannot be read, or "" (consumer_overview.py).
export function damage_words(one) {
  return { corrupt: "▲ corrupt record", unsupported: "▲ record of a newer version" }[one.damage] ?? "";
}

// Control characters, including those that change the text direction, are shown as escapes.
export function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
