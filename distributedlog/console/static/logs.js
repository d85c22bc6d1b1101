// The logs, with search by name prefix, sizes and rates, sorted.

import { buttons } from "./actions.js";
import { command, h, morph } from "./dom.js";
import { bytes, count, visible } from "./format.js";

const COLUMNS = [["name", "name", "", "Name of the log."], ["records_s", "records/s", "number", "Records appended per second."], ["bytes_s", "bytes/s", "number", "Bytes of entries appended per second, one copy."],
  ["records", "records", "number", "Records that can be read."], ["bytes", "size", "number", "Bytes of the entries, one copy."], ["segments", "segments", "number", "Segments that are not deleted."],
  ["owner", "writer", "", "The client that holds the lock of the log."], ["end", "last", "", "DLSN of the last record of the closed segments."]];

export function open(main, route, page) {
  let last = null;
  let [key, down] = [route.get("sort") ?? "name", route.get("down") === "1"];
  let timer = 0;
  const search = h("input", { type: "search", id: "search", autocomplete: "off", spellcheck: "false", placeholder: "prefix" });
  search.value = route.get("prefix") ?? "";
  const place = h("div");
  main.append(h("h1", {}, "Logs"), h("label", { for: "search" }, "Names that start with "), search);
  buttons(main, ["create"], () => ({ prefix: search.value }), (_, given) => {
    location.hash = `#/log?${new URLSearchParams({ name: given.log })}`;
  });
  main.append(place);

  const query = () => `page=logs&${new URLSearchParams({ prefix: search.value, after: route.get("after") ?? "" })}`;
  const remember = () => history.replaceState(null, "", `#/logs?${new URLSearchParams({
    prefix: search.value, after: route.get("after") ?? "", sort: key, down: down ? "1" : "0" })}`);
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      route.delete("after");
      remember();
      page.stream(query());
    }, 300);
  });
  place.addEventListener("click", (event) => {
    const wanted = event.target.closest("[data-sort]")?.dataset.sort;
    if (!wanted) return;
    down = wanted === key ? !down : wanted !== "name";
    key = wanted;
    remember();
    if (last) morph(place, render(last));
  });

  function render(state) {
    const rows = [...state.logs].sort((one, other) => order(one[key], other[key]) * (down ? -1 : 1));
    const head = COLUMNS.map(([name, title, kind, explanation]) => h("th", { scope: "col", class: kind, title: explanation, "aria-sort": name === key ? (down ? "descending" : "ascending") : "none" },
      h("button", { type: "button", "data-sort": name }, title, name === key ? (down ? " ▾" : " ▴") : "")));
    const body = rows.map((one) => h("tr", { tabindex: "-1" },
      h("th", { scope: "row" }, h("a", { href: `#/log?${new URLSearchParams({ name: one.name })}` }, visible(one.name)), one.sealed ? " (sealed)" : ""),
      one.error
        ? h("td", { colspan: String(COLUMNS.length - 1) }, visible(one.error))
        : [count(one.records_s), bytes(one.bytes_s), count(one.records), bytes(one.bytes), count(one.segments), one.owner ? visible(one.owner) : "none", one.end ?? "–"]
          .map((cell, at) => h("td", { class: COLUMNS[at + 1][2], "data-name": COLUMNS[at + 1][1] }, cell))));
    const paged = state.next !== null || state.after !== "";
    const more = state.next === null ? null : h("a", { href: `#/logs?${new URLSearchParams({ prefix: search.value, after: state.next, sort: key, down: down ? "1" : "0" })}` }, "next page");
    return [
      h("p", { class: "muted" }, `${rows.length} shown${state.after ? `, after ${visible(state.after)}` : ""}${paged ? "; only these are sorted, the pages are ordered by name" : ""}. `, more),
      rows.length === 0
        ? h("p", {}, search.value ? "No log name starts with this." : "There are no logs yet. ", search.value ? null : command("dlog log create NAME"))
        : h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Logs" },
          h("table", {}, h("caption", {}, "Logs"), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body))),
    ];
  }

  return {
    query: query(),
    title: "Logs",
    update(state) {
      last = state;
      morph(place, render(state));
    },
    close: () => clearTimeout(timer),
  };
}

function order(one, other) {
  const unknown = (value) => value === null || value === undefined;
  if (unknown(one) || unknown(other)) return Number(unknown(other)) - Number(unknown(one));
  return typeof one === "string" ? (one < other ? -1 : Number(one > other)) : one - other;
}
