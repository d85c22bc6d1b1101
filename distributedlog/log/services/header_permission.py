"""Permit keys and headers in a log: its stored option ``record_headers``, and its writer format.

The option, stored for the log or its namespace, permits the first record with a key or headers. Before that
record is sent, the log's state gets a higher writer format, so that older programs refuse to change the log.
Afterwards the option has no effect: the log has such records, and every program that can write it reads them.
"""

from ...metadata.model.interface import Metadata
from ...runtime.interfaces.errors import InvalidRequest
from ..model.log_state import LogState
from ..model.stored_settings import bind_key, conf_key, formats_of
from ..model.writer_log_state import update_shared_state
from .settings_update import read_settings


async def require_record_headers(
    metadata: Metadata, namespace: str, log_id: int, name: str
) -> None:
    """Check the stored option ``record_headers``.

    Args:
        metadata: The metadata store.
        namespace: The path of the namespace.
        log_id: The log's ID.
        name: The name of the log, for the error.
    Raises:
        InvalidRequest: The option is off.
        CorruptData, UnsupportedFormat: The stored settings are unreadable.
    """
    log_settings = await read_settings(metadata, conf_key(log_id))
    namespace_settings = await read_settings(metadata, bind_key(namespace))
    if not formats_of(namespace_settings, log_settings).record_headers:
        raise InvalidRequest(
            f'log "{name}" accepts no keys and headers. If all programs that use it have at least this '
            "version, permit them: dlog log config NAME set record_headers=true"
        )


async def permit_record_headers(metadata: Metadata, namespace: str, log_id: int, name: str) -> None:
    """Record in the log's state that its entries may have keys and headers.

    For clients that do not own the log. Arguments as for `require_record_headers`.

    Raises:
        InvalidRequest: The option ``record_headers`` is off.
        LogNotFound: The log was deleted.
        DistributedLogError: The metadata quorum does not answer.
    """
    state = await update_shared_state(
        metadata, log_id, name, lambda state: state
    )  # read and checked only
    if state.has_record_headers:
        return
    await require_record_headers(metadata, namespace, log_id, name)
    await update_shared_state(metadata, log_id, name, LogState.with_record_headers)
