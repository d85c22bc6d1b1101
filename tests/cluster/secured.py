"""A cluster of processes with certificates, proxies beside it; and its admin at the command line."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distributedlog.cluster.declarations.options import READ_PROXY, WRITE_PROXY
from distributedlog.cluster.local.cluster_plan import ClusterPlan, PlannedNode
from tests.cluster.story import Cluster
from tests.runtime.pki import directory_of

NS = "default"


class Secured:
    """The cluster, and what its admin does."""

    def __init__(self, cluster: Cluster, through: str, place: Path) -> None:
        self.cluster = cluster
        self.through = through
        """The URI through the proxies."""
        self.place = place
        self.said = b""
        """All that the admin's commands have said."""

    def dlog(self, *arguments: str, code: int = 0) -> "subprocess.CompletedProcess[bytes]":
        """As the admin."""
        credentials = f"file:{directory_of('user/root')}"
        done = self.cluster.run("--credentials", credentials, *arguments)
        self.said += done.stdout + done.stderr
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done

    def require(self, *grants: tuple[str, str, str]) -> None:
        """Have rights required; grants are user, role and path ("": the cluster's)."""
        self.dlog("trust", "set-mode", "report", "--admin", "root")
        for user in dict.fromkeys(one[0] for one in grants):
            self.dlog("user", "add", user)
        for grant in grants:
            self.dlog("grant", "add", *filter(None, grant))
        self.dlog("trust", "set-mode", "enforce")

    def token(self, user: str, *narrowing: str, name: str = "") -> Path:
        """A token's file, in a directory of its own."""
        file = self.place / (name or user) / "token"
        file.parent.mkdir()
        self.dlog("user", "token", user, "--days", "2", *narrowing, "--output", str(file))
        return file


@contextmanager
def secured(place: Path, *, bookies: int = 3) -> Iterator[Secured]:
    """With a write proxy ``w1`` and a read proxy ``r1``; a log has one copy there."""
    with Cluster.planned(place / "cluster", bookies=bookies + 2, metadata_nodes=1) as cluster:
        *nodes, writes, reads = cluster.plan.nodes
        proxies = [
            PlannedNode("w1", WRITE_PROXY, writes.address),
            PlannedNode("r1", READ_PROXY, reads.address),
        ]
        cluster.plan = ClusterPlan((*nodes, *proxies))
        for node in cluster.plan.nodes:
            kind = "proxy" if node.kind in (WRITE_PROXY, READ_PROXY) else node.kind
            cluster.more[node.name] = ["--tls", str(directory_of(f"{kind}/{node.name}"))]
        for name in ("w1", "r1"):
            cluster.more[name] += [
                word
                for option in ("ensemble_size", "write_quorum", "ack_quorum")
                for word in ("--set", f"{option}=1")
            ]
        cluster.start(*(node.name for node in nodes))
        cluster.start("w1", "r1")
        places = ";".join(f"{one.address[0]}:{one.address[1]}" for one in proxies)
        yield Secured(cluster, f"distributedlog+proxy://{places}/{NS}", place)
