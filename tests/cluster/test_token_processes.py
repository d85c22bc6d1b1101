"""Tokens and rotations on processes with certificates: by the command line, beside a writer and a reader."""

import stat
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from distributedlog import LogRecord, open_namespace
from distributedlog.runtime.interfaces.errors import DistributedLogError, NotAuthenticated
from tests.cluster.story import Cluster
from tests.runtime.pki import directory_of

pytestmark = pytest.mark.processes

ROTATIONS = 4
END = b"end"


def by(credentials: Path) -> dict[str, Any]:
    sizes = {"ensemble_size": 2, "write_quorum": 2, "ack_quorum": 2}
    return {**sizes, "metadata_timeout_s": 10.0, "credentials": f"file:{credentials}"}


class Story:
    """What is done to one cluster, by the command line."""

    def __init__(self, cluster: Cluster, place: Path) -> None:
        self.cluster = cluster
        self.place = place
        self.said = b""
        self.tokens: list[bytes] = []

    def dlog(self, *arguments: str, code: int = 0) -> "subprocess.CompletedProcess[bytes]":
        credentials = f"file:{directory_of('user/root')}"
        done = self.cluster.run("--credentials", credentials, *arguments)
        self.said += done.stdout + done.stderr
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done

    def token(self, name: str, *narrowing: str) -> Path:
        """Made into a directory of its own."""
        file = self.place / name / "token"
        file.parent.mkdir()
        self.dlog("user", "token", "etl", "--days", "2", *narrowing, "--output", str(file))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert (file.parent / "ca.pem").read_text().startswith("-----BEGIN CERT")
        self.tokens.append(file.read_bytes().strip())
        return file

    async def run(self) -> None:
        uri = self.cluster.uri
        self.dlog("trust", "set-mode", "report", "--admin", "root")
        self.dlog("user", "add", "etl")
        self.dlog("grant", "add", "etl", "owner", "/")
        self.dlog("trust", "set-mode", "enforce")
        whole, narrow = self.token("whole"), self.token("narrow", "--path", "x")

        async with (
            open_namespace(uri, config=by(whole)) as namespace,
            open_namespace(uri, config=by(narrow)) as narrowed,
        ):
            await namespace.create_log("y")
            sent: list[bytes] = []
            seen: list[bytes] = []
            done = False
            async with trio.open_nursery() as nursery:
                started = trio.Event()

                async def write() -> None:
                    async with namespace.open_log("x").open_writer() as writer:
                        started.set()
                        while not done:
                            payload = b"%d" % len(sent)
                            await writer.write(LogRecord(len(sent) + 1, payload))
                            sent.append(payload)
                            await trio.sleep(0.01)
                        await writer.write(LogRecord(len(sent) + 1, END))

                async def read() -> None:
                    await started.wait()
                    async with narrowed.open_log("x").open_reader() as reader:
                        async for record in reader:
                            if record.payload == END:
                                return
                            seen.append(record.payload)

                nursery.start_soon(write)
                nursery.start_soon(read)
                await started.wait()
                for generation in range(2, 2 + ROTATIONS):
                    done_ = await trio.to_thread.run_sync(partial(self.dlog, "trust", "rotate"))
                    assert f"generation {generation};".encode() in done_.stdout
                    before = len(sent), len(seen)
                    with trio.fail_after(120):
                        while (  # noqa: ASYNC110
                            len(sent) < before[0] + 5 or len(seen) < before[1] + 5
                        ):
                            await trio.sleep(0.05)
                done = True
            assert seen == sent

            with pytest.raises(DistributedLogError):
                async with narrowed.open_log("y").open_reader(to="end") as reader:
                    [_ async for _ in reader]
            with pytest.raises(DistributedLogError):
                async with narrowed.open_log("x").open_writer() as writer:
                    await writer.write(LogRecord(10**6, b"stolen"))

            async def go_on_writing() -> None:
                async with namespace.open_log("x").open_writer() as writer:
                    await writer.write(LogRecord(10**6, b"last"))
                    await trio.to_thread.run_sync(partial(self.dlog, "user", "revoke", "etl"))
                    for number in range(10_000):
                        await writer.write(LogRecord(10**6 + 1 + number, b"late"))
                        await trio.sleep(0.01)

            with trio.fail_after(120), pytest.raises(DistributedLogError):
                await go_on_writing()
        with pytest.raises(NotAuthenticated, match="revoked"):
            async with open_namespace(uri, config=by(whole)):
                pass
        new = self.token("new")
        async with (
            open_namespace(uri, config=by(new)) as namespace,
            namespace.open_log("x").open_reader(to="end") as reader,
        ):
            found = [record.payload async for record in reader]
        assert found[: len(sent)] == sent
        assert b"stolen" not in found

    def check_nothing_shown(self) -> None:
        """H240: in no argument, no answer, no log of a node, no file but the token's own."""
        for token in self.tokens:
            assert token not in self.said
            for served in self.cluster.served.values():
                assert token not in Path(f"/proc/{served.process.pid}/cmdline").read_bytes()
            for file in self.cluster.directory.rglob("*"):
                assert not file.is_file() or token not in file.read_bytes(), file


def test_tokens_and_rotations_beside_a_writer_and_a_reader(tmp_path: Path) -> None:
    """Threats 3 and 5, H240; no call fails for a rotation, and an ex-user's writer ends."""
    with Cluster.planned(tmp_path / "cluster", bookies=2, metadata_nodes=1) as cluster:
        cluster.more = {
            node.name: ["--tls", str(directory_of(f"{node.kind}/{node.name}"))]
            for node in cluster.plan.nodes
        }
        cluster.start()
        story = Story(cluster, tmp_path)

        async def limited() -> None:
            with trio.fail_after(400):
                await story.run()

        trio.run(limited)
        story.check_nothing_shown()
