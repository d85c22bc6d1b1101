// One log: its segments as a strip, its named positions, and its records from any position or as a tail.

import { buttons } from "./actions.js";
import { strip } from "./chart.js";
import { command, h, morph, section, table, tiles } from "./dom.js";
import { bytes, count, damage_words, some, visible } from "./format.js";
import { records } from "./records.js";

const LOG_NOT_FOUND = 510;  // the code of the error (docs/reference/errors.md)

export function open(main, route) {
  const name = route.get("name") ?? "";
  const place = main.appendChild(h("div"));
  let shown = null;  // the records, once it is known that the log exists
  const close = () => {
    shown?.close();
    shown = null;
  };
  return {
    query: `page=log&${new URLSearchParams({ name })}`,
    title: name,
    update(state) {
      morph(place, render(state));
      if (shown) return;
      buttons(main, ["append", "truncate", "delete"], { log: name }, (action) => {
        if (action === "delete") location.hash = "#/logs";
        else shown.read_again();
      });
      shown = records(main, name, route);
    },
    // Whether the page shows this error, so that no message is necessary.
    fail(error) {
      if (error.code !== LOG_NOT_FOUND) return false;
      close();
      main.replaceChildren(place);
      morph(place, [h("h1", { class: "line" }, "There is no log with the name ", h("strong", {}, visible(name)), "."), h("a", { href: "#/logs" }, "Go to all logs")]);
      return true;
    },
    close,
    seen: (visible_now) => shown?.seen(visible_now),
  };
}

const SEGMENT_COLUMNS = [["Number of the segment.", "segment", "number"], ["The ledger that stores the segment.", "ledger", "number"], ["closed or in progress; truncated segments are deleted.", "state"],
  ["Records in the segment.", "records", "number"], ["Bytes of its entries, one copy.", "size", "number"], ["DLSN of its last record.", "last"],
  ["The bookies that store it, from an entry on.", "bookies"], ["Bookies that lack entries that they should store.", "missing copies on"]];
const POSITION_COLUMNS = [["Name of the position or subscription.", "name"], ["DLSN of the next record for its reader.", "continues at"]];

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
  const marks = state.positions.filter((one) => !one.damage).map((one) => ({ part: place_of(numbers, Number(one.dlsn.split(".")[0])), name: visible(one.name).slice(0, 24) }));
  const holes = state.segments.filter((one) => one.missing.length).length;
  const rows = [...state.segments].reverse().map((one) => [count(one.segment), one.ledger, `${one.state}${one.status === "readable" ? "" : `, ${one.status}`}`,
    count(one.records), bytes(one.bytes), one.last_dlsn ?? "–", one.ensembles.map((each) => h("div", {}, `from ${each.first_entry}: ${each.bookies.map((id) => visible(state.bookies[id] ?? id)).join(" ")}`)),
    one.missing.length ? `▒ ${visible(one.missing.join(", "))}` : "none"]);
  return [
    h("h1", {}, visible(state.name), state.sealed ? " (sealed)" : ""),
    tiles([
      [count(state.records_s), "records/s", "Records appended per second."], [count(state.records), "records", "Records that can be read."],
      [bytes(state.bytes), "size", "Bytes of the entries, one copy."], [state.first_dlsn ?? "–", "first record", "DLSN of the first record that can be read."],
      [state.last_dlsn ?? "–", "last record", "DLSN of the last record that can be read."],
      [state.truncated_to ?? "–", "truncated before", "Records before this DLSN are deleted, or will be."], [state.owner ? visible(state.owner) : "none", "writer", "The client that holds the lock of the log."],
    ]),
    state.segments.length === 0 ? section("Segments", [], [], "No segment yet.") : segments(state, strip(`${some(state.segments.length, "segment")}, ${holes} with missing copies; ${some(state.positions.length, "position")}`, parts, marks), rows),
    state.positions.length === 0 ? section("Positions", [], [], "None.")
      : h("details", {}, h("summary", {}, some(state.positions.length + state.positions_left_out, "position") + " as a table"),
        table("Positions", POSITION_COLUMNS, state.positions.map((one) => [visible(one.name), damage_words(one) || one.dlsn]), ""),
        state.positions_left_out ? h("p", {}, `${state.positions_left_out} more`) : null),
    plain(state.name) ? h("p", {}, command(`dlog log show ${state.name}`)) : null,
  ];
}

function segments(state, picture, rows) {
  return h("section", {}, h("h2", {}, "Segments"), picture,
    h("p", { class: "muted legend" }, [["truncated", "truncated"], ["closed", "closed"], ["open", "in progress"], ["hole", "missing copies"]].map(([kind, name]) =>
      h("span", {}, h("span", { class: `swatch ${kind}` }), name)), h("span", {}, "▲ position"),
    state.segments_left_out ? h("span", {}, `${count(state.segments_left_out)} older ones are omitted`) : null),
    h("details", {}, h("summary", {}, "Segments as a table"), table("Segments", SEGMENT_COLUMNS, rows, "")));
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
