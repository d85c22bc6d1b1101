"""Every kind of key that the code can make is in the table of who may touch it."""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from distributedlog.cluster.auth.cluster_key_space import KEY_CLASSES
from distributedlog.cluster.coordination import gc_hold as restored
from distributedlog.cluster.repair import replication_worker as repair
from distributedlog.cluster.status.damaged_records import ALL_RECORDS
from distributedlog.ledger.model import ledger_keys
from distributedlog.log.model import deleted_log as tombstone
from distributedlog.log.model import log_keys
from distributedlog.log.model import segment_expiry as retention
from distributedlog.log.model import stored_settings as settings
from distributedlog.metadata.auth.key_space import NO_SCOPE, UNKNOWN_CLASS
from distributedlog.metadata.model import acl_records as trust_records
from distributedlog.metadata.model import cluster_version
from distributedlog.metadata.model.rights import ADMIN, AUTHENTICATED, EVERYBODY, OPERATOR
from distributedlog.proxy.membership import proxy_registration as registration
from distributedlog.runtime.declarations.versions import Version
from distributedlog.runtime.interfaces.errors import UnsupportedFormat
from distributedlog.runtime.protocol.frames import pack
from tests.parts import files_of

ROOT = Path(__file__).resolve().parents[3]
MODULES = (ledger_keys, log_keys, settings, retention, tombstone, registration, trust_records)
SAMPLES = {int: 7, str: "b1", "int": 7, "str": "b1"}


def makers() -> Iterator[tuple[str, Callable[..., bytes]]]:
    """Functions that make a whole key."""
    for module in MODULES:
        for name, made in inspect.getmembers(module, inspect.isfunction):
            returned = inspect.signature(made).return_annotation
            if (
                name.endswith("_key")
                and made.__module__ == module.__name__
                and returned in (bytes, "bytes")
            ):
                yield f"{module.__name__.rpartition('.')[2]}.{name}", made


def whole_keys(module: ModuleType) -> Iterator[bytes]:
    for name, value in vars(module).items():
        if name.isupper() and isinstance(value, bytes) and b"/" in value and value[-1:] != b"/":
            yield value


@pytest.mark.parametrize(("name", "make"), list(makers()), ids=[name for name, _ in makers()])
def test_a_key_that_is_made_has_its_row_and_its_place(
    name: str, make: Callable[..., bytes]
) -> None:
    wanted = inspect.signature(make).parameters.values()
    key = make(*(SAMPLES[one.annotation] for one in wanted))

    row = KEY_CLASSES.of(key)
    assert row is not UNKNOWN_CLASS, f"{name} makes {key!r}, which no row has"
    place = row.scope_of(key)
    assert place is not None, f"{key!r} is no key of its kind"
    if row.scope_prefix(key):
        assert row.scope_of(row.scope_prefix(key)) == place.__class__(log=place.log)


def test_keys_that_stand_alone_have_rows() -> None:
    modules = (*MODULES, repair, restored, cluster_version)
    found = {key for module in modules for key in whole_keys(module)}
    for key in {*found, *ALL_RECORDS, cluster_version.PROBE_KEY, b"\0"}:
        row = KEY_CLASSES.of(key if not key.startswith(b"log/") else key + b"%016x/state" % 1)
        assert row is not UNKNOWN_CLASS, f"no row has {key!r}"


def test_no_literal_of_the_tree_begins_a_key_that_has_no_row() -> None:
    """Whoever writes a key by hand is found as well: b"word/…" in what talks to the store."""
    known = {
        *KEY_CLASSES.by_first_part,
        *(first for first, _ in KEY_CLASSES.by_third_part),
        *(key[: key.find(b"/") + 1] for key in KEY_CLASSES.single_keys),
    }
    found: dict[bytes, str] = {}
    for part in ("metadata", "ledger", "log", "proxy", "cluster", "cli", "console", "bookie"):
        for path in files_of(part):
            text = path.read_text()
            if not re.search(r"""b["'][a-z]+/""", text):
                continue  # parsing is most of the cost
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Constant) and isinstance(node.value, bytes):
                    begins = re.match(rb"[a-z]+/", node.value)
                    if begins and len(node.value) < 100:
                        found.setdefault(begins[0], path.name)
    assert {b"log/", b"ledger/", b"trust/", b"name/"} <= set(found)
    assert {first: where for first, where in found.items() if first not in known} == {}


def test_secrets_are_read_by_nobody_and_the_mode_by_everybody() -> None:
    assert KEY_CLASSES.of(b"secret/x").read_rights == 0
    assert KEY_CLASSES.of(b"secret/x").write_rights == 0
    assert KEY_CLASSES.of(trust_records.MODE_KEY).read_rights & EVERYBODY
    assert not KEY_CLASSES.of(trust_records.user_key("a")).read_rights & AUTHENTICATED
    assert KEY_CLASSES.of(trust_records.audit_key(1)).read_rights == ADMIN | OPERATOR


@pytest.mark.parametrize(
    "key",
    [b"log/x/state", b"ledger/7", b"on/b1", b"name/", b"gone/abc", b"bookie/"],
)
def test_what_only_looks_like_a_key_has_no_place(key: bytes) -> None:
    place = KEY_CLASSES.of(key).scope_of(key)
    assert place is None or (place == NO_SCOPE and KEY_CLASSES.of(key) is UNKNOWN_CLASS)


def test_version_of_the_cluster_is_raised_by_administrators_and_audited() -> None:
    key = cluster_version.CLUSTER_VERSION_KEY
    older, newer = (cluster_version.ClusterVersion(Version(0, minor)).encode() for minor in (2, 3))
    row = KEY_CLASSES.of(key)
    assert row.read_rights & AUTHENTICATED
    assert callable(row.write_rights)
    assert row.write_rights(key, None, older) == row.write_rights(key, older, newer) == ADMIN
    for before, after in ((older, older), (newer, older), (older, None), (b"unreadable", None)):
        assert row.write_rights(key, before, after) == 0
    assert row.write_rights(key, b"unreadable", older) == ADMIN, "an administrator can repair it"
    lower = cluster_version.ClusterVersion(Version(0, 0)).encode()
    assert row.write_rights(key, b"unreadable", lower) == 0, "the leader has a newer version"
    with pytest.raises(UnsupportedFormat):  # the record of a newer version is no damage
        row.write_rights(key, pack([cluster_version.FORMAT + 1, 0]), newer)

    describe = KEY_CLASSES.audit_rules[b"cluster/"]
    assert describe(key, {key: newer}, older) == ("finalize", "version 0.3")
    assert describe(key, {key: b"unreadable"}, older) == ("replace-record", "'cluster/version'")
    assert describe(restored.RESTORES, {restored.RESTORES: b"1"}, None) is None
