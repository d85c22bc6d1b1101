// The cluster. Health comes before numbers. Each color has a text, and each text a shape.

import { lines } from "./chart.js";
import { command, h, morph, table } from "./dom.js";
import { bytes, count, known, rate, seconds, some, visible } from "./format.js";

const POINTS_MAX = 900;
let points = [];  // from the console and from this page since then; Prometheus stores the history

export const SHAPES = { up: "●", "read-only": "◐", leaving: "◔", down: "✕" };

export function open(main) {
  const place = main.appendChild(h("div"));
  let last = null;
  before().then((found) => {
    points = found.filter((one) => !points.length || one.at < points[0].at).concat(points).slice(-POINTS_MAX);
    if (last) morph(place, render(last));
  });
  return {
    query: "page=cluster",
    title: "Cluster",
    update(state) {
      if (!points.length || points.at(-1).at < state.point.at) points.push(state.point);
      if (points.length > POINTS_MAX) points.shift();
      last = state;
      morph(place, render(state));
    },
  };
}

// The points from before the page was opened. Without them the charts start now.
async function before() {
  try {
    const answer = await fetch("/points");
    return answer.ok ? (await answer.json()).points : [];
  } catch {
    return [];
  }
}

export function verdict(state) {
  const words = state.healthy ? "✓ healthy" : `▲ NOT healthy: ${state.health.replace("_", " ")}`;
  return h("section", { class: `verdict ${state.health.replace("_", "-")}`, "aria-live": "polite", "aria-atomic": "true" },
    h("h1", {}, words),
    state.conditions.length ? h("ul", {}, state.conditions.map((one) => h("li", {}, `${one.severity.replace("_", " ")}: `, visible(one.text), " ", command(one.command)))) : null,
    state.conditions_left_out ? h("p", {}, `and ${state.conditions_left_out} more`) : null);
}

function state_of(one) {
  if (one.state === "down") return "✕ down";
  if (one.slow) return "◆ slow disk";
  if (one.in_limbo) return "◒ limbo";
  if (!one.answers) return `○ no answer${known(one.silent_s) ? ` for ${seconds(one.silent_s)}` : ""}`;
  return `${SHAPES[one.state] ?? "○"} ${one.state}`;
}

function disk(one) {
  if (!known(one.free_bytes)) return "–";
  const whole = one.free_bytes + (one.used_bytes ?? 0);
  return h("span", {}, h("meter", { min: "0", max: whole, value: one.used_bytes ?? 0, "aria-label": `${bytes(one.used_bytes)} used` }),
    ` ${bytes(one.free_bytes)} free`);
}

function render(state) {
  const bookies = state.bookies.map((one) => ({
    class: one.slow ? "slow" : one.state,
    cells: [visible(one.label), state_of(one), disk(one), count(one.ledgers ?? one.ledgers_missing), count(one.limbo), count(one.rotten),
      seconds(one.sync_p99_s), seconds(one.late_s), rate(one.in_bytes_s, bytes), rate(one.out_bytes_s, bytes), visible(one.rack) || "–", visible(one.version) || "–",
      visible(one.address) || "–"],
  }));
  const summary = state.known
    ? `${some(state.logs, "log")}; ${count(state.under_replicated)} ledgers with missing copies; ${count(state.damaged_records)} damaged records.`
    : "Bookies, logs, copies: unknown, because no metadata quorum answers.";
  return [
    verdict(state),
    h("p", {}, summary, " ", h("span", { class: "muted" }, visible(state.where))),
    table("Bookies", [["", "name"], ["", "state"], ["", "disk"], ["", "ledgers", "number"], ["", "limbo", "number"], ["", "corrupt", "number"],
      ["", "sync p99", "number"], ["", "loop lag", "number"], ["", "in", "number"], ["", "out", "number"], ["", "rack"], ["", "version"], ["", "address"]], bookies,
    state.known ? "No bookie has ever joined." : "Unknown."),
    state.bookies_left_out ? h("p", {}, `${state.bookies_left_out} more bookies, all up, are omitted.`) : null,
    h("div", { class: "charts" },
      lines("Bytes per second, all bookies", [["in", "in_bytes_s"], ["out", "out_bytes_s"]], points, (value) => `${bytes(value)}/s`, bytes),
      lines("Entries per second, all replicas", [["entries", "entries_s"]], points, count)),
    h("p", { class: "muted" }, "The charts have at most 900 points, collected while a browser is connected. For older data use Prometheus (docs/reference/metrics.md)."),
    h("h2", {}, "Metadata"),
    members(state),
    state.proxies.length ? [h("h2", {}, "Proxies"), proxies(state)] : null,
  ];
}

function proxies(state) {
  return table("Proxies", [["", "name"], ["", "kind"], ["", "state"], ["", "logs", "number"], ["", "connections", "number"], ["", "records in", "number"],
    ["", "out", "number"], ["", "rack"], ["", "version"], ["", "address"]],
  state.proxies.map((one) => [visible(one.label), one.kind, !one.answers ? "○ no answer" : one.accepting ? "● up" : "◔ draining", count(one.logs), count(one.connections),
    rate(one.records_s, count), rate(one.out_bytes_s, bytes), visible(one.rack) || "–", visible(one.version) || "–", visible(one.address) || "–"]), "None.");
}

export function members(state) {
  return table("Metadata nodes", [["", "name"], ["", "role"], ["", "term", "number"], ["", "behind", "number"], ["", "version"], ["", "address"]],
    state.metadata.map((one) => [visible(one.name), `${!one.alive ? "✕" : one.role === "leader" ? "★" : "●"} ${visible(one.role)}`,
      count(one.term), count(one.behind), visible(one.version) || "–", visible(one.address)]), "No node is known.");
}
