"""The second judge, on commands by hand: what it finds, and that it agrees with the first one."""

import pytest

from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.log.model import log_keys
from distributedlog.log.model.log_state import LogState
from distributedlog.metadata.model.acl_records import (
    MODE_KEY,
    AuditLine,
    User,
    audit_key,
    encode_grant,
    encode_mode,
    grant_key,
    user_key,
)
from distributedlog.metadata.model.commands import (
    AuthorizationChange,
    ExpireLease,
    GrantLease,
    ReplicatedCommand,
    RevokeLease,
    Transact,
    encode_command,
)
from distributedlog.metadata.model.transaction import Compare, Delete, Put, Transaction
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.metadata.state.request_dedup import RequestDedup
from distributedlog.testing.verify.checks.independent_authorizer import (
    IndependentAuthorizer,
    Policy,
)
from tests.metadata.auth.test_authorizer import (
    BILLS,
    LEDGERS,
    NAMES,
    NS,
    ORDERS,
    SECRET,
    record,
    world,
)

ROWS = (
    ("root", "admin", "", ""),
    ("ann", "reader", NS, "orders"),
    ("etl", "writer", NS, "orders"),
    ("own", "owner", NS, "bills/"),
    ("op", "operator", "", ""),
)


class Run:
    """A state, and a judge that hears what it takes."""

    def __init__(self, mode: str = "required") -> None:
        self.failed: list[str] = []
        self.authorizer = IndependentAuthorizer(self.failed.append, stolen_bookies={"bookie/b9"})
        self.state = KeyValueState()
        made = [
            *(
                Put(log_keys.name_key(NS, name), log_keys.encode_log_id(n))
                for name, n in NAMES.items()
            ),
            *(
                Put(log_keys.state_key(n), LogState(n, name, 0).encode())
                for name, n in NAMES.items()
            ),
            *(Put(keys.ledger_key(one), record(one, log).encode()) for one, log in LEDGERS.items()),
        ]
        self.do(Transact("c", 1, 0, Transaction((), tuple(made))))
        users = [Put(user_key(user), User().encode()) for user, *_ in ROWS]
        grants = [
            Put(grant_key(user, ns, path), encode_grant(role)) for user, role, ns, path in ROWS
        ]
        said = (*users, *grants, Put(MODE_KEY, encode_mode(mode)))
        self.do(AuthorizationChange("user/root/c", 1, 0, Transaction((), said)))
        assert self.failed == []

    def do(self, command: ReplicatedCommand) -> None:
        index = self.state.index + 1
        packed = encode_command(command)
        answer, events = self.state.apply(index, packed)
        self.authorizer.on_applied(index, packed, answer, events, self.state.revision)
        self.authorizer.on_applied(
            index, packed, answer, events, self.state.revision
        )  # by another node

    def try_it(self, principal: str, *operations: Put | Delete, compare: bytes = b"") -> list[str]:
        compares = (Compare.exists(compare),) if compare else ()
        request = self.state.index
        self.do(Transact(f"{principal}/c", request, 0, Transaction(compares, operations)))
        found, self.failed[:] = list(self.failed), []
        return found


SEGMENT = log_keys.segment_key(ORDERS, 1)
OF_OTHERS = (
    log_keys.segment_key(SECRET, 1),
    keys.ledger_key(2),
    keys.delete_key("i1", 2),
    log_keys.name_key(NS, "orders-secret"),
    grant_key("etl", "", ""),
    b"secret/ledgers",
    b"nobody/knows",
)


def test_it_finds_what_no_grant_allows_and_nothing_else() -> None:
    run = Run()
    assert run.try_it("user/etl", Put(SEGMENT, b"")) == []
    assert (
        run.try_it("user/etl", Delete(keys.delete_key("i1", 1)), compare=keys.ledger_key(1)) == []
    )
    for key in OF_OTHERS[:2]:  # a condition is a read
        assert run.try_it("user/etl", Put(SEGMENT, b""), compare=key), key
    for key in OF_OTHERS:
        assert run.try_it("user/etl", Put(key, b"")), key
    for principal in ("user/ann", "user/eve", "user/op", "bookie/b9"):
        assert run.try_it(principal, Put(SEGMENT, b"")), principal


def test_in_the_other_modes_only_what_says_who_may_what_is_kept() -> None:
    for mode in ("open", "report"):
        run = Run(mode)
        assert run.try_it("user/eve", Put(SEGMENT, b"")) == []
        assert run.try_it("user/eve", Put(grant_key("eve", "", ""), b""))


def test_a_right_ends_with_the_change_that_takes_it_and_the_past_stays_known() -> None:
    run = Run()
    before = run.authorizer.revision
    gone = Transaction((), (Delete(grant_key("etl", NS, "orders")),))
    run.do(AuthorizationChange("user/root/c", 2, 0, gone))
    assert run.try_it("user/etl", Put(SEGMENT, b""))
    assert run.authorizer.had_right("user/etl", 1, "w", before)
    assert not run.authorizer.had_right("user/etl", 1, "w", run.authorizer.revision)
    assert run.authorizer.policy_at(before).path_rights("etl", NS, "orders") == "rw"
    assert [one.revision for one in run.authorizer.policies_since(before)] == [
        before,
        run.authorizer.revision,
    ]


def test_a_token_leaves_what_its_narrowing_and_its_user_both_allow() -> None:
    run = Run()
    whole = run.authorizer.current_policy
    cut = whole.narrowed(((NS, "orders", 1), (NS, "bills/", 7)))
    assert (whole.path_rights("etl", NS, "orders"), cut.path_rights("etl", NS, "orders")) == (
        "rw",
        "r",
    )
    assert whole.path_rights("own", NS, "bills/a") == cut.path_rights("own", NS, "bills/a") == "rwm"
    assert cut.path_rights("etl", NS, "bills/a") == "", "which its user may not"
    assert "o" in whole.cluster_rights("op")
    assert cut.cluster_rights("op") == ""
    assert run.authorizer.ledger_rights(cut, "etl", 1) == "r"
    assert not run.authorizer.may_read(whole.narrowed(((NS, "bills/", 7),)), "user/etl", SEGMENT)
    assert whole.narrowed(()) is whole


def test_it_knows_which_tokens_were_revoked() -> None:
    run = Run()
    before = run.authorizer.revision
    put = Put(user_key("etl"), User(tokens_valid_from=7).encode())
    run.do(AuthorizationChange("user/root/c", 2, 0, Transaction((), (put,))))
    assert run.authorizer.policy_at(before).tokens["etl"] == 0
    assert run.authorizer.current_policy.tokens["etl"] == 7


def test_who_is_no_admin_changes_no_right() -> None:
    run = Run()
    run.do(
        AuthorizationChange(
            "user/etl/c", 2, 0, Transaction((), (Put(MODE_KEY, encode_mode("open")),))
        )
    )
    assert run.failed


def test_a_lease_is_its_owners_until_it_ends() -> None:
    run = Run()
    run.do(GrantLease("user/etl/c", 2, 0, 1000))
    assert run.try_it("user/own", Put(log_keys.lock_key(BILLS), b"", 1))
    run.do(RevokeLease("user/own/c", 9, 0, 1))
    assert len(run.failed) == 1
    run.do(GrantLease("user/etl/c", 3, 0, 1000))
    run.do(ExpireLease(lease=2))
    run.do(RevokeLease("user/own/c", 10, 0, 2))
    assert len(run.failed) == 1


def test_who_was_given_no_lease_owns_none() -> None:
    """Else all that goes without one would be his: 0 says so in commands and in answers."""
    run = Run()
    run.state.request_dedup = RequestDedup(1)
    for number in range(2, 5):
        run.do(GrantLease("user/etl/c", number, run.state.index, 1000))
    run.do(GrantLease("proxy/r1/c", 1, 0, 1000))  # so old that nobody knows whether it was done
    assert list(run.authorizer.lease_owners.values()) == ["user/etl"] * 3

    assert run.try_it("user/etl", Put(SEGMENT, b"")) == []


def test_a_line_of_the_audit_is_put_by_its_own_act_alone() -> None:
    run = Run()
    segment, line = Put(SEGMENT, b""), AuditLine(1, "user/etl", "a", "delete", "x").encode()
    at = run.state.index + 1
    assert run.try_it("user/etl", segment, Put(audit_key(at), line)) == []
    for forged in (
        Put(audit_key(at), line),
        Put(audit_key(run.state.index + 3), AuditLine(1, "user/ann", "a", "b", "").encode()),
        Delete(audit_key(run.state.index + 9)),
    ):
        assert run.try_it("user/etl", segment, forged)


@pytest.mark.parametrize(
    ("path", "name", "covers"),
    [
        ("", "a/b", True), ("a/", "a/b", True), ("a/", "a", False), ("a/b", "a/b", True),
        ("a", "a-b", False), ("a/", "ab", False), ("a/b/", "a/b/c/d", True),
    ],
)  # fmt: skip
def test_paths_go_by_components(path: str, name: str, covers: bool) -> None:
    """H235"""
    policy = Policy(grants={"u": {("ns", path): "reader"}})
    assert bool(policy.path_rights("u", "ns", name)) == covers
    assert not policy.path_rights("u", "other", name)


def test_it_is_never_stricter_than_the_first_judge() -> None:
    """Whatever the first one lets pass, of users and these keys, the second one does."""
    first, _ = world(*ROWS)
    run = Run()
    places: tuple[bytes, ...] = (
        SEGMENT,
        log_keys.state_key(BILLS),
        log_keys.position_key(ORDERS, "~ann/x"),
        *OF_OTHERS,
    )
    places += (
        keys.leaving_key("i1"),
        keys.NEXT_LEDGER,
        keys.missing_ranges_key(1),
        keys.bookie_ledger_key("i1", 3),
    )
    for user in ("user/ann", "user/etl", "user/own", "user/op", "user/root", "user/eve"):
        for key in places:
            for share in (
                Transaction((), (Put(key, b"1001"),)),
                Transaction((), (Delete(key),)),
                Transaction((Compare.exists(key),)),
            ):
                if first.authorize_transaction(user, share) is None:
                    why = run.authorizer._violation_of(user, 1 << 40, Transact("c", 1, 0, share))
                    assert not why, (user, key, why)
