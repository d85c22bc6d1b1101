"""Lines of the audit for what admins do beside saying who may what."""

import pytest

from distributedlog.ledger.model import ledger_keys
from distributedlog.ledger.model.ledger_metadata import (
    DeclaredLoss,
    Fragment,
    LedgerMetadata,
    LedgerState,
)
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model import log_keys
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.segment_record import SegmentRecord
from distributedlog.metadata.model.acl_records import AUDIT_PREFIX, AuditLine
from distributedlog.metadata.model.interface import prefix_end
from distributedlog.metadata.model.transaction import Compare, Delete, Put, Transaction
from distributedlog.metadata.protocol.client_messages import MembersRequest
from distributedlog.runtime.interfaces.errors import NotAllowed

from .test_trust import LOG, NAME, STATE, begin
from .trusted import believe, trusted_quorum

RIGHTS = ("mode", "user", "grant", "revoke")


async def test_what_admins_do_beside_rights_is_written_down(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """Who deleted a log, took a bookie out of service, changed the quorum: with the act, where it is a
    transaction."""
    believe(monkeypatch)
    async with trusted_quorum(3) as world:
        admin = await begin(world)
        await admin.change_authorization("grant", "root", "owner", "ns", "")
        owner, node = admin, await world.one("bookie/b1")
        gone = Compare.version(NAME, 99)
        renamed, leaving = log_keys.name_key("ns", "new"), ledger_keys.leaving_key("b7")
        id_of_log = log_keys.encode_log_id(LOG)
        assert not (await owner.transact(Transaction((gone,), (Delete(NAME),)))).succeeded
        for share in (
            (Delete(NAME), Put(renamed, id_of_log)),
            (Put(leaving, b""),),
            (Delete(leaving),),
            (Delete(leaving),),  # it was not there any more
            (Delete(renamed),),
            (Put(log_keys.name_key("ns", "made"), log_keys.encode_log_id(0x77)),),
        ):
            assert (await owner.transact(Transaction((), share))).succeeded
        with pytest.raises(NotAllowed):
            await node.transact(Transaction((), (Delete(NAME),)))
        await admin.change_members(MembersRequest("remove", "m3"))

        page = await admin.range(AUDIT_PREFIX, prefix_end(AUDIT_PREFIX))
        lines = [AuditLine.decode(item.value) for item in page.items]
        acts = [(line.action, line.subject) for line in lines if line.action not in RIGHTS]
        assert acts == [
            ("rename-log", "ns/orders ns/new"),
            ("decommission", "b7"),
            ("recommission", "b7"),
            ("delete-log", "ns/new"),
            ("remove-member", "m3"),
        ]
        assert {line.principal for line in lines} == {"user/root"}
        assert all(line.ms and line.address for line in lines)


async def test_a_change_that_is_as_large_as_it_may_be_has_its_line_too(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """Nobody pads what he does until there is no room for the line."""
    believe(monkeypatch)
    async with trusted_quorum() as world:
        admin = await begin(world)
        await admin.change_authorization("grant", "root", "owner", "ns", "")
        many = tuple(Put(log_keys.app_version_key(LOG, f"a{n}"), b"") for n in range(1, 4096))
        assert (await admin.transact(Transaction((), (Delete(NAME), *many)))).succeeded
        page = await admin.range(AUDIT_PREFIX, prefix_end(AUDIT_PREFIX))
        assert AuditLine.decode(page.items[-1].value).action == "delete-log"


async def test_a_declared_loss_is_written_down_with_the_principal_that_was_authenticated(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """The record has the text that the client chose; the line of the audit has the name in its certificate.
    Truncations are repeated by programs: they do not displace the other lines."""
    believe(monkeypatch)
    async with trusted_quorum() as world:
        admin = await begin(world)
        await admin.change_authorization("grant", "root", "owner", "ns", "")
        ledger = LedgerMetadata(
            7, 1, 1, 1, (Fragment(0, ("b1",), 1),), b"k" * 16, LedgerState.OPEN, owner=(LOG, 1)
        )
        at = ledger_keys.ledger_key(7)
        state = LogState(LOG, "orders", 0, last_segment=1)
        steps = (
            (
                Put(STATE, state.encode()),
                Put(at, ledger.encode()),
                Put(log_keys.segment_key(LOG, 1), SegmentRecord(1, 7, 0, 0).encode()),
            ),
            (Put(at, ledger.close_by_writer(9, 100).encode()),),
            (
                Put(
                    at,
                    ledger.close_by_writer(9, 100)
                    .with_loss(DeclaredLoss(3, 4, "x", 1, ""))
                    .encode(),
                ),
            ),
            *(
                (Put(STATE, state.with_truncation(DLSN(1, entry, 0), entry).encode()),)
                for entry in (1, 2, 3)
            ),
        )
        for share in steps:
            pins = []
            for one in share:
                found = await admin.get(one.key)
                pins.append(Compare.version(one.key, 0 if found is None else found.version))
            assert (await admin.transact(Transaction(tuple(pins), share))).succeeded
        page = await admin.range(AUDIT_PREFIX, prefix_end(AUDIT_PREFIX))
        lines = [AuditLine.decode(item.value) for item in page.items]
        assert [(one.action, one.subject) for one in lines if one.action not in RIGHTS] == [
            ("accept-loss", "ledger 7 entries 3-4"),
            ("truncate", "orders (0000000000000011)"),
        ]
        assert {line.principal for line in lines} == {"user/root"}
