"""Sessions of users' tokens at a door: one a token, kept while it is used, and never believed before."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.cluster.auth import token_attempts, token_sessions
from distributedlog.cluster.auth.token_sessions import (
    REFUSED_S,
    SESSIONS_PER_USER_MAX,
    TokenSessions,
)
from distributedlog.runtime.interfaces.errors import (
    DistributedLogError,
    NotAuthenticated,
    QuorumUnreachable,
    TooBusy,
)
from distributedlog.runtime.interfaces.principals import Token
from distributedlog.runtime.protocol.tokens import encode_token

HERE = "10.0.0.1"


def token(user: str = "etl", number: int = 0) -> bytes:
    return encode_token(
        Token(user, 10**9, 0, 1, "00" * 16, number.to_bytes(8, "big"), ()), bytes(32)
    )


class Cluster:
    """What a cluster says of tokens, and what was opened there."""

    def __init__(self) -> None:
        self.opened: list[bytes] = []
        self.closed: list[bytes] = []
        self.refuses: dict[bytes, DistributedLogError] = {}
        self.takes_s = 0.1
        self.ends_s = 0.0

    @asynccontextmanager
    async def open(self, shown: bytes) -> AsyncIterator[bytes]:
        self.opened.append(shown)
        await trio.sleep(self.takes_s)
        if shown in self.refuses:
            raise self.refuses[shown].again()
        try:
            yield shown
            await trio.sleep(self.ends_s)
        except trio.Cancelled:
            shown = b"cut off: " + shown
            raise
        finally:
            self.closed.append(shown)


@asynccontextmanager
async def door(cluster: Cluster, **more: Any) -> AsyncIterator[TokenSessions[bytes]]:
    sessions = TokenSessions(
        cluster.open, **{"sessions_max": 10, "waiting_max": 40, "idle_s": 60.0, **more}
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(sessions.run)
        yield sessions
        nursery.cancel_scope.cancel()


async def test_requests_of_one_token_share_a_session(autojump_clock: MockClock) -> None:
    cluster = Cluster()
    async with door(cluster) as sessions:
        found = []

        async def ask(shown: bytes) -> None:
            found.append(await sessions.acquire(shown, HERE))

        async with trio.open_nursery() as nursery:
            for shown in (token(), token(), token("ann")):
                nursery.start_soon(ask, shown)
        assert sorted(cluster.opened) == sorted([token(), token("ann")])
        assert sorted(one.user for one in found) == ["ann", "etl", "etl"]
        assert {one.resource for one in found} == {token(), token("ann")}
    assert sorted(cluster.closed) == sorted(cluster.opened)


async def test_a_session_that_nobody_uses_ends_and_one_in_use_stays(
    autojump_clock: MockClock,
) -> None:
    cluster = Cluster()
    async with door(cluster) as sessions:
        used = await sessions.acquire(token(), HERE)
        (await sessions.acquire(token("ann"), HERE)).release()
        await trio.sleep(300)
        assert cluster.closed == [token("ann")]
        used.release()
        await trio.sleep(62)
        assert cluster.closed == [token("ann"), token()]
        assert len(sessions) == 0


async def test_a_refused_token_is_refused_in_the_words_of_the_cluster_and_not_asked_about_again(
    autojump_clock: MockClock,
) -> None:
    cluster = Cluster()
    cluster.refuses[token()] = NotAuthenticated("a token that this cluster has not made")
    async with door(cluster) as sessions:
        for _ in range(100):
            with pytest.raises(NotAuthenticated, match="has not made"):
                await sessions.acquire(token(), HERE)
        assert (len(cluster.opened), sessions.rejected_count) == (1, 1)
        del cluster.refuses[token()]  # its user was enabled again
        await trio.sleep(REFUSED_S)
        (await sessions.acquire(token(), HERE)).release()


async def test_what_is_no_token_costs_the_cluster_nothing(autojump_clock: MockClock) -> None:
    cluster = Cluster()
    async with door(cluster) as sessions:
        for shown in (b"", b"dlog1_", b"dlog1_AAAA", b"x" * 5000):
            with pytest.raises(NotAuthenticated):
                await sessions.acquire(shown, HERE)
    assert cluster.opened == []


async def test_a_stranger_that_guesses_costs_so_much_and_keeps_nobody_out(
    autojump_clock: MockClock,
) -> None:
    """Planted: without `TokenAttempts` the cluster is asked a thousand times."""
    cluster = Cluster()
    guesses = [token("root", number) for number in range(1000)]
    cluster.refuses = {one: NotAuthenticated("not made here") for one in guesses}
    async with door(cluster) as sessions:
        known = await sessions.acquire(token(), HERE)
        busy = 0
        for one in guesses:
            try:
                await sessions.acquire(one, "10.6.6.6")
            except TooBusy:
                busy += 1
            except NotAuthenticated:
                pass
        asked = len(cluster.opened) - 1
        assert asked < 2 * token_attempts.ADDRESS_BURST
        assert asked + busy == len(guesses)
        known.release()
        (await sessions.acquire(token(), "10.6.6.6")).release()  # what is open is not asked about
        (await sessions.acquire(token("ann"), HERE)).release()


async def test_a_name_in_a_forged_token_takes_no_place_of_that_user(
    autojump_clock: MockClock,
) -> None:
    cluster = Cluster()
    forged = [token("etl", 100 + number) for number in range(40)]
    cluster.refuses = {one: NotAuthenticated("not made here") for one in forged}
    async with door(cluster, sessions_max=2) as sessions:
        (await sessions.acquire(token(), HERE)).release()
        for one in forged:
            with pytest.raises(NotAuthenticated):
                await sessions.acquire(one, HERE)
        assert cluster.closed == []


async def test_a_user_of_many_tokens_waits_alone(autojump_clock: MockClock) -> None:
    cluster = Cluster()
    async with door(cluster, sessions_max=SESSIONS_PER_USER_MAX + 2) as sessions:
        mine = [await sessions.acquire(token("etl", n), HERE) for n in range(SESSIONS_PER_USER_MAX)]
        with pytest.raises(TooBusy):
            await sessions.acquire(token("etl", 99), HERE)
        assert token("etl", 99) in cluster.closed
        ann = await sessions.acquire(token("ann"), HERE)
        mine[3].release()
        (await sessions.acquire(token("etl", 99), HERE)).release()
        await trio.sleep(0.01)
        assert token("etl", 3) in cluster.closed, "the one that was idle longest"
        for number in range(3):
            (await sessions.acquire(token(f"user{number}"), HERE)).release()
        assert token("ann") not in cluster.closed
        ann.release()


async def test_a_token_that_is_taken_no_more_is_looked_at_anew(autojump_clock: MockClock) -> None:
    cluster = Cluster()
    async with door(cluster) as sessions:
        tail, request = await sessions.acquire(token(), HERE), await sessions.acquire(token(), HERE)
        sessions.revoke(request)
        request.release()
        cluster.refuses[token()] = NotAuthenticated("the tokens of user/etl were revoked")
        with pytest.raises(NotAuthenticated, match="revoked"):
            await sessions.acquire(token(), HERE)
        assert cluster.closed == []
        tail.release()
        await trio.sleep(1)
        assert cluster.closed == [token()]


async def test_a_session_that_ends_takes_its_follower_of_the_same_token_nothing(
    autojump_clock: MockClock,
) -> None:
    cluster = Cluster()
    async with door(cluster) as sessions:
        old = await sessions.acquire(token(), HERE)
        sessions.revoke(old)
        new = await sessions.acquire(token(), HERE)
        old.release()
        await trio.sleep(1)
        assert (len(cluster.closed), len(sessions)) == (1, 1)
        assert await sessions.acquire(token(), HERE) is new
        sessions.revoke(old)  # a request of long ago hears of it now
        assert await sessions.acquire(token(), HERE) is new
        assert len(cluster.opened) == 2


async def test_a_door_that_ends_closes_what_it_opened_in_order(autojump_clock: MockClock) -> None:
    """What is written is on its way: its end may wait, and is not cut off by the door's."""
    cluster = Cluster()
    cluster.ends_s = 0.5
    async with door(cluster) as sessions:
        await sessions.acquire(token(), HERE)
    assert cluster.closed == [token()]


async def test_a_door_that_ends_waits_for_nobody_in_a_session_that_was_dropped(
    autojump_clock: MockClock,
) -> None:
    cluster = Cluster()
    async with trio.open_nursery() as nursery:
        async with door(cluster) as sessions:
            session = await sessions.acquire(token(), HERE)
            sessions.revoke(session)

            async def late() -> None:
                await trio.sleep(100)
                session.release()

            nursery.start_soon(late)
        assert trio.current_time() < 50
        assert cluster.closed == [token()]


async def test_what_was_refused_is_remembered_within_bounds(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_sessions, "REFUSED_MAX", 3)
    monkeypatch.setattr(token_sessions, "REFUSED_S", 1000.0)
    cluster = Cluster()
    shown = [token("root", number) for number in range(5)]
    cluster.refuses = {one: NotAuthenticated("not made here") for one in shown}
    async with door(cluster) as sessions:
        for one in shown:
            with pytest.raises(NotAuthenticated):
                await sessions.acquire(one, HERE)
        assert len(sessions._rejected_tokens) == 3
        for one in shown[2:]:
            with pytest.raises(NotAuthenticated):
                await sessions.acquire(one, HERE)
        assert cluster.opened == shown


async def test_a_token_that_is_refused_again_is_the_newest_of_those(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_sessions, "REFUSED_MAX", 2)
    cluster = Cluster()
    shown = [token("root", number) for number in range(3)]
    cluster.refuses = {one: NotAuthenticated("not made here") for one in shown}

    async def comes(one: bytes) -> None:
        with pytest.raises(NotAuthenticated):
            await sessions.acquire(one, HERE)

    async with door(cluster) as sessions:
        await comes(shown[0])
        await trio.sleep(3)
        await comes(shown[1])
        await trio.sleep(3)
        await comes(shown[0])  # of the first time nothing is known by now
        await comes(shown[2])
        asked = len(cluster.opened)
        await comes(shown[0])
        assert len(cluster.opened) == asked


async def test_a_cluster_that_is_away_counts_against_nobody(autojump_clock: MockClock) -> None:
    cluster = Cluster()
    cluster.refuses[token()] = QuorumUnreachable("away")
    async with door(cluster) as sessions:
        for _ in range(3 * int(token_attempts.ADDRESS_BURST)):
            with pytest.raises(QuorumUnreachable):
                await sessions.acquire(token(), HERE)
        assert sessions.rejected_count == 0


async def test_few_wait_for_what_the_cluster_says_and_who_is_known_waits_for_nobody(
    autojump_clock: MockClock,
) -> None:
    """A quorum is away, and a stranger asks by the hundred with one token: each holds a place of the door."""
    cluster = Cluster()
    async with door(cluster, waiting_max=3) as sessions, trio.open_nursery() as nursery:
        known = await sessions.acquire(token("ann"), HERE)
        cluster.takes_s = 30.0
        cluster.refuses[token("root")] = NotAuthenticated("not made here")
        said: list[str] = []

        async def ask(shown: bytes) -> None:
            try:
                (await sessions.acquire(shown, "10.6.6.6")).release()
                said.append("taken")
            except (NotAuthenticated, TooBusy) as error:
                said.append(type(error).__name__)

        for _ in range(100):
            nursery.start_soon(ask, token("root"))
        await trio.sleep(1)
        assert said == ["TooBusy"] * 96, "one has it looked at, three wait with it"
        (await sessions.acquire(token("ann"), HERE)).release()
        nursery.start_soon(ask, token("etl"))  # is looked at, whoever waits
        await trio.sleep(1)
        assert len(said) == 96
        await trio.sleep(40)
        assert sorted(said[96:]) == ["NotAuthenticated"] * 4 + ["taken"]
        (await sessions.acquire(token("etl"), HERE)).release()
        cluster.takes_s = 0.1
        for number in range(5):
            nursery.start_soon(ask, token("bob"))
            assert number == 0 or sessions._waiting <= number
        await trio.sleep(1)
        assert said[101:].count("taken") == 4, "what waited has left"
        known.release()


async def test_it_ends_while_a_session_is_being_opened(autojump_clock: MockClock) -> None:
    cluster = Cluster()
    cluster.takes_s = 10**6
    async with door(cluster) as sessions, trio.open_nursery() as nursery:
        nursery.start_soon(sessions.acquire, token(), HERE)
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
