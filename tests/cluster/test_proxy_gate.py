"""A proxy has rights on all logs: where rights are required it lends them to nobody."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from distributedlog.cluster.proxy_gate import ProxyGate
from distributedlog.metadata.local import LocalMetadata
from distributedlog.metadata.transaction import Put, Transaction
from distributedlog.metadata.trust_records import MODE_KEY, encode_mode
from distributedlog.runtime.errors import DistributedLogError, NotAllowed
from distributedlog.runtime.frames import Op
from distributedlog.runtime.principals import LOCAL


@dataclass
class End:
    """A link and the session behind it."""

    principal: str
    taken: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    closed: DistributedLogError | None = None
    over: bool = False

    def reply_error(self, ident: int, error: DistributedLogError) -> None:
        assert isinstance(error, NotAllowed)
        self.refused.append(ident)

    def close(self, reason: DistributedLogError) -> None:
        self.closed = self.closed or reason

    def on_frame(self, op: int, *_: Any) -> None:
        self.taken.append(op)

    def on_batch_end(self) -> None: ...

    def on_closed(self) -> None:
        self.over = True


def served(gate: ProxyGate, principal: str) -> tuple[End, Any]:
    end: Any = End(principal)
    return end, gate.guard(end, end)


def ask(session: Any, *ops: int) -> None:
    for ident, op in enumerate(ops, 1):
        session.on_frame(op, 0, 0, ident, 0, memoryview(b""))


@pytest.mark.parametrize("mode", [encode_mode("required"), b"\xc1 rotten"])
async def test_where_rights_are_required_a_proxy_serves_its_own_machines_cluster_alone(
    mode: bytes, nursery: trio.Nursery, autojump_clock: object
) -> None:
    metadata = LocalMetadata()
    gate = ProxyGate(metadata)
    await nursery.start(gate.run)
    ops = [Op.PRODUCE_OPEN, Op.PRODUCE, Op.SUBSCRIBE, Op.LOG_CALL, Op.PROXY_CALL]
    before, session = served(gate, "user/etl")
    ask(session, *ops)
    assert before.taken == ops

    await metadata.transact(Transaction((), (Put(MODE_KEY, mode),)))
    await trio.sleep(5)
    assert isinstance(before.closed, NotAllowed)
    session.on_closed()
    assert before.over

    for principal in ("user/etl", "anonymous", "proxy/p2"):
        end, session = served(gate, principal)
        ask(session, Op.INFO, Op.MEMBERS, *ops)
        assert end.taken == [Op.INFO, Op.MEMBERS]
        assert end.refused == [3, 4, 5, 6, 7]
    own, session = served(gate, LOCAL)
    ask(session, *ops)
    assert own.taken == ops

    await metadata.transact(Transaction((), (Put(MODE_KEY, encode_mode("report")),)))
    await trio.sleep(5)
    end, session = served(gate, "user/etl")
    ask(session, *ops)
    assert end.taken == ops
