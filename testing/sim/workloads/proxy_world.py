"""Seeds of a log that many clients write and read, through proxies and directly (G9, G11).

Cluster and faults are those of `seed.py`, with two or three write proxies and two read proxies. Proxies are
subject to the same faults as other nodes, and to faults at their own trigger points (`trigger_points.py`). An
operator moves the log and drains proxies. A direct writer takes the log over from them. The log may be
truncated, and it may forget producer names.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, ClassVar, cast

import trio

from .... import open_namespace
from ....cluster.status import proxy_overview as proxy_view
from ....log.format.dlsn import DLSN
from ....log.format.producer_table import PRODUCERS_MAX
from ....log.namespace import Namespace
from ....log.write import producer_state_manager as producing
from ....log.write.entry_batch import EntryBatch
from ....log.write.producer_state_manager import ProducerStateManager
from ....metadata.client.metadata_client import MetadataClient
from ....proxy.client import entry_source
from ....proxy.protocol.proxy_messages import ACK
from ....proxy.read import history_reads as cold
from ....proxy.read import read_server
from ....proxy.read import tail_feed as feed
from ....proxy.write.produce_session import ProduceSession
from ....runtime.interfaces.errors import DistributedLogError, LogExists, LogTruncated
from ....runtime.interfaces.host import Host
from ...verify.checks.history_check import Violation, check_log, dotted
from ...verify.history.run_history import ObservedRecord
from ...verify.workloads import crowd, pipeline, workload
from ...verify.workloads.crowd import Crowd
from ...verify.workloads.pipeline import PipelineHistory
from ..world.bug_injection import Patch, patched
from ..world.scheduler import Simulation
from ..world.sim_cluster import PATH
from .exactly_once import SNAPSHOT_BYTES, snapshots_each
from .seed import CHAOS_S, SeedRun

LOG = "shared"
NAMED = 2
"""Named producers of each of the two clients that write through proxies."""
SESSION_RECORDS_MAX = 150
FOLLOWERS = ("direct", "through", "slow")
PROOF_RECORDS = 60
"""Records written one by one after the heal: more than a reader's window and one of its frames."""
PROOF_BYTES = 400
"""Approximate size of each of them."""
WHOLE_S = 120.0
"""Additional virtual seconds for the end, compared with other workloads. Each read proxy delivers the whole
log, with caches that may be smaller than an entry. If names are forgotten, a client is first cut off while
the others write as fast as they can. `CAUGHT_UP_S` limits the delay of readers."""
CAUGHT_UP_S = 30.0
"""Virtual seconds after the heal within which every reader has the last record."""
AWAY_PAUSE_S = 2.0
AWAY_S_MAX = 6.0
"""Virtual seconds after which a client that was cut off is reconnected, even if its names are not forgotten.
It tries for 10 s to continue at its position."""
BACK_S = 10.0
AWAY_CHECK_S = 0.1
ORDER_S = 5.0
"""Seconds after which an unanswered command to a proxy is abandoned."""
NEWS_S = 3.0
"""Seconds within which a read proxy receives a truncation if no fault delays it."""


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Smaller limits of producers and read proxies; see `parameter_sets.py`."""

    producers_max: int = PRODUCERS_MAX
    idle_ms: int = producing.IDLE_MS
    snapshot_bytes: int = SNAPSHOT_BYTES[-1]
    ring_bytes: int = read_server.RING_BYTES_MAX
    frame_bytes: int = 2_000
    """Size of an ENTRIES frame."""
    window_bytes: int = 2_000
    """Smallest window of a reader."""
    feed_rest_s: float = read_server.IDLE_FEED_S

    @property
    def may_forget(self) -> bool:
        """Whether the log may forget a producer."""
        return self.producers_max < PRODUCERS_MAX


def draw_proxy_limits(rng: Random, forget_rng: Random) -> ProxyLimits:
    """Return the limits of a seed. ``forget_rng`` decides how soon the log forgets producers, if it may."""
    limits = ProxyLimits(
        snapshot_bytes=rng.choice(SNAPSHOT_BYTES),
        ring_bytes=rng.choice((1_500, 10_000, read_server.RING_BYTES_MAX)),
        feed_rest_s=rng.choice((0.5, read_server.IDLE_FEED_S)),
    )
    if rng.random() < 0.3:
        limits = replace(
            limits,
            producers_max=forget_rng.choice((5, 8)),
            idle_ms=forget_rng.choice((200, 2_000)),
        )
    return limits


@contextmanager
def limited(limits: ProxyLimits) -> Iterator[None]:
    """Apply these limits within the `with` block."""
    patches: list[Patch] = [
        (producing, "PRODUCERS_MAX", limits.producers_max),
        (producing, "IDLE_MS", limits.idle_ms),
        (read_server, "IDLE_FEED_S", limits.feed_rest_s),
        (read_server, "RING_BYTES_MAX", limits.ring_bytes),
        (feed, "FRAME_BYTES", limits.frame_bytes),
        (cold, "FRAME_BYTES", limits.frame_bytes),
        (cold, "RANGE_BYTES", 4 * limits.frame_bytes),
        (entry_source, "WINDOW_BYTES_MIN", limits.window_bytes),
    ]
    with ExitStack() as stack:
        stack.enter_context(patched(patches))
        stack.enter_context(snapshots_each(limits.snapshot_bytes))
        yield


def names_of(client: str) -> list[str]:
    """Return the names of the producers of a client."""
    return [f"{client}-{number}" for number in range(NAMED)]


class ProxiedRun(SeedRun):
    """One seed with proxies."""

    proxied: ClassVar[bool] = True

    def __init__(self, seed: int, *, chaos_s: float = CHAOS_S, keep_trace: bool = False) -> None:
        super().__init__(seed, chaos_s=chaos_s, keep_trace=keep_trace)
        rng = self.simulation.random_stream("proxies")
        self.limits = draw_proxy_limits(rng, self.simulation.random_stream("forgets"))
        self.liveness_s += WHOLE_S
        self.shape = replace(
            self.shape,
            write_proxies=rng.choice((2, 3)),
            read_proxies=2,
            proxy={"idle_s": rng.choice((1.0, 600.0, 600.0))},
            client={**self.shape.client, "read_ahead_bytes": rng.choice((1, 4096, 1 << 22))},
        )
        self.crowd = Crowd(
            self.history,
            may_forget_names=self.limits.may_forget,
            is_truncated_meanwhile=rng.random() < 0.4,
        )
        self.pipeline_history = PipelineHistory(self.history)
        """The records that were read before their truncation."""
        self.producer_records = 0
        """Number of records of named producers in the log at the end."""
        self.served_after_truncation = 0
        """Truncated records that a reader still received, because they had already been sent."""
        self._txids: Any = rng.choice(("count", "ms", "auto"))
        self._order_s = rng.choice((1.0, 3.0, 9.0))
        self._drained_proxies: dict[str, None] = {}
        self._leaving_client = ""
        """The client that is cut off as soon as its next record is stored."""
        self._client_left = trio.Event()
        self._away_lock = trio.Lock()
        self._known_names: set[str] = set()
        """Names that the log has in its producer table."""
        self.has_met_forgetting = False
        """Whether a client returned after its names were forgotten, without any other fault."""
        self._final_records: list[ObservedRecord] = []
        self._is_truncated = False
        self._found_by_producer: dict[str, int] = {}
        self._next_sequences: dict[str, int] = {}

    async def _main(self, simulation: Simulation) -> None:
        with limited(self.limits), patched(self._observation_patches()):
            await super()._main(simulation)

    async def _begin(self) -> None:
        if self.limits.may_forget:
            self.simulation.nursery.start_soon(self._send_away)

    async def _send_away(self) -> None:
        """Cut off random clients now and then, in addition to other faults."""
        rng = self.simulation.random_stream("away")
        while not self.nemesis.is_over:
            await trio.sleep(rng.expovariate(1.0 / AWAY_PAUSE_S))
            async with self._away_lock:
                await self._keep_client_away(rng.choice(self.cluster.clients[:2]))

    async def _keep_client_away(self, client: str) -> bool:
        """Cut a client off after a stored record, until its names are forgotten, and reconnect it (H67).

        Returns:
            Whether the names were forgotten and the client then wrote again.
        """
        self._leaving_client, self._client_left = client, trio.Event()
        with trio.move_on_after(AWAY_S_MAX) as nothing_sent:
            await self._client_left.wait()
        self._leaving_client = ""
        if nothing_sent.cancelled_caught:
            return False
        names = self._known_names & set(names_of(client))
        self.crowd.guests_hurry = True
        with trio.move_on_after(AWAY_S_MAX) as remembered:
            while self._known_names & names:  # noqa: ASYNC110
                await trio.sleep(AWAY_CHECK_S)
        self.crowd.guests_hurry = False
        self.simulation.record_event("back", client, *sorted(self._known_names & names))
        self.cluster.network.reconnect(self._directions_of(client))
        if remembered.cancelled_caught:
            return False
        self.nemesis.counts["forgotten while away"] += 1
        with trio.move_on_after(BACK_S) as timed_out:
            while not self._known_names >= names:  # noqa: ASYNC110
                await trio.sleep(AWAY_CHECK_S)
        return not timed_out.cancelled_caught

    def _cut_off_client(self, client: str) -> None:
        """Cut the client off now. Its record is stored, and the acknowledgement is lost."""
        if client != self._leaving_client:
            return
        self._leaving_client = ""
        self._client_left.set()
        self.nemesis.counts["client away"] += 1
        self.simulation.record_event("away", client)
        network, directions = self.cluster.network, self._directions_of(client)
        for direction in directions:
            network.cut(*direction)
        for end in list(network.connections.values()):
            if (end.host.name, end.peer_end.host.name) in directions:
                network.reset(end)

    def _directions_of(self, client: str) -> list[tuple[str, str]]:
        proxies = self.cluster.write_proxies
        return [way for proxy in proxies for way in ((proxy, client), (client, proxy))]

    def _observation_patches(self) -> list[Patch]:
        """Return patches that observe which names a log has, and when a named producer's record is stored."""
        begin, answer = ProducerStateManager.open, ProduceSession._on_ack

        def begun(producers: ProducerStateManager, name: str) -> tuple[int, EntryBatch]:
            number, batch = begin(producers, name)
            assert batch.producer_section is not None, "a batch that opens a producer has a section"
            for opened in batch.producer_section.openings:
                if opened.evicted_number:
                    self._known_names.discard(producers.table.rows[opened.evicted_number].name)
            self._known_names.add(name)
            return number, batch

        def answered(session: ProduceSession, item: bytes) -> None:
            answer(session, item)
            client = self._leaving_client
            if not client:
                return
            ip, _ = self.cluster.address_of(client)
            stream = session._streams.get(ACK.unpack(item)[0])
            if stream is None:
                return  # its client has closed it
            if stream[0].producer and session._link.peer_address.startswith(f"{ip}:"):
                self.simulation.call_after(0.0, self._cut_off_client, client)

        return [(ProducerStateManager, "open", begun), (ProduceSession, "_on_ack", answered)]

    # --- clients ----------------------------------------------------------------------------------

    def _open_through_proxies(self, host: Host) -> Any:
        return open_namespace(
            self.cluster.proxied_uri, config=self.cluster.client_config(host.name), host=host
        )

    async def _write(self, namespace: Namespace, host: Host) -> None:
        while True:
            try:
                await namespace.create_log(LOG, txids=self._txids)
            except LogExists:
                break
            except DistributedLogError:
                await trio.sleep(workload.REST_S)
            else:
                break
        records_max = min(self.rates.session_records_max, SESSION_RECORDS_MAX)
        rates = replace(self.rates, session_records_max=records_max)
        async with trio.open_nursery() as nursery:
            for name in (*names_of(host.name), None):
                nursery.start_soon(
                    crowd.produce, namespace, LOG, self.crowd, name, host.random, rates
                )
            if self.limits.may_forget:
                nursery.start_soon(crowd.visit, namespace, LOG, self.crowd, host.random, rates)

    async def _read(self, namespace: Namespace, host: Host) -> None:
        rng, crowd_records = host.random, self.crowd
        async with self._open_through_proxies(host) as through, trio.open_nursery() as nursery:
            for name in FOLLOWERS:
                source = namespace if name == "direct" else through
                read = partial(crowd.follow, slow=name == "slow")
                nursery.start_soon(read, source, LOG, crowd_records, name, rng)
            nursery.start_soon(
                crowd.read_again, through, LOG, crowd_records, "again", rng, self.rates
            )

    async def _measure(self, namespace: Namespace, host: Host) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                crowd.write_past, namespace, LOG, self.crowd, "past", host.random, self.rates
            )
            nursery.start_soon(self._operate, namespace, host)
            if self.crowd.is_truncated_meanwhile:
                nursery.start_soon(
                    pipeline.archive, namespace, LOG, self.pipeline_history, host.random
                )

    async def _operate(self, namespace: Namespace, host: Host) -> None:
        """Move the log and drain proxies until cancelled."""
        rng, fault_counts = self.simulation.random_stream("operator"), self.nemesis.counts
        metadata = cast("MetadataClient", namespace.metadata)
        while True:
            await trio.sleep(rng.expovariate(1.0 / self._order_s))
            try:
                with trio.move_on_after(ORDER_S):
                    if rng.random() < 0.8:
                        target = rng.choice((*self.cluster.write_proxies, ""))
                        await proxy_view.move_log(metadata, PATH, LOG, target, host=host)
                        fault_counts["log moved"] += 1
                    else:
                        name = rng.choice(self.cluster.write_proxies)
                        self._drained_proxies[name] = None
                        await proxy_view.drain_proxy(metadata, name, host=host)
                        fault_counts["proxy drained"] += 1
            except DistributedLogError as error:
                self.simulation.record_event("order", type(error).__name__)
            self._start_drained()

    def _start_drained(self) -> None:
        """Restart drained proxies as new processes with the same addresses."""
        for name in self._drained_proxies:
            self.cluster.machines[name].kill()
            self.cluster.start(name)
        self._drained_proxies.clear()

    # --- the end ----------------------------------------------------------------------------------

    async def _prove(self, namespace: Namespace, host: Host) -> None:
        async with self._open_through_proxies(host) as through:
            if not self._final_records:
                await self._work_and_read(namespace, through, host.random)
            await self._check_truncated(namespace, through)

    async def _work_and_read(self, namespace: Namespace, through: Namespace, rng: Random) -> None:
        """Write through proxies, wait for all readers, and read the whole log in several ways."""
        machines, clients, crowd_records = self.cluster.machines, self.cluster.clients, self.crowd
        machines[clients[3]].kill()
        self._start_drained()
        crowd_records.is_calm = True
        await crowd.prove_written(through, LOG, crowd_records, None, rng, 3)
        if self.limits.may_forget and not self.has_met_forgetting:
            async with self._away_lock:
                self.has_met_forgetting = await self._keep_client_away(clients[0])
            await crowd.prove_written(through, LOG, crowd_records, None, rng, 3)
        for name in clients[:2]:  # no other client writes any more
            machines[name].kill()
        await crowd.prove_written(through, LOG, crowd_records, "prover", rng, PROOF_RECORDS)
        await self._catch_up(namespace)
        writer = await namespace.open_log(LOG).open_writer(takeover=True)
        producers = writer.send_queue.producers
        assert producers is not None, "a log that has had producers"
        self._next_sequences = {
            row.name: row.next_sequence for row in producers.table.rows.values()
        }
        await writer.aclose()
        for number in range(self.shape.read_proxies):
            await crowd.read_once(through, LOG, crowd_records, f"whole {number}")
        if crowd_records.is_truncated_meanwhile:
            await pipeline.read_rest(namespace, LOG, self.pipeline_history)
            self._final_records = self.pipeline_history.archived_records()
        else:
            self._final_records = await workload.read_final(namespace, LOG)

    async def _catch_up(self, namespace: Namespace) -> None:
        """Check liveness: wait until every reader has the last record. Raises `Violation`."""
        last = await namespace.open_log(LOG).last_dlsn()
        reached_positions = self.crowd.last_read
        with trio.move_on_after(CAUGHT_UP_S) as scope:
            while any(reached_positions.get(name, (0, 0, 0)) < last for name in FOLLOWERS):  # noqa: ASYNC110
                await trio.sleep(0.1)
        if scope.cancelled_caught:
            position_texts = {
                name: dotted(reached_at) for name, reached_at in reached_positions.items()
            }
            raise Violation(
                f"liveness: {CAUGHT_UP_S:g} s after the last record, {last}, the readers' positions are"
                f" {position_texts}"
            )

    async def _check_truncated(self, namespace: Namespace, through: Namespace) -> None:
        """Check that read proxies deliver no truncated records, except those already sent (G6)."""
        self.cluster.machines[self.cluster.clients[2]].kill()
        start = DLSN(*self._final_records[-PROOF_RECORDS].position)
        truncation_point = DLSN(*self._final_records[-1].position)
        small = through.open_log(LOG, config={"read_ahead_bytes": 1})
        if not self._is_truncated:
            async with small.open_reader(dlsn=start) as reader:
                if await reader.read_next(wait_s=NEWS_S) is None:
                    raise Violation(f"G5: no record at {start}")
                self._is_truncated = True  # even if the call fails: the next steps may be repeated
                await namespace.open_log(LOG).truncate(truncation_point)
                await trio.sleep(NEWS_S)
                with suppress(LogTruncated):
                    while (record := await reader.read_next(wait_s=NEWS_S)) is not None:
                        self.served_after_truncation += record.dlsn < truncation_point
        budget = 2 * (self.limits.window_bytes + self.limits.frame_bytes) // PROOF_BYTES
        if self.served_after_truncation > budget:
            raise Violation(
                f"G6: {self.served_after_truncation} truncated records were delivered {NEWS_S:g} s after"
                " the truncation,"
                f" at most {budget} were already sent"
            )
        await namespace.open_log(LOG).truncate(truncation_point)
        with suppress(LogTruncated):
            async with small.open_reader(dlsn=start) as reader:
                extra_record = await reader.read_next(wait_s=NEWS_S)
                raise Violation(
                    f"G6: {extra_record!r} was read from {start}, the log is truncated to {truncation_point}"
                )

    async def _settle(self, namespace: Namespace) -> None:
        """Do nothing."""

    async def _conclude(self) -> None:
        exclusive = self.crowd.exclusive_writers
        self.result.reports.append(
            check_log(self.history, self._final_records, exclusive_writers=exclusive)
        )
        records_by_producer = crowd.check_sources(self.crowd, self._final_records)
        crowd.check_known(self.crowd, records_by_producer, self._next_sequences)
        self.producer_records = sum(records_by_producer.values())
        self.simulation.record_event(
            "final", len(self._final_records), self.history.acked_count, self.producer_records
        )
