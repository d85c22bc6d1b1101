"""People see a bookie's name; an id where there is none, and beside a name that two have."""

import random

import pytest

from distributedlog.cluster.repair.decommission import find_bookie
from distributedlog.cluster.status.bookie_names import BookieNames, bookie_names, name_order
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.interfaces.errors import InvalidRequest
from distributedlog.runtime.protocol.frames import pack
from tests.metadata.local_metadata import LocalMetadata

ONE, TWO, OLD, NOBODY = "1" * 32, "2" * 32, "3" * 32, "4" * 32
NAMES = BookieNames({ONE: "b1", TWO: "b2", OLD: "b2", "5" * 32: ""})


def test_a_bookie_is_called_as_its_operator_calls_it() -> None:
    assert NAMES.name(ONE) == "b1"
    assert NAMES.name(NOBODY) == NOBODY
    assert NAMES.name("5" * 32) == "5" * 32


def test_of_two_with_one_name_it_is_said_which() -> None:
    """A new bookie took the name of one whose disk was lost."""
    assert NAMES.name(TWO) == "b2 (22222222)"
    assert NAMES.name(OLD) == "b2 (33333333)"


def test_a_sentence_has_names_instead_of_ids() -> None:
    assert NAMES.with_names(f"it lies on {ONE}, {NOBODY}") == f"it lies on b1, {NOBODY}"
    assert NAMES.with_names(f"bookie b1 ({ONE}) is down") == "bookie b1 is down"
    assert NAMES.with_names(f"bookie b2 ({OLD}) is down") == "bookie b2 (33333333) is down"
    assert NAMES.with_names(f"({ONE}) has it") == "(b1) has it"
    assert NAMES.with_names(f"{ONE}{TWO} is no id") == f"{ONE}{TWO} is no id"


def test_what_is_refused_names_them_too() -> None:
    with (
        pytest.raises(InvalidRequest, match=r"^bookie b1 has entries from 3 on$"),
        NAMES.names_in_errors(),
    ):
        raise InvalidRequest(f"bookie {ONE} has entries from 3 on")


async def test_names_are_those_of_the_cookies_and_find_their_bookie() -> None:
    metadata = LocalMetadata()
    for bookie, label in ((ONE, "b1"), (TWO, "b2"), (OLD, "b2")):
        cookie = Put(keys.cookie_key(bookie), pack({"label": label, "incarnation": 1}))
        await metadata.transact(Transaction((), (cookie,)))
    await metadata.transact(Transaction((), (Put(keys.cookie_key(NOBODY), b"damaged"),)))

    names = await bookie_names(metadata)

    assert [names.name(one) for one in (ONE, TWO, NOBODY)] == ["b1", "b2 (22222222)", NOBODY]
    assert await find_bookie(metadata, names.name(ONE)) == ONE
    assert await find_bookie(metadata, names.name(OLD)[4:-1]) == OLD


def test_names_are_in_the_order_of_their_numbers() -> None:
    names = ["b10", "b9", "a", "rack-2/b1", "b", "rack-10/b1", "rack-2/b11", "7", ""]
    random.Random(1).shuffle(names)

    assert sorted(names, key=name_order) == [
        "", "7", "a", "b", "b9", "b10", "rack-2/b1", "rack-2/b11", "rack-10/b1",
    ]  # fmt: skip
