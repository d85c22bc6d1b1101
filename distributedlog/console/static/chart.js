// Line charts and a strip of segments, as plain SVG. Each has a text label. The numbers of a chart are also a table.

import { h, svg } from "./dom.js";
import { short, time } from "./format.js";

const WIDTH_MAX = 900;
const TWO_FROM = 900;  // page width in pixels from which two charts are side by side, as in style.css
const HEIGHT = 130;
const LEFT = 60;
const TABLE_ROWS = 12;
const GAP_MS = 15_000;  // no browser was connected: a line across the gap would be invented

// The width in pixels of one of `columns` charts, so that text in a chart is as large as text of the page.
function room(columns) {
  const page = document.getElementById("main").clientWidth - 32;
  return Math.max(260, Math.min(WIDTH_MAX, page >= TWO_FROM ? (page - 24 * (columns - 1)) / columns : page));
}

// `named`: [name, key] of each line; `points`: [{ at, [key]: number or null }]; a null is a gap.
export function lines(title, named, points, format, axis = short) {
  const width = room(2);
  const names = named.map(([name]) => name);
  points = points.map((one) => ({ at: one.at, values: named.map(([, key]) => one[key]) }));
  const values = points.flatMap((one) => one.values).filter((one) => one !== null);
  const most = Math.max(...values, 1);
  const [first, last] = [points[0]?.at ?? 0, points.at(-1)?.at ?? 1];
  const x = (at) => LEFT + ((at - first) / Math.max(last - first, 1)) * (width - LEFT - 4);
  const y = (value) => HEIGHT - 16 - (value / most) * (HEIGHT - 28);
  const paths = names.map((_, line) => {
    let path = "";
    let pen = "M";
    let before = first;
    for (const one of points) {
      const value = one.values[line];
      if (one.at - before > GAP_MS) pen = "M";
      before = one.at;
      if (value === null) pen = "M";
      else {
        path += `${pen}${x(one.at).toFixed(1)} ${y(value).toFixed(1)}`;
        pen = "L";
      }
    }
    return svg("path", { d: path || "M0 0", class: `line line-${line}` });
  });
  const now = points.at(-1)?.values ?? [];
  const words = names.map((name, line) => `${name} ${now[line] === null || now[line] === undefined ? "unknown" : format(now[line])}`);
  return h("figure", {},
    h("figcaption", {}, title, names.map((name, line) => h("span", { class: `key key-${line}` }, words[line]))),
    svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img",
      "aria-label": `${title}: ${words.join(", ")}; at most ${format(values.length ? most : 0)} since ${time(first)}` },
    [0, 0.5, 1].map((part) => [
      svg("line", { x1: LEFT, x2: width, y1: y(most * part), y2: y(most * part), class: "grid" }),
      svg("text", { x: LEFT - 6, y: y(most * part) + 4, class: "axis" }, values.length ? axis(most * part) : "–"),
    ]),
    paths),
    h("details", {}, h("summary", {}, "as table"),
      h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "at"), names.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, points.slice(-TABLE_ROWS).reverse().map((one) => h("tr", {}, h("th", { scope: "row" }, time(one.at)),
          names.map((_, line) => h("td", {}, one.values[line] === null ? "–" : format(one.values[line])))))))));
}

// `parts`: [{ size, kind, title, missing }]. `marks`: [{ part, name }], where `part` is the index of a part.
export function strip(label, parts, marks) {
  const total = parts.reduce((sum, one) => sum + Math.max(one.size, 0), 0);
  const wide = room(1);
  const least = Math.min(6, wide / Math.max(parts.length, 1) / 2);
  const rest = wide - least * parts.length;
  let left = 0;
  const boxes = parts.map((one) => {
    const width = least + (total > 0 ? (Math.max(one.size, 0) / total) * rest : rest / parts.length);
    const box = { left, width, one };
    left += width;
    return box;
  });
  return svg("svg", { viewBox: `0 0 ${wide} ${[34, 54][marks.length] ?? 68}`, role: "img", "aria-label": label, class: "strip" },
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
