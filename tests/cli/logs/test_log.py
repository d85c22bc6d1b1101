"""`dlog log truncate`, `seal`, `find`, `positions`, `watch` against a live cluster in memory."""

import json
import signal
import subprocess
import sys

import pytest
import trio

import distributedlog as trio_api
from distributedlog.blocking import open_namespace
from distributedlog.cluster.local.child_processes import environment
from distributedlog.log.format.record import LogRecord
from distributedlog.log.model.log_keys import position_key, work_key
from distributedlog.log.namespace import Namespace
from distributedlog.metadata.model.transaction import Put, Transaction
from tests import preloaded
from tests.cli.live import Cluster
from tests.cluster.story import dlog

pytestmark = pytest.mark.processes


def test_who_shares_a_log_is_shown(cluster: Cluster) -> None:
    cluster.ok("log", "write", "shared", "--create", stdin=b"0\n1\n2\n3\n")
    assert cluster.ok("log", "queues", "shared") == b"no work queues\n"
    with open_namespace(cluster.uri) as namespace:
        log = namespace.open_log("shared")
        with log.subscribe("cold"), log.work_queue("q", tries_max=1) as queue:
            found = json.loads(cluster.ok("log", "positions", "shared", "--json"))
            assert list(found["holders"]) == ["cold"]
            assert found["lag"]["cold"]["records"] == 4
            assert found["lag"]["cold"]["bytes"] > 4
            for _ in range(2):
                claim = queue.claim(bytes_max=1, wait_s=0)
                if claim is not None:
                    claim.release()
    (found,) = json.loads(cluster.ok("log", "queues", "shared", "--json"))["queues"]
    assert (found["records_left"], found["claims"], found["claimed"]) == (0, 0, [])
    (dead_lettered,) = found["dead_lettered"]
    assert b"1.0.0 to" in cluster.ok("log", "queues", "shared")
    number = str(dead_lettered["number"])
    cluster.fails(2, "log", "queues", "shared", "--retry", number)
    cluster.ok("log", "queues", "shared", "--queue", "q", "--retry", number)
    assert b"1.0.0 to" not in cluster.ok("log", "queues", "shared")
    cluster.fails(2, "log", "queues", "shared", "--queue", "q", "--drop", number, "--force")
    for typo in (["--retry", number], ["--drop", number, "--force"]):
        assert "no work queue" in cluster.fails(2, "log", "queues", "shared", "--queue", "p", *typo)
    assert "no work queue" in cluster.fails(
        2, "log", "queues", "shared", "--delete", "p", "--force"
    )
    (left,) = json.loads(cluster.ok("log", "queues", "shared", "--json"))["queues"]
    assert left["queue"] == "q"  # and a name that was mistyped makes none
    assert cluster.ok("log", "queues", "shared", "--delete", "q", "--force") == b"no work queues\n"


async def _damage(uri: str, name: str) -> None:
    """Store a position and a work queue that cannot be decoded."""
    async with trio_api.open_namespace(uri) as namespace:
        assert isinstance(namespace, Namespace)
        log_id = await namespace.resolve_name(name)
        puts = tuple(Put(key(log_id, "broken"), b"\xc1") for key in (position_key, work_key))
        await namespace.metadata.transact(Transaction((), puts))


def test_a_damaged_position_or_queue_hides_no_other(cluster: Cluster) -> None:
    cluster.ok("log", "write", "damaged", "--create", stdin=b"0\n1\n")
    with open_namespace(cluster.uri) as namespace:
        log = namespace.open_log("damaged")
        log.positions.advance("sound", log.last_dlsn())
        with log.work_queue("sound"):
            pass
    trio.run(_damage, cluster.uri, "damaged")

    found = json.loads(cluster.ok("log", "positions", "damaged", "--json"))
    assert (found["damage"], found["positions"]["broken"]) == ({"broken": "corrupt"}, None)
    assert found["lag"]["sound"]["records"] == 1
    lines = cluster.ok("log", "positions", "damaged").decode().splitlines()
    assert [line.split()[0] for line in lines] == ["position", "broken", "sound"]
    assert "corrupt record" in lines[1]
    queues = json.loads(cluster.ok("log", "queues", "damaged", "--json"))["queues"]
    assert [(row["queue"], row["damage"]) for row in queues] == [
        ("broken", "corrupt"),
        ("sound", ""),
    ]
    cluster.ok("log", "positions", "damaged", "--delete", "broken", "--force")
    left = cluster.ok("log", "queues", "damaged", "--delete", "broken", "--force").decode()
    assert "broken" not in left
    assert "sound" in left


def test_a_log_is_searched_cut_and_ended(cluster: Cluster) -> None:
    cluster.ok("log", "write", "cut", "--create", "--txid-policy", "count", stdin=b"0\n1\n2\n3\n")
    assert cluster.ok("log", "find", "cut", "--txid", "2").decode().strip() == "1.0.2"
    middle = ("cut", "--from", "1.0.1", "--to", "1.0.2")  # every range includes both ends
    assert cluster.ok("log", "read", *middle) == b"1\n2\n"
    assert cluster.ok("log", "count", *middle) == b"2\n"
    found = json.loads(cluster.ok("log", "find", "cut", "--time", "2001-01-01", "--json"))
    assert found == {"name": "cut", "dlsn": "1.0.0"}
    with open_namespace(cluster.uri) as namespace:
        log = namespace.open_log("cut")
        log.positions.advance("cold", log.find(txid=1))
    found = json.loads(cluster.ok("log", "positions", "cut", "--json"))
    assert (found["positions"], found["holds_s"]) == ({"cold": "1.0.1"}, {})
    cut = cluster.ok("log", "truncate", "cut", "--before-position", "cold", "--json", "--force")
    assert json.loads(cut) == {"name": "cut", "truncated_to": "1.0.1"}
    assert (
        cluster.ok("log", "truncate", "cut", "--before-txid", "2", "--force").decode().strip()
        == "1.0.2"
    )
    assert (
        cluster.ok("log", "truncate", "cut", "--before", "1.0.0", "--force").decode().strip()
        == "1.0.2"
    )
    assert cluster.ok("log", "read", "cut") == b"2\n3\n"
    shown = json.loads(cluster.ok("log", "show", "cut", "--json"))
    assert (shown["records"], shown["truncated_to"], shown["sealed"]) == (2, "1.0.2", False)
    assert shown["segments"][0]["status"] == "partly truncated"
    assert "1.0.2" in cluster.fails(3, "log", "read", "cut", "--from", "1.0.1")
    assert cluster.ok("log", "positions", "cut", "--delete", "cold", "--force") == b"no positions\n"

    cluster.fails(5, "log", "seal", "cut")
    cluster.ok("log", "seal", "cut", "--force")
    assert json.loads(cluster.ok("log", "seal", "cut", "--force", "--json"))["before"] is True
    assert "sealed" in cluster.fails(5, "log", "write", "cut", stdin=b"never\n")
    assert cluster.ok("log", "read", "cut", "--follow") == b"2\n3\n"  # it ends


def test_the_entries_of_a_log_are_shown_and_what_is_truncated_is_not_counted(
    cluster: Cluster,
) -> None:
    for first in (0, 3):
        lines = b"".join(b"%d\n" % (first + n) for n in range(3))
        cluster.ok("log", "write", "seen", "--create", "--txid-policy", "count", stdin=lines)
    before = json.loads(cluster.ok("log", "show", "seen", "--json"))

    found = [
        json.loads(line) for line in cluster.ok("log", "inspect", "seen", "--json").splitlines()
    ]

    assert {one["entry"].split(".")[0] for one in found} == {"1", "2"}
    assert sum(one["records"] for one in found) == 6
    assert (found[0]["first_txid"], found[-1]["last_txid"]) == (0, 5)
    assert sum(one["payload_bytes"] for one in found) == 6
    assert sum(one["bytes"] for one in found) == before["bytes"]
    assert before["truncated_bytes"] == 0
    (last,) = cluster.ok("log", "inspect", "seen", "--from", "2.0.0", "--limit", "1").splitlines()[
        1:
    ]
    assert last.split()[0] == b"2.0"
    cluster.fails(3, "log", "inspect", "missing")
    cluster.ok("log", "create", "packed")
    cluster.ok("log", "config", "packed", "set", "codec=lz4")
    cluster.ok("log", "write", "packed", "--txid-policy", "ms", stdin=b"the same\n" * 500)
    packed = [
        json.loads(line) for line in cluster.ok("log", "inspect", "packed", "--json").splitlines()
    ]
    assert all(one["flags"] == ["lz4"] for one in packed)
    payload_bytes = sum(one["payload_bytes"] for one in packed)
    assert payload_bytes == 500 * len("the same")
    assert sum(one["bytes"] for one in packed) < payload_bytes

    cluster.ok("log", "truncate", "seen", "--before", "2.0.0", "--force")
    after = json.loads(cluster.ok("log", "show", "seen", "--json"))
    assert after["records"] == 3
    assert (after["bytes"], after["truncated_bytes"]) == (
        sum(one["bytes"] for one in found if one["entry"].startswith("2.")),
        sum(one["bytes"] for one in found if one["entry"].startswith("1.")),
    )
    assert b"more will be deleted soon" in cluster.ok("log", "show", "seen")


def _effective(cluster: Cluster, name: str) -> dict[str, tuple[object, str]]:
    """Each option's value, and whose it is."""
    told = json.loads(cluster.ok("log", "config", name, "--json"))["effective"]
    return {key: (one["value"], one["from"]) for key, one in told.items()}


def test_a_log_and_its_namespace_are_configured(cluster: Cluster) -> None:
    cluster.ok("log", "create", "kept")
    assert {whose for _, whose in _effective(cluster, "kept").values()} == {"default"}
    told = cluster.ok("log", "config", "kept", "set", "retention_s=60", "rolling=false", "--json")
    assert json.loads(told) == {
        "name": "kept",
        "settings": {"retention_s": 60, "rolling": False},
        "metadata": {},
        "version": 1,
    }
    rows = [line.split() for line in cluster.ok("log", "config", "kept").splitlines()]
    assert [b"rolling", b"false", b"log"] in rows  # as it is set
    left = cluster.ok("log", "config", "kept", "unset", "rolling").splitlines()
    assert [line.split() for line in left[1:]] == [[b"retention_s", b"60", b"s"]]
    space = ("segment_age_max_s=0.5", "retention_s=7")
    told = cluster.ok("log", "config", "--namespace", "set", *space, "--json")
    assert json.loads(told)["settings"] == {"segment_age_max_s": 0.5, "retention_s": 7}
    found = _effective(cluster, "kept")
    assert found["segment_age_max_s"] == (0.5, "namespace")
    assert found["retention_s"] == (60, "log")
    assert found["rolling"] == (True, "default")
    cluster.ok("log", "config", "--namespace", "unset", "segment_age_max_s", "retention_s")
    assert cluster.ok("log", "config", "--namespace") == b"no stored settings\n"
    cluster.ok("log", "create", "careful", "--durability", "all")
    assert _effective(cluster, "careful")["ack_quorum"] == (3, "log")
    assert "unknown option" in cluster.fails(2, "log", "config", "kept", "set", "nope=1")
    assert "is local to each process" in cluster.fails(
        2, "log", "config", "kept", "set", "lock_lease_s=3"
    )
    for wrong in ("retention_s=64MiB", "segment_bytes_max=10m"):
        said = cluster.fails(2, "log", "config", "kept", "set", wrong)
        assert f"option {wrong.partition('=')[0]}" in said
    assert "K=V" in cluster.fails(2, "log", "config", "kept", "set", "rolling")
    assert "K=V" in cluster.fails(2, "log", "config", "kept", "reset")
    cluster.fails(2, "log", "config")
    cluster.fails(3, "log", "config", "missing")


def test_what_cannot_be_meant_is_one_line(cluster: Cluster) -> None:
    cluster.ok("log", "create", "plain")
    assert "one of --before" in cluster.fails(2, "log", "truncate", "plain")
    assert "one of --before" in cluster.fails(
        2, "log", "truncate", "plain", "--before", "1.0.0", "--before-txid", "1"
    )
    assert "1.x" in cluster.fails(2, "log", "truncate", "plain", "--before", "1.x")
    assert "no position 'cold'" in cluster.fails(
        2, "log", "truncate", "plain", "--before-position", "cold", "--force"
    )
    assert "nor an ISO time" in cluster.fails(2, "log", "find", "plain", "--time", "yesterday")
    cluster.fails(3, "log", "truncate", "missing", "--before-txid", "1", "--force")
    cluster.fails(3, "log", "seal", "missing", "--force")


def test_logs_that_come_and_go_are_told_until_ctrl_c(cluster: Cluster) -> None:
    cluster.ok("log", "create", "w/1")
    process = preloaded.popen(
        dlog("log", "watch", "w/", "--json"),
        stdout=subprocess.PIPE,
        env={**environment(), "DLOG_URI": cluster.uri},
    )
    assert process.stdout is not None
    told = [json.loads(process.stdout.readline())]
    cluster.ok("log", "create", "w/2")
    cluster.ok("log", "delete", "w/1", "--force")
    cluster.ok("log", "rename", "w/2", "w/3")
    cluster.fails(3, "log", "rename", "w/2", "w/4")
    told += [json.loads(process.stdout.readline()) for _ in range(3)]
    assert [(one["kind"], one["name"]) for one in told] == [
        ("exists", "w/1"), ("created", "w/2"), ("deleted", "w/1"), ("renamed", "w/3"),
    ]  # fmt: skip
    assert told[3]["old_name"] == "w/2"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    process.stdout.close()


def test_any_program_appends_to_any_log(cluster: Cluster) -> None:
    """Lines, JSON with and without txids, and a Python program, by turns; the policy is shown."""
    for policy in ("auto", "count", "ms", "strict"):
        name = f"any-{policy}"
        cluster.ok("log", "create", name, "--txid-policy", policy)
        cluster.ok("log", "write", name, stdin=b"a\n")
        with open_namespace(cluster.uri) as namespace:
            log = namespace.open_log(name)
            with log.open_writer() as writer:
                writer.write(b"b")
                writer.write(LogRecord(writer.last_txid + 1, b"c"))
        mixed = b'{"payload": "d"}\n{"txid": 4000000000000, "payload": "e"}\n{"payload": "f"}\n'
        cluster.ok("log", "write", name, "--format", "jsonl", stdin=mixed)
        cluster.ok("log", "write", name, "--txid-policy", "count", stdin=b"g\n")
        if policy != "strict":
            back = b'{"txid": 1, "payload": "h"}\n'
            cluster.ok("log", "write", name, "--format", "jsonl", stdin=back)
            cluster.ok("log", "write", name, stdin=b"i\n")
        assert (
            cluster.ok("log", "read", name)
            == b"a\nb\nc\nd\ne\nf\ng\nh\ni\n"[: 14 if policy == "strict" else 18]
        )
        assert f"txids      {policy}" in cluster.ok("log", "show", name).decode()
        assert json.loads(cluster.ok("log", "show", name, "--json"))["txid_policy"] == policy
        e = json.loads(cluster.ok("log", "find", name, "--txid", "4000000000000", "--json"))["dlsn"]
        assert cluster.ok("log", "read", name, "--from", e, "--limit", "1") == b"e\n"


def test_a_record_that_is_refused_leaves_no_segment(cluster: Cluster) -> None:
    """Who is told so sits at a shell: no message names a call of Python."""
    cluster.ok("log", "create", "refused", "--txid-policy", "strict")
    cluster.ok(
        "log", "write", "refused", "--format", "jsonl", stdin=b'{"txid": 9, "payload": "a"}\n'
    )
    cluster.ok("log", "create", "stream", "--txid-policy", "bytes")
    for name, line, code, said in (
        ("refused", b'{"txid": 8, "payload": "b"}', 5, "txid 8 is lower than 9"),
        ("refused", b'{"txid": true, "payload": "b"}', 2, "txid must be an integer"),
        ("refused", b'{"txid": 9223372036854775807, "payload": "b"}', 2, "whole number"),
        ("stream", b'{"txid": 8, "payload": "b"}', 2, "without a txid"),
    ):
        words = cluster.fails(code, "log", "write", name, "--format", "jsonl", stdin=line + b"\n")
        assert said in words
        assert "create_log" not in words
        assert "LogRecord" not in words
    cluster.ok("log", "write", "empty", "--create", stdin=b"")
    for name, segments in (("refused", 1), ("stream", 0), ("empty", 0)):
        shown = json.loads(cluster.ok("log", "show", name, "--json"))
        assert len(shown["segments"]) == segments


def test_existing_log_is_not_created_again_and_lists_have_sizes_and_limits(
    cluster: Cluster,
) -> None:
    cluster.ok("log", "create", "sized/a", "--if-not-exists")
    cluster.fails(3, "log", "create", "sized/a")
    again = cluster.ok("log", "create", "sized/a", "--if-not-exists", "--json")
    assert json.loads(again) == {"name": "sized/a", "created": False}
    cluster.ok("log", "write", "sized/b", "--create", stdin=b"0\n1\n")
    cluster.ok("log", "create", "sized/c")

    listed = cluster.ok("log", "list", "sized/", "--limit", "2").split()
    assert listed == [b"sized/a", b"sized/b"]
    rows = cluster.ok("log", "list", "sized/", "--sizes", "--limit", "2", "--json").splitlines()
    empty, written = map(json.loads, rows)
    assert empty == {
        "name": "sized/a",
        "records": 0,
        "bytes": 0,
        "open_bytes": 0,
        "owner": None,
    }
    assert written["records"] == 2
    assert written["bytes"] > 2
    assert b"sized/b  2" in cluster.ok("log", "list", "sized/b", "--sizes").replace(b"\n", b" ")


@pytest.mark.parametrize("typed", ["dlog log show comp", "dlog --uri {uri} log config comp"])
def test_shell_completes_names_of_logs(cluster: Cluster, typed: str) -> None:
    cluster.ok("log", "create", "completed/a", "--if-not-exists")
    words = typed.format(uri=cluster.uri)

    # A shell's user waits two seconds for names, and a busy machine may need longer.
    patient = (
        "from distributedlog.cli.logs import log; log.COMPLETION_S = 60.0\n"
        "from distributedlog.cli.main import main; main()"
    )

    def complete(uri: str) -> bytes:
        variables = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run(
            [sys.executable, "-c", patient],
            env={**environment(), "DLOG_URI": uri, "_DLOG_COMPLETE": "bash_complete", **variables},
            capture_output=True,
            timeout=120,
            check=True,
        )
        assert done.stderr == b""
        return done.stdout

    completed = complete(cluster.uri)
    assert completed == b"plain,completed/a\n"
    if "--uri" not in typed:
        assert complete("distributedlog://127.0.0.1:1/n") == b"\n"


def test_records_since_a_time_are_read(cluster: Cluster) -> None:
    cluster.ok("log", "write", "timed", "--create", stdin=b"0\n")
    assert cluster.ok("log", "read", "timed", "--since", "10m") == b"0\n"
    assert cluster.ok("log", "read", "timed", "--since", "2001-01-01") == b"0\n"
    assert cluster.ok("log", "tail", "timed", "--since", "10m", "--limit", "1") == b"0\n"
    cluster.fails(2, "log", "read", "timed", "--since", "10m", "--from", "earliest")
    cluster.fails(2, "log", "read", "timed", "--since", "soon")
    assert cluster.ok("log", "find", "timed", "--time", "10m").strip() == b"1.0.0"


def test_keys_and_headers_are_written_and_read(cluster: Cluster) -> None:
    cluster.ok("log", "create", "keyed")
    cluster.ok("log", "config", "keyed", "set", "record_headers=false")
    keyed = ("log", "write", "keyed", "--key", "k", "--header", "a=b=c", "--header", "a=")
    assert "record_headers" in cluster.fails(2, *keyed, stdin=b"refused\n")
    cluster.ok("log", "config", "keyed", "set", "record_headers=true")
    cluster.ok(*keyed, stdin=b"one\n")
    line = b'{"payload": "two", "key": "own", "headers": [{"name": "n", "value_base64": "/w=="}]}\n'
    cluster.ok("log", "write", "keyed", "--format", "jsonl", "--header", "a=", stdin=line)
    cluster.fails(2, "log", "write", "keyed", "--header", "wrong", stdin=b"x\n")

    for name in ("lines", "frames"):
        assert "--format jsonl" in cluster.fails(2, "log", "read", "keyed", "--format", name)
    found = cluster.ok("log", "read", "keyed", "--format", "jsonl").splitlines()

    assert [(one["payload"], one["key"], one["headers"]) for one in map(json.loads, found)] == [
        ("one", "k", [{"name": "a", "value": "b=c"}, {"name": "a", "value": ""}]),
        ("two", "own", [{"name": "n", "value_base64": "/w=="}, {"name": "a", "value": ""}]),
    ]
    cluster.ok("log", "write", "copy", "--create", stdin=b"")
    copied = b"\n".join(found) + b"\n"
    cluster.ok("log", "write", "copy", "--format", "jsonl", stdin=copied)
    again = cluster.ok("log", "read", "copy", "--format", "jsonl").splitlines()
    assert [json.loads(one)["headers"] for one in again] == [
        json.loads(one)["headers"] for one in found
    ]
