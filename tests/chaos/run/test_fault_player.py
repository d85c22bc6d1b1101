"""The player keeps within the promise: bounds on who is down, one rotten node a role, everything healed."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import trio

from distributedlog.testing.chaos.clients.client_processes import Clients
from distributedlog.testing.chaos.clients.cluster_endpoints import ClusterEndpoints
from distributedlog.testing.chaos.model.adapter import NodeRole
from distributedlog.testing.chaos.model.scenario import (
    AcceptanceLimits,
    ClientSpec,
    Fault,
    Loop,
    Moment,
    Scenario,
)
from distributedlog.testing.chaos.run.fault_player import FaultPlayer
from tests.chaos.fake_adapter import FakeAdapter


class Book:
    """Faults as the runner would note them."""

    def __init__(self) -> None:
        self.begun: list[tuple[float, str, list[str]]] = []
        self.ended: dict[int, tuple[float, str]] = {}

    def fault_begins(self, kind: str, names: Sequence[str], text: str) -> int:
        self.begun.append((trio.current_time(), kind, list(names)))
        return len(self.begun) - 1

    def fault_ends(self, number: int, text: str) -> None:
        self.ended[number] = (trio.current_time(), text)

    def report(self, text: str) -> None:
        return

    def spans(self) -> list[tuple[float, float, str, list[str]]]:
        return [
            (at, self.ended[number][0], kind, names)
            for number, (at, kind, names) in enumerate(self.begun)
        ]


def scenario_of(
    *loops: Sequence[Fault], moments: Sequence[Moment] = (), **bounds: object
) -> Scenario:
    return Scenario(
        "test",
        100.0,
        (ClientSpec("writer"),),
        "",
        tuple(Loop(f"loop {n}", tuple(faults), (0.2, 1.0)) for n, faults in enumerate(loops)),
        tuple(moments),
        bounds=AcceptanceLimits(**bounds),  # type: ignore[arg-type]
    )


async def plague(
    scenario: Scenario,
    adapter: FakeAdapter,
    tmp_path: Path,
    *,
    seed: int = 1,
    seconds: float = 100.0,
    mended_at: float | None = None,
) -> tuple[FaultPlayer, Book]:
    book = Book()

    async def leader() -> str | None:
        await trio.lowlevel.checkpoint()
        return next((n for n in ("metadata2", "metadata1") if adapter.state[n] == "up"), None)

    player = FaultPlayer(
        scenario,
        adapter,
        seed,
        leader=leader,
        recorder=book,
        clients=Clients(scenario, tmp_path, ClusterEndpoints(adapter.uri), seed),
        by_hand=mended_at is not None,
    )
    with trio.fail_after(10_000.0):  # of the test's clock: a fault that never ends
        async with trio.open_nursery() as nursery:
            nursery.start_soon(player.run)
            if mended_at is not None:
                await trio.sleep(mended_at)
                player.end_faults()
            await trio.sleep(seconds)
            player.targets.is_over.set()
        await player.heal()
    return player, book


BOOKIES = (Fault("kill", "bookie", (0.5, 2.0)), Fault("pause", "bookie", (0.5, 4.0)))
QUORUM = (Fault("kill", "metadata", (0.5, 2.0)), Fault("partition", "leader", (0.5, 2.0)))


async def test_two_loops_overlap_and_no_bound_is_passed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    adapter = FakeAdapter()

    player, book = await plague(scenario_of(BOOKIES, BOOKIES, QUORUM), adapter, tmp_path)

    assert adapter.most_down == {NodeRole.METADATA: 1, NodeRole.BOOKIE: 1}
    spans = book.spans()
    overlaps = sum(a[0] < b[1] and b[0] < a[1] for n, a in enumerate(spans) for b in spans[n + 1 :])
    assert overlaps > 20
    assert not player.unexpected_exits


async def test_the_bound_is_the_scenarios(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    adapter = FakeAdapter()

    await plague(scenario_of(BOOKIES, BOOKIES, bookies_down_max=2), adapter, tmp_path)

    assert adapter.most_down[NodeRole.BOOKIE] == 2


async def test_everything_runs_and_passes_at_the_end(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    everything = (
        Fault("restart", "all", (0.1, 1.0)),
        Fault("power-cut", "bookies", (0.1, 1.0)),
        Fault("partition", "bookie", (1.0, 3.0), direction="in"),
        Fault("slow-link", "node", (1.0, 3.0)),
        Fault("disk-full", "bookie", (1.0, 3.0)),
        Fault("sync-errors", "node", (1.0, 3.0)),
        Fault("slow-disk", "node", (1.0, 3.0), delay_s=0.3),
        Fault("clock", "all", (1.0, 3.0)),
        Fault("files-limit", "node", (1.0, 3.0)),
    )
    adapter = FakeAdapter()

    player, book = await plague(scenario_of(everything, BOOKIES, everything), adapter, tmp_path)

    assert set(adapter.state.values()) == {"up"}
    assert not any(adapter.cuts.values())
    assert not adapter.held
    assert sum(deed == "hold" for _, deed, _ in adapter.deeds) > 10
    assert len(player.counts) == len({f.kind for f in (*everything, *BOOKIES)})
    assert len(book.ended) == len(book.begun)
    last = [deed for _, deed, _ in adapter.deeds if deed.startswith(("limit", "clock"))]
    assert last[-1] in ("limit None", "clock right")


async def test_synced_data_is_destroyed_on_one_node_of_a_role_only(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The promise holds while a good copy is there."""
    for name in ("bookie1", "bookie2", "bookie3", "bookie4"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal-1").write_bytes(b"x" * 10_000)
    adapter = FakeAdapter(data=tmp_path)
    rot = (Fault("damage", "bookie", (0.1, 0.5), amount=3),)

    player, book = await plague(scenario_of(rot, rot, BOOKIES), adapter, tmp_path)

    damaged = {name for _, _, kind, names in book.spans() if kind == "damage" for name in names}
    assert damaged == {player.targets.damageable[NodeRole.BOOKIE]}
    whole = [n for n in ("bookie1", "bookie2", "bookie3", "bookie4") if n not in damaged]
    assert all((tmp_path / n / "journal-1").read_bytes() == b"x" * 10_000 for n in whole)


async def test_a_node_that_refuses_its_damaged_data_counts_as_down_for_good(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    adapter = FakeAdapter(data=tmp_path)
    rotten = [f"bookie{n}" for n in range(1, 5)]
    for name in rotten:
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal-1").write_bytes(b"x" * 100)
    moments = [Moment(1.0, Fault("damage", "bookie", (0.0, 0.0)))]
    scenario = scenario_of(BOOKIES, moments=moments, may_stay_down=True)
    adapter.refusing[Random("1/rotten").choice(["m1", "m2", "m3"])] = "never asked"
    chance = Random("1/rotten")
    chance.choice(adapter.nodes[:3])
    gone = chance.choice(adapter.nodes[3:]).name
    adapter.refusing[gone] = "its journal is damaged"

    player, book = await plague(scenario, adapter, tmp_path)

    assert player.targets.refusing_nodes == {gone: "its journal is damaged"}
    at = next(end for _, end, kind, _ in book.spans() if kind == "damage")
    later = [names for begin, _, _, names in book.spans() if begin > at]
    assert later == [], "with one gone for good no other bookie may go"


async def test_a_node_that_ends_by_itself_is_told_and_started_again(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    adapter = FakeAdapter()

    async with trio.open_nursery() as nursery:

        async def die() -> None:
            await trio.sleep(5.0)
            adapter.state["bookie3"] = "down"

        nursery.start_soon(die)
        player, _ = await plague(scenario_of(), adapter, tmp_path, seconds=10.0)

    assert player.unexpected_exits == ["bookie3 ended unexpectedly: an assert of ours"]
    assert adapter.state["bookie3"] == "up"


async def test_the_same_seed_plays_the_same_faults(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async def kinds(seed: int) -> list[tuple[str, list[str]]]:
        _, book = await plague(scenario_of(BOOKIES), FakeAdapter(), tmp_path, seed=seed)
        return [(kind, names) for _, _, kind, names in book.spans()]

    first = await kinds(5)

    assert len(first) > 20
    assert await kinds(5) == first
    assert await kinds(6) != first


async def test_by_hand_a_fault_lasts_until_it_is_mended(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    moments = [
        Moment(1.0, Fault("kill", "bookie1", (2.0, 2.0))),
        Moment(1.0, Fault("slow-disk", "metadata1", (2.0, 2.0), delay_s=0.3)),
    ]
    adapter = FakeAdapter()

    _, book = await plague(
        scenario_of(moments=moments), adapter, tmp_path, seconds=5.0, mended_at=30.0
    )

    assert all(29.0 <= end - begin < 31.0 for begin, end, _, _ in book.spans())
    assert len(book.spans()) == 2
    assert set(adapter.state.values()) == {"up"}
    assert not adapter.held


async def test_what_keeps_nothing_may_all_be_away(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    proxies = (Fault("kill", "write-proxy", (1.0, 5.0)),)
    adapter = FakeAdapter(write_proxies=2)

    await plague(scenario_of(proxies, proxies, BOOKIES), adapter, tmp_path)

    assert adapter.most_down[NodeRole.WRITE_PROXY] == 2
    assert adapter.most_down[NodeRole.BOOKIE] == 1


async def test_quorum_and_bookies_are_no_proxies(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    moments = [Moment(1.0, Fault("kill", "bookies")), Moment(9.0, Fault("kill", "quorum"))]

    _, book = await plague(
        scenario_of(moments=moments), FakeAdapter(write_proxies=1), tmp_path, seconds=20.0
    )

    assert [names[0][:-1] for _, _, _, names in book.spans()] == ["bookie", "metadata"]
    assert not any(name.startswith("write") for *_, names in book.spans() for name in names)


async def test_other_settings_are_for_a_while(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    other = Fault("settings", "bookies", (5.0, 5.0), settings={"repair": False})
    adapter = FakeAdapter(bookies=2)
    seen: list[object] = []

    async def look() -> None:
        await trio.sleep(4.0)
        seen.extend(adapter.settings.values())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await plague(scenario_of(moments=[Moment(1.0, other)]), adapter, tmp_path, seconds=20.0)

    assert seen == [{"repair": False}] * 2
    assert [*adapter.settings.values()] == [{}, {}]
    assert set(adapter.state.values()) == {"up"}


async def test_wrong_memory_goes_with_a_start(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    adapter = FakeAdapter()

    _, book = await plague(
        scenario_of(moments=[Moment(1.0, Fault("wrong-memory", "follower"))]),
        adapter,
        tmp_path,
        seconds=20.0,
    )

    [name] = adapter.spoilt
    assert [deed for _, deed, who in adapter.deeds if who == name] == ["spoil", "stop", "start"]
    assert book.ended[0][1] == f"a bit was wrong at {name}; {name} serves"


async def test_the_same_bytes_rot_on_all_bookies(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    entry = Random(1).randbytes(2000)
    for name in ("bookie1", "bookie2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal-1").write_bytes(entry)
    rotten = Fault("rot-everywhere", "bookies", (1.0, 1.0))

    _, book = await plague(
        scenario_of(moments=[Moment(1.0, rotten)]),
        FakeAdapter(bookies=2, data=tmp_path),
        tmp_path,
        seconds=20.0,
    )

    after = [(tmp_path / name / "journal-1").read_bytes() for name in ("bookie1", "bookie2")]
    places = [[n for n in range(2000) if content[n] != entry[n]] for content in after]
    assert len(places[0]) == 1
    assert places[0] == places[1]
    assert "2 places of 2 nodes" in book.ended[0][1]
