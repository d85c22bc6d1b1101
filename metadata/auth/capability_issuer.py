"""The leader's replies to META_CAPS (pure).

They contain capabilities for clients, or the keys by which a bookie verifies capabilities.

Capabilities are issued for any bookie in a request, registered or not, because recovery writes to
replacements before it closes a ledger, and copies are made before an ensemble change. The rights on the
ledger count, as of the reply.
"""

from collections.abc import Callable, Collection, Mapping

from ...runtime.interfaces.errors import NotAllowed, NotReady
from ...runtime.interfaces.principals import ANONYMOUS, LOCAL, Token
from ...runtime.protocol.capabilities import (
    REPORT_ONLY_REVISION,
    CapabilityKind,
    Generation,
    issue_session_credential,
    make_capability,
)
from ...runtime.protocol.capability_messages import (
    BookieKeysReply,
    BookieKeysRequest,
    CapabilityReply,
    CapabilityRequest,
)
from ..model.acl_records import MODE_KEY, REVOKED_PREFIX, decode_mode, revoked_key
from ..model.interface import prefix_end
from ..model.rights import READ, REPAIR_LEADER, REPLICA_HOLDER, WRITE
from ..state.kv_state import KeyValueState
from .authorizer import Authorizer
from .quorum_secrets import GENERATIONS_KEY, decode_generations

PAGE = 1000

MayHaveCapability = Callable[[str, Token | None, CapabilityKind, int, Collection[str]], bool]
"""(principal, its token, kind, ledger, bookies): whether the capability may be issued."""
IsBookie = Callable[[str, str], bool]
"""(principal, bookie ID): whether the principal is that bookie."""
REQUIRED_RIGHT = {
    CapabilityKind.LIST: READ,
    CapabilityKind.READ: READ,
    CapabilityKind.ADD: WRITE,
    CapabilityKind.RECOVER: WRITE,
}


class CapabilityIssuer:
    """Issues the capabilities of one cluster.

    ``state`` is always the state after a quorum round that began after the request arrived.
    """

    def __init__(
        self, cluster_id: str, may_have_right: MayHaveCapability, is_bookie: IsBookie
    ) -> None:
        """``may_have_right`` decides by rights in any mode, and counts refusals."""
        self._cluster_id = cluster_id
        self._may_have_right = may_have_right
        self._is_bookie = is_bookie

    def answer(
        self,
        state: KeyValueState,
        request: CapabilityRequest | BookieKeysRequest,
        principal: str,
        token: Token | None = None,
    ) -> bytes:
        """Return the body of the reply.

        Raises:
            NotAllowed: The principal is not that bookie.
            NotReady: The secrets must be created first.
        """
        mode_item = state.get(MODE_KEY)
        mode = decode_mode(None if mode_item is None else mode_item.value)
        generations = generations_of(state)
        if not generations and mode != "open":
            raise NotReady("the secrets of ledgers do not exist yet")
        if isinstance(request, BookieKeysRequest):
            return self._bookie_update(
                state, mode, generations, request.bookie_id, principal
            ).encode()
        if mode == "open":
            return CapabilityReply(mode, b"", {}).encode()
        return self._issue(state, mode, generations[0], request, principal, token).encode()

    def _issue(
        self,
        state: KeyValueState,
        mode: str,
        newest: Generation,
        request: CapabilityRequest,
        principal: str,
        token: Token | None,
    ) -> CapabilityReply:
        kind, revoked_at_revision = request.kind, revoked_at(state, principal)
        generation_by_bookie: dict[str, Generation] = {}
        keys: dict[int, tuple[bytes, ...]] = {}
        for ledger, bookies in request.ledgers.items():
            is_allowed = self._may_have_right(principal, token, kind, ledger, bookies)
            if not is_allowed and mode == "required":
                keys[ledger] = ()
                continue
            for bookie in bookies:
                if bookie not in generation_by_bookie:
                    generation_by_bookie[bookie] = newest.for_bookie(self._cluster_id, bookie)
            keys[ledger] = tuple(
                make_capability(
                    generation_by_bookie[bookie],
                    kind,
                    ledger,
                    principal,
                    revoked_at_revision if is_allowed else REPORT_ONLY_REVISION,
                )
                for bookie in bookies
            )
        ends_s = 0 if token is None else token.ends_s
        session_credential = (
            b""
            if principal == ANONYMOUS
            else issue_session_credential(newest, principal, revoked_at_revision, ends_s)
        )
        return CapabilityReply(mode, session_credential, keys)

    def _bookie_update(
        self,
        state: KeyValueState,
        mode: str,
        generations: tuple[Generation, ...],
        bookie_id: str,
        principal: str,
    ) -> BookieKeysReply:
        if not self._is_bookie(principal, bookie_id):
            raise NotAllowed(f"{principal} is not bookie {bookie_id}")
        bookie_generations = tuple(
            generation.for_bookie(self._cluster_id, bookie_id) for generation in generations
        )
        return BookieKeysReply(mode, bookie_generations, revoked_at_by_principal(state))


def generations_of(state: KeyValueState) -> tuple[Generation, ...]:
    """Return the generations of secrets, newest first, or none if none exist. Raises `CorruptData`."""
    item = state.get(GENERATIONS_KEY)
    return () if item is None else decode_generations(item.value)


def revoked_at(state: KeyValueState, principal: str) -> int:
    """Return the revision at which a right of the principal was last revoked, or 0."""
    item = state.get(revoked_key(principal))
    return 0 if item is None else item.mod_revision


def revoked_at_by_principal(state: KeyValueState) -> Mapping[str, int]:
    """Return these revisions of all principals with a revocation."""
    revoked_at: dict[str, int] = {}
    start, end = REVOKED_PREFIX, prefix_end(REVOKED_PREFIX)
    while True:
        page = state.range(start, end, PAGE)
        for item in page.items:
            name = item.key.removeprefix(REVOKED_PREFIX).decode(errors="replace")
            revoked_at[name] = item.mod_revision
        if not page.more:
            return revoked_at
        start = page.items[-1].key + b"\0"


def may_have_capability(
    authorizer: Authorizer,
    principal: str,
    kind: CapabilityKind,
    ledger: int,
    bookies: Collection[str],
) -> bool:
    """Whether a principal may have a capability of this kind for a ledger at all these bookies (pure).

    For users and proxies, the rights on the ledger's log decide: read for reads, write for adds and
    recovery. None of them may recover a closed ledger. Recovery adds are accepted where a copy lacks an
    entry, and nothing could verify their content (H231).

    A bookie may list the ledgers of any bookie. It may read the ledgers that it stores or will store, and
    write such copies only to itself. The repair leader may do all of this.
    """
    if principal == LOCAL:
        return True  # it owns the nodes of its cluster
    if not authorizer.is_active(principal):
        return False
    rights_held = authorizer.rights_on_ledger(principal, ledger)
    if principal.startswith("bookie/"):
        if kind is CapabilityKind.LIST or authorizer.cluster_rights(principal) & REPAIR_LEADER:
            return True
        if not rights_held & REPLICA_HOLDER:
            return False
        is_own_bookie = all(authorizer.is_bookie(principal, bookie) for bookie in bookies)
        return kind is CapabilityKind.READ or (kind is CapabilityKind.RECOVER and is_own_bookie)
    if kind is CapabilityKind.RECOVER and authorizer.is_closed(ledger):
        return False
    return bool(rights_held & REQUIRED_RIGHT[kind])
