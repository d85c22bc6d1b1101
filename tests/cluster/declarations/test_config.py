"""Options: the later place wins, and what is not known is an error."""

from dataclasses import dataclass

import pytest

from distributedlog.cluster.declarations.config import (
    format_address,
    overlay,
    parse_address,
    parse_file,
    parse_named_addresses,
    parse_quorum,
)
from distributedlog.cluster.declarations.options import (
    BookieNodeConfig,
    MetadataNodeConfig,
    from_json,
    to_json,
)
from distributedlog.cluster.local.node_child import with_host_label
from distributedlog.runtime.interfaces.errors import InvalidRequest
from distributedlog.runtime.machine import machine_id


@dataclass(frozen=True, slots=True)
class _Options:
    size_bytes: int
    wait_s: float = 1.5
    direct: bool = True
    rack: str | None = None


def test_the_later_layer_wins_and_none_says_nothing() -> None:
    found = overlay(
        _Options,
        ("the file", {"size-bytes": 7, "wait_s": 2}),
        ("the flags", {"wait_s": None, "size_bytes": "9", "direct": "off", "rack": "a"}),
    )

    assert found == _Options(9, 2.0, False, "a")


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"size": 1}, ["the file", "size", "size_bytes"]),
        ({"size_bytes": "many"}, ["size_bytes", "many", "number"]),
        ({"size_bytes": 1, "direct": "perhaps"}, ["direct", "perhaps"]),
        ({"wait_s": 1}, ["size_bytes"]),
    ],
)
def test_a_bad_option_is_named(layer: dict[str, object], words: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        overlay(_Options, ("the file", layer))

    assert all(word in str(caught.value) for word in words)


def test_a_file_without_tables_or_without_toml_is_refused() -> None:
    assert parse_file("[bookie]\nrack = 'a'", "x.toml") == {"bookie": {"rack": "a"}}
    for text in ("rack = 'a'", "[bookie"):
        with pytest.raises(InvalidRequest, match=r"x\.toml"):
            parse_file(text, "x.toml")


def test_addresses_have_two_parts_and_may_be_ipv6() -> None:
    assert parse_address("127.0.0.1:0", "--listen") == ("127.0.0.1", 0)
    assert parse_address("[::1]:41", "--listen") == ("::1", 41)
    assert format_address(("::1", 41)) == "[::1]:41"
    for text in ("", ":1", "host", "host:", "host:x", "host:65536", "::1:41", "host:-1"):
        with pytest.raises(InvalidRequest, match="--listen"):
            parse_address(text, "--listen")


def test_listeners_have_names_and_each_once() -> None:
    """Every version accepts inside and outside addresses."""
    found = parse_named_addresses(["10.0.0.1:1", "outside=example.org:2"], "--advertise")

    assert found == {"": ("10.0.0.1", 1), "outside": ("example.org", 2)}
    with pytest.raises(InvalidRequest, match="twice"):
        parse_named_addresses(["a=h:1", "a=h:2"], "--advertise")


def test_a_quorum_is_the_same_list_in_any_order() -> None:
    """H5: a cluster forms when every listed peer has the same list."""
    assert list(parse_quorum("b:2,a:1")) == list(parse_quorum("a:1, b:2")) == ["a:1", "b:2"]
    assert parse_quorum("m2=b:2,m1=a:1") == {"m1": ("a", 1), "m2": ("b", 2)}
    for text in ("", "a:1,a:1", "m=a:1,m=b:1", "x=a:1,y=a:1"):
        with pytest.raises(InvalidRequest):
            parse_quorum(text)


def test_a_config_reaches_a_child_process_unchanged() -> None:
    bookie = BookieNodeConfig("b1", (("h", 1),), {"": ("h", 2)}, rack="r", store={"size": 1})
    voter = MetadataNodeConfig("m1", {"m1": ("h", 1)}, {"": ("h", 1)})

    assert from_json(to_json(bookie)) == bookie
    assert from_json(to_json(voter)) == voter


def test_a_bookies_host_is_its_machine_unless_it_is_said() -> None:
    """All that run on it say the same, in containers too."""
    found = [with_host_label(BookieNodeConfig(name, (("h", 1),))) for name in ("b1", "b2")]
    labels = [one.labels for one in found if isinstance(one, BookieNodeConfig)]

    assert labels[0] == labels[1] == {"host": machine_id()}
    assert machine_id()
    said = with_host_label(BookieNodeConfig("b3", (("h", 1),), labels={"host": "h7", "zone": "z"}))
    assert isinstance(said, BookieNodeConfig)
    assert said.labels == {"host": "h7", "zone": "z"}
    node = MetadataNodeConfig("m", {"m": ("h", 1)})
    assert with_host_label(node) is node
