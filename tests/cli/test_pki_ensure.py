"""`dlog pki ensure`: what an init service says at each start of a cluster."""

import shutil
from pathlib import Path

import pytest

from distributedlog.cli.certificates import (
    ensure,
    issue,
    make_authority,
    renew,
    roll_authority,
    show,
    trust,
)
from distributedlog.runtime.errors import InvalidRequest
from distributedlog.runtime.tls import Tls

WHO = ("metadata/m1", "user/app")


def said(place: Path, *, days: int = 365) -> list[str]:
    return ensure(place / "authority", "test", WHO, place / "tls", days=days)


def takes(place: Path) -> bool:
    """Do all take each other, as files that a node would start with?"""
    return all(Tls(place / "tls" / one.partition("/")[2]).own is not None for one in WHO)


def test_what_is_missing_is_made_once(tmp_path: Path) -> None:
    assert len(said(tmp_path)) == 3
    assert takes(tmp_path)
    assert said(tmp_path) == []

    shutil.rmtree(tmp_path / "tls" / "app")
    assert said(tmp_path) == [f"{tmp_path}/tls/app: user/app, for 365 days"]


def test_what_has_less_than_a_third_of_its_time_left_is_renewed(tmp_path: Path) -> None:
    said(tmp_path)
    issue(tmp_path / "authority", "user/app", tmp_path / "tls" / "app", days=100)

    assert said(tmp_path) == [f"{tmp_path}/tls/app: user/app, for 365 days"]


def test_a_gateways_certificate_says_where_it_is_reached_also_when_it_is_renewed(
    tmp_path: Path,
) -> None:
    """Browsers and `curl` go by names; who it is in the cluster is said beside them."""
    at = tmp_path / "tls" / "g"

    def made(*hosts: str) -> list[str]:
        found = ensure(
            tmp_path / "a", "test", ["user/g"], tmp_path / "tls", hosts={"user/g": hosts}
        )
        return [line for line in found if "user/g" in line]

    assert made("localhost", "127.0.0.1")
    assert made("127.0.0.1", "localhost") == []
    renew(tmp_path / "a", at)
    assert made("127.0.0.1", "localhost") == []
    assert made("logs.example.org")
    assert Tls(at).own is not None
    with pytest.raises(InvalidRequest, match="no name of a host"):
        made("no name")


def test_a_new_key_of_the_authority_is_trusted_by_all_before_it_signs_for_one(
    tmp_path: Path,
) -> None:
    """What is good stays, so nobody shows what another does not know yet."""
    said(tmp_path)
    before = show(tmp_path / "tls" / "m1").serial
    roll_authority(tmp_path / "authority")

    assert {line.partition(" ")[2] for line in said(tmp_path)} == {
        f"trusts what {tmp_path}/authority trusts"
    }
    assert said(tmp_path) == []
    assert show(tmp_path / "tls" / "m1").serial == before


def test_who_has_lost_the_authoritys_key_goes_on_with_another_one(tmp_path: Path) -> None:
    """docs/security.md: the old certificate behind the new one's, trusted by all, then new ones for all."""
    said(tmp_path)
    other = tmp_path / "pki2"
    make_authority(other, "test")
    with (other / "ca.pem").open("ab") as both:
        both.write((tmp_path / "tls" / "m1" / "ca.pem").read_bytes())

    for change in (trust, renew):
        for one in ("m1", "app"):
            change(other, tmp_path / "tls" / one)
            assert takes(tmp_path)
            assert len((tmp_path / "tls" / one / "ca.pem").read_bytes().split(b"BEGIN")) == 3


def test_after_a_lost_authority_all_have_certificates_of_the_new_one(tmp_path: Path) -> None:
    """Its volume was removed, those of the nodes were not."""
    said(tmp_path)
    shutil.rmtree(tmp_path / "authority")

    assert len(said(tmp_path)) == 3
    assert takes(tmp_path)
    assert said(tmp_path) == []
