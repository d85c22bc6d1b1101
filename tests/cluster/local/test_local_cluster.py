"""`local_cluster`: one call, three ways to run the same nodes."""

import logging
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from distributedlog import LogNotFound, LogRecord, local_cluster, open_namespace
from distributedlog.cluster.declarations.config import parse_address
from distributedlog.runtime.interfaces.errors import (
    AddressInUse,
    DataDirectoryInUse,
    NotAuthenticated,
)
from distributedlog.runtime.machine import real_host
from tests.runtime.saying import asked


async def _write_and_read(uri: str) -> list[bytes]:
    async with open_namespace(uri) as namespace:
        log = namespace.open_log("x")
        async with log.open_writer() as writer:
            await writer.write(LogRecord(1, b"one"))
        async with log.open_reader(to="end") as reader:
            return [record.payload async for record in reader]


async def test_in_this_process_in_memory() -> None:
    with trio.fail_after(60):
        async with local_cluster(memory=True, in_process=True) as cluster:
            assert [node.pid for node in cluster.nodes] == [os.getpid()] * 6
            assert await _write_and_read(cluster.uri) == [b"one"]
            for node in cluster.nodes:  # whoever is not this user gets nowhere
                with pytest.raises(NotAuthenticated, match="by local"):
                    await asked(
                        replace(real_host("stranger"), credentials=lambda address: None),
                        parse_address(node.address, "it"),
                    )


async def test_what_the_body_raises_comes_out_as_it_is() -> None:
    with trio.fail_after(60), pytest.raises(LogNotFound):
        async with (
            local_cluster(memory=True, in_process=True, metadata_nodes=1) as cluster,
            open_namespace(cluster.uri) as namespace,
        ):
            await namespace.open_log("absent").last_dlsn()


@pytest.mark.parametrize("cancelled", [False, True])
async def test_bookies_leave_while_the_metadata_nodes_still_serve(
    cancelled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """All nodes ended at once, and each bookie waited two seconds for a quorum that was gone."""
    with (
        trio.fail_after(60),
        caplog.at_level(logging.INFO, "distributedlog.cluster"),
        trio.CancelScope() as scope,
    ):
        async with local_cluster(memory=True, in_process=True, metadata_nodes=1):
            if cancelled:
                scope.cancel()

    said = [record.getMessage() for record in caplog.records]
    assert [one for one in said if "was not removed" in one or "was not recorded" in one] == []


async def test_why_a_node_cannot_start_is_one_typed_error() -> None:
    here = real_host("test")
    taken = await here.listen(("127.0.0.1", 0))
    with pytest.raises(AddressInUse, match=str(taken.address[1])):
        async with local_cluster(memory=True, in_process=True, port=taken.address[1]):
            pass
    taken.close()


@pytest.mark.processes
async def test_in_one_child_process_on_a_directory_that_keeps_everything(tmp_path: Path) -> None:
    """H27: the nodes do not share the caller's interpreter."""
    with trio.fail_after(120):
        async with local_cluster(tmp_path, metadata_nodes=1) as cluster:
            pids = {node.pid for node in cluster.nodes}
            assert len(pids) == 1
            assert os.getpid() not in pids
            uri = cluster.uri
            assert await _write_and_read(uri) == [b"one"]
            with pytest.raises((DataDirectoryInUse, AddressInUse)):
                async with local_cluster(tmp_path, metadata_nodes=1):
                    pass
        async with local_cluster(tmp_path, metadata_nodes=1) as cluster:
            assert cluster.uri == uri
            assert await _write_and_read(uri) == [b"one", b"one"]


@pytest.mark.processes
async def test_a_temporary_directory_is_gone_in_the_end() -> None:
    with trio.fail_after(60):
        async with local_cluster(in_process=True, metadata_nodes=1) as cluster:
            assert cluster.data is not None
            place = Path(cluster.data)
            assert (place / "bookie1" / "journal").is_dir()
        assert not place.exists()  # noqa: ASYNC240


@pytest.mark.processes
@pytest.mark.parametrize(("processes", "forks_end"), [(False, False), (True, False), (True, True)])
async def test_a_child_that_was_killed_is_started_again_where_it_was(
    tmp_path: Path, processes: bool, forks_end: bool
) -> None:
    """One node, or the process that has them all; also after the end of the process that forked it."""
    told: list[str] = []
    with trio.fail_after(60):
        async with local_cluster(
            tmp_path,
            bookies=1,
            metadata_nodes=1,
            processes=processes,
            restart=True,
            on_death=lambda name, why: told.append(name),
        ) as cluster:
            name = "bookie1" if processes else next(iter(cluster.children))
            killed = cluster.children[name]
            if forks_end:
                status = Path(f"/proc/{killed.pid}/status").read_text()  # noqa: ASYNC240
                os.kill(int(status.split("PPid:")[1].split()[0]), signal.SIGKILL)

            cluster.kill(name)
            while cluster.children[name] is killed:  # noqa: ASYNC110 (nobody tells)
                await trio.sleep(0.05)

            assert told == [name]
            async with open_namespace(cluster.uri) as namespace:
                assert [name async for name in namespace.logs()] == []
