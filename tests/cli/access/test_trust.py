"""`dlog trust`, `dlog user`, `dlog grant`, `dlog whoami`, against a live cluster of their own."""

import json

import pytest

from tests.cli.live import Cluster

pytestmark = pytest.mark.processes


def lines(said: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in said.splitlines()]


def test_users_and_grants_are_given_shown_checked_and_taken_away(cluster: Cluster) -> None:
    """In an open cluster without an admin anybody may, and everything goes on as it did."""
    cluster.ok("user", "add", "etl")
    cluster.ok("grant", "add", "etl", "writer", "orders/")
    cluster.ok("grant", "add", "etl", "reader", "bills")
    cluster.fails(2, "grant", "add", "etl", "operator", "orders/")

    grants = lines(cluster.ok("grant", "list", "--json"))
    assert [(one["role"], one["path"]) for one in grants] == [
        ("reader", "bills"),
        ("writer", "orders/"),
    ]
    assert b"etl: read, write\n" in cluster.ok("grant", "check", "etl", "orders/eu")

    cluster.ok("grant", "revoke", "etl", "bills")
    cluster.ok("user", "disable", "etl")
    assert cluster.run("grant", "check", "etl", "orders/eu").returncode == 6
    (user,) = lines(cluster.ok("user", "list", "--json"))
    assert (user["name"], user["disabled"], user["grants"]) == ("etl", True, 1)
    actions = [line["action"] for line in lines(cluster.ok("trust", "audit", "--json"))]
    assert actions == ["user", "grant", "grant", "revoke", "disable"]
    assert "no admin yet" in cluster.fails(2, "trust", "set-mode", "report")
    assert json.loads(cluster.ok("whoami", "--json"))["mode"] == "off"


def test_what_namespaces_take_is_shown_and_bounded(cluster: Cluster) -> None:
    assert b"no usage" in cluster.ok("trust", "quota")
    cluster.fails(2, "trust", "quota", "--keys", "7")
    cluster.fails(2, "trust", "quota", "shop", "--keys", "7", "--reset")
    cluster.ok("trust", "set-mode", "report", "--admin", "me")
    cluster.ok("log", "create", "counted")
    told = json.loads(cluster.ok("trust", "quota", "--json"))
    assert told["counted"]
    (one,) = told["namespaces"]
    assert (one["namespace"], one["keys_max"], one["ledgers_max"]) == ("default", 500_000, 100_000)
    assert 0 < one["keys"] < 50
    cluster.ok("trust", "quota", "--default-quota", "--keys", "50")
    cluster.ok("trust", "quota", "default", "--mib", "2", "--ledgers", "9")
    (one,) = json.loads(cluster.ok("trust", "quota", "default", "--json"))["namespaces"]
    assert [one[f"{what}_max"] for what in ("keys", "bytes", "ledgers")] == [50, 2 << 20, 9]
    cluster.ok("trust", "quota", "default", "--reset")
    assert b"dlog trust quota" not in cluster.ok("trust", "show")
    assert "Use --force" in cluster.fails(5, "trust", "quota", "default", "--keys", "1")
    cluster.ok("trust", "quota", "default", "--keys", "1", "--force")
    assert b"namespace default uses" in cluster.ok("trust", "show")
    assert b"namespace" in cluster.ok("trust", "quota")
