// Positions, work queues and writers of logs, with their lag and their owners. The greatest lag comes first.

import { h, morph, section } from "./dom.js";
import { bytes, count, damage_words, known, moment, seconds, some, visible } from "./format.js";

const SEARCH_MS = 300;
const LOG = ["Name of the log.", "log"];
const LAG_COLUMNS = [["Readable records from the position on.", "records", "number"], ["Bytes of their entries, one copy.", "bytes", "number"], ["Age of the first of these records.", "behind", "number"]];
const POSITION_COLUMNS = [["Name of the position or subscription.", "position"], LOG, ...LAG_COLUMNS, ["DLSN of the next record for its reader.", "continues at"],
  ["The process that has subscribed to it.", "subscriber"], ["When it was last moved.", "moved"]];
const QUEUE_COLUMNS = [["Name of the work queue.", "queue"], LOG, ["Readable records from the floor on. Workers may have finished some of them.", "records", "number"], ...LAG_COLUMNS.slice(1), ["The lowest position that is not done.", "floor"],
  ["Ranges that workers have claimed, and the process of each worker.", "claims"], ["Ranges that failed too often. An operator retries or drops them.", "dead-lettered"]];
const WRITER_COLUMNS = [LOG, ["The process that has the lock of the log.", "writer"], ["When it acquired the lock.", "since"]];

export function open(main, route, page) {
  let timer = 0;
  const search = h("input", { type: "search", id: "search", autocomplete: "off", spellcheck: "false", placeholder: "prefix" });
  search.value = route.get("prefix") ?? "";
  const place = h("div");
  main.append(h("h1", {}, "Lag"), h("label", { for: "search" }, "Logs whose names start with "), search, place);
  const query = () => `page=lag&${new URLSearchParams({ prefix: search.value, after: route.get("after") ?? "" })}`;
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      route.delete("after");
      history.replaceState(null, "", address(search.value, ""));
      page.stream(query());
    }, SEARCH_MS);
  });
  return { query: query(), title: "Lag", update: (state) => morph(place, render(state)), close: () => clearTimeout(timer) };
}

function address(prefix, after) {
  return `#/lag?${new URLSearchParams({ prefix, after })}`;
}

function render(state) {
  const fine = state.logs.filter((one) => !one.error);
  const positions = worst_first(fine.flatMap((one) => one.positions.map((row) => ({ log: one.name, ...row }))));
  const queues = worst_first(fine.flatMap((one) => one.queues.map((row) => ({ log: one.name, ...row }))));
  const writers = fine.filter((one) => one.writer);
  const next = state.next === null ? null : h("a", { href: address(state.prefix, state.next) }, "next logs");
  return [
    h("p", {}, `${some(state.checked, "log")} checked${state.after ? `, after ${visible(state.after)}` : ""}`,
      state.unanswered ? `; ${state.unanswered} did not answer in time` : "", state.omitted ? `; ${state.omitted} omitted: use a longer prefix` : "", ". ", next),
    state.logs.filter((one) => one.error).map((one) => h("p", {}, "▲ ", link(one.name), `: ${visible(one.error)}`)),
    fine.filter((one) => one.left_out).map((one) => h("p", {}, link(one.name), ": more rows than shown")),
    section("Positions and subscriptions", POSITION_COLUMNS,
      positions.map((one) => [visible(one.position), link(one.log), ...lag_cells(one), damage_words(one) || one.dlsn, owner(one.subscriber, "none"), when(one.moved_ms)]),
      "None."),
    section("Work queues", QUEUE_COLUMNS,
      queues.map((one) => [visible(one.queue), link(one.log), ...lag_cells(one), damage_words(one) || one.floor, claims(one), dead_lettered(one)]),
      "None."),
    section("Writers", WRITER_COLUMNS,
      writers.map((one) => [link(one.name), damage_words(one.writer) || visible(one.writer.owner), when(one.writer.since_ms)]), "None."),
  ];
}

function worst_first(rows) {
  const age = (one) => one.lag?.seconds ?? Infinity;  // an unknown lag needs attention first
  return rows.sort((one, other) => age(other) - age(one) || (other.lag?.records ?? 0) - (one.lag?.records ?? 0));
}

function lag_cells(one) {
  if (!one.lag) return [h("span", { title: visible(one.problem) }, "? unknown"), "–", "–"];
  const { records, bytes: size, seconds: age, lost } = one.lag;
  const gone = lost === null ? " ▲ some lost" : lost ? ` ▲ ${count(lost)} lost` : "";
  return [count(records) + gone, known(size) ? bytes(size) : "–", records ? seconds(age) : "0 s"];
}

function link(name) {
  return h("a", { href: `#/log?${new URLSearchParams({ name })}` }, visible(name));
}

function when(ms) {
  return known(ms) ? moment(ms) : "–";
}

function owner(one, none) {
  if (one?.damage) return damage_words(one);
  return one ? h("span", { title: `since ${moment(one.since_ms)}` }, visible(one.owner)) : none;
}

function claims(queue) {
  if (!queue.claims.length) return "none";
  return [queue.claims.map((one) => h("div", {}, `${one.number}: ${one.first} to ${one.end}, try ${one.tries}, `, owner(one.worker, "its worker has ended"))),
    queue.claims_left_out ? h("div", {}, `and ${queue.claims_left_out} more`) : null];
}

function dead_lettered(queue) {
  if (!queue.dead_lettered.length) return "none";
  return [queue.dead_lettered.map((one) => h("div", {}, `${one.number}: ${one.first} to ${one.end}, tries: ${one.tries}`)),
    queue.dead_lettered_left_out ? h("div", {}, `and ${queue.dead_lettered_left_out} more`) : null];
}
