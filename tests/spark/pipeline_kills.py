"""Pipelines killed with -9 at random times, driver and Java and workers, and repeated until they end.

python -m tests.spark.pipeline_kills [--kills 6] [--records 60000] [--only transfer,cold,snapshot]

Export, import, the cold tier (then truncated, and read with its history), snapshot and truncate. After the
kills of each one run is left alone; then what there is must be what the log held. A campaign for a machine
with time, not for CI: each start of Java costs ten seconds.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trio

from distributedlog.cluster.local.child_processes import environment
from distributedlog.spark import read_with_history, session
from distributedlog.spark.archive.archive_folder import manifest_name
from examples.spark import snapshot_and_truncate
from examples.spark.change_feed import ChangeFeed, write
from tests.cluster.story import Cluster, dlog
from tests.spark.conftest import ROOT, plain, spark_env

RUN_S = 600.0
EXAMPLES = ROOT / "examples" / "spark"


class Campaign:
    """One cluster, one log of changes, and commands that are killed."""

    def __init__(self, uri: str, kills: int, chance: random.Random) -> None:
        self.uri = uri
        self.kills = kills
        self.chance = chance
        self.longest_s = 20.0

    def until_done(self, command: list[str], done: Path | None = None) -> None:
        """Kill it ``kills`` times, at any time of its life; then let it end, unless ``done`` is there."""
        env = {**os.environ, **environment(), "DLOG_URI": self.uri}
        for number in range(self.kills + 1):
            if done is not None and done.exists():
                return
            began = time.monotonic()
            process = subprocess.Popen(
                command,
                env=env,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                cwd=ROOT,
            )
            limit = RUN_S if number == self.kills else self.chance.uniform(0.3, 1) * self.longest_s
            try:
                _, said = process.communicate(timeout=limit)
                how = f"ended with {process.returncode}"
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                assert process.returncode == 0, said.decode()[-3000:]
            except subprocess.TimeoutExpired:
                assert number < self.kills, f"{command} does not end"
                how = "killed"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            print(f"  {how} after {time.monotonic() - began:.1f} s", flush=True)

    def example(self, name: str, *arguments: object) -> None:
        """One of `examples/spark`."""
        print(name, flush=True)
        command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--uri", self.uri]
        self.until_done([*command, *map(str, arguments)])


def main() -> None:
    """The command line."""
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--kills", type=int, default=6, help="of each pipeline")
    ask.add_argument("--records", type=int, default=60_000)
    ask.add_argument("--only", default=",".join(PIPELINES), help="some of them, by commas")
    ask.add_argument("--seed", type=int, default=1)
    given = ask.parse_args()
    spark_env()
    with tempfile.TemporaryDirectory(prefix="pipeline-kills-") as scratch:
        here = Path(scratch)
        cluster = Cluster.planned(here / "cluster", bookies=3)
        cluster.start()
        try:
            campaign = Campaign(cluster.uri, given.kills, random.Random(given.seed))
            for name in given.only.split(","):
                PIPELINES[name](campaign, here, given.records)
        finally:
            cluster.kill()
    print("all there, once")


def changes(campaign: Campaign, log: str, records: int) -> list[tuple[Any, ...]]:
    """A log of changes, as the plain reader gives it."""
    trio.run(write, campaign.uri, (log, f"{log}-payments"), ChangeFeed(seed=3), records, 0)
    return plain(campaign.uri, log)


def transfer(campaign: Campaign, here: Path, records: int) -> None:
    """S31: an export, and a log of it again."""
    before, out = changes(campaign, "exported", records), here / "out"
    print("export", flush=True)
    command = dlog("log", "export", "exported", "--output", str(out))
    campaign.until_done(command, done=out / manifest_name(1))
    print("import", flush=True)
    campaign.until_done(dlog("log", "import", str(out), "--log", "imported"))
    assert [row[4:] for row in plain(campaign.uri, "imported")] == [row[4:] for row in before]


def cold(campaign: Campaign, here: Path, records: int) -> None:
    """The archive and the truncated log are what the log was."""
    before, archive = changes(campaign, "cold", records), here / "cold"
    arguments = ["--archive", archive, "--checkpoint", here / "checkpoint"]
    limit = max(1_000, records // 10)
    campaign.example("cold_tier", "--log", "cold", *arguments, "--max-records", limit)
    point = subprocess.run(
        dlog("log", "truncate", "cold", "--before-position", "cold", "--force"),
        env={**os.environ, **environment(), "DLOG_URI": campaign.uri},
        check=True,
        capture_output=True,
    )
    print(f"  truncated to {point.stdout.decode().strip()}", flush=True)
    assert plain(campaign.uri, "cold") == []
    frame = read_with_history(session(), campaign.uri, "cold", archive)
    columns = ("segment", "entry", "slot", "sequence_id", "txid", "payload")
    found = sorted((*row[:5], bytes(row[5])) for row in frame.select(*columns).collect())
    assert found == before


def snapshot(campaign: Campaign, here: Path, records: int) -> None:
    """S32: the table is what a replay of the whole log makes."""
    before, table = changes(campaign, "changes", records), here / "table"
    campaign.example("snapshot_and_truncate", "--log", "changes", "--table", table)
    latest: dict[int, dict[str, Any]] = {}
    for row in before:
        change = json.loads(row[5])
        if change["version"] >= latest.get(change["order_id"], change)["version"]:
            latest[change["order_id"]] = change
    rows = snapshot_and_truncate.table(session(), str(table)).collect()
    expected = {key: one["version"] for key, one in latest.items() if one["op"] != "d"}
    assert sorted((row[0], row[1]) for row in rows) == sorted(expected.items())
    assert plain(campaign.uri, "changes") == []


PIPELINES = {"transfer": transfer, "cold": cold, "snapshot": snapshot}


if __name__ == "__main__":
    main()
