"""A bookie hears from the metadata's leader what it is to check capabilities by
(`bookie/session/bookie_authorizer.py`).

In a cluster that is open it reads one key at its start, and watches two. Else it asks the leader, which
gives a bookie its own keys and no other's: at its start before it serves anybody, after each change of the
mode or of what was taken from whom, when somebody shows what it does not know, and each minute.
"""

from functools import partial

import trio

from ...bookie.session.bookie_authorizer import BookieAuthorizer
from ...metadata.client.metadata_client import MetadataClient
from ...metadata.model.acl_records import MODE_KEY, REVOKED_PREFIX, decode_mode
from ...runtime.interfaces.errors import DistributedLogError, NotAllowed, NotAuthenticated
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.interfaces.principals import HandshakeContext, Welcome
from ...runtime.net.rpc import Endpoint
from ...runtime.protocol.capability_messages import BookieKeysReply, BookieKeysRequest
from ...runtime.protocol.frames import Op
from ..coordination.reconcile_loop import reconcile_on_change

EVERY_S = 60.0
BETWEEN_QUERIES_S = 1.0
"""Between two questions because of what somebody shows."""

log = get_logger("distributedlog.cluster")


async def refresh_authorizer(
    authorizer: BookieAuthorizer, endpoint: Endpoint, metadata: MetadataClient, bookie_id: str
) -> None:
    """Ask once. Raises what keeps the leader from answering."""
    mode_item = await metadata.get(MODE_KEY)
    mode = decode_mode(None if mode_item is None else mode_item.value)
    if mode == "open" and not authorizer.enforcing:
        return
    try:
        reply = await metadata.request(Op.META_CAPS, BookieKeysRequest(bookie_id).encode())
    except NotAllowed as error:
        # Without a certificate of this bookie's name nobody can tell it from another one.
        log.warning("bookie %s is given no keys to check capabilities by: %s", bookie_id, error)
        authorizer.hear(BookieKeysReply(mode, (), {}))
        return
    authorizer.hear(BookieKeysReply.decode(reply.body))

    def verify(meeting: HandshakeContext, proof: bytes) -> Welcome:
        if not meeting.is_secret:  # who overhears it is its holder from then on (H228)
            raise NotAuthenticated(
                f"{meeting.peer_address} shows a pass that anybody can read: not in clear"
            )
        return authorizer.authenticate(proof)

    endpoint.methods["pass"] = verify


async def feed_authorizer(
    authorizer: BookieAuthorizer, endpoint: Endpoint, metadata: MetadataClient, bookie_id: str
) -> None:
    """Go on asking, until cancelled."""
    refresh_lock = trio.Lock()
    failures = endpoint.failures
    unit = "the question what capabilities are checked by"

    async def once() -> None:
        async with (
            refresh_lock
        ):  # an older answer that is heard later would bring back what was taken away
            await refresh_authorizer(authorizer, endpoint, metadata, bookie_id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(failures.keep_running, "the clock of the gate", _tick, authorizer)
        nursery.start_soon(
            partial(
                reconcile_on_change,
                metadata,
                (MODE_KEY, REVOKED_PREFIX),
                once,
                every_s=EVERY_S,
                failures=failures,
                unit=unit,
            )
        )
        while True:
            await authorizer.refresh_wanted.wait()
            try:
                with failures.attempt(unit):
                    await once()
            except DistributedLogError as error:
                log.info("bookie %s: what is checked by cannot be asked now: %s", bookie_id, error)
            await trio.sleep(BETWEEN_QUERIES_S)
            authorizer.refresh_wanted = trio.Event()


async def _tick(authorizer: BookieAuthorizer) -> None:
    """By itself: where the quorum is silent a question to it waits."""
    while True:
        await trio.sleep(EVERY_S)
        authorizer.check_silence()
