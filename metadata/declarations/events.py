"""What a metadata node tells whoever runs it (`distributedlog/runtime/declarations/events.py`)."""

import logging

from ...runtime.declarations.events import EventDefinition

LEADER = EventDefinition(
    "metadata.leader",
    logging.INFO,
    "Another node leads, or this one leads no more.",
    ("leader", "term", "own"),
    "again and again: slow disks, or a slow network between the nodes",
)
MEMBERS = EventDefinition(
    "metadata.members", logging.INFO, "The quorum was changed.", ("after", "before")
)
UNREACHABLE = EventDefinition(
    "metadata.peer.unreachable",
    logging.INFO,
    "Another node of the quorum cannot be reached, for this reason.",
    ("peer", "why"),
    "is it started? `dlog metadata show`",
)
LISTS_DIFFER = EventDefinition(
    "metadata.lists",
    logging.WARNING,
    "The list of metadata nodes that it was given is not that of another node, or of the quorum.",
    ("peer", "why"),
    "give all metadata nodes the same `--metadata`, and start them again",
)
SNAPSHOT_REFUSED = EventDefinition(
    "metadata.snapshot.refused",
    logging.WARNING,
    "A node has had a whole snapshot and cannot take it.",
    ("peer", "entry"),
    "its log says why; mostly it is an older version: upgrade it",
)
DAMAGED = EventDefinition(
    "metadata.damaged",
    logging.ERROR,
    "Its log is damaged; it takes no part until it knows what it may have promised.",
    ("why",),
    "docs/operate/recover-metadata.md, handle a damaged node",
)
RECALLED = EventDefinition(
    "metadata.recalled",
    logging.WARNING,
    "A node whose log is damaged has learnt from the others what it may have promised, and takes part again.",
    ("term", "entry"),
)
RESCUED = EventDefinition(
    "metadata.rescued",
    logging.WARNING,
    "This node was told on its disk to ask for an admin, and that user is one now.",
    ("user", "by"),
    "`dlog trust audit` says so as well; did you?",
)
LESS = EventDefinition(
    "metadata.log.short",
    logging.ERROR,
    "Its log ends before what it had acknowledged: its disk is an older copy, or has lost its end.",
    ("entry",),
    "the others fill it up; look at the disk",
)
STATE_DIFFERS = EventDefinition(
    "metadata.state.differs",
    logging.ERROR,
    "Its state is not what most others have: it leads no more, until it has theirs.",
    ("entry",),
    "start it again; if it says so again, replace it",
)
ROOM = EventDefinition(
    "metadata.room",
    logging.WARNING,
    "Its disk runs short, or has room again.",
    ("state",),
    "free space there, or delete logs",
)
FULL = EventDefinition(
    "metadata.full",
    logging.ERROR,
    "Its disk is full: its log, or a snapshot, could not be written. It acknowledges nothing meanwhile.",
    ("what",),
    "free space there, or delete logs: it goes on by itself",
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
"""In the order of docs/reference/events.md."""
