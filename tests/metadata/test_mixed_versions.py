"""Nodes of two versions in one quorum, upgraded one after the other at any step (H105)."""

import random
from functools import partial
from typing import Any

import pytest
import trio

from distributedlog.metadata.model.command_results import CommandResult
from distributedlog.metadata.model.commands import ReplicatedCommand, Transact, encode_command
from distributedlog.metadata.model.interface import WatchEvent
from distributedlog.metadata.replica.replica import RaftReplica
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.runtime.interfaces.errors import UnsupportedFormat
from distributedlog.runtime.protocol.frames import pack
from tests.examples import few
from tests.metadata.quorum import put, serving_quorum
from tests.metadata.test_metadata_quorum import caught_up

TOUCH = pack(["touch", ["", 0, 0], b"touched"])
"""A command of a version to come."""


def newer_apply(
    state: KeyValueState, index: int, command: bytes, meant: ReplicatedCommand | None = None
) -> tuple[CommandResult, tuple[WatchEvent, ...]]:
    """What that version does."""
    if command == TOUCH:
        command = encode_command(Transact(transaction=put(b"touched", b"%d" % index)))
    return KeyValueState.apply(state, index, command, meant)


class Versions:
    """Who runs which one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.newer: set[str] = set()
        self.replicas: dict[str, RaftReplica] = {}
        begin = RaftReplica.__init__

        def begin_as_told(replica: RaftReplica, *arguments: Any, **named: Any) -> None:
            begin(replica, *arguments, **named)
            self.replicas[replica.raft.node_id] = replica
            if replica.raft.node_id in self.newer:
                replica.state.apply = partial(newer_apply, replica.state)  # type: ignore[method-assign]

        monkeypatch.setattr(RaftReplica, "__init__", begin_as_told)


def test_what_only_a_newer_version_knows_is_not_done_at_all() -> None:
    """Nor counted: a snapshot would say that it was."""
    state = KeyValueState()
    with pytest.raises(UnsupportedFormat, match="only newer versions support"):
        state.apply(1, TOUCH)
    assert (state.index, state.revision) == (0, 0)


@pytest.mark.parametrize("seed", few(range(4), 1))
async def test_nodes_are_upgraded_at_any_step_and_have_one_state(
    seed: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """The one that is too old when the first new command comes ends, and says why at each start."""
    chance, versions = random.Random(seed), Versions(monkeypatch)
    async with serving_quorum() as (nodes, client):
        await nodes.leader()
        ids = {name: row.node_id for name, row in (await nodes.rows()).items()}
        *first, last = chance.sample(nodes.names, 3)
        for name in first:
            for _ in range(chance.randrange(100)):
                await client.transact(put(b"k%d" % chance.randrange(9), chance.randbytes(4)))
            await nodes.kill(name)
            versions.newer.add(ids[name])
            await nodes.start(name)
        leader = ""
        while leader not in first:  # only who knows a command has it done
            leader = await nodes.leader()
            if leader == last:
                await nodes.kill(last)
                await nodes.leader()
                await nodes.start(last)
        nodes.may_end.add(last)
        replica = versions.replicas[ids[leader]]
        assert replica.propose(TOUCH, lambda _: None) is not None
        replica.drain()
        for _ in range(chance.randrange(100)):
            await client.transact(put(b"k%d" % chance.randrange(9), chance.randbytes(4)))
        with trio.fail_after(10):
            why = await nodes.end_of(last)
        assert why.subgroup(UnsupportedFormat) is not None
        assert "upgrade this node" in repr(why)
        await nodes.start(last)
        with trio.fail_after(10):
            await nodes.end_of(last)

        versions.newer.add(ids[last])
        await nodes.start(last)
        for _ in range(130):
            await client.transact(put(b"k%d" % chance.randrange(9), chance.randbytes(4)))
        await caught_up(nodes)
        assert len({one.state.digest() for one in versions.replicas.values()}) == 1
        assert not any(row.conditions for row in (await nodes.rows()).values())
        touched = await client.get(b"touched")
        assert touched is not None
