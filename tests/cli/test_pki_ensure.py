"""`dlog pki ensure`: what an init service says at each start of a cluster."""

import shutil
from pathlib import Path

import pytest

from distributedlog.cli.access import certificates
from distributedlog.cli.access.certificates import (
    ensure,
    issue,
    issue_if_own,
    make_authority,
    renew,
    roll_authority,
    show,
    trust,
)
from distributedlog.runtime.interfaces.errors import InvalidRequest
from distributedlog.runtime.net.tls import Tls

WHO = ("metadata/m1", "user/app")


def said(place: Path, *, days: int = 365) -> list[str]:
    return ensure(place / "authority", "test", WHO, place / "tls", days=days)


def takes(place: Path) -> bool:
    """Do all take each other, as files that a node would start with?"""
    return all(Tls(place / "tls" / one.partition("/")[2]).identity is not None for one in WHO)


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
    assert Tls(at).identity is not None
    with pytest.raises(InvalidRequest, match="neither a host name"):
        made("no name")


def test_a_new_key_of_the_authority_is_trusted_by_all_before_it_signs_for_one(
    tmp_path: Path,
) -> None:
    """What is good stays, so nobody shows what another does not know yet."""
    said(tmp_path)
    before = show(tmp_path / "tls" / "m1").serial
    roll_authority(tmp_path / "authority")

    assert {line.partition(" ")[2] for line in said(tmp_path)} == {
        f"trusts the authorities of {tmp_path}/authority"
    }
    assert said(tmp_path) == []
    assert show(tmp_path / "tls" / "m1").serial == before


def test_who_has_lost_the_authoritys_key_goes_on_with_another_one(tmp_path: Path) -> None:
    """docs/operate/tls.md: all trust the old and the new authority, then all get new certificates."""
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


@pytest.mark.parametrize("ended_at", range(1, 9))
def test_whatever_ended_it_half_way_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended_at: int
) -> None:
    """Compose starts nothing before it is through; and nobody looks into its volumes."""
    written: list[str] = []
    write = certificates._write

    def ended(directory: Path, name: str, content: bytes, *, secret: bool = False) -> None:
        if len(written) == ended_at - 1:
            raise KeyboardInterrupt
        written.append(name)
        write(directory, name, content, secret=secret)

    with monkeypatch.context() as killed:
        killed.setattr(certificates, "_write", ended)
        with pytest.raises(KeyboardInterrupt):
            said(tmp_path)
    assert said(tmp_path)
    assert takes(tmp_path)
    assert said(tmp_path) == []


@pytest.mark.parametrize("file", ["key.pem", "cert.pem", "ca.pem"])
@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN"])
def test_a_directory_that_is_not_whole_is_made_anew(
    tmp_path: Path, file: str, content: bytes | None
) -> None:
    said(tmp_path)
    at = tmp_path / "tls" / "m1" / file
    at.unlink()
    if content is not None:
        at.write_bytes(content)

    assert said(tmp_path) == [f"{tmp_path}/tls/m1: metadata/m1, for 365 days"]
    assert takes(tmp_path)


def test_a_key_beside_another_ones_certificate_is_made_anew(tmp_path: Path) -> None:
    """A renewal that was ended between the two."""
    said(tmp_path)
    keys = [tmp_path / "tls" / one / "key.pem" for one in ("m1", "app")]
    keys[0].write_bytes(keys[1].read_bytes())

    assert said(tmp_path) == [f"{tmp_path}/tls/m1: metadata/m1, for 365 days"]


def test_an_authority_signs_with_its_own_key_alone(tmp_path: Path) -> None:
    """Its certificate is written after its key: who was ended between them says it again."""
    said(tmp_path)
    make_authority(tmp_path / "other", "test")
    shutil.copy(tmp_path / "other" / "ca.key", tmp_path / "authority" / "ca.key")

    with pytest.raises(InvalidRequest, match="roll-ca again"):
        issue(tmp_path / "authority", "user/eve", tmp_path / "eve")
    roll_authority(tmp_path / "authority")
    assert len(said(tmp_path)) == 2
    assert takes(tmp_path)


def test_an_authority_without_its_certificate_is_not_replaced(tmp_path: Path) -> None:
    """Others trust it: somebody has to look."""
    said(tmp_path)
    (tmp_path / "authority" / "ca.pem").unlink()

    with pytest.raises(InvalidRequest, match="No such file"):
        said(tmp_path)
    assert takes(tmp_path)


def test_another_ones_key_is_not_written_over(tmp_path: Path) -> None:
    """`dlog pki issue user/x --output m1.tls`, by a slip: the node's key would be gone, without a word."""
    make_authority(tmp_path / "pki", "test")
    out = tmp_path / "m1.tls"
    issue_if_own(tmp_path / "pki", "metadata/m1", out)
    key = (out / "key.pem").read_bytes()

    with pytest.raises(InvalidRequest, match=r"m1.tls belongs to metadata/m1: nothing was changed"):
        issue_if_own(tmp_path / "pki", "user/x", out)
    assert (out / "key.pem").read_bytes() == key

    issue_if_own(tmp_path / "pki", "metadata/m1", out)
    assert (out / "key.pem").read_bytes() != key


def test_two_of_one_name_want_two_directories(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="user/a and bookie/a would use the same directory"):
        ensure(tmp_path / "authority", "test", ["bookie/a", "user/a"], tmp_path / "tls")

    assert not (tmp_path / "authority").exists()
