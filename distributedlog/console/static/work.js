// Repairs and drains, with progress and the reason of each wait.

import { buttons } from "./actions.js";
import { command, h, morph, table } from "./dom.js";
import { bytes, count, some, visible } from "./format.js";

export function open(main) {
  const place = main.appendChild(h("div"));
  buttons(main, ["decommission", "cancel-decommission", "pause-repair", "resume-repair"]);
  return { query: "page=work", title: "Work", update: (state) => morph(place, render(state)) };
}

function render(state) {
  return [
    h("h1", {}, "Work"),
    h("p", {}, state.repairer === null ? "There is no repair leader now." : `Bookie ${visible(state.repairer)} is the repair leader.`),
    h("h2", {}, "Decommissioned bookies"),
    state.leaving.length ? state.leaving.map(leaving) : h("p", { class: "muted" }, "No bookie is being decommissioned."),
    state.leaving_left_out ? h("p", {}, `and ${state.leaving_left_out} more`) : null,
    h("h2", {}, "Unavailable bookies"),
    table("Bookies that are down", [["", "bookie"], ["", "ledgers with missing copies", "number"], ["", "command"]],
      state.down.map((one) => [visible(one.label), count(one.ledgers), command(one.command)]), "No bookie is down."),
    h("h2", {}, "Problems reported by bookies"),
    table("Bookies with problems", [["", "bookie"], ["", "problem", "words"]],
      state.mending.map((one) => [visible(one.label), h("ul", {}, one.conditions.map((each) => h("li", {}, visible(each))))]), "Nothing."),
    h("h2", {}, "Recorded missing copies"),
    table("Ledgers with missing copies", [["", "ledger"], ["", "missing entries"]],
      state.notes.map((one) => [String(one.ledger), one.holes.map((hole) =>
        h("div", {}, `${visible(hole.bookie)}: from entry ${hole.first}${hole.to === null ? " on" : ` to before ${hole.to}`}`))]), "None."),
    state.notes_left_out ? h("p", {}, `and ${count(state.notes_left_out)} more; `, command("dlog under-replicated")) : null,
  ];
}

function leaving(one) {
  return h("section", {},
    h("h3", {}, `${visible(one.label)}: ${one.ledgers ? `${some(one.ledgers, "ledger")} ${one.ledgers === 1 ? "needs" : "need"} it` : one.running ? "empty: you can stop it" : "empty"}`),
    table(`Remaining ledgers of ${visible(one.label)}`, [["", "ledger"], ["", "size", "number"], ["", "reason", "words"]],
      one.waiting.map((each) => [String(each.ledger), each.bytes === null ? "open" : bytes(each.bytes), visible(each.why)]), "Nothing."),
    h("p", {}, command(one.command)));
}
