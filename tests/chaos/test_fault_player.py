"""The player keeps within the promise: bounds on who is down, one rotten node a role, everything healed."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import trio

from distributedlog.chaos.adapter import Role
from distributedlog.chaos.clients import Clients
from distributedlog.chaos.fault_player import FaultPlayer
from distributedlog.chaos.scenario import Bounds, Client, Fault, Loop, Moment, Scenario
from tests.chaos.fake_adapter import FakeAdapter


class Book:
    """Faults as the runner would note them."""

    def __init__(self) -> None:
        self.begun: list[tuple[float, str, list[str]]] = []
        self.ended: dict[int, tuple[float, str]] = {}

    def begins(self, kind: str, names: Sequence[str], words: str) -> int:
        self.begun.append((trio.current_time(), kind, list(names)))
        return len(self.begun) - 1

    def ends(self, number: int, words: str) -> None:
        self.ended[number] = (trio.current_time(), words)

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
        (Client("writer"),),
        "",
        tuple(Loop(f"loop {n}", tuple(faults), (0.2, 1.0)) for n, faults in enumerate(loops)),
        tuple(moments),
        bounds=Bounds(**bounds),  # type: ignore[arg-type]
    )


async def plague(
    scenario: Scenario,
    adapter: FakeAdapter,
    tmp_path: Path,
    *,
    seed: int = 1,
    seconds: float = 100.0,
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
        fault_begins=book.begins,
        fault_ends=book.ends,
        say=lambda _: None,
        clients=Clients(scenario, tmp_path, adapter.uri, seed),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(player.run)
        await trio.sleep(seconds)
        player.targets.over.set()
    await player.heal()
    return player, book


BOOKIES = (Fault("kill", "bookie", (0.5, 2.0)), Fault("pause", "bookie", (0.5, 4.0)))
QUORUM = (Fault("kill", "metadata", (0.5, 2.0)), Fault("partition", "leader", (0.5, 2.0)))


async def test_two_loops_overlap_and_no_bound_is_passed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    adapter = FakeAdapter()

    player, book = await plague(scenario_of(BOOKIES, BOOKIES, QUORUM), adapter, tmp_path)

    assert adapter.most_down == {Role.METADATA: 1, Role.BOOKIE: 1}
    spans = book.spans()
    overlaps = sum(a[0] < b[1] and b[0] < a[1] for n, a in enumerate(spans) for b in spans[n + 1 :])
    assert overlaps > 20
    assert not player.deaths


async def test_the_bound_is_the_scenarios(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    adapter = FakeAdapter()

    await plague(scenario_of(BOOKIES, BOOKIES, bookies_down_max=2), adapter, tmp_path)

    assert adapter.most_down[Role.BOOKIE] == 2


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
    assert damaged == {player.targets.rotten[Role.BOOKIE]}
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

    assert player.targets.gone == {gone: "its journal is damaged"}
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

    assert player.deaths == ["bookie3 ended by itself: an assert of ours"]
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
