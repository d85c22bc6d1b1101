// Line charts over time, and a strip of segments, as plain SVG. Each has a text label. A chart is also a table.

import { h, svg } from "./dom.js";
import { known, short, time } from "./format.js";

const HEIGHT = 150;
const LEFT = 62;
const RIGHT = 20;
const TOP = 10;
const BOTTOM = 20;
const TABLE_ROWS = 12;
const TICK_PX = 60;  // minimum width of a label of the time axis
const TICKS_S = [10, 30, 60, 120, 300, 600, 900, 1800, 3600];

// The chart with the mouse pointer, and the time at the pointer.
let pointer = { title: "", at: 0 };

// The width in pixels of an element, so that text in a chart is as large as text of the page.
function room(selector) {
  const place = document.querySelector(selector) ?? document.getElementById("main");
  return Math.max(240, Math.min(1560, place.clientWidth - (place.id === "main" ? 32 : 0)));
}

// `named`: [name, key] of each line. `points`: [{ at, [key]: number or null }], each for the `points.step_ms` before
// `at`. The chart shows the `span_ms` before `now_ms`. Points that are further apart than one step are not joined.
// `remark` returns the words about a point that its figures need.
export function lines(title, named, points, span_ms, now_ms, format, { axis = short, ceiling = nice, remark = () => "" } = {}) {
  const width = room(".charts > *");
  const [first, last] = [now_ms - span_ms, now_ms];
  const shown = points.filter((one) => one.at > first && one.at <= last);
  const values = shown.flatMap((one) => named.map(([, key]) => one[key])).filter(known);
  const most = ceiling(Math.max(...values, 0));
  const x = (at) => LEFT + ((at - first) / span_ms) * (width - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - TOP - BOTTOM);
  const chosen = pointer.title === title ? nearest(shown, pointer.at, 2 * points.step_ms) : null;
  const reading = chosen ?? (shown.length && last - shown.at(-1).at < 3 * points.step_ms ? shown.at(-1) : null);
  const words = named.map(([name, key]) => `${name} ${reading && known(reading[key]) ? format(reading[key]) : "unknown"}`);
  const remarked = reading ? remark(reading) : "";
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "data-chart": title, "data-first": first, "data-span": span_ms,
    "aria-label": `${title}: ${words.join(", ")}${remarked}; ${values.length ? `at most ${format(Math.max(...values))}` : "nothing known"} since ${time(first)}` },
  [0, 0.5, 1].map((part) => [
    svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(most * part), y2: y(most * part), class: "grid" }),
    svg("text", { x: LEFT - 6, y: y(most * part) + 4, class: "axis" }, axis(most * part)),
  ]),
  ticks(first, last, width).map((at) => [
    svg("line", { x1: x(at), x2: x(at), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4, class: "grid" }),
    svg("text", { x: x(at), y: HEIGHT - 4, class: "axis middle time" }, label(at, span_ms)),
  ]),
  named.map(([, key], line) => svg("path", { d: path(shown, key, points.step_ms, x, y), class: `line line-${line}` })),
  values.length ? null : svg("text", { x: (LEFT + width) / 2, y: HEIGHT / 2, class: "axis middle" }, "no data"),
  chosen ? svg("line", { x1: x(chosen.at), x2: x(chosen.at), y1: TOP, y2: HEIGHT - BOTTOM, class: "cross" }) : null);
  return h("figure", {},
    h("figcaption", {}, h("strong", {}, title), words.map((each, line) => h("span", { class: `key key-${line}` }, each)),
      h("span", { class: "muted" }, remarked, chosen ? ` at ${time(chosen.at).slice(0, 8)}` : "")),
    picture,
    h("details", {}, h("summary", {}, "as table"),
      h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col", title: "End of the interval, in UTC." }, "at"),
        named.map(([name]) => h("th", { scope: "col", title: `${title}: ${name}` }, name)))),
      h("tbody", {}, shown.slice(-TABLE_ROWS).reverse().map((one) => h("tr", {}, h("th", { scope: "row" }, time(one.at).slice(0, 8), remark(one)),
        named.map(([, key]) => h("td", {}, known(one[key]) ? format(one[key]) : "–"))))))));
}

// An SVG path through the known points. It is interrupted where an interval is missing or unknown.
function path(shown, key, step_ms, x, y) {
  let parts = "";
  let before = null;
  for (const one of shown) {
    if (!known(one[key])) before = null;
    else {
      const place = `${x(one.at).toFixed(1)} ${y(one[key]).toFixed(1)}`;
      // A single point between two gaps is a short line: otherwise it would not be visible.
      parts += before !== null && one.at - before < 1.5 * step_ms ? `L${place}` : `M${place}h0.6`;
      before = one.at;
    }
  }
  return parts || "M0 0";
}

function nearest(shown, at, most_ms) {
  let best = null;
  for (const one of shown) if (best === null || Math.abs(one.at - at) < Math.abs(best.at - at)) best = one;
  return best !== null && Math.abs(best.at - at) <= most_ms ? best : null;
}

// The times of the labels: round times, as many as fit.
export function ticks(first, last, width) {
  const most = Math.max(2, Math.floor((width - LEFT - RIGHT) / TICK_PX));
  const step = 1000 * (TICKS_S.find((each) => (last - first) / 1000 / each <= most) ?? TICKS_S.at(-1));
  const found = [];
  const margin = ((last - first) * TICK_PX) / 3 / width;  // otherwise the first label would touch the other axis
  for (let at = Math.ceil((first + margin) / step) * step; at <= last; at += step) found.push(at);
  return found;
}

function label(at, span_ms) {
  return new Date(at).toISOString().slice(11, span_ms < 180_000 ? 19 : 16);
}

// The end of an axis: the next value that is 1, 2, 4, 5 or 8 times a power of ten.
export function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 4, 5, 8, 10].find((each) => power * each >= value * 0.9999);
}

// The same for bytes: the next power of two, or three quarters of it.
export function nice_bytes(value) {
  if (value <= 1024) return 1024;
  const power = 2 ** Math.ceil(Math.log2(value));
  return power * 0.75 >= value ? power * 0.75 : power;
}

// Shows the values at the mouse pointer. `draw` draws the charts again.
export function follow_pointer(place, draw) {
  place.addEventListener("pointermove", (event) => {
    const picture = event.target.closest("svg[data-chart]");
    if (picture === null && pointer.title === "") return;
    if (picture === null) pointer = { title: "", at: 0 };
    else {
      const box = picture.getBoundingClientRect();
      const part = ((event.clientX - box.left) * (picture.viewBox.baseVal.width / box.width) - LEFT) / (picture.viewBox.baseVal.width - LEFT - RIGHT);
      pointer = { title: picture.dataset.chart, at: Number(picture.dataset.first) + part * Number(picture.dataset.span) };
    }
    draw();
  });
  place.addEventListener("pointerleave", () => {
    pointer = { title: "", at: 0 };
    draw();
  });
}

// `parts`: [{ size, kind, title, missing }]. `marks`: [{ part, name }], where `part` is the index of a part.
export function strip(title, parts, marks) {
  const total = parts.reduce((sum, one) => sum + Math.max(one.size, 0), 0);
  const wide = room("main");
  const least = Math.min(6, wide / Math.max(parts.length, 1) / 2);
  const rest = wide - least * parts.length;
  let left = 0;
  const boxes = parts.map((one) => {
    const width = least + (total > 0 ? (Math.max(one.size, 0) / total) * rest : rest / parts.length);
    const box = { left, width, one };
    left += width;
    return box;
  });
  return svg("svg", { viewBox: `0 0 ${wide} ${[34, 54][marks.length] ?? 68}`, role: "img", "aria-label": title, class: "strip" },
    boxes.map(({ left: x, width, one }) => [
      svg("rect", { x: x + 0.5, y: 4, width: Math.max(width - 1, 1), height: 26, class: `segment ${one.kind}` }, svg("title", {}, one.title)),
      one.missing ? svg("rect", { x: x + 0.5, y: 22, width: Math.max(width - 1, 1), height: 8, class: "hole" }) : null,
    ]),
    marks.map(({ part, name }, at) => {
      const box = boxes[part];
      if (box === undefined) return null;
      const x = Math.min(Math.max(box.left + box.width / 2, 4), wide - 4);
      const y = 44 + (at % 2) * 14;
      return [svg("path", { d: `M${x - 4} 38L${x + 4} 38L${x} 31Z`, class: "mark" }),
        svg("text", { x, y: y + 6, class: x > wide - 80 ? "axis" : x < 80 ? "axis first" : "axis middle" }, name)];
    }));
}
