"""The options of all parts: described in one way, as docs/reference/options.md lists them."""

from pathlib import Path

import pytest

from distributedlog.bookie.declarations.options import BookieOptions
from distributedlog.cluster.declarations.options import BookieNodeConfig
from distributedlog.connect import ClientOptions
from distributedlog.gateway.options import GatewayOptions
from distributedlog.ledger.declarations.options import LedgerOptions
from distributedlog.log.declarations.options import LogOptions
from distributedlog.log.model.stored_settings import (
    QUORUMS,
    STORABLE,
    FormatOptions,
    MergingOptions,
    RetentionOptions,
)
from distributedlog.metadata.declarations.options import RaftOptions
from distributedlog.proxy.declarations.options import ProxyOptions
from distributedlog.runtime.declarations.options import (
    describe_legal_values,
    markdown_table,
    option_fields,
    replace_tables,
)

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "reference" / "options.md"
PARTS: dict[str, type] = {
    "client": ClientOptions,
    "log": LogOptions,
    "retention": RetentionOptions,
    "merging": MergingOptions,
    "formats": FormatOptions,
    "ledger": LedgerOptions,
    "bookie": BookieNodeConfig,
    "store": BookieOptions,
    "proxy": ProxyOptions,
    "gateway": GatewayOptions,
}


def renewed() -> str:
    """The document with its tables as the code has them."""
    return replace_tables(
        DOCUMENT.read_text(), {name: markdown_table(cls) for name, cls in PARTS.items()}
    )


def test_the_tables_of_the_document_are_the_codes() -> None:
    assert DOCUMENT.read_text() == renewed(), "python -m tests.test_options makes them anew"


@pytest.mark.parametrize("cls", [*PARTS.values(), RaftOptions])
def test_every_option_says_its_unit_and_reason(cls: type) -> None:
    for one in option_fields(cls):
        assert one.metadata["reason"]
        assert one.metadata["unit"] or isinstance(one.default, bool | str)
        assert describe_legal_values(one)


def test_a_client_gives_each_option_to_one_part() -> None:
    """One mapping configures three parts: no name may stand in two of them."""
    names = [
        one.name
        for part in ("client", "log", "retention", "merging", "formats", "ledger")
        for one in option_fields(PARTS[part])
    ]

    assert len(set(names)) == len(names)


def test_the_document_names_each_option_that_may_be_stored() -> None:
    _, after = DOCUMENT.read_text().split("### Log options\n", 1)
    said, _ = after.split("<!-- log -->", 1)

    assert [name for name in (*STORABLE, *QUORUMS) if f"`{name}`" not in said] == []


if __name__ == "__main__":
    DOCUMENT.write_text(renewed())
