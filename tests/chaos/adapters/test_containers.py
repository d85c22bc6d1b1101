"""The adapter of containers, as far as it can be seen without any."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import trio

from distributedlog.bookie.declarations.options import BookieOptions
from distributedlog.cluster.declarations.config import overlay, parse_quorum
from distributedlog.testing.chaos.adapters import docker_engine as engine
from distributedlog.testing.chaos.adapters.container import node_config, override
from distributedlog.testing.chaos.adapters.container_network import ContainerAddress, Network, rules
from distributedlog.testing.chaos.adapters.containers import Containers
from distributedlog.testing.chaos.adapters.faulty_node import CLOCK
from distributedlog.testing.chaos.model.adapter import (
    CLIENTS,
    Adapter,
    Capability,
    ChaosFailed,
    Link,
    Needs,
)

ADDRESSES = {"bookie1": "10.0.0.1", "bookie2": "10.0.0.2", CLIENTS: "10.0.0.254"}


def _drops(name: str, cut: list[Link]) -> list[str]:
    return [line for line in rules(name, cut, ADDRESSES).splitlines() if "DROP" in line]


def test_a_cut_link_is_dropped_at_both_of_its_ends_in_one_direction() -> None:
    cut = [("bookie1", "bookie2")]

    assert _drops("bookie1", cut) == ["-A OUTPUT -d 10.0.0.2/32 -j DROP"]
    assert _drops("bookie2", cut) == ["-A INPUT -s 10.0.0.1/32 -j DROP"]
    assert _drops("bookie3", cut) == []


def test_clients_come_from_the_gateway() -> None:
    assert _drops("bookie1", [(CLIENTS, "bookie1")]) == ["-A INPUT -s 10.0.0.254/32 -j DROP"]
    assert _drops("bookie1", [("bookie1", CLIENTS)]) == ["-A OUTPUT -d 10.0.0.254/32 -j DROP"]


def test_a_link_to_a_node_that_is_down_needs_no_rule() -> None:
    assert _drops("bookie1", [("bookie1", "bookie9"), ("bookie9", "bookie1")]) == []


def test_a_table_begins_empty() -> None:
    """What was laid before is gone: the whole table is set at once."""
    lines = rules("bookie1", [], ADDRESSES).splitlines()

    assert lines == ["*filter", ":INPUT ACCEPT", ":FORWARD ACCEPT", ":OUTPUT ACCEPT", "COMMIT"]


class _Namespaces:
    """Stands for `nsenter … iptables-restore`: remembers the table of each namespace, as the kernel does."""

    def __init__(self) -> None:
        self.tables: dict[str, str] = {}
        self.gone: set[str] = set()
        self.places = {
            "bookie1": ContainerAddress("ns1", "10.0.0.1"),
            "bookie2": ContainerAddress("ns2", "10.0.0.2"),
        }
        self.network = Network("10.0.0.254", self.enter)

    async def enter(self, namespace: str, table: str) -> None:
        if namespace in self.gone:
            raise ChaosFailed(f"nsenter {namespace}: nsenter: reassociate to namespace failed")
        self.tables[namespace] = table

    async def look(self) -> dict[str, ContainerAddress]:
        return self.places

    def drops(self) -> dict[str, int]:
        return {name: table.count("DROP") for name, table in self.tables.items()}


LINK: Link = ("bookie1", "bookie2")


async def test_cuts_add_up_and_heal_one_by_one() -> None:
    world = _Namespaces()
    network = world.network
    network.cut([LINK])
    network.cut([LINK])
    await network.apply_cuts(world.look)
    assert world.drops() == {"ns1": 1, "ns2": 1}

    network.heal([LINK])
    await network.apply_cuts(world.look)
    assert world.drops() == {"ns1": 1, "ns2": 1}

    network.heal([LINK])
    await network.apply_cuts(world.look)
    assert world.drops() == {"ns1": 0, "ns2": 0}
    assert network.is_clean


async def test_a_node_that_comes_back_elsewhere_is_cut_there() -> None:
    world = _Namespaces()
    network = world.network
    network.cut([LINK])
    await network.apply_cuts(world.look)

    world.places["bookie2"] = ContainerAddress("ns3", "10.0.0.7")
    await network.apply_cuts(world.look)

    assert "10.0.0.7" in world.tables["ns1"]
    assert "10.0.0.2/" not in world.tables["ns1"]
    assert "DROP" in world.tables["ns3"]


async def test_who_dies_meanwhile_is_passed_over() -> None:
    world = _Namespaces()
    network = world.network
    world.gone = {"ns1"}
    network.cut([LINK])

    await network.apply_cuts(world.look)

    assert world.drops() == {"ns2": 1}


async def test_the_clients_show_what_the_init_service_made_for_them(tmp_path: Path) -> None:
    """Three files out of their volume, by words that compose takes; the key is for nobody else to read."""
    asked: list[tuple[str, ...]] = []

    async def compose(*words: str) -> str:
        asked.append(words)
        return f"the text of {words[-1]}"

    adapter = Containers(Needs(tmp_path, 4, 3, frozenset({Capability.KILL})))
    place = await adapter._copy_credentials(compose)  # type: ignore[arg-type]

    there = {file.name: file.read_text() for file in place.iterdir()}
    assert there == {
        name: f"the text of /tls/app/{name}" for name in ("ca.pem", "cert.pem", "key.pem")
    }
    assert (place / "key.pem").stat().st_mode & 0o077 == 0
    assert {words[:6] for words in asked} == {
        ("run", "--rm", "--no-deps", "-T", "--entrypoint", "cat")
    }


def _adapter(bookies: int = 4, metadata_nodes: int = 3, module: str = "") -> Adapter:
    needs = Needs(Path(), bookies, metadata_nodes, frozenset({Capability.KILL}))
    if module:
        needs = Needs(
            Path(), bookies, metadata_nodes, frozenset({Capability.KILL}), node_module=module
        )
    return Containers(needs)


def test_what_the_compose_file_does_not_have_is_refused_by_name() -> None:
    assert "6 bookies" in str(_adapter(bookies=7).refusal(Capability.KILL))
    assert "1 or 3 metadata nodes" in str(_adapter(metadata_nodes=5).refusal(Capability.KILL))
    assert "tests.planted" in str(_adapter(module="tests.planted").refusal(Capability.KILL))


def test_without_docker_everything_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no docker on the PATH" in str(_adapter().refusal(Capability.KILL))

    tool = tmp_path / "docker"
    tool.write_text(f"#!{sys.executable}\nraise SystemExit(1)\n")
    tool.chmod(0o755)
    assert "no engine answers" in str(_adapter().refusal(Capability.KILL))


async def test_a_command_that_fails_says_what_it_said() -> None:
    with pytest.raises(ChaosFailed, match="no such thing"):
        await engine.call("sh", "-c", "echo no such thing >&2; exit 3")
    assert await engine.call("cat", stdin=b"x") == "x"


CAPABLE = frozenset({Capability.POWER, Capability.CLOCK})


def test_all_nodes_are_told_one_quorum_and_the_scenarios_store() -> None:
    needs = Needs(Path("/run1"), 1, 1, CAPABLE, disk_mb=64)
    config = tomllib.loads(node_config(["metadata1", "bookie1"], needs, {"gather_bytes": 1 << 20}))

    assert config["bookie"]["metadata"] == config["metadata"]["metadata"]
    assert list(parse_quorum(config["bookie"]["metadata"])) == ["metadata1"]
    assert config["store"]["gather_bytes"] == 1 << 20
    assert config["store"]["journal_file_bytes"] == 4 << 20, "a sixteenth of a small disk"
    overlay(BookieOptions, ("node.toml", config["store"]))


def test_each_service_gets_its_own_disk_and_clock() -> None:
    needs = Needs(Path("/run1"), 1, 1, CAPABLE)
    names = ["metadata1", "bookie1"]
    disks = {name: Path("/run1") / name / "mount/data" for name in names}
    services = json.loads(override(names, needs, Path("/run1/node.toml"), disks))["services"]

    assert list(services) == names
    assert services["bookie1"]["volumes"] == [
        "/run1/node.toml:/etc/dlog/node.toml:ro",
        "/run1/bookie1/mount/data:/var/lib/dlog",
        "/run1/bookie1/clock:/run/chaos:ro",
    ]
    assert services["bookie1"]["environment"] == {CLOCK: "/run/chaos/clock"}


def test_the_nodes_are_not_asked_by_the_engine_in_words_that_compose_v1_takes() -> None:
    """v1.29.2 lays what turns a check off over compose.yaml's ``interval``, and refuses the two together."""
    needs = Needs(Path("/run1"), 1, 1, CAPABLE)

    services = json.loads(override(["metadata1", "bookie1"], needs, Path("/c"), {}))["services"]

    for check in (one["healthcheck"] for one in services.values()):
        assert set(check) == {"test", "interval"}
        assert check["test"] == ["CMD", "true"]


@pytest.mark.parametrize("compose", ["docker compose", "docker-compose"])
def test_compose_takes_the_three_files_together(compose: str, tmp_path: Path) -> None:
    """No engine is needed for that. To try v1.29.2: put its `docker-compose` on the PATH."""
    words = compose.split()
    if (
        shutil.which(words[0]) is None
        or subprocess.run([*words, "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"needs {compose}: not on the PATH")
    home = engine.folder()
    assert home is not None
    names = [f"metadata{n}" for n in (1, 2, 3)] + [f"bookie{n}" for n in range(1, 7)]
    extra = tmp_path / "override.yaml"
    disks = {name: tmp_path / name for name in names}
    for needs in (CAPABLE, frozenset({Capability.KILL})):
        extra.write_text(override(names, Needs(tmp_path, 6, 3, needs), tmp_path / "c", disks))

        files = [word for file in (*engine.FILES, extra) for word in ("-f", str(home / file))]
        done = subprocess.run(
            [*words, "-p", "x", *files, "config", "-q"],
            env={**os.environ, "DLOG_SIXTH_BOOKIE": "1"},
            capture_output=True,
            check=False,
        )

        assert done.returncode == 0, done.stderr.decode()


def test_without_need_nodes_keep_their_volumes_and_clocks() -> None:
    needs = Needs(Path("/run1"), 1, 1, frozenset({Capability.KILL}))
    (service,) = json.loads(override(["bookie1"], needs, Path("/c"), {}))["services"].values()

    assert service["volumes"] == ["/c:/etc/dlog/node.toml:ro"]
    assert "entrypoint" not in service


async def test_a_process_is_seen_to_run_and_to_end() -> None:
    process = await trio.lowlevel.open_process(["sleep", "60"])
    watched = engine.ObservedProcess(process.pid)
    try:
        assert watched.is_running() is True
        process.kill()
        await process.wait()
        assert watched.is_running() is False
    finally:
        watched.close()
    assert watched.is_running() is None
    assert engine.ObservedProcess(0).is_running() is None, (
        "a container that does not run has process 0"
    )
