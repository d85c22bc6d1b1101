"""The version for which a cluster is finalized: the key ``cluster/version``.

    cluster/version -> [format, major, minor]

The version never decreases. A new cluster has its own version from its start (`version_guard.py`). In a
cluster of version 0.1 the key is absent until `dlog cluster finalize` creates it. A node whose version is
lower does not serve in that cluster. With authorization, the audit log has the time and the principal of the
change.

A client reads the key when it is about to write a format that an older version refuses for the first time in
a log, and not before. This costs nothing per record, and needs no watch.
"""

from dataclasses import dataclass

from ...runtime.declarations.versions import CURRENT, UNREPORTED, GatedFormat, Version
from ...runtime.interfaces.errors import NotAllowed, UnsupportedFormat, UpgradeNotFinalized
from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import decode_stored, number, row, verify_round_trip
from .interface import Metadata
from .transaction import KeyValue

CLUSTER_VERSION_KEY = b"cluster/version"
PROBE_KEY = b"cluster"
"""A key that does not exist. A read of it needs a leader, and an authenticated principal."""
FORMAT = 1
VERSION_NUMBER_MAX = 999_999

_NUMBER = number(0, VERSION_NUMBER_MAX)
_HEAD = row(number(1), later=True)
_RECORD = row(number(1), _NUMBER, _NUMBER, later=True)
_WHAT = "the version of the cluster"


@dataclass(frozen=True, slots=True)
class ClusterVersion:
    """The version for which a cluster is finalized."""

    finalized: Version = UNREPORTED

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """Encode the value of `CLUSTER_VERSION_KEY`."""
        return pack([FORMAT, *self.finalized])

    @classmethod
    def decode(cls, value: Buffer) -> "ClusterVersion":
        """Decode the value of `CLUSTER_VERSION_KEY`.

        Raises:
            CorruptData: The value is invalid.
            UnsupportedFormat: A newer version wrote it.
        """
        (written_in, *_) = decode_stored(value, _HEAD, _WHAT)
        if written_in > FORMAT:
            raise UnsupportedFormat(
                f"{_WHAT} has format {written_in}, this program reads up to {FORMAT}"
            )
        _, major, minor = decode_stored(value, _RECORD, _WHAT)
        return cls(Version(major, minor))

    def check_node(self) -> None:
        """Check that a node of this version may serve in the cluster.

        Raises:
            UnsupportedFormat: The cluster is finalized for a newer version.
        """
        if self.finalized > CURRENT:
            raise UnsupportedFormat(
                f"the cluster is finalized for version {self.finalized}, and this node has version {CURRENT}:"
                " its clients write formats that this version cannot read. Install the newer version"
            )


async def read_cluster_version(metadata: Metadata) -> ClusterVersion:
    """Return the version for which the cluster is finalized, 0.1 if the key is absent.

    Raises:
        NotAllowed: The principal is not authenticated.
        CorruptData: The value is invalid.
        UnsupportedFormat: A newer version wrote it.
    """
    item = await get_newer_key(metadata, CLUSTER_VERSION_KEY)
    return ClusterVersion() if item is None else ClusterVersion.decode(item.value)


async def confirmed_cluster_version(metadata: Metadata) -> ClusterVersion:
    """Return the version for which the cluster is finalized, for a decision that needs its key.

    A leader of version 0.1 lets only operators read it. Then `read_cluster_version` returns 0.1, with which a
    writer is on the safe side, and a downgrade is not.

    Raises:
        NotAllowed: The principal may not read the key.
        CorruptData: The value is invalid.
        UnsupportedFormat: A newer version wrote it.
    """
    item = await metadata.get(CLUSTER_VERSION_KEY)
    return ClusterVersion() if item is None else ClusterVersion.decode(item.value)


async def get_newer_key(metadata: Metadata, key: bytes) -> KeyValue | None:
    """Return a key that version 0.1 does not have, or None if it is absent.

    Args:
        metadata: The metadata store.
        key: A key that each authenticated principal may read.

    Raises:
        NotAllowed: The principal is not authenticated.
    """
    try:
        return await metadata.get(key)
    except NotAllowed:
        # A leader of version 0.1 lets only operators read an unknown key. Every version permits this read to
        # the principals that version 0.2 permits the other one.
        await metadata.get(PROBE_KEY)
        return None


async def require_format(metadata: Metadata, wanted: GatedFormat, subject: str) -> None:
    """Check that programs may write a format in this cluster.

    Args:
        metadata: The metadata store.
        wanted: The format.
        subject: The object that would get it, for the error, such as ``log "orders"``.

    Raises:
        UpgradeNotFinalized: The cluster is not finalized for the version that the format needs.
        CorruptData, UnsupportedFormat: The stored version is unreadable.
    """
    finalized = (await read_cluster_version(metadata)).finalized
    if not wanted.is_permitted(finalized):
        raise UpgradeNotFinalized(
            f"{subject} cannot have {wanted.title} yet: the cluster is finalized for version {finalized}, and"
            f" they need {wanted.needs}. When all nodes and clients have it, run: dlog cluster finalize"
        )
