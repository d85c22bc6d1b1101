"""Conditions and operations as values."""

import pytest

from distributedlog.metadata.model.commands import (
    ExpireLease,
    GrantLease,
    NoOp,
    ReplicatedCommand,
    RevokeLease,
    Transact,
    decode_command,
    encode_command,
)
from distributedlog.metadata.model.transaction import (
    BYTES_MAX,
    KEY_BYTES_MAX,
    OPERATIONS_MAX,
    Compare,
    Delete,
    KeyValue,
    Put,
    Transaction,
)
from distributedlog.runtime.interfaces.errors import (
    InvalidRequest,
    ProtocolError,
    TransactionTooLarge,
)
from distributedlog.runtime.protocol.frames import pack

FOUND = KeyValue(b"k", b"v", 3, 5, 9, 0)


@pytest.mark.parametrize(
    ("compare", "if_found", "if_missing"),
    [
        (Compare.version(b"k", 3), True, False),
        (Compare.version(b"k", 0), False, True),
        (Compare.mod_revision(b"k", 9), True, False),
        (Compare.mod_revision(b"k", 5), False, False),
        (Compare.mod_revision(b"k", 0), False, True),
        (Compare.exists(b"k"), True, False),
    ],
    ids=str,
)
def test_what_a_condition_is_true_of(compare: Compare, if_found: bool, if_missing: bool) -> None:
    assert compare.holds(FOUND) is if_found
    assert compare.holds(None) is if_missing


def test_shares_are_joined() -> None:
    ours = Transaction((Compare.exists(b"a"),), (Put(b"a", b"1"),))
    theirs = Transaction((Compare.version(b"b", 2),), (Delete(b"b"),))

    joined = ours + theirs

    assert joined.compares == (Compare.exists(b"a"), Compare.version(b"b", 2))
    assert joined.operations == (Put(b"a", b"1"), Delete(b"b"))


def test_two_shares_that_write_one_key_are_refused() -> None:
    """Joined silently, one of them would be lost."""
    joined = Transaction((), (Put(b"a", b"1"),)) + Transaction((), (Delete(b"a"),))

    with pytest.raises(InvalidRequest, match="twice"):
        joined.check()


@pytest.mark.parametrize("key", [b"", b"k" * (KEY_BYTES_MAX + 1)], ids=["empty", "long"])
def test_a_key_that_cannot_be_is_refused_before_it_is_sent(key: bytes) -> None:
    for transaction in (
        Transaction((Compare.exists(key),)),
        Transaction((), (Put(key, b""),)),
        Transaction((), (Delete(key),)),
    ):
        with pytest.raises(InvalidRequest):
            transaction.check()


def test_the_limits_are_what_is_allowed() -> None:
    """H13: 4,096 operations and 1 MiB."""
    keys = [b"%04d" % n for n in range(OPERATIONS_MAX)]
    Transaction((), tuple(Delete(key) for key in keys)).check()
    Transaction((), (Put(b"k", bytes(BYTES_MAX - 1)),)).check()

    with pytest.raises(TransactionTooLarge):
        Transaction((Compare.exists(b"k"),), tuple(Delete(key) for key in keys)).check()
    with pytest.raises(TransactionTooLarge):
        Transaction((), (Put(b"k", bytes(BYTES_MAX)),)).check()


@pytest.mark.parametrize(
    "command",
    [
        NoOp(),
        GrantLease("c", 1, 2, 5000),
        RevokeLease("c", 1, 2, 7),
        ExpireLease(lease=9),
        Transact(
            "c",
            1,
            2,
            Transaction(
                (Compare.version(b"a", 1), Compare.exists(b"b"), Compare.mod_revision(b"c", 4)),
                (Put(b"a", b"\x00\xff", 3), Delete(b"b")),
            ),
        ),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_command_comes_back_from_its_bytes(command: ReplicatedCommand) -> None:
    assert decode_command(encode_command(command)) == command


def _deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        5,
        [],
        ["grant"],
        ["grant", ["c", 1, 0], 1.5],
        ["grant", ["c", True, 0], 5],
        ["grant", ["c", 1, 0], _deep(500)],
        ["grant", ["c" * 65, 1, 0], 5],
        [_deep(500), ["c", 1, 0], 5],
        ["transact", ["c", 1, 0], [[{0: 1}], []]],
        ["transact", ["c", 1, 0], [[], [{0: b"k"}]]],
        ["transact", ["c", 1, 0], [[], ["k"]]],
        ["transact", ["c", 1, 0], [[["version", b"k", -1]], []]],
        ["transact", ["c", 1, 0], {0: [], 1: []}],
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_command_that_cannot_be_read_is_a_protocol_error(value: object) -> None:
    """And nothing else: what `KeyValueState.apply` does not catch ends every node."""
    with pytest.raises(ProtocolError):
        decode_command(pack(value))
