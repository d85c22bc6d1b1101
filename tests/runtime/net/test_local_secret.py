"""One user's cluster on this machine: the user's programs get in without a word, nobody else's do."""

import os
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from distributedlog.runtime.interfaces.errors import NotAuthenticated
from distributedlog.runtime.interfaces.host import Host, Listener
from distributedlog.runtime.interfaces.principals import Verifier, Welcome
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.net import local_secret
from distributedlog.runtime.net.local_secret import credentials_for, with_local_secret
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.handshake import Hello

from ..saying import Saying, asked

SECRET = bytes(range(32))
STRANGER = replace(real_host("stranger"), credentials=lambda address: None)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's files are."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "dlog"


async def serving(nursery: trio.Nursery, host: Host) -> Listener:
    listener = await host.listen(("127.0.0.1", 0))
    endpoint = Endpoint(host, lambda: Hello(kind="bookie", node_id="n1"))
    nursery.start_soon(endpoint.serve, {"": listener}, Saying)
    return listener


async def test_the_user_gets_in_and_a_stranger_does_not(place: Path) -> None:
    """Threat 7. The files are the user's alone, and go with the listener."""
    async with trio.open_nursery() as nursery:
        listener = await serving(nursery, with_local_secret(real_host("b1"), SECRET))
        file = place / str(listener.address[1])
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(place).st_mode) == 0o700

        assert await asked(real_host("test"), listener.address) == "user/local 0"
        with pytest.raises(NotAuthenticated, match="for the user who started it"):
            await asked(STRANGER, listener.address)
        file.write_bytes(bytes(32))
        with pytest.raises(NotAuthenticated):
            await asked(real_host("test"), listener.address)

        file.write_bytes(SECRET)
        nursery.cancel_scope.cancel()
    listener.close()
    assert os.listdir(place) == []


@pytest.mark.skipif(not hasattr(os, "seteuid") or os.geteuid() != 0, reason="needs root")
async def test_another_user_of_the_machine_finds_no_secret() -> None:
    async with trio.open_nursery() as nursery:
        listener = await serving(nursery, with_local_secret(real_host("b1"), SECRET))
        assert credentials_for(listener.address) is not None
        os.seteuid(65_534)
        try:
            assert credentials_for(listener.address) is None
        finally:
            os.seteuid(0)
        nursery.cancel_scope.cancel()


def test_a_file_that_others_may_read_or_write_counts_for_nothing(place: Path) -> None:
    place.mkdir(mode=0o700)
    file = place / "4181"
    file.write_bytes(SECRET)
    file.chmod(0o600)
    assert credentials_for(("localhost", 4181)) is not None
    assert credentials_for(("10.0.0.1", 4181)) is None, "it is of this machine"

    file.chmod(0o640)
    assert credentials_for(("localhost", 4181)) is None
    file.chmod(0o600)
    place.chmod(0o711)
    assert credentials_for(("localhost", 4181)) is None
    place.chmod(0o700)
    assert credentials_for(("localhost", 4181)) is not None
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        os.chown(file, 65_534, -1)
        assert credentials_for(("localhost", 4181)) is None, "somebody else has put it there"


async def test_who_took_a_dead_clusters_port_learns_nothing_and_is_not_believed() -> None:
    """A squatter says yes to any proof; its own is no good."""

    def yes(meeting: object, proof: bytes) -> Welcome:
        return Welcome("user/local", session_credential=proof)

    methods: dict[str, Verifier] = {local_secret.METHOD: yes}
    async with trio.open_nursery() as nursery:
        listener = await serving(nursery, replace(real_host("squatter"), methods=methods))
        local_secret.write_secret_file(SECRET, listener.address)  # the dead cluster's

        with pytest.raises(NotAuthenticated):
            await asked(real_host("test"), listener.address)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("called", ["127.0.0.2", "::1", "localhost"])
async def test_nobody_else_on_that_port_hears_a_proof_that_it_could_pass_on(called: str) -> None:
    """Another user listens on the same port of another address of this machine, and passes all bytes on to
    the cluster: it would be there as who was asked."""
    async with trio.open_nursery() as nursery:
        listener = await serving(nursery, with_local_secret(real_host("b1"), SECRET))
        port = listener.address[1]
        try:
            (caught,) = await trio.open_tcp_listeners(port, host=called.replace("localhost", "::1"))
        except OSError:
            pytest.skip(f"this machine has no {called}")
        met: list[trio.SocketStream] = []

        async def pass_on(stream: trio.SocketStream) -> None:
            met.append(stream)
            there = await trio.open_tcp_stream("127.0.0.1", port)

            async def way(of: trio.SocketStream, to: trio.SocketStream) -> None:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    async for some in of:
                        await to.send_all(some)
                    await to.send_eof()

            async with trio.open_nursery() as both:
                both.start_soon(way, stream, there)
                both.start_soon(way, there, stream)

        nursery.start_soon(trio.serve_listeners, pass_on, [caught])
        if called == "localhost":
            assert await asked(real_host("test"), (called, port)) == "user/local 0"
            assert not met
        else:
            with pytest.raises(NotAuthenticated):
                await asked(real_host("test"), (called, port))
            assert met
        nursery.cancel_scope.cancel()


async def test_what_a_killed_cluster_left_goes_when_its_user_listens_there(place: Path) -> None:
    """Else the next server on that port could not be talked to."""
    async with trio.open_nursery() as nursery:
        listener = await real_host("b1").listen(("127.0.0.1", 0))
        address = listener.address
        listener.close()
        local_secret.write_secret_file(SECRET, address)
        again = await real_host("b1").listen(address)
        assert os.listdir(place) == []
        endpoint = Endpoint(real_host("b1"), lambda: Hello(kind="bookie", node_id="n1"))
        nursery.start_soon(endpoint.serve, {"": again}, Saying)

        assert await asked(real_host("test"), address) == "anonymous 0"
        nursery.cancel_scope.cancel()


def test_no_word_of_it_is_in_what_goes_over_the_wire() -> None:
    """Proofs over nonces: another connection's, another port's and the other side's are no good."""
    from distributedlog.runtime.interfaces.principals import HandshakeContext

    meeting = HandshakeContext("peer", 4181, server_nonce=bytes(16), client_nonce=bytes(range(16)))
    proofs = {
        local_secret._proof(SECRET, one, side)
        for one in (
            meeting,
            replace(meeting, port=4182),
            replace(meeting, server_nonce=bytes(range(16))),
            replace(meeting, client_nonce=bytes(16)),
        )
        for side in (b"client", b"server")
    }

    assert len(proofs) == 8
    assert all(len(proof) == 32 and proof not in SECRET for proof in proofs)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("localhost", True),
     ("127.example.org", False), ("127.0.0.1.example.org", False), ("10.0.0.1", False)],
)  # fmt: skip
def test_a_name_that_begins_like_a_loopback_address_is_none(host: str, loopback: bool) -> None:
    assert local_secret.is_loopback(host) is loopback
