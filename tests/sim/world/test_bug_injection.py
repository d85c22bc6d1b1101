"""Replacements for functions of the product: only those that can be called as the original."""

from typing import Any

import pytest

from distributedlog.testing.sim.world.bug_injection import Patch, patched


class Ledger:
    """Part of a product."""

    def add(self, entry: bytes, *, lac: int) -> str:
        return f"{entry!r} {lac}"


def replaced(ledger: Any, entry: bytes, *, lac: int) -> str:
    return "replaced"


def without_keyword(ledger: Any, entry: bytes) -> str:
    return "replaced"


def any_arguments(ledger: Any, *arguments: Any, **named: Any) -> str:
    return "any"


def test_a_patch_is_in_place_for_its_block_only() -> None:
    for replacement, expected in ((replaced, "replaced"), (any_arguments, "any")):
        with patched([(Ledger, "add", replacement)]):
            assert Ledger().add(b"x", lac=1) == expected
        assert Ledger().add(b"x", lac=1) == "b'x' 1"


@pytest.mark.parametrize(
    ("patch", "refusal"),
    [((Ledger, "add", without_keyword), TypeError), ((Ledger, "append", replaced), AttributeError)],
    ids=["other arguments", "no such name"],
)
def test_a_patch_that_fits_the_product_no_more_is_refused(
    patch: Patch, refusal: type[Exception]
) -> None:
    """Else it would observe nothing, or end each seed with an error of its own."""
    with pytest.raises(refusal), patched([(Ledger, "add", replaced), patch]):
        pass

    assert Ledger().add(b"x", lac=1) == "b'x' 1"
