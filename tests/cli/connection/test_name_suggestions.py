"""A log's name that was mistyped is answered with those that are almost so, at a bounded cost."""

import pytest
import trio
import trio.testing

from distributedlog.cli.connection.name_suggestions import NAMES_MAX, WAIT_S, name_near, near_names
from distributedlog.cli.framework.errors import with_hint
from distributedlog.log.namespace import LogPage
from distributedlog.runtime.interfaces.errors import LogNotFound, NotAllowed, RequestTimeout


class Logs:
    """A namespace's names, in order; counts what is asked of it."""

    def __init__(self, *names: str) -> None:
        self.names = sorted(names)
        self.asked: list[tuple[str, int]] = []
        self.error: Exception | None = None
        self.hangs = False

    async def log_page(self, prefix: str = "", after: str = "", limit: int = 1000) -> LogPage:
        await trio.lowlevel.checkpoint()
        self.asked.append((prefix, limit))
        if self.hangs:
            await trio.sleep_forever()
        if self.error is not None:
            raise self.error
        found = tuple(name for name in self.names if name.startswith(prefix))[:limit]
        return LogPage(found, ("",) * len(found), None)


@pytest.mark.parametrize(
    ("wanted", "near"),
    [
        ("ordes", ["orders"]),
        ("Orders", ["orders"]),
        ("rders", ["orders"]),
        ("oders/eu", ["orders/eu"]),
        ("xyzzy", []),
        ("o", []),
    ],
)
async def test_what_was_meant(wanted: str, near: list[str]) -> None:
    assert await near_names(Logs("orders", "orders/eu", "payments", "audit"), wanted) == near


async def test_among_many_logs_few_are_looked_at_and_the_near_ones_found() -> None:
    many = [f"tenant-{n // 1000:03}/log-{n:06}" for n in range(20_000)]
    logs = Logs(*many, "zone/orders")

    assert await near_names(logs, "zone/ordes") == ["zone/orders"]
    assert await near_names(logs, "qqqqqqqq") == []
    assert logs.asked == [("zone/", NAMES_MAX), ("qqqq", NAMES_MAX), ("", NAMES_MAX)]


async def test_the_error_says_it_and_what_makes_the_log() -> None:
    missing = LogNotFound('log "ordes" does not exist in namespace ns', "ordes")

    await name_near(Logs("orders"), ExceptionGroup("tasks", [missing]))

    assert with_hint(missing) == (
        'log "ordes" does not exist in namespace ns; did you mean "orders"?'
        ' Create it with "dlog log create ordes"'
    )


@pytest.mark.parametrize("error", [NotAllowed("no"), RequestTimeout("late")])
async def test_who_may_not_list_is_told_what_was_told_before(error: Exception) -> None:
    logs, missing = (
        Logs("orders"),
        LogNotFound('log "ordes" does not exist in namespace ns', "ordes"),
    )
    logs.error = error

    await name_near(logs, missing)

    assert with_hint(missing).endswith('ns; create it with "dlog log create ordes"')


async def test_a_cluster_that_hangs_is_waited_for_shortly(
    autojump_clock: trio.testing.MockClock,
) -> None:
    logs, missing = (
        Logs("orders"),
        LogNotFound('log "ordes" does not exist in namespace ns', "ordes"),
    )
    logs.hangs = True
    begun = trio.current_time()

    await name_near(logs, missing)

    assert trio.current_time() - begun == pytest.approx(WAIT_S)


async def test_what_is_about_something_else_asks_nobody() -> None:
    logs = Logs("orders")

    for error in (LogNotFound("the log was deleted meanwhile"), ValueError("x")):
        await name_near(logs, error)

    assert logs.asked == []
