// What is being mended and drained, how far it is, and what it waits for.

import { command, h, morph, table } from "./dom.js";
import { bytes, count, some, visible } from "./format.js";

export function open(main) {
  const place = main.appendChild(h("div"));
  return { query: "page=work", title: "Work", update: (state) => morph(place, render(state)) };
}

function render(state) {
  return [
    h("h1", {}, "Work"),
    h("p", {}, state.repairer === null ? "Nobody repairs at this moment." : `Bookie ${visible(state.repairer)} repairs.`),
    h("h2", {}, "Leaving"),
    state.leaving.length ? state.leaving.map(leaving) : h("p", { class: "muted" }, "No bookie is to leave."),
    state.leaving_left_out ? h("p", {}, `and ${state.leaving_left_out} more`) : null,
    h("h2", {}, "Away"),
    table("Bookies that are down", [["", "bookie"], ["", "ledgers that miss its copies", "number"], ["", "to look"]],
      state.down.map((one) => [visible(one.label), count(one.ledgers), command(one.command)]), "No bookie is down."),
    h("h2", {}, "What bookies say of themselves"),
    table("Bookies with something to mend", [["", "bookie"], ["", "what", "words"]],
      state.mending.map((one) => [visible(one.label), h("ul", {}, one.conditions.map((each) => h("li", {}, visible(each))))]), "Nothing."),
    h("h2", {}, "Missing copies that are noted"),
    table("Ledgers with missing copies", [["", "ledger"], ["", "what is missing"]],
      state.notes.map((one) => [String(one.ledger), one.holes.map((hole) =>
        h("div", {}, `${visible(hole.bookie)}: from entry ${hole.first}${hole.to === null ? " on" : ` to before ${hole.to}`}`))]), "None."),
    state.notes_left_out ? h("p", {}, `and ${count(state.notes_left_out)} more; `, command("dlog under-replicated")) : null,
  ];
}

function leaving(one) {
  return h("section", {},
    h("h3", {}, `${visible(one.label)}: ${one.ledgers ? `${some(one.ledgers, "ledger")} ${one.ledgers === 1 ? "names" : "name"} it still` : one.running ? "holds nothing any more: stop it" : "holds nothing any more"}`),
    table(`What ${visible(one.label)} waits for`, [["", "ledger"], ["", "size", "number"], ["", "why", "words"]],
      one.waiting.map((each) => [String(each.ledger), each.bytes === null ? "open" : bytes(each.bytes), visible(each.why)]), "Nothing."),
    h("p", {}, command(one.command)));
}
