"""What docker/ says fits what the product takes: no engine needed."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from distributedlog.bookie.options import BookieOptions
from distributedlog.cli.serve import command as serve
from distributedlog.cluster.config import overlay, parse_named_addresses, parse_quorum

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
COMPOSE = (DOCKER / "compose.yaml").read_text()
CONFIG = tomllib.loads((DOCKER / "node.toml").read_text())


def _flags(kind: str) -> set[str]:
    return {
        max(option.opts, key=len).lstrip("-").replace("-", "_").upper()
        for option in serve.commands[kind].params
    }


@pytest.mark.parametrize("kind", ["metadata", "bookie"])
def test_every_variable_is_a_flag_and_every_key_too(kind: str) -> None:
    """Environment names are DLOG_<COMMAND>_<FLAG>: a misspelt one would be silently ignored."""
    named = set(re.findall(rf"DLOG_SERVE_{kind.upper()}_([A-Z_]+):", COMPOSE))

    assert {"CONFIG", "HTTP", "NAME", "LISTEN", "ADVERTISE"} <= named
    assert named <= _flags(kind)
    assert {key.upper() for key in CONFIG[kind]} <= _flags(kind)


def test_the_store_takes_its_options() -> None:
    overlay(BookieOptions, ("node.toml", CONFIG["store"]))


def test_each_node_has_an_address_for_either_side() -> None:
    """The outside one is the published port, on this machine alone."""
    nodes = re.split(r"\n  (?=(?:metadata|bookie)\d:\n)", COMPOSE.split("\nnetworks:")[0])[1:]
    assert len(nodes) == 9

    for text in nodes:
        name = text.partition(":")[0]
        found = {
            what: parse_named_addresses(match.group(1).split(), what)
            for what in ("LISTEN", "ADVERTISE")
            if (match := re.search(rf"_{what}: (.+)", text))
        }
        port = found["LISTEN"]["outside"][1]
        assert found["ADVERTISE"]["outside"] == ("127.0.0.1", port)
        assert found["ADVERTISE"]["inside"] == (name, found["LISTEN"]["inside"][1])
        assert f'ports: ["127.0.0.1:{port}:{port}"]' in text
        assert f"volumes: [{name}:/var/lib/dlog, " in text
        assert f"_NAME: {name}\n" in text


def test_all_nodes_name_one_quorum() -> None:
    quorum = parse_quorum(CONFIG["metadata"]["metadata"])

    assert set(quorum) == {"metadata1", "metadata2", "metadata3"}
    assert set(parse_quorum(CONFIG["bookie"]["metadata"]).values()) == set(quorum.values())


def test_the_image_has_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert f"ARG VERSION={version}\n" in (DOCKER / "Dockerfile").read_text()
    assert f"${{DLOG_VERSION:-{version}}}" in COMPOSE


def base_image() -> str:
    """What the image is built from where nobody says DLOG_BASE."""
    found = re.search(r"^ARG BASE=(\S+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    return found.group(1)


def test_the_base_is_named_alike_and_supported() -> None:
    """On a Python that the package says it runs on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [one.split(" :: ")[-1] for one in project["classifiers"]]

    assert base_image().partition("-slim")[0] in {f"python:{version}" for version in versions}
    assert f"BASE: ${{DLOG_BASE:-{base_image()}}}\n" in COMPOSE
    assert f"`{base_image()}`" in (DOCKER / "README.md").read_text()


def test_the_build_takes_every_part() -> None:
    taken = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]

    assert set(setup["package-dir"].values()) <= taken


def test_the_health_check_says_no_where_no_node_is() -> None:
    """Process 1 of this machine is no node with an address for it."""
    done = subprocess.run(
        ["python3", "-ISE", str(DOCKER / "healthcheck.py")], capture_output=True, check=False
    )

    assert done.returncode == 1
    assert b"nobody to ask" in done.stdout
