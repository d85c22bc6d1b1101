// The cluster. Health comes before numbers. Each color has a text, and each text a shape.

import { follow_pointer, lines, nice_bytes } from "./chart.js";
import { command, h, morph, section, tiles } from "./dom.js";
import { bytes, count, known, portion, rate, seconds, some, visible } from "./format.js";
import * as history from "./points.js";

const SPANS = [["5 minutes", 300_000], ["60 minutes", 3_600_000]];
const REASONS_SHOWN = 5;

// The states of a bookie: shape, word and class.
const STATES = {
  up: ["●", "up", "good"], "read-only": ["◐", "read-only", "warn"], draining: ["◔", "draining", "warn"], offline: ["✕", "offline", "bad"],
};

let span = 0;  // the index of the shown span and of its resolution

export function open(main) {
  const place = main.appendChild(h("div"));
  let last = null;
  const draw = () => last && morph(place, render(last));
  follow_pointer(place, draw);
  place.addEventListener("change", (event) => {
    const chosen = event.target.closest("input[name=span]");
    if (chosen === null) return;
    span = Number(chosen.value);
    draw();
  });
  return {
    query: "page=cluster",
    title: "Cluster",
    update(state) {
      history.add(state.points, draw);
      const first = last === null;
      last = state;
      draw();
      if (first) draw();  // now the width of the charts is known
    },
  };
}

export function verdict(state) {
  const words = state.healthy ? "✓ healthy" : `▲ NOT healthy: ${state.health.replace("_", " ")}`;
  const reasons = state.conditions.map((one) => h("li", {}, badge(one.severity), " ", visible(one.text), " ", command(one.command)));
  return h("section", { class: `verdict ${state.health.replace("_", "-")}` },
    h("div", { role: "status" }, h("h1", {}, words)),
    h("span", { class: "muted where" }, visible(state.where)),
    reasons.length ? h("ul", {}, reasons.slice(0, REASONS_SHOWN)) : null,
    reasons.length > REASONS_SHOWN
      ? h("details", {}, h("summary", {}, `${reasons.length - REASONS_SHOWN + state.conditions_left_out} more`), h("ul", {}, reasons.slice(REASONS_SHOWN)),
        state.conditions_left_out ? h("p", {}, `and ${state.conditions_left_out} more in `, command("dlog status")) : null)
      : null);
}

function badge(severity) {
  const [shape, kind] = { info: ["ℹ", ""], healing: ["◔", "warn"], degraded: ["▲", "warn"], at_risk: ["◆", "bad"], down: ["✕", "bad"] }[severity] ?? ["○", ""];
  return h("span", { class: `badge ${kind}` }, `${shape} ${severity.replace("_", " ")}`);
}

function state_of(one) {
  let [shape, word, kind] = STATES[one.state] ?? ["○", one.state, ""];
  if (one.state !== "offline") {
    if (one.slow) [shape, word, kind] = ["◆", "slow disk", "bad"];
    else if (one.in_limbo) [shape, word, kind] = ["◒", "limbo", "warn"];
    else if (!one.answers) [shape, word, kind] = ["○", `unavailable${known(one.silent_s) ? ` for ${seconds(one.silent_s)}` : ""}`, "bad"];
  }
  return h("span", { class: `state ${kind}` }, `${shape} ${word}`);
}

function disk(one) {
  if (!known(one.free_bytes)) return "–";
  const whole = one.free_bytes + (one.used_bytes ?? 0);
  return [portion(one.used_bytes, whole), h("meter", { min: "0", max: whole, high: 0.85 * whole, optimum: "0", value: one.used_bytes ?? 0, "aria-label": `${bytes(one.used_bytes)} used` })];
}

function render(state) {
  return [
    verdict(state),
    numbers(state),
    h("div", { class: "columns" },
      h("div", {}, bookies(state), section("Metadata", MEMBER_COLUMNS, state.metadata.map(member), "No node is known."), proxies(state)),
      charts(state)),
  ];
}

function numbers(state) {
  const rates = state.rates;
  const total = state.bookies.length + state.bookies_left_out;
  const up = state.bookies.filter((one) => one.state === "up" && one.answers).length + state.bookies_left_out;
  const alive = state.metadata.filter((one) => one.alive).length;
  const slowest = state.bookies.reduce((worst, one) => (known(one.sync_p99_s) && !(worst?.sync_p99_s >= one.sync_p99_s) ? one : worst), null);
  const all = (found, of) => (!state.known ? ["–", ""] : [`${found}/${of}`, found === of && of > 0 ? "good" : "bad"]);
  const [bookies_up, bookies_kind] = all(up, total);
  const [members_up, members_kind] = state.metadata.length ? [`${alive}/${state.metadata.length}`, alive === state.metadata.length ? "good" : "bad"] : ["–", ""];
  // Totals of the bookies that answered, with their number, so that a missing one is not taken for a lower load.
  const partial = known(rates.entries_s) && rates.counted < rates.bookies ? `, ${rates.counted} of ${rates.bookies} bookies` : "";
  const kind = partial ? "warn" : "";
  const records = known(rates.records_s)
    ? [count(rates.records_s), "records/s", "Records appended per second to the logs of this namespace. Known for at most 20 logs."]
    : [count(rates.entries_s), `entries/s${partial}`, "Entries stored per second by the bookies that answered, each copy counted. Records are counted for namespaces of at most 20 logs.", kind];
  return tiles([
    records,
    [rate(rates.in_bytes_s, bytes), `written${partial}`, "Bytes of entries stored per second by the bookies that answered, each copy counted.", kind],
    [rate(rates.out_bytes_s, bytes), `read${partial}`, "Bytes of entries read per second from the bookies that answered.", kind],
    [seconds(rates.sync_p99_s), slowest ? `sync p99, ${visible(slowest.label)}` : "sync p99", "99 of 100 syncs in the last 30 s were not slower. The slowest bookie that answered."],
    [bookies_up, "bookies up", "Bookies that accept entries and answer, of all bookies.", bookies_kind],
    [members_up, "metadata nodes", "Metadata nodes that answer, of all nodes of the quorum.", members_kind],
    [count(state.logs), "logs", "Logs in all namespaces of the cluster."],
    [state.known ? count(state.under_replicated) : "–", "missing copies", "Ledgers of which a bookie lacks entries that it should store.", state.known ? (state.under_replicated ? "warn" : "good") : ""],
    state.damaged_records ? [count(state.damaged_records), "corrupt metadata records", "Records of the metadata that cannot be decoded.", "bad"] : null,
  ].filter((one) => one !== null));
}

function bookies(state) {
  const columns = [["Name of the node. Its address, its rack if it has one, and its version are below.", "name"], ["up, read-only, draining (decommissioned), offline (not registered), unavailable (registered, but without an answer), limbo or slow disk.", "state"],
    ["Used part of the disk.", "disk"], ["Ledgers of which the bookie stores entries. For an offline bookie: ledgers that lack its copies.", "ledgers", "number"],
    ["Ledgers in limbo state: the bookie cannot prove that it has all of their entries.", "limbo", "number"], ["Ledgers with corrupt entries.", "corrupt", "number"],
    ["99 of 100 syncs of the journal in the last 30 s were not slower.", "sync p99", "number"], ["The longest delay of a timer in the last minute.", "loop lag", "number"],
    ["Bytes of entries stored per second.", "in", "number"], ["Bytes of entries read per second.", "out", "number"]];
  const rows = state.bookies.map((one) => ({
    class: one.slow ? "slow" : one.state,
    cells: [named(one), state_of(one), disk(one), count(one.ledgers ?? one.ledgers_missing), count(one.limbo), count(one.corrupt),
      seconds(one.sync_p99_s), seconds(one.late_s), rate(one.in_bytes_s, bytes), rate(one.out_bytes_s, bytes)],
  }));
  return section("Bookies", columns, rows, state.known ? "No bookie has ever joined." : "Unknown, because no metadata quorum answers.",
    state.bookies_left_out ? h("p", {}, `${state.bookies_left_out} more bookies, all up, are omitted.`) : null);
}

// A name with the address, the rack and the version of the software below it.
export function named(one) {
  const where = [one.address, one.rack, one.version].filter((each) => each).map(visible).join(" · ");
  return [visible(one.label ?? one.name), where ? h("div", { class: "muted small" }, where) : null];
}

const PROXY_COLUMNS = [["Name of the node. Its address, its rack if it has one, and its version are below.", "name"], ["Write proxies append records, read proxies send them.", "kind"],
  ["up, draining or unavailable.", "state"], ["Logs that the proxy writes or sends.", "logs", "number"], ["Open connections of clients.", "connections", "number"],
  ["Records accepted or sent per second.", "records", "number"], ["Bytes sent per second.", "out", "number"]];

function proxies(state) {
  if (!state.proxies.length) return null;
  return section("Proxies", PROXY_COLUMNS, state.proxies.map((one) => {
    const [words, kind] = !one.answers ? ["○ unavailable", "bad"] : one.accepting ? ["● up", "good"] : ["◔ draining", "warn"];
    return [named(one), one.kind, h("span", { class: `state ${kind}` }, words), count(one.logs), count(one.connections), rate(one.records_s, count), rate(one.out_bytes_s, bytes)];
  }), "");
}

const MEMBER_COLUMNS = [["Name of the node. Its address, its rack if it has one, and its version are below.", "name"], ["Role in the Raft quorum: leader, follower, learner or unreachable.", "role"],
  ["Number of the election.", "term", "number"], ["Changes that this node has not applied yet.", "behind", "number"], ["Seconds since the last answer to the console.", "last answer", "number"]];

export function role_of(one) {
  const [shape, kind] = !one.alive ? ["✕", "bad"] : one.role === "leader" ? ["★", "good"] : ["●", "good"];
  return h("span", { class: `state ${kind}` }, `${shape} ${visible(one.role)}`);
}

export function answered(one) {
  return one.silent_s === null ? "never" : one.silent_s < 5 ? "now" : `${seconds(one.silent_s)} ago`;
}

function member(one) {
  return [named(one), role_of(one), count(one.term), count(one.behind), answered(one)];
}

function charts(state) {
  const [, span_ms] = SPANS[span];
  const points = history.points(span);
  const now = state.now_ms;
  const records = points.some((one) => known(one.records_s)) ? ["Records per second", "records", "records_s"] : ["Entries/s, all copies", "entries", "entries_s"];
  const remark = (one) => (one.uncounted ? `, without ${some(one.uncounted, "bookie")}` : "");
  const of_logs = records[2] === "records_s";
  return h("div", { class: "charts" },
    h("fieldset", { class: "spans" }, h("legend", {}, "Charts of the last"), SPANS.map(([name], at) =>
      h("label", {}, h("input", { type: "radio", name: "span", value: at, checked: at === span }), ` ${name}`)), h("span", { class: "muted" }, " UTC")),
    lines(records[0], [records.slice(1)], points, span_ms, now, (value) => `${count(value)}/s`, of_logs ? {} : { remark }),
    lines("Bytes/s, all copies", [["in", "in_bytes_s"], ["out", "out_bytes_s"]], points, span_ms, now, (value) => rate(value, bytes), { axis: bytes, ceiling: nice_bytes, remark }),
    lines("Sync p99 of the slowest bookie", [["p99", "sync_p99_s"]], points, span_ms, now, seconds, { axis: seconds, remark }));
}
