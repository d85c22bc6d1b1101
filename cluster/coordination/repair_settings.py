"""Pause the repair of lost bookies, and set its delay, for the whole cluster and while it runs.

    conf/repair    usually absent

The repair leader reads the record with each observation of the bookies. During a pause, it moves no ledgers
off lost or draining bookies. Missing entries of running bookies are still copied, because a rolling restart
waits for them. The pause ends by the leader's clock, without an action. Its stored end is computed by the
clock of the client that requests it, because no reply of a node has the time. Versions without this record
ignore it.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ...metadata.model.cluster_version import get_newer_key
from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, Delete, Put, Transaction
from ...runtime.declarations.options import DURATION_S_MAX
from ...runtime.interfaces.errors import CorruptData, InvalidRequest, UnsupportedFormat
from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import (
    decode_versioned,
    fields,
    number,
    optional,
    verify_round_trip,
)

REPAIR_SETTINGS = b"conf/repair"
FORMAT = 1
PAUSE_S_MAX = 30 * 86400
"""Maximum duration of a pause in seconds. A forgotten pause must end."""
PAUSE_END_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, the last that `datetime` can show."""

_SETTINGS = fields(
    format=number(),
    paused_until_ms=number(0, PAUSE_END_MS_MAX),
    lost_after_ms=optional(number(0, DURATION_S_MAX * 1000)),
)


@dataclass(frozen=True, slots=True)
class RepairSettings:
    """The value of the key ``conf/repair``."""

    paused_until_ms: int = 0
    """The end of a pause, in ms since 1970. 0 if there is none."""
    lost_after_ms: int | None = None
    """The delay before a bookie counts as lost. None: the option ``lost_after_s`` of the repair leader."""

    @property
    def lost_after_s(self) -> float | None:
        """``lost_after_ms`` in seconds."""
        return None if self.lost_after_ms is None else self.lost_after_ms / 1000

    def is_paused(self, now_ms: int) -> bool:
        """Return whether a pause lasts at this time."""
        return now_ms < self.paused_until_ms

    @property
    def pause_end(self) -> str:
        """The end of the pause as ISO text in UTC, or "" if there is none."""
        if not self.paused_until_ms:
            return ""
        end = datetime.fromtimestamp(self.paused_until_ms // 1000, UTC)
        return end.strftime("%Y-%m-%dT%H:%M:%SZ")

    def with_pause(self, now_ms: int, pause_s: float) -> "RepairSettings":
        """Return the settings with a pause from now on.

        Raises:
            InvalidRequest: The duration is not above 0 and at most `PAUSE_S_MAX`.
        """
        if not 0 < pause_s <= PAUSE_S_MAX:
            raise InvalidRequest(
                f"a pause of repair lasts above 0 and at most {PAUSE_S_MAX} s (30 days), not {pause_s:g} s"
            )
        return replace(self, paused_until_ms=now_ms + int(pause_s * 1000))

    def with_lost_after(self, lost_after_s: float | None) -> "RepairSettings":
        """Return the settings with another delay; None for the option of the repair leader.

        Raises:
            InvalidRequest: The delay is no duration.
        """
        if lost_after_s is None:
            return replace(self, lost_after_ms=None)
        if not 0 <= lost_after_s <= DURATION_S_MAX:
            raise InvalidRequest(f"lost_after_s is 0 to {DURATION_S_MAX} s, not {lost_after_s:g} s")
        return replace(self, lost_after_ms=int(lost_after_s * 1000))

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """Encode the settings as the value of their key."""
        return pack(
            {
                "format": FORMAT,
                "paused_until_ms": self.paused_until_ms,
                "lost_after_ms": self.lost_after_ms,
            }
        )

    @classmethod
    def decode(cls, value: Buffer) -> "RepairSettings":
        """Decode the value of the key.

        Raises:
            CorruptData: The value is invalid.
            UnsupportedFormat: A newer version wrote it.
        """
        values = decode_versioned(value, FORMAT, _SETTINGS, "the repair settings")
        del values["format"]
        return cls(**values)


async def read_repair_settings(metadata: Metadata) -> RepairSettings:
    """Return the repair settings.

    Raises:
        NotAllowed: The principal is not authenticated.
        CorruptData: They are invalid.
        UnsupportedFormat: A newer version wrote them.
    """
    item = await get_newer_key(metadata, REPAIR_SETTINGS)
    return RepairSettings() if item is None else RepairSettings.decode(item.value)


async def usable_repair_settings(metadata: Metadata) -> RepairSettings:
    """Return the repair settings, or the default if they are unreadable.

    A damaged record must not stop repair. `dlog status` lists it.
    """
    try:
        return await read_repair_settings(metadata)
    except (CorruptData, UnsupportedFormat):
        return RepairSettings()


async def change_repair_settings(
    metadata: Metadata, change: Callable[[RepairSettings], RepairSettings]
) -> RepairSettings:
    """Change the repair settings, and return them. Damaged settings are replaced.

    Raises:
        InvalidRequest: ``change`` raises it.
        UnsupportedFormat: A newer version wrote the settings.
    """
    while True:
        item = await metadata.get(REPAIR_SETTINGS)
        before = RepairSettings()
        if item is not None:
            with suppress(CorruptData):
                before = RepairSettings.decode(item.value)
        settings = change(before)
        revision = 0 if item is None else item.mod_revision
        unchanged = Compare.mod_revision(REPAIR_SETTINGS, revision)
        write: Put | Delete = (
            Delete(REPAIR_SETTINGS)
            if settings == RepairSettings()
            else Put(REPAIR_SETTINGS, settings.encode())
        )
        if (await metadata.transact(Transaction((unchanged,), (write,)))).succeeded:
            return settings
