"""Log events of a metadata node (`distributedlog/runtime/declarations/events.py`)."""

import logging

from ...runtime.declarations.events import EventDefinition

LEADER = EventDefinition(
    "metadata.leader",
    logging.INFO,
    "Another node became leader, or this node stepped down.",
    ("leader", "term", "own"),
    "repeated: slow disks, or a slow network between the nodes",
)
MEMBERS = EventDefinition(
    "metadata.members", logging.INFO, "The members of the quorum changed.", ("after", "before")
)
UNREACHABLE = EventDefinition(
    "metadata.peer.unreachable",
    logging.INFO,
    "Another node of the quorum is unreachable. The reason is in `why`.",
    ("peer", "why"),
    "check that it is started: `dlog metadata show`",
)
LISTS_DIFFER = EventDefinition(
    "metadata.lists",
    logging.WARNING,
    "The configured list of metadata nodes differs from that of another node or of the quorum.",
    ("peer", "why"),
    "restart all metadata nodes with the same `--metadata`",
)
SNAPSHOT_REFUSED = EventDefinition(
    "metadata.snapshot.refused",
    logging.WARNING,
    "A node received a complete snapshot and cannot apply it.",
    ("peer", "entry"),
    "its log states the cause; usually an older version, which needs an upgrade",
)
DAMAGED = EventDefinition(
    "metadata.damaged",
    logging.ERROR,
    "The Raft log is damaged. The node does not vote until its hard state is recovered.",
    ("why",),
    "docs/operate/recover-metadata.md, handle a damaged node",
)
RECALLED = EventDefinition(
    "metadata.recalled",
    logging.WARNING,
    "A node with a damaged log recovered its hard state from the other nodes, and votes again.",
    ("term", "entry"),
)
RESCUED = EventDefinition(
    "metadata.rescued",
    logging.WARNING,
    "A user became admin through a request on the disk of this node.",
    ("user", "by"),
    "verify that you made the request; `dlog trust audit` shows it",
)
LESS = EventDefinition(
    "metadata.log.short",
    logging.ERROR,
    "The log ends before entries that the node acknowledged. The disk is an older copy, or "
    "lost data.",
    ("entry",),
    "the other nodes restore the entries; check the disk",
)
STATE_DIFFERS = EventDefinition(
    "metadata.state.differs",
    logging.ERROR,
    "The state differs from the majority. The node does not lead until it has received the "
    "correct state.",
    ("entry",),
    "restart the node; replace it if the event repeats",
)
ROOM = EventDefinition(
    "metadata.room",
    logging.WARNING,
    "The disk is nearly full, or has enough free space again.",
    ("state",),
    "free disk space, or delete logs",
)
FULL = EventDefinition(
    "metadata.full",
    logging.ERROR,
    "The disk is full, so the log or a snapshot could not be written. The node "
    "acknowledges nothing until space is free.",
    ("what",),
    "free disk space, or delete logs; the node then continues automatically",
)

EVENTS = (
    LEADER,
    MEMBERS,
    UNREACHABLE,
    LISTS_DIFFER,
    SNAPSHOT_REFUSED,
    DAMAGED,
    RECALLED,
    RESCUED,
    LESS,
    STATE_DIFFERS,
    ROOM,
    FULL,
)
"""Listed in the order of docs/reference/events.md."""
