"""What docker/ says fits what the product takes: no engine needed."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from distributedlog.bookie.declarations.options import BookieOptions
from distributedlog.cli.server.node_settings import read_file
from distributedlog.cli.server.serve import command as serve
from distributedlog.cluster.declarations.config import overlay, parse_named_addresses, parse_quorum
from distributedlog.uri import parse_uri

from .compose_file import read_compose

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
COMPOSE = (DOCKER / "compose.yaml").read_text()
CONFIG = tomllib.loads((DOCKER / "node.toml").read_text())


def _flags(kind: str) -> set[str]:
    return {
        max(option.opts, key=len).lstrip("-").replace("-", "_").upper()
        for option in serve.commands[kind].params
    }


KINDS = {
    "metadata": {"CONFIG", "HTTP", "NAME", "LISTEN", "ADVERTISE"},
    "bookie": {"CONFIG", "HTTP", "NAME", "LISTEN", "ADVERTISE"},
    "write-proxy": {"CONFIG", "HTTP", "NAME", "LISTEN", "ADVERTISE"},
    "read-proxy": {"CONFIG", "HTTP", "NAME", "LISTEN", "ADVERTISE"},
    "gateway": {"CONFIG", "URI", "LISTEN", "ALLOW_HOST", "TLS", "USERS"},
}
"""What compose must say of each kind of node."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_variable_is_a_flag_and_every_key_too(kind: str) -> None:
    """Environment names are DLOG_<COMMAND>_<FLAG>: a misspelt one would be silently ignored."""
    named = set(re.findall(rf"DLOG_SERVE_{kind.upper().replace('-', '_')}_([A-Z_]+):", COMPOSE))

    assert KINDS[kind] <= named
    assert named <= _flags(kind)
    read_file(DOCKER / "node.toml", kind)  # raises where a key is not known


def test_a_node_is_healthy_where_it_answers() -> None:
    """The health check knows each kind that compose starts, and where that says it is asked."""
    script = (DOCKER / "healthcheck.py").read_text()

    for kind in KINDS:
        variable = re.search(rf'"{kind}": "(\w+)"', script)
        assert variable is not None
        assert f"{variable.group(1)}: " in COMPOSE


def test_the_gateway_is_over_the_proxies_and_stays_at_home() -> None:
    text = COMPOSE.split("\n  gateway:\n")[1].split("\n  # ")[0]
    uri = re.search(r"DLOG_SERVE_GATEWAY_URI: (.+)", text)

    assert uri is not None
    assert parse_uri(uri.group(1)).is_proxied
    assert set(parse_uri(uri.group(1)).addresses) == {("write-proxy1", 4183), ("read-proxy1", 4184)}
    assert "profiles: [gateway]" in text
    assert 'ports: ["127.0.0.1:8491:8491"]' in text


def test_the_image_has_what_each_command_needs() -> None:
    """Compression, the gateway and the creation of certificates are extras."""
    assert "'.[compression,gateway,pki]'" in (DOCKER / "Dockerfile").read_text()


def test_the_store_takes_its_options() -> None:
    overlay(BookieOptions, ("node.toml", CONFIG["store"]))


def test_each_node_has_an_address_for_either_side() -> None:
    """The outside one is the published port, on this machine alone."""
    for text in _nodes():
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
        if "proxy" not in name:
            assert f"volumes: [{name}:/var/lib/dlog, " in text
        assert f"_NAME: {name}\n" in text


def _nodes() -> list[str]:
    """The text of each service that is a node."""
    nodes = re.split(
        r"\n  (?=(?:metadata|bookie|write-proxy|read-proxy)\d:\n)", COMPOSE.split("\nnetworks:")[0]
    )[1:]
    assert len(nodes) == 11
    return nodes


def test_every_node_shows_a_certificate_of_its_own_and_sees_no_others() -> None:
    """`pki` makes each in a volume of its own; the authority's key is where nothing else is."""
    services = read_compose()["services"]
    made = {word for word in services["pki"]["command"] if "/" in word and word[0] != "-"}
    for text in _nodes():
        name = text.partition(":")[0]
        kind = "proxy" if "proxy" in name else name.rstrip("0123456789")
        assert f"{kind}/{name}" in made
        assert f"_TLS: /tls/{name}\n" in text
    assert "INSECURE" not in COMPOSE
    mounts = {
        name: [mount for mount in one.get("volumes", ()) if mount.startswith(("tls-", "auth"))]
        for name, one in services.items()
    }
    wanted = {f"tls-{one.partition('/')[2]}:/tls/{one.partition('/')[2]}" for one in made}
    assert {*mounts.pop("pki")} == wanted | {"authority:/authority"}
    assert mounts.pop("dlog") == ["tls-admin:/tls/admin:ro", "tls-app:/tls/app:ro"]
    for name, seen in mounts.items():
        assert seen == [f"tls-{name}:/tls/{name}:ro"]
    assert {mount.partition(":")[0] for mount in wanted} <= set(read_compose()["volumes"])


def test_everything_else_begins_when_the_certificates_are_made() -> None:
    """The metadata nodes wait for `pki`, the others for them."""
    services = read_compose()["services"]

    for name, one in services.items():
        waits = one.get("depends_on", {})
        if name.startswith("metadata"):
            assert waits == {"pki": {"condition": "service_completed_successfully"}}
        elif name not in ("pki", "dlog"):
            assert waits
            assert {how["condition"] for how in waits.values()} == {"service_healthy"}
    assert services["pki"]["network_mode"] == "none"
    assert "networks" not in services["pki"], "compose refuses both"


def test_compose_builds_the_image_before_any_service_needs_it() -> None:
    """Compose v1.29 pulls the image for a service without `build`, whatever its `pull_policy`."""
    services = read_compose()["services"]
    builds = {name for name, one in services.items() if "build" in one}

    for name, one in services.items():
        assert one["image"] == "dlog:local"
        assert one["pull_policy"] == "never"
        assert builds & _before(services, name), f"{name}: no service before it builds the image"
    assert [services[name]["build"] for name in builds] == [services["pki"]["build"]] * len(builds)


def _before(services: dict[str, Any], name: str) -> set[str]:
    """The service, and all that compose creates before it."""
    found = {name}
    for other in services[name].get("depends_on", {}):
        found |= _before(services, other)
    return found


def test_a_certificates_volume_is_its_users_from_the_beginning() -> None:
    """A new volume takes over owner and mode of the image's directory: that of each one is there."""
    text = (DOCKER / "Dockerfile").read_text()
    kinds = re.search(r"for kind in ([\w -]+); do for number in ([\d ]+); do", text)
    assert kinds is not None
    there = {f"/tls/{k}{n}" for k in kinds.group(1).split() for n in kinds.group(2).split()}
    there |= {word for word in text.split() if word.startswith(("/tls/", "/authority"))}

    for mount in read_compose()["services"]["pki"]["volumes"]:
        assert mount.partition(":")[2] in there


def test_all_nodes_name_one_quorum() -> None:
    quorum = parse_quorum(CONFIG["metadata"]["metadata"])

    assert set(quorum) == {"metadata1", "metadata2", "metadata3"}
    for kind in ("bookie", "write-proxy", "read-proxy"):
        assert set(parse_quorum(CONFIG[kind]["metadata"]).values()) == set(quorum.values())


def test_the_image_has_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert f"ARG VERSION={version}\n" in (DOCKER / "Dockerfile").read_text()
    assert f"${{DLOG_VERSION:-{version}}}" in COMPOSE


def test_the_image_has_the_labels_of_the_oci_and_each_build_argument_is_used() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    labels = set(re.findall(r"org\.opencontainers\.image\.([a-z.]+)=", text))
    arguments = set(re.findall(r"^ARG (\w+)", text, re.M))

    assert labels == {
        "title", "description", "licenses", "version", "revision", "created", "source", "base.name",
    }  # fmt: skip
    assert [name for name in arguments if f"${{{name}}}" not in text and "PIP" not in name] == []
    assert "USER 10001:10001\n" in text
    assert "STOPSIGNAL SIGTERM\n" in text


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

    assert {folder.partition("/")[0] for folder in setup["package-dir"].values()} <= taken


def test_the_health_check_says_no_where_no_node_is() -> None:
    """Process 1 of this machine is no node with an address for it."""
    done = subprocess.run(
        ["python3", "-ISE", str(DOCKER / "healthcheck.py")], capture_output=True, check=False
    )

    assert done.returncode == 1
    assert b"no node with --http" in done.stdout
