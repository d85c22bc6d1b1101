"""The commands against a live cluster in memory: what they print, how they end (the contract)."""

import base64
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from distributedlog.cluster.local.child_processes import environment
from distributedlog.log.format.record import RECORD_BYTES_MAX
from distributedlog.runtime.declarations.versions import CURRENT, VERSION
from tests import preloaded
from tests.cli.live import Cluster
from tests.cluster.story import dlog

pytestmark = pytest.mark.processes


def test_what_is_written_is_read_byte_for_byte(cluster: Cluster) -> None:
    lines = b"first\n\n\xff\x00 any bytes \r\nlast without a newline"

    said = json.loads(cluster.ok("log", "write", "bytes", "--create", "--json", stdin=lines))

    assert set(said) == {"records", "bytes", "first_dlsn", "last_dlsn", "seconds"}
    assert said["records"] == 4
    assert said["first_dlsn"].startswith("1.")
    assert cluster.ok("log", "read", "bytes") == lines + b"\n"


def test_an_empty_input_writes_nothing(cluster: Cluster) -> None:
    said = json.loads(cluster.ok("log", "write", "none", "--create", "--json", stdin=b""))

    assert (said["records"], said["first_dlsn"], said["last_dlsn"]) == (0, None, None)
    assert cluster.ok("log", "read", "none") == b""


def test_a_file_of_frames_holds_newlines_and_positions_select(
    cluster: Cluster, tmp_path: Path
) -> None:
    frames = b"".join(len(p).to_bytes(4, "little") + p for p in (b"a\nb", b"", b"c" * 1000))
    file = tmp_path / "frames"
    file.write_bytes(frames)

    cluster.ok(
        "log",
        "write",
        "frames",
        str(file),
        "--format",
        "frames",
        "--txid-policy",
        "count",
        "--create",
    )

    assert cluster.ok("log", "read", "frames", "--format", "frames") == frames
    records = [
        json.loads(line) for line in cluster.ok("log", "read", "frames", "--json").splitlines()
    ]
    assert [record["txid"] for record in records] == [0, 1, 2]
    assert [record["sequence_id"] for record in records] == [0, 1, 2]
    assert records[0]["payload"] == "a\nb"
    second = records[1]["dlsn"]
    assert cluster.ok("log", "read", "frames", "--from", second, "--limit", "1") == b"\n"
    assert cluster.ok("log", "read", "frames", "--to", second, "--format", "frames") == frames[:11]
    assert cluster.ok("log", "read", "frames", "--from-txid", "2") == b"c" * 1000 + b"\n"
    assert cluster.ok("log", "read", "frames", "--from", "latest") == b""
    assert cluster.ok("log", "read", "frames", "--limit", "0") == b""


def test_json_lines_carry_txids_and_bytes(cluster: Cluster) -> None:
    binary = base64.b64encode(b"\xff\xfe").decode()
    lines = [{"txid": 5, "payload": "ä"}, {"txid": 9, "payload_base64": binary}]
    text = "\n".join(map(json.dumps, lines)).encode()

    cluster.ok("log", "write", "jsonl", "--format", "jsonl", "--create", stdin=text)

    found = [json.loads(line) for line in cluster.ok("log", "read", "jsonl", "--json").splitlines()]
    assert [(one["txid"], one.get("payload"), one.get("payload_base64")) for one in found] == [
        (5, "ä", None),
        (9, None, binary),
    ]


def test_a_txid_that_goes_down_is_refused_and_what_came_before_is_told(cluster: Cluster) -> None:
    lines = b'{"txid": 5, "payload": "a"}\n{"txid": 4, "payload": "b"}\n'

    cluster.ok("log", "create", "down", "--txid-policy", "strict")
    done = cluster.run("log", "write", "down", "--format", "jsonl", "--json", stdin=lines)

    assert done.returncode == 5, done.stderr
    assert b"TransactionIdOutOfOrder (513)" in done.stderr
    said = json.loads(done.stdout)
    assert said["records"] == 1
    assert said["error"]["code"] == 513
    assert cluster.ok("log", "read", "down") == b"a\n"


def test_an_oversize_line_is_named_and_those_before_it_stay(cluster: Cluster) -> None:
    lines = b"fits\n" + b"x" * (RECORD_BYTES_MAX + 1) + b"\nnever\n"

    error = cluster.fails(5, "log", "write", "large", "--create", stdin=lines)

    assert "RecordTooLarge (413)" in error
    assert "line 2" in error
    assert cluster.ok("log", "read", "large") == b"fits\n"


def test_the_largest_record_goes_through(cluster: Cluster) -> None:
    line = b"y" * RECORD_BYTES_MAX + b"\n"

    cluster.ok("log", "write", "largest", "--create", stdin=line)

    assert cluster.ok("log", "read", "largest") == line


def test_a_log_is_created_listed_shown_and_deleted(cluster: Cluster) -> None:
    cluster.ok("log", "create", "kept/one")
    assert "LogExists (522)" in cluster.fails(3, "log", "create", "kept/one")
    cluster.ok("log", "write", "kept/one", stdin=b"1\n2\n3\n")

    assert cluster.ok("log", "list", "kept/") == b"kept/one\n"
    assert json.loads(cluster.ok("log", "list", "kept/", "--json")) == {"name": "kept/one"}
    shown = json.loads(cluster.ok("log", "show", "kept/one", "--json"))
    assert {"name", "first_dlsn", "last_dlsn", "records", "bytes", "truncated_to", "sealed", "owner",
            "segments"} <= set(shown)  # fmt: skip
    assert (shown["name"], shown["records"], shown["sealed"]) == ("kept/one", 3, False)
    assert {
        "segment", "ledger", "state", "status", "first_txid", "last_txid", "last_dlsn", "records", "bytes",
        "start_sequence_id", "ensembles",
    } <= set(shown["segments"][0])  # fmt: skip
    assert b"kept/one" in cluster.ok("log", "show", "kept/one")

    assert "--force" in cluster.fails(5, "log", "delete", "kept/one")
    cluster.ok("log", "delete", "kept/one", "--force")
    assert "LogNotFound (510)" in cluster.fails(3, "log", "read", "kept/one")


def test_a_log_whose_name_was_mistyped_is_answered_with_what_was_meant(cluster: Cluster) -> None:
    cluster.ok("log", "create", "meant/orders")
    for words in (["read"], ["tail"], ["show"], ["write"], ["delete", "--force"], ["count"]):
        error = cluster.fails(3, "log", words[0], "meant/ordes", *words[1:], stdin=b"x\n")
        assert 'did you mean "meant/orders"?' in error


def test_bookies_are_shown_by_their_names_and_programs_get_ids(cluster: Cluster) -> None:
    cluster.ok("log", "write", "on-three", "--create", stdin=b"1\n")
    bookies = [json.loads(line) for line in cluster.ok("bookies", "--json").splitlines()]
    names = sorted(one["label"] for one in bookies)
    assert [one["label"] for one in bookies] == names
    [ledger] = [
        one
        for line in cluster.ok("ledger", "list", "--json").splitlines()
        if (one := json.loads(line))["log"] == "on-three"
    ]
    assert set(ledger["bookies"]) == {one["id"] for one in bookies}

    shown = {
        words: cluster.ok(*words).decode()
        for words in (
            ("ledger", "list"),
            ("ledger", "show", str(ledger["ledger"])),
            ("decommission", names[0]),
            ("decommission", names[0], "--cancel"),
        )
    }
    listed = shown.pop(("ledger", "list")).splitlines()
    [row] = [line for line in listed if "on-three" in line]
    assert sorted(row.rpartition("  ")[2].split(", ")) == names
    for words, text in shown.items():
        assert names[0] in text, words
        assert not [one["id"] for one in bookies if one["id"] in text], words
    assert all(name in shown["ledger", "show", str(ledger["ledger"])] for name in names)
    assert cluster.run("node", "can-stop", *names).stdout.startswith(b"no\n")


def test_a_missing_log_is_named_with_the_command_that_makes_it(cluster: Cluster) -> None:
    for arguments in (["read"], ["tail"], ["show"], ["write"], ["delete", "--force"]):
        error = cluster.fails(3, "log", arguments[0], "absent", *arguments[1:], stdin=b"x\n")
        assert "absent" in error
        assert "dlog log create" in error


def test_bad_names_and_positions_are_refused(cluster: Cluster) -> None:
    assert "InvalidLogName (602)" in cluster.fails(2, "log", "create", "not a name")
    cluster.fails(2, "log", "read", "x", "--from", "nonsense")


def test_status_and_bookies_show_everybody(cluster: Cluster) -> None:
    status = json.loads(cluster.ok("status", "--json", "--wait"))

    assert status["healthy"] is True
    assert status["conditions"] == status["reasons"] == []
    assert [set(m) for m in status["metadata"]] == [
        {"name", "address", "role", "term", "applied", "alive", "version", "conditions"}
    ]
    assert status["metadata"][0]["role"] == "leader"
    assert len(status["bookies"]) == 3
    assert {"id", "address", "state", "ledgers", "used_bytes", "free_bytes", "rack"} <= set(
        status["bookies"][0]
    )
    assert status["under_replicated"] == []
    listed = [json.loads(line) for line in cluster.ok("bookies", "--json").splitlines()]
    assert [one["id"] for one in listed] == [one["id"] for one in status["bookies"]]
    assert cluster.ok("status").startswith(b"healthy")
    assert status["versions"]["finalized"] == str(CURRENT)
    assert [*status["versions"]["nodes"]] == [VERSION]
    assert {one["version"] for one in (*status["metadata"], *status["bookies"])} == {VERSION}
    assert f"version {VERSION}, finalized for {CURRENT}\n" in cluster.ok("status").decode()
    probed = json.loads(cluster.ok("status", "--probe", "--json"))
    assert set(probed["probe"]) == {"create_ms", "open_ms", "append_ms", "commit_ms", "read_ms"}


def test_new_cluster_is_finalized_and_a_repetition_changes_nothing(cluster: Cluster) -> None:
    finalized = f"the cluster is finalized for version {CURRENT}\n"
    shown = cluster.ok("cluster", "finalize", "--dry-run").decode()
    assert shown.endswith(finalized)
    assert len([line for line in shown.splitlines() if line.endswith(VERSION)]) == 4
    assert cluster.ok("cluster", "finalize").decode() == finalized
    checked = json.loads(cluster.ok("cluster", "finalize", "--dry-run", "--json"))
    assert (checked["can_finalize"], checked["blocking"]) == (True, [])
    cluster.fails(2, "cluster", "finalize", "--dry-run", "--force")
    assert cluster.run("cluster", "can-downgrade", "0.1").stdout == f"no: {finalized}".encode()
    assert cluster.run("cluster", "can-downgrade", "0.1").returncode == 6
    possible = json.loads(cluster.ok("cluster", "can-downgrade", VERSION, "--json"))
    assert possible == {
        "can_downgrade": True,
        "finalized": str(CURRENT),
        "target": str(CURRENT),
    }
    cluster.fails(2, "cluster", "can-downgrade", "older")


def test_a_placement_policy_is_set_refused_and_forgotten(cluster: Cluster) -> None:
    """Each bookie of a cluster on one machine is as if on a host of its own."""
    shown = json.loads(cluster.ok("placement", "--check", "--json"))
    assert (shown["stored"], shown["policy"]["level"], shown["violations"]) == (False, "rack", [])

    refused = cluster.run("placement", "--level", "zone", "--enforced")
    assert (refused.returncode, b"none with that label" in refused.stderr) == (2, True)

    set_to = ("--level", "host", "--enforced")
    said = json.loads(cluster.ok("placement", *set_to, "--json"))
    assert said["policy"] == {"level": "host", "at_least": 2, "enforced": True}
    assert len([one["name"] for one in said["domains"]]) == 3

    assert b"2 racks per write set, preferred" in cluster.ok("placement", "--reset")


def test_who_puts_a_metadata_node_out_is_told_what_it_is_and_asked(cluster: Cluster) -> None:
    (node,) = json.loads(cluster.ok("status", "--json"))["metadata"]
    name = node["name"]

    asked = cluster.fails(5, "metadata", "remove", name)
    assert f"remove metadata node {name} (leader) from the quorum?" in asked
    assert "Use --force" in asked
    assert "last voter" in cluster.fails(5, "metadata", "remove", name, "--force")
    assert "nobody" in cluster.fails(5, "metadata", "remove", "nobody")


def test_tail_follows_and_an_interrupt_ends_it(cluster: Cluster) -> None:
    cluster.ok("log", "create", "followed")
    tail = preloaded.popen(
        dlog("log", "tail", "followed", "--from", "earliest"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment(), "DLOG_URI": cluster.uri},
    )
    assert tail.stdout is not None
    for number in range(3):
        cluster.ok("log", "write", "followed", stdin=b"%d\n" % number)
        assert tail.stdout.readline() == b"%d\n" % number

    tail.send_signal(signal.SIGINT)

    _, errors = tail.communicate(timeout=10)
    assert tail.returncode == 130
    assert errors.strip() == b"dlog: interrupted"


def test_a_reader_of_our_output_may_leave_early(cluster: Cluster) -> None:
    cluster.ok("log", "write", "much", "--create", stdin=b"line\n" * 200_000)
    read = preloaded.popen(
        dlog("log", "read", "much"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment(), "DLOG_URI": cluster.uri},
    )
    assert read.stdout is not None
    assert read.stdout.readline() == b"line\n"
    read.stdout.close()

    assert read.stderr is not None
    errors = read.stderr.read()
    assert read.wait(timeout=20) == 0, errors
    assert errors == b""
    read.stderr.close()


def test_an_unknown_scheme_names_the_known_ones(cluster: Cluster) -> None:
    error = cluster.fails(2, "log", "list", "--uri", "http://127.0.0.1:1/x")

    assert "InvalidUri" in error
    assert "distributedlog://" in error


def test_an_unreachable_quorum_ends_within_the_deadline_and_names_the_addresses(
    cluster: Cluster,
) -> None:
    with socket.socket() as deaf:  # takes connections and never says a word
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        silent = f"127.0.0.1:{deaf.getsockname()[1]}"
        uri = f"distributedlog://{silent};127.0.0.1:1/x"
        for arguments in (["log", "list"], ["log", "read", "x"], ["log", "write", "x"], ["status"]):
            error = cluster.fails(4, *arguments, "--uri", uri, "--timeout", "1.5")
            assert "QuorumUnreachable (503)" in error
            assert "within 1.5 s" in error, "30 s without the option"
            assert silent in error
            assert "127.0.0.1:1" in error


@pytest.mark.parametrize("bench", ["write", "read", "tail"])
def test_a_bench_has_the_keys_of_the_contract(cluster: Cluster, bench: str) -> None:
    given = ["--records", "2000", "--size", "100", "--json"]
    found = json.loads(cluster.ok("bench", bench, *given))

    assert {"records", "bytes", "seconds", "records_per_s", "bytes_per_s", "latency_ms", "settings",
            "others_cpu_pct"} <= set(found)  # fmt: skip
    assert found["records"] == 2000
    assert found["bytes"] == 200_000
    if bench != "read":
        assert set(found["latency_ms"]) == {"p50", "p99", "p999", "max"}
        assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["max"]
    assert found["per_second"] == [] or max(found["per_second"]) > 0
    assert {"name", "pgo", "lto", "advice"} <= set(found["settings"]["interpreter"])
    assert b"bench-" not in cluster.ok("log", "list")  # its own log is gone


@pytest.mark.parametrize(
    "words",
    [["status", "--watch"], ["log", "watch"], ["log", "tail", "unread", "--from", "earliest"]],
)
def test_what_has_no_end_ends_with_who_reads_it(cluster: Cluster, words: list[str]) -> None:
    """`dlog status --watch | head -1` waited for the next change, which may never come."""
    cluster.run("log", "write", "unread", "--create", stdin=b"one\n")
    with preloaded.popen(
        dlog(*words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment(), "DLOG_URI": cluster.uri},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()  # as head does
        assert process.wait(timeout=30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_repair_is_paused_resumed_and_gets_a_delay_while_the_cluster_runs(
    cluster: Cluster,
) -> None:
    paused = json.loads(cluster.ok("repair", "pause", "--for", "1h", "--json"))
    status = json.loads(cluster.ok("status", "--json"))
    [shown] = [one for one in status["conditions"] if one["code"] == "repair_paused"]
    assert (status["healthy"], shown["parameters"]["until"]) == (True, paused["paused_until"])
    assert b"not paused" in cluster.ok("repair", "resume")

    cluster.ok("repair", "config", "set", "lost_after_s=30m")
    stored = json.loads(cluster.ok("repair", "config", "--json"))
    assert stored == {"paused_until": None, "lost_after_s": 1800.0}
    cluster.ok("repair", "config", "unset", "lost_after_s")
    assert b"not stored" in cluster.ok("repair", "config")

    for words in (
        ["pause"],
        ["pause", "--for", "soon"],
        ["pause", "--for", "0"],
        ["config", "set"],
    ):
        cluster.fails(2, "repair", *words)
    assert "pause" in cluster.fails(3, "repair", "./pause")  # a log of this name


def test_an_interrupted_bench_says_so_in_one_line(cluster: Cluster) -> None:
    """Its reader, a process of its own, was interrupted too, or lost the log that it read."""
    with preloaded.popen(
        dlog("bench", "tail", "--seconds", "60"),
        stderr=subprocess.PIPE,
        env={**environment(), "DLOG_URI": cluster.uri},
        process_group=0,
    ) as bench:
        children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children")
        until = time.monotonic() + 30
        while not children.read_text() and time.monotonic() < until:
            time.sleep(0.05)  # until its reader is there
        os.killpg(bench.pid, signal.SIGINT)
        _, said = bench.communicate(timeout=30)

    assert said == b"dlog: interrupted\n"
    assert bench.returncode == 130


def test_passes_have_keys_of_their_own(cluster: Cluster) -> None:
    found = json.loads(cluster.ok("bench", "read", "--passes", "3", "--records", "1000", "--json"))

    assert found["records"] == 3000
    rates = [found[part]["records_per_s"] for part in ("cold", "hot")]
    assert min(rates) > 0
    assert 3000 / found["records_per_s"] >= 1000 / rates[0] + 2000 / rates[1]


@pytest.mark.parametrize(
    "flags",
    [
        ["write", "--outstanding", "1"],
        ["write", "--outstanding", "10"],
        ["write", "--call", "bulk"],
        ["write", "--rate", "20000"],
        ["write", "--rate", "20000", "--call", "bulk", "--logs", "2"],
        ["read", "--as", "columns"],
        ["interference", "--as", "columns"],
        ["tail", "--rate", "5000", "--as", "columns"],
    ],
)
def test_the_ways_of_a_bench(cluster: Cluster, flags: list[str]) -> None:
    found = json.loads(cluster.ok("bench", *flags, "--records", "1000", "--json"))

    assert found["records"] == 1000


def test_save_replaces_a_file_only_with_force_and_streams_to_standard_output(
    cluster: Cluster, tmp_path: Path
) -> None:
    save = tmp_path / "m.save"
    cluster.ok("metadata", "backup", str(save))
    first = save.read_bytes()
    assert "Use --force" in cluster.fails(5, "metadata", "backup", str(save))
    assert save.read_bytes() == first
    cluster.ok("metadata", "backup", str(save), "--force")

    assert "a directory" in cluster.fails(2, "metadata", "backup", str(tmp_path))
    assert "DiskFull" in cluster.fails(1, "metadata", "backup", "/dev/full")
    streamed = tmp_path / "streamed.save"
    streamed.write_bytes(cluster.ok("metadata", "backup", "-"))
    node = ("--name", "m1", "--address", "127.0.0.1:1", "--data", str(tmp_path / "new"))
    cluster.ok("metadata", "restore", str(streamed), *node, "--force")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.save", "new", "streamed.save"]
