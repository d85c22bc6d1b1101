// One log: its segments as a strip, its named positions, and its records from any position or as a tail.

import { buttons } from "./actions.js";
import { strip } from "./chart.js";
import { command, h, morph, table } from "./dom.js";
import { bytes, count, some, visible } from "./format.js";
import { records } from "./records.js";

export function open(main, route) {
  const name = route.get("name") ?? "";
  const place = main.appendChild(h("div"));
  buttons(main, ["append", "truncate", "delete"], { log: name }, (action) => {
    if (action === "delete") location.hash = "#/logs";
    else shown.read_again();
  });
  const shown = records(main, name, route);
  return {
    query: `page=log&${new URLSearchParams({ name })}`,
    title: name,
    update: (state) => morph(place, render(state)),
    close: shown.close,
    seen: shown.seen,
  };
}

// The name if a shell needs no quotes for it, otherwise null.
function plain(name) {
  return /^[A-Za-z0-9_./:-]+$/.test(name) && !name.startsWith("-") ? name : null;
}

function render(state) {
  const numbers = state.segments.map((one) => one.segment);
  const parts = state.segments.map((one) => ({
    size: one.bytes ?? 0,
    kind: one.status === "truncated" ? "truncated" : one.state === "closed" ? "closed" : "open",
    missing: one.missing.length > 0,
    title: words(one, state.bookies),
  }));
  const marks = state.positions.map((one) => ({ part: place_of(numbers, Number(one.dlsn.split(".")[0])), name: visible(one.name).slice(0, 24) }));
  const holes = state.segments.filter((one) => one.missing.length).length;
  const rows = [...state.segments].reverse().map((one) => [count(one.segment), one.ledger, `${one.state}${one.status === "readable" ? "" : `, ${one.status}`}`,
    count(one.records), bytes(one.bytes), one.last_dlsn ?? "–", one.ensembles.map((each) => h("div", {}, `from ${each.first_entry}: ${each.bookies.map((id) => visible(state.bookies[id] ?? id)).join(" ")}`)),
    one.missing.length ? `▒ ${visible(one.missing.join(", "))}` : "none"]);
  return [
    h("h1", {}, visible(state.name), state.sealed ? " (sealed)" : ""),
    h("dl", { class: "facts" }, [
      ["first", state.first_dlsn ?? "–"], ["last", state.last_dlsn ?? "–"], ["records", count(state.records)], ["records/s", count(state.records_s)],
      ["size", bytes(state.bytes)], ["truncated before", state.truncated_to ?? "–"], ["writer", state.owner ? visible(state.owner) : "none"],
    ].map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value)))),
    h("h2", {}, "Segments"),
    strip(`${some(state.segments.length, "segment")}, ${holes} with missing copies; ${some(state.positions.length, "position")}`, parts, marks),
    h("p", { class: "muted legend" }, [["truncated", "truncated"], ["closed", "closed"], ["open", "in progress"], ["hole", "missing copies"]].map(([kind, name]) =>
      h("span", {}, h("span", { class: `swatch ${kind}` }), name)), h("span", {}, "▲ position"),
    state.segments_left_out ? h("span", {}, `${count(state.segments_left_out)} older ones are omitted`) : null),
    h("details", {}, h("summary", {}, "Segments as a table"),
      table("Segments", [["", "segment", "number"], ["", "ledger", "number"], ["", "state"], ["", "records", "number"], ["", "size", "number"], ["", "last"], ["", "bookies"], ["", "missing copies on"]],
        rows, "No segment yet.")),
    h("details", {}, h("summary", {}, some(state.positions.length + state.positions_left_out, "position") + " as a table"),
      table("Positions", [["", "name"], ["", "continues at"]], state.positions.map((one) => [visible(one.name), one.dlsn]), "There are no named positions."),
      state.positions_left_out ? h("p", {}, `${state.positions_left_out} more`) : null),
    plain(state.name) ? h("p", {}, command(`dlog log show ${state.name}`)) : null,
  ];
}

function place_of(numbers, segment) {
  const at = numbers.findIndex((one) => one >= segment);
  return at < 0 ? numbers.length - 1 : at;
}

function words(one, bookies) {
  const where = one.ensembles.map((each) => `from entry ${each.first_entry}: ${each.bookies.map((id) => bookies[id] ?? id).join(" ")}`);
  return visible([`segment ${one.segment}`, `ledger ${one.ledger}`, one.state, one.status, bytes(one.bytes), `${count(one.records)} records`, ...where,
    ...(one.missing.length ? [`missing copies on ${one.missing.join(", ")}`] : [])].join(" · "));
}
