"""States of a cluster that runs in this process: what is known, and what is not."""

from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog import LogRecord, open_namespace
from distributedlog.cluster.coordination.repair_settings import change_repair_settings
from distributedlog.cluster.declarations.options import READ_PROXY, WRITE_PROXY
from distributedlog.cluster.local.local_cluster import LocalCluster, local_cluster
from distributedlog.cluster.repair.decommission import find_bookie, request_decommission
from distributedlog.console.cluster_state import TEXT_MAX, ClusterState, is_in_limbo, with_labels
from distributedlog.console.log_states import position_rows
from distributedlog.console.node_connections import node_links
from distributedlog.console.record_browser import PAYLOAD_SHOWN, RecordBrowser
from distributedlog.console.work_state_poller import WorkStatePoller
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.ledger.model.missing_range import MissingRange, encode_missing_ranges
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.log_keys import position_key
from distributedlog.log.namespace import Namespace
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.proxy.membership.proxy_registration import WRITE, ProxyRegistration
from distributedlog.runtime.declarations.condition_texts import text_of
from distributedlog.runtime.declarations.health_conditions import Code, condition
from distributedlog.runtime.declarations.versions import VERSION
from distributedlog.runtime.interfaces.errors import InvalidRequest
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.protocol.frames import pack
from tests.log.conftest import World
from tests.log.records import put
from tests.metadata.local_metadata import LocalMetadata
from tests.proxy.test_node import proxies


@asynccontextmanager
async def _cluster() -> AsyncIterator[tuple[LocalCluster, Namespace, MetadataClient]]:
    async with (
        local_cluster(memory=True, in_process=True, bookies=3, metadata_nodes=1) as cluster,
        open_namespace(cluster.uri) as namespace,
    ):
        assert isinstance(namespace, Namespace)
        assert isinstance(namespace.metadata, MetadataClient)
        yield cluster, namespace, namespace.metadata


async def _noted(
    metadata: MetadataClient, look: Callable[[], Awaitable[dict[str, Any]]], key: str, bookie: str
) -> dict[str, Any]:
    """What is seen while a hole is noted. It is of no ledger: who repairs takes it away, sooner or later."""
    note = Put(keys.missing_ranges_key(9), encode_missing_ranges([MissingRange(bookie, 3, None)]))
    while True:
        await metadata.transact(Transaction((), (note,)))
        found = await look()
        if found[key]:
            return found


async def test_nodes_proxies_work_and_hidden_payloads() -> None:
    host = real_host("console")
    async with _cluster() as (cluster, namespace, metadata), node_links(host) as nodes:
        state = ClusterState(nodes, metadata, cluster.uri, host.wall_ms)
        work = WorkStatePoller(metadata, host.wall_ms)

        async with proxies(cluster, WRITE_PROXY, READ_PROXY):
            await state.poll()
            await trio.sleep(0.2)
            found = await state.poll()
            shown = [(one["kind"], one["answers"], one["accepting"]) for one in found["proxies"]]
            assert shown == [("read", True, True), ("write", True, True)]
            assert [one["records_s"] for one in found["proxies"]] == [None, 0]
            assert all(one["in_bytes_s"] == 0 for one in found["bookies"])
            nodes_shown = (*found["bookies"], *found["metadata"], *found["proxies"])
            assert {one["version"] for one in nodes_shown} == {VERSION}
            assert all(one["silent_s"] is not None for one in found["bookies"])

        # What cannot be read, and who does not answer, is a row or a reason, and never an error.
        bookie = await find_bookie(metadata, "bookie2")
        damaged = Put(keys.missing_ranges_key(7), b"\xc1")
        foreign = Put(b"proxy/write/nobody", b"\xc1")
        silent = [
            ProxyRegistration(id, WRITE, {"": ("127.0.0.1", 1)}, label=label)
            for id, label in (("1", "west"), ("2", "east"))
        ]
        registered = [Put(one.key, one.encode()) for one in silent]
        await metadata.transact(Transaction((), (damaged, foreign, *registered)))
        await request_decommission(metadata, bookie)
        await state.poll()
        later = ClusterState(nodes, metadata, cluster.uri, host.wall_ms)  # damage is read seldom
        found = await _noted(metadata, later.poll, "under_replicated", bookie)
        assert not found["healthy"]
        by_label = [(one["label"], one["answers"]) for one in found["proxies"]]
        assert by_label == [("east", False), ("west", False)]
        there = {one["address"] for one in (*found["bookies"], *found["metadata"])}
        assert set(state._answered_at) <= there, "who is gone is forgotten"
        commands = [one["command"] for one in found["conditions"]]
        assert {"dlog audit", "dlog under-replicated", f"dlog decommission {bookie}"} <= set(
            commands
        )

        said = await _noted(metadata, work.poll, "notes", bookie)
        hole = {"bookie": "bookie2", "first": 3, "to": None}
        assert said["notes"] == [{"ledger": 9, "missing_ranges": [hole]}]
        assert [(one["label"], one["running"]) for one in said["draining"]] == [("bookie2", True)]
        # H257: an id is what stands in a key, which a stranger may have put there.
        hostile = "$(reboot)"
        cookie = pack({"label": hostile, "incarnation": 1})
        puts = (Put(keys.cookie_key(hostile), cookie), Put(keys.leaving_key(hostile), b""))
        await metadata.transact(Transaction((), puts))
        said = await work.poll()
        of_leaving = {one["label"]: one["command"] for one in said["draining"]}
        assert of_leaving == {hostile: "", "bookie2": f"dlog decommission {bookie}"}
        assert all("reboot" not in one["command"] for one in (await state.poll())["conditions"])
        await metadata.transact(Transaction((), (Delete(keys.leaving_key(bookie)),)))

        log = namespace.open_log("orders")
        async with log.open_writer() as writer:
            await writer.write(LogRecord(1, b"secret"))
        [record] = (await RecordBrowser(namespace, payloads=False).page("orders", {}))["records"]
        assert (record["bytes"], "payload" in record) == (6, False)
        with pytest.raises(InvalidRequest, match="--no-payloads"):
            await RecordBrowser(namespace, payloads=False).payload("orders", "1.0.0")
        [record] = (await RecordBrowser(namespace, payloads=True).page("orders", {}))["records"]
        assert b64decode(record["payload"]) == b"secret"
        async with namespace.open_log("large").open_writer() as writer:
            await writer.write(LogRecord(1, b"x" * 2 * PAYLOAD_SHOWN))
        [record] = (await RecordBrowser(namespace, payloads=True).page("large", {}))["records"]
        assert record["bytes"] == 2 * PAYLOAD_SHOWN
        assert b64decode(record["payload"]) == b"x" * PAYLOAD_SHOWN


async def test_a_damaged_position_does_not_hide_the_others_of_its_log(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        async with world.process() as namespace:
            await put(namespace.open_log("orders"), *range(10))
            await namespace.open_log("orders").positions.advance("a", DLSN(1, 2, 0))
            log_id = await namespace.resolve_name("orders")
            damaged = Put(position_key(log_id, "b"), b"\xc1")
            await world.metadata.transact(Transaction((), (damaged,)))
            rows = await position_rows(world.metadata, log_id)
        nursery.cancel_scope.cancel()

    assert rows == [
        {"name": "a", "dlsn": "1.2.0", "damage": ""},
        {"name": "b", "dlsn": None, "damage": "corrupt"},
    ]


async def test_what_is_over_is_no_work() -> None:
    """A bookie tells for an hour what was healed: nobody waits for it."""
    corrupt = condition(Code.ENTRIES_CORRUPT, ledgers=1)
    repaired = condition(Code.ENTRIES_REPAIRED, ledgers=2)
    there = BookieRegistration("b1", {"": ("h", 1)}, conditions=(corrupt, repaired))
    cookie = Put(keys.cookie_key("b1"), pack({"label": "one", "incarnation": 1}))
    metadata: Any = LocalMetadata()
    metadata.listener = ""
    put = Put(keys.bookie_key("b1"), there.encode())
    await metadata.transact(Transaction((), (cookie, put)))

    found = await WorkStatePoller(metadata, lambda: 0).poll()

    assert found["mending"] == [{"label": "one", "conditions": [text_of(corrupt)]}]


async def test_a_dead_bookie_that_is_to_leave_is_shown_as_offline() -> None:
    """Its state is "draining", and ledgers still miss its copies."""
    metadata: Any = LocalMetadata()
    metadata.listener = ""
    cookie = Put(keys.cookie_key("b1"), pack({"label": "one", "incarnation": 1}))
    await metadata.transact(Transaction((), (cookie,)))
    await request_decommission(metadata, "b1")

    found = await WorkStatePoller(metadata, lambda: 0).poll()

    assert [one["label"] for one in found["draining"]] == ["one"]
    assert [one["label"] for one in found["offline"]] == ["one"]


async def test_the_work_has_the_end_of_a_pause_of_repair() -> None:
    metadata: Any = LocalMetadata()
    metadata.listener = ""
    await change_repair_settings(metadata, lambda stored: stored.with_pause(5_000, 60.0))

    paused = await WorkStatePoller(metadata, lambda: 64_999).poll()
    over = await WorkStatePoller(metadata, lambda: 65_000).poll()

    assert paused["paused_until"] == "1970-01-01T00:01:05Z"
    assert over["paused_until"] is None


def test_a_bookie_is_in_limbo_by_what_it_does_not_know_any_more_too() -> None:
    """Its index knew nothing of the one that cannot be healed: none was counted, and it looked well."""
    assert is_in_limbo({"limbo_ledgers": 0, "limbo_below": 1001})
    assert is_in_limbo({"limbo_ledgers": 1, "limbo_below": 0})
    assert not is_in_limbo({"limbo_ledgers": 0, "limbo_below": 0})
    assert not is_in_limbo({})


def test_a_reason_has_bookies_by_their_labels() -> None:
    """Ids of 32 characters each, and the end was cut away."""
    one, other, nobody = ("1" * 32, "2" * 32, "3" * 32)
    labels = {one: "b1", other: "b2"}

    assert with_labels(f"bookie b1 ({one}) is down", labels) == "bookie b1 is down"
    assert with_labels(f"bookie x ({one}): full", labels) == "bookie x (b1): full"
    assert with_labels(f"it lies on {one}, {nobody}", labels) == "it lies on b1, 33333333…"
    assert (
        with_labels(f"{one}{other} ledger {'4' * 31}", labels) == f"{one}{other} ledger {'4' * 31}"
    )
    assert len(with_labels("x" * 1000, labels)) == TEXT_MAX
