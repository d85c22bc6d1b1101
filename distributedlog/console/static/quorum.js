// The metadata quorum: the leader, the lag and the write rates of each node.

import { verdict } from "./cluster.js";
import { h, morph, table } from "./dom.js";
import { bytes, count, rate, seconds, visible } from "./format.js";

export function open(main) {
  const place = main.appendChild(h("div"));
  return { query: "page=cluster", title: "Quorum", update: (state) => morph(place, render(state)) };
}

function render(state) {
  const alive = state.metadata.filter((one) => one.alive).length;
  const voters = state.metadata.filter((one) => one.role !== "learner" && one.role !== "removed").length;
  const spare = alive - (Math.floor(voters / 2) + 1);
  return [
    h("h1", {}, "Metadata quorum"),
    h("p", {}, `${alive} of ${state.metadata.length} nodes answer: `,
      spare < 0 ? "▲ no majority." : spare === 0 ? "▲ no node can be stopped." : `✓ ${spare} of them can be stopped.`),
    table("Metadata nodes", [["", "name"], ["", "role"], ["", "term", "number"], ["", "applied", "number"], ["", "behind", "number"], ["", "changes", "number"], ["", "syncs", "number"],
      ["", "log", "number"], ["", "leases", "number"], ["", "connections", "number"], ["", "refused", "number"], ["", "last answer"], ["", "address"]],
    state.metadata.map((one) => [visible(one.name), `${!one.alive ? "✕" : one.role === "leader" ? "★" : "●"} ${visible(one.role)}`, count(one.term), count(one.applied),
      count(one.behind), rate(one.changes_s, count), rate(one.syncs_s, count), rate(one.log_bytes_s, bytes), count(one.leases), count(one.connections), count(one.refused),
      one.silent_s === null ? "never" : one.silent_s < 5 ? "now" : `${seconds(one.silent_s)} ago`, visible(one.address)]), "No node is known."),
    state.metadata.flatMap((one) => one.conditions.map((each) => h("p", {}, `${visible(one.name)}: ${visible(each)}`))),
    verdict(state),
  ];
}
