"""Seeds of a log that many write and read at a time, through proxies and beside them (G9, G11).

The same cluster and faults as in `seed.py`, and in it two or three write proxies and two read proxies, which
are struck as any node is, and at their own moments (`trigger_points.py`). An operator moves the log and
drains proxies; a direct writer takes the log from them; the log may be truncated and may forget names.
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
from ..world.bug_injection import Patch, planted
from ..world.scheduler import Simulation
from ..world.sim_cluster import PATH
from .exactly_once import SNAPSHOT_BYTES, snapshots_each
from .seed import CHAOS_S, SeedRun

LOG = "shared"
NAMED = 2
"""Producers with a name, of each of the two clients that write through proxies."""
SESSION_RECORDS_MAX = 150
FOLLOWERS = ("direct", "through", "slow")
PROOF_RECORDS = 60
"""One by one, after the heal: more than a reader's window and a frame of it."""
PROOF_BYTES = 400
"""About so much each of them takes."""
WHOLE_S = 120.0
"""More for all of the end than other workloads have: each proxy has the whole log read, through rings that
may be smaller than an entry, and where names are forgotten a client is sent away first, while the others
write as fast as they can. That readers follow in time is `CAUGHT_UP_S`."""
CAUGHT_UP_S = 30.0
"""After the heal every reader has the last record within this."""
AWAY_PAUSE_S = 2.0
AWAY_S_MAX = 6.0
"""A client that is away comes back after this also where its names are not forgotten: it tries for 10 s to
go on where it was."""
BACK_S = 10.0
AWAY_LOOK_S = 0.1
ORDER_S = 5.0
"""An order to a proxy that is not answered is forgotten after this."""
NEWS_S = 3.0
"""A read proxy knows of a truncation after this, where nothing is in its way."""


@dataclass(frozen=True, slots=True)
class Narrow:
    """Smaller bounds of producers and read proxies: see `parameter_sets.py`."""

    producers_max: int = PRODUCERS_MAX
    idle_ms: int = producing.IDLE_MS
    snapshot_bytes: int = SNAPSHOT_BYTES[-1]
    ring_bytes: int = read_server.RING_BYTES_MAX
    frame_bytes: int = 2_000
    """Of ENTRIES."""
    window_bytes: int = 2_000
    """The smallest of a reader."""
    feed_rest_s: float = read_server.IDLE_FEED_S

    @property
    def may_forget(self) -> bool:
        """May the log forget a producer?"""
        return self.producers_max < PRODUCERS_MAX


def draw_narrow(rng: Random, forget_rng: Random) -> Narrow:
    """Of a seed. ``forgets``: how readily the log does, where it may."""
    limits = Narrow(
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
def narrowed(limits: Narrow) -> Iterator[None]:
    """Run with these bounds."""
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
        stack.enter_context(planted(patches))
        stack.enter_context(snapshots_each(limits.snapshot_bytes))
        yield


def names_of(client: str) -> list[str]:
    """Of the producers that write there."""
    return [f"{client}-{number}" for number in range(NAMED)]


class ProxiedRun(SeedRun):
    """One seed of it."""

    proxied: ClassVar[bool] = True

    def __init__(self, seed: int, *, chaos_s: float = CHAOS_S, keep_trace: bool = False) -> None:
        super().__init__(seed, chaos_s=chaos_s, keep_trace=keep_trace)
        rng = self.simulation.chance("proxies")
        self.limits = draw_narrow(rng, self.simulation.chance("forgets"))
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
        """What was read before it was truncated."""
        self.producer_records = 0
        """Of named producers that the log knows, at the end."""
        self.served_after_truncation = 0
        """Truncated records that a reader still got: they were on their way."""
        self._txids: Any = rng.choice(("count", "ms", "auto"))
        self._order_s = rng.choice((1.0, 3.0, 9.0))
        self._drained_proxies: dict[str, None] = {}
        self._leaving_client = ""
        """The client that is sent away when something of it is stored next."""
        self._client_left = trio.Event()
        self._away_lock = trio.Lock()
        self._known_names: set[str] = set()
        """Names that were opened, and not forgotten since."""
        self.has_met_forgetting = False
        """Did a client come back that was forgotten, with nothing else going wrong?"""
        self._final_records: list[ObservedRecord] = []
        self._is_truncated = False
        self._found_by_producer: dict[str, int] = {}
        self._next_sequences: dict[str, int] = {}

    async def _main(self, simulation: Simulation) -> None:
        with narrowed(self.limits), planted(self._observation_patches()):
            await super()._main(simulation)

    async def _begin(self) -> None:
        if self.limits.may_forget:
            self.simulation.nursery.start_soon(self._send_away)

    async def _send_away(self) -> None:
        """A client goes away now and then, while other things go wrong, too."""
        rng = self.simulation.chance("away")
        while not self.nemesis.is_over:
            await trio.sleep(rng.expovariate(1.0 / AWAY_PAUSE_S))
            async with self._away_lock:
                await self._keep_client_away(rng.choice(self.cluster.clients[:2]))

    async def _keep_client_away(self, client: str) -> bool:
        """What a client sent is stored, and it comes back when its names are forgotten (H67). Are they?"""
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
                await trio.sleep(AWAY_LOOK_S)
        self.crowd.guests_hurry = False
        self.simulation.note("back", client, *sorted(self._known_names & names))
        self.cluster.network.reconnect(self._directions_of(client))
        if remembered.cancelled_caught:
            return False
        self.nemesis.counts["forgotten while away"] += 1
        with trio.move_on_after(BACK_S) as timed_out:
            while not self._known_names >= names:  # noqa: ASYNC110
                await trio.sleep(AWAY_LOOK_S)
        return not timed_out.cancelled_caught

    def _cut_off_client(self, client: str) -> None:
        """Something of it is stored, and the answer on its way to it."""
        if client != self._leaving_client:
            return
        self._leaving_client = ""
        self._client_left.set()
        self.nemesis.counts["client away"] += 1
        self.simulation.note("away", client)
        network, directions = self.cluster.network, self._directions_of(client)
        for direction in directions:
            network.cut(*direction)
        for end in list(network.connections.values()):
            if (end.host.name, end.peer_end.host.name) in directions:
                network.reset(end)

    def _directions_of(self, client: str) -> list[tuple[str, str]]:
        """Between it and those that write for it."""
        proxies = self.cluster.write_proxies
        return [way for proxy in proxies for way in ((proxy, client), (client, proxy))]

    def _observation_patches(self) -> list[Patch]:
        """Which names a log knows, and when something of a name is stored."""
        begin, answer = ProducerStateManager.open, ProduceSession._on_ack

        def begun(producers: ProducerStateManager, name: str) -> tuple[int, EntryBatch]:
            number, batch = begin(producers, name)
            assert batch.producer_section is not None, "it says so"
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
        """Move the log, drain proxies, until cancelled."""
        rng, fault_counts = self.simulation.chance("operator"), self.nemesis.counts
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
                self.simulation.note("order", type(error).__name__)
            self._start_drained()

    def _start_drained(self) -> None:
        """Who was drained ends, and another process takes its address."""
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
        """Write through proxies, have every reader catch up, then read all of it, also past the proxies."""
        machines, clients, crowd_records = self.cluster.machines, self.cluster.clients, self.crowd
        machines[clients[3]].kill()
        self._start_drained()
        crowd_records.is_calm = True
        await crowd.prove_written(through, LOG, crowd_records, None, rng, 3)
        if self.limits.may_forget and not self.has_met_forgetting:
            async with self._away_lock:
                self.has_met_forgetting = await self._keep_client_away(clients[0])
            await crowd.prove_written(through, LOG, crowd_records, None, rng, 3)
        for name in clients[:2]:  # nobody else writes any more
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
        """Liveness: every reader has the last record. Raises `Violation`."""
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
                f"liveness: {CAUGHT_UP_S:g} s after the last record, {last}, readers are at"
                f" {position_texts}"
            )

    async def _check_truncated(self, namespace: Namespace, through: Namespace) -> None:
        """G6: what was truncated is given by no read proxy, but for what was on its way."""
        self.cluster.machines[self.cluster.clients[2]].kill()
        start = DLSN(*self._final_records[-PROOF_RECORDS].position)
        truncation_point = DLSN(*self._final_records[-1].position)
        small = through.open_log(LOG, config={"read_ahead_bytes": 1})
        if not self._is_truncated:
            async with small.open_reader(dlsn=start) as reader:
                if await reader.read_next(wait_s=NEWS_S) is None:
                    raise Violation(f"G5: nothing is at {start}")
                self._is_truncated = (
                    True  # whether it is done or not: what follows may be tried again
                )
                await namespace.open_log(LOG).truncate(truncation_point)
                await trio.sleep(NEWS_S)
                with suppress(LogTruncated):
                    while (record := await reader.read_next(wait_s=NEWS_S)) is not None:
                        self.served_after_truncation += record.dlsn < truncation_point
        budget = 2 * (self.limits.window_bytes + self.limits.frame_bytes) // PROOF_BYTES
        if self.served_after_truncation > budget:
            raise Violation(
                f"G6: {self.served_after_truncation} truncated records were served {NEWS_S:g} s after, "
                "of which"
                f" {budget} may have been on their way"
            )
        await namespace.open_log(LOG).truncate(truncation_point)
        with suppress(LogTruncated):
            async with small.open_reader(dlsn=start) as reader:
                extra_record = await reader.read_next(wait_s=NEWS_S)
                raise Violation(
                    f"G6: {extra_record!r} is read from {start} on, truncated to {truncation_point}"
                )

    async def _settle(self, namespace: Namespace) -> None:
        """Nothing."""

    async def _conclude(self) -> None:
        exclusive = self.crowd.exclusive_writers
        self.result.reports.append(
            check_log(self.history, self._final_records, exclusive_writers=exclusive)
        )
        records_by_producer = crowd.check_sources(self.crowd, self._final_records)
        crowd.check_known(self.crowd, records_by_producer, self._next_sequences)
        self.producer_records = sum(records_by_producer.values())
        self.simulation.note(
            "final", len(self._final_records), self.history.acked_count, self.producer_records
        )
