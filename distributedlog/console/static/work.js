// Repairs and drains, with progress and the reason of each wait.

import { buttons } from "./actions.js";
import { command, h, morph, section, table } from "./dom.js";
import { bytes, count, some, visible } from "./format.js";

const LEDGERS = ["Number of the ledger.", "ledger"];

export function open(main) {
  const place = main.appendChild(h("div"));
  buttons(main, ["decommission", "cancel-decommission", "pause-repair", "resume-repair"]);
  return { query: "page=work", title: "Work", update: (state) => morph(place, render(state)) };
}

function render(state) {
  return [
    h("h1", {}, "Work"),
    h("section", { class: "empty" }, h("h2", {}, "Repair leader"), " ",
      state.repairer === null ? h("span", { class: "state bad" }, "✕ none now") : h("span", { class: "state good" }, `● ${visible(state.repairer)}`),
      state.paused_until ? ` Repair of lost bookies is paused until ${state.paused_until}.` : null),
    state.draining.length
      ? h("section", {}, h("h2", {}, "Draining bookies"), state.draining.map(draining), state.draining_left_out ? h("p", {}, `and ${state.draining_left_out} more`) : null)
      : section("Draining bookies", [], [], "None is being decommissioned."),
    section("Offline bookies", [["Name of the bookie.", "bookie"], ["Ledgers that lack the copies of this bookie.", "ledgers with missing copies", "number"], ["Lists these ledgers.", "command"]],
      state.offline.map((one) => [visible(one.label), count(one.ledgers), command(one.command)]), "None."),
    section("Problems reported by bookies", [["Name of the bookie.", "bookie"], ["The conditions that the bookie reports.", "problem", "words"]],
      state.mending.map((one) => [visible(one.label), h("ul", {}, one.conditions.map((each) => h("li", {}, visible(each))))]), "None."),
    section("Recorded missing copies", [LEDGERS, ["The bookie, and the entries that it lacks.", "missing entries"]],
      state.notes.map((one) => [String(one.ledger), one.missing_ranges.map((hole) =>
        h("div", {}, `${visible(hole.bookie)}: from entry ${hole.first}${hole.to === null ? " on" : ` to before ${hole.to}`}`))]), "None.",
      state.notes_left_out ? h("p", {}, `and ${count(state.notes_left_out)} more; `, command("dlog under-replicated")) : null),
  ];
}

function draining(one) {
  return h("section", {},
    h("h3", {}, `◔ ${visible(one.label)}: ${one.ledgers ? `${some(one.ledgers, "ledger")} ${one.ledgers === 1 ? "needs" : "need"} it` : one.running ? "empty: you can stop it" : "empty"}`),
    one.waiting.length ? table(`Remaining ledgers of ${visible(one.label)}`, [LEDGERS, ["Stored bytes.", "size", "number"], ["Why the ledger is still on this bookie.", "reason", "words"]],
      one.waiting.map((each) => [String(each.ledger), each.bytes === null ? "open" : bytes(each.bytes), visible(each.why)]), "") : null,
    h("p", {}, command(one.command)));
}
