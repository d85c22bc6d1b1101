"""The leader's answers to META_CAPS: who gets which capabilities, and what a bookie checks them by (pure).

Capabilities are given for any bookie that is named, registered or not: recovery writes to replacements before
its close, copies go before a swap. What counts is the right on the ledger, as it is when this is answered.
"""

from collections.abc import Callable, Collection, Mapping

from ...runtime.interfaces.errors import NotAllowed, NotReady
from ...runtime.interfaces.principals import ANONYMOUS, LOCAL, Token
from ...runtime.protocol.capabilities import (
    UNJUDGED,
    CapabilityKind,
    Generation,
    capability,
    issue_pass,
)
from ...runtime.protocol.capability_messages import (
    CapsAnswer,
    CapsQuestion,
    GateAnswer,
    GateQuestion,
)
from ..model.acl_records import ENDED_PREFIX, MODE_KEY, decode_mode, ended_key
from ..model.interface import prefix_end
from ..model.rights import HOLDER, JANITOR, READ, WRITE
from ..state.kv_state import KeyValueState
from .authorizer import Authorizer
from .quorum_secrets import GENERATIONS_KEY, decode_generations

PAGE = 1000

May = Callable[[str, Token | None, CapabilityKind, int, Collection[str]], bool]
"""(principal, the token that it came by, kind, ledger, bookies): may it have that there?"""
IsBookie = Callable[[str, str], bool]
"""(principal, bookie id): is that its name?"""
NEEDED = {
    CapabilityKind.LIST: READ,
    CapabilityKind.READ: READ,
    CapabilityKind.ADD: WRITE,
    CapabilityKind.RECOVER: WRITE,
}


class CapabilityIssuer:
    """Of one cluster. ``state`` is as it was after a quorum round that began after the question came."""

    def __init__(self, cluster_id: str, may: May, is_bookie: IsBookie) -> None:
        """``may`` goes by rights, whatever the mode, and counts who has none."""
        self._cluster_id = cluster_id
        self._may = may
        self._is_bookie = is_bookie

    def answer(
        self,
        state: KeyValueState,
        question: CapsQuestion | GateQuestion,
        principal: str,
        token: Token | None = None,
    ) -> bytes:
        """The answer's body. Raises `NotAllowed`; `NotReady` where secrets are to be drawn first."""
        said = state.get(MODE_KEY)
        mode = decode_mode(None if said is None else said.value)
        generations = generations_of(state)
        if not generations and mode != "open":
            raise NotReady("the secrets of ledgers are not drawn yet")
        if isinstance(question, GateQuestion):
            return self._gate(state, mode, generations, question.bookie_id, principal).encode()
        if mode == "open":
            return CapsAnswer(mode, b"", {}).encode()
        return self._caps(state, mode, generations[0], question, principal, token).encode()

    def _caps(
        self,
        state: KeyValueState,
        mode: str,
        newest: Generation,
        question: CapsQuestion,
        principal: str,
        token: Token | None,
    ) -> CapsAnswer:
        kind, since = question.kind, since_of(state, principal)
        of_bookies: dict[str, Generation] = {}
        keys: dict[int, tuple[bytes, ...]] = {}
        for ledger, bookies in question.ledgers.items():
            may = self._may(principal, token, kind, ledger, bookies)
            if not may and mode == "required":
                keys[ledger] = ()
                continue
            for bookie in bookies:
                if bookie not in of_bookies:
                    of_bookies[bookie] = newest.of_bookie(self._cluster_id, bookie)
            keys[ledger] = tuple(
                capability(of_bookies[bookie], kind, ledger, principal, since if may else UNJUDGED)
                for bookie in bookies
            )
        ends_s = 0 if token is None else token.ends_s
        passport = b"" if principal == ANONYMOUS else issue_pass(newest, principal, since, ends_s)
        return CapsAnswer(mode, passport, keys)

    def _gate(
        self,
        state: KeyValueState,
        mode: str,
        generations: tuple[Generation, ...],
        bookie_id: str,
        principal: str,
    ) -> GateAnswer:
        if not self._is_bookie(principal, bookie_id):
            raise NotAllowed(f"{principal} is not bookie {bookie_id}")
        held = tuple(one.of_bookie(self._cluster_id, bookie_id) for one in generations)
        return GateAnswer(mode, held, all_since(state))


def generations_of(state: KeyValueState) -> tuple[Generation, ...]:
    """Newest first; none: not drawn yet. Raises `CorruptData`."""
    found = state.get(GENERATIONS_KEY)
    return () if found is None else decode_generations(found.value)


def since_of(state: KeyValueState, principal: str) -> int:
    """The revision at which something was last taken from it; 0: never."""
    found = state.get(ended_key(principal))
    return 0 if found is None else found.mod_revision


def all_since(state: KeyValueState) -> Mapping[str, int]:
    """The same of all for whom it is not 0."""
    found: dict[str, int] = {}
    start, end = ENDED_PREFIX, prefix_end(ENDED_PREFIX)
    while True:
        page = state.range(start, end, PAGE)
        for item in page.items:
            name = item.key.removeprefix(ENDED_PREFIX).decode(errors="replace")
            found[name] = item.mod_revision
        if not page.more:
            return found
        start = page.items[-1].key + b"\0"


def may_have(
    judge: Authorizer, principal: str, kind: CapabilityKind, ledger: int, bookies: Collection[str]
) -> bool:
    """Whether a principal may have such a capability of a ledger at all these bookies (pure).

    The rights on the ledger's log decide for users and proxies: read for reads, write for adds and recovery.
    None of them recovers a closed ledger: recovery adds pass where a copy lacks an entry, and nothing could
    verify their content (H231). A bookie may list the ledgers of any other bookie, read those that it holds
    or is to hold, and write such copies to itself alone. The bookie that repairs may do all.
    """
    if principal == LOCAL:
        return True  # the nodes of its cluster are its own
    if not judge.is_live(principal):
        return False
    held = judge.rights_on_ledger(principal, ledger)
    if principal.startswith("bookie/"):
        if kind is CapabilityKind.LIST or judge.cluster_rights(principal) & JANITOR:
            return True
        if not held & HOLDER:
            return False
        own = all(judge.is_bookie(principal, bookie) for bookie in bookies)
        return kind is CapabilityKind.READ or (kind is CapabilityKind.RECOVER and own)
    if kind is CapabilityKind.RECOVER and judge.is_closed(ledger):
        return False
    return bool(held & NEEDED[kind])
