"""What a URI may look like, and what is said of one that may not."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.runtime.interfaces.errors import InvalidUri
from distributedlog.uri import parse_uri
from tests.examples import examples


def test_the_forms_of_the_product_page() -> None:
    """Several addresses, an alias, proxies."""
    uri = parse_uri("distributedlog://a:1;b:2;[::1]:3;a:1/name/space/")

    assert uri.addresses == (("a", 1), ("b", 2), ("::1", 3))
    assert (uri.path, uri.is_proxied) == ("name/space", False)
    assert str(uri) == "distributedlog://a:1,b:2,[::1]:3/name/space"  # a shell takes it unquoted
    assert parse_uri(str(uri)) == uri
    assert not parse_uri("distributedlog-bk://a:1/ns").is_proxied
    assert parse_uri("distributedlog+proxy://a:1/ns").is_proxied


@pytest.mark.parametrize("uri", ["kafka://a:1/ns", "http://a:1/ns", "distributedlog-zk://a:1/ns"])
def test_an_unknown_scheme_names_the_known_ones(uri: str) -> None:
    with pytest.raises(InvalidUri) as caught:
        parse_uri(uri)

    for known in ("distributedlog://", "distributedlog-bk://", "distributedlog+proxy://"):
        assert known in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        "", "ns", "a:1/ns", "distributedlog:a:1/ns", "distributedlog://", "distributedlog:///ns",
        "distributedlog://a:1", "distributedlog://a:1/", "distributedlog://a/ns",
        "distributedlog://a:0/ns", "distributedlog://a:65536/ns", "distributedlog://a:b/ns",
        "distributedlog://u@a:1/ns", "distributedlog://::1:3/ns", "distributedlog://a:1/n s",
        "distributedlog://a:1/ns?x=1", "distributedlog://a:1//b//c", "distributedlog://;/ns",
    ],
)  # fmt: skip
def test_another_form_is_refused(uri: str) -> None:
    with pytest.raises(InvalidUri):
        parse_uri(uri)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidUri):
        parse_uri(None)  # type: ignore[arg-type]


@settings(max_examples=examples(100))
@given(st.text(max_size=60))
def test_any_text_is_a_uri_or_a_typed_error(text: str) -> None:
    for uri in (text, f"distributedlog://{text}"):
        with contextlib.suppress(InvalidUri):
            assert parse_uri(uri).addresses
