// The metadata quorum: the leader, the lag and the write rates of each node.

import { answered, named, role_of } from "./cluster.js";
import { h, morph, section, tiles } from "./dom.js";
import { bytes, count, known, rate, visible } from "./format.js";

const COLUMNS = [["Name of the metadata node. Its address is below.", "name"], ["Role in the Raft quorum: leader, follower, learner or unreachable.", "role"],
  ["Number of the election.", "term", "number"], ["Number of changes that this node has applied.", "applied", "number"],
  ["Changes that this node has not applied yet.", "behind", "number"], ["Applied changes per second.", "changes", "number"], ["Syncs of the Raft log per second.", "syncs", "number"],
  ["Bytes written to the Raft log per second.", "log", "number"], ["Leases of clients and nodes.", "leases", "number"], ["Open connections.", "connections", "number"],
  ["Connections and requests that the node refused since its start.", "refused", "number"], ["Seconds since the last answer to the console.", "last answer"]];

export function open(main) {
  const place = main.appendChild(h("div"));
  return { query: "page=cluster", title: "Quorum", update: (state) => morph(place, render(state)) };
}

function render(state) {
  const alive = state.metadata.filter((one) => one.alive).length;
  const voters = state.metadata.filter((one) => one.role !== "learner" && one.role !== "removed").length;
  const spare = alive - (Math.floor(voters / 2) + 1);
  const leader = state.metadata.find((one) => one.alive && one.role === "leader");
  return [
    h("h1", {}, "Metadata quorum"),
    tiles([
      [`${alive}/${state.metadata.length}`, "nodes answer", "Metadata nodes that answer, of all nodes of the quorum.", alive === state.metadata.length ? "good" : "bad"],
      [spare < 0 ? "no majority" : count(spare), spare < 0 ? "" : "can be stopped", "Nodes that may be stopped without losing the majority.", spare < 0 ? "bad" : spare === 0 ? "warn" : "good"],
      [leader ? visible(leader.name) : "none", "leader", "The node that orders all changes.", leader ? "" : "bad"],
      [leader ? count(leader.term) : "–", "term", "Number of the election."],
      [leader && known(leader.changes_s) ? rate(leader.changes_s, count) : "–", "changes", "Applied changes per second."],
    ]),
    section("Nodes", COLUMNS,
      state.metadata.map((one) => [named(one), role_of(one), count(one.term), count(one.applied), count(one.behind), rate(one.changes_s, count), rate(one.syncs_s, count),
        rate(one.log_bytes_s, bytes), count(one.leases), count(one.connections), count(one.refused), answered(one)]), "No node is known."),
    state.metadata.flatMap((one) => one.conditions.map((each) => h("p", {}, `${visible(one.name)}: ${visible(each)}`))),
  ];
}
