"""Keep a bookie's keys for verifying capabilities and passes up to date.

The keys are used by `bookie/session/bookie_authorizer.py`. If authorization is off, the bookie reads one key
at its start, and watches two prefixes. Otherwise, it requests its keys from the metadata leader, which gives
a bookie only its own keys. It sends this request before it serves any client, after each change of the mode
or of revocations, when a client presents credentials of an unknown generation, and every minute.
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
"""Pause between two requests that clients with unknown credentials cause."""

log = get_logger("distributedlog.cluster")


async def refresh_authorizer(
    authorizer: BookieAuthorizer, endpoint: Endpoint, metadata: MetadataClient, bookie_id: str
) -> None:
    """Update the authorizer once.

    Raises:
        DistributedLogError: The metadata leader did not answer.
    """
    mode_item = await metadata.get(MODE_KEY)
    mode = decode_mode(None if mode_item is None else mode_item.value)
    if mode == "open" and not authorizer.enforcing:
        return
    try:
        reply = await metadata.request(Op.META_CAPS, BookieKeysRequest(bookie_id).encode())
    except NotAllowed as error:
        # Without a certificate of this bookie's name, the leader cannot distinguish it from another bookie.
        log.warning("bookie %s received no keys for verifying capabilities: %s", bookie_id, error)
        authorizer.apply_reply(BookieKeysReply(mode, (), {}))
        return
    authorizer.apply_reply(BookieKeysReply.decode(reply.body))

    def verify(context: HandshakeContext, proof: bytes) -> Welcome:
        if not context.is_secret:  # a pass in clear text can be stolen (H228)
            raise NotAuthenticated(
                f"{context.peer_address} sent a pass over an unencrypted connection"
            )
        return authorizer.authenticate(proof)

    endpoint.methods["pass"] = verify


async def feed_authorizer(
    authorizer: BookieAuthorizer, endpoint: Endpoint, metadata: MetadataClient, bookie_id: str
) -> None:
    """Update the authorizer after changes and on demand, until cancelled."""
    refresh_lock = trio.Lock()
    failures = endpoint.failures
    unit = "the request of the keys for capabilities"

    async def once() -> None:
        async with refresh_lock:  # an older answer that arrives later would restore revoked rights
            await refresh_authorizer(authorizer, endpoint, metadata, bookie_id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(failures.keep_running, "the timer of the authorizer", _tick, authorizer)
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
                log.info(
                    "bookie %s: the keys for capabilities could not be requested: %s",
                    bookie_id,
                    error,
                )
            await trio.sleep(BETWEEN_QUERIES_S)
            authorizer.refresh_wanted = trio.Event()


async def _tick(authorizer: BookieAuthorizer) -> None:
    """Check for silence in a separate task, because requests to an unavailable quorum block."""
    while True:
        await trio.sleep(EVERY_S)
        authorizer.check_silence()
