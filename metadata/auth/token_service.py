"""Makes tokens, at the leader, and says of one who has it, at every metadata node.

A token is made for somebody by an admin, or asked for by somebody for himself: then for a day at most, and
never wider or longer than what he came by. What ends it early is a number in its user's record, which each
revocation changes; when it ends by itself, this node's steady clock says
(`distributedlog/runtime/primitives/steady_clock.py`).
"""

from collections.abc import Callable
from math import inf

from ...runtime.interfaces.errors import InvalidRequest, NotAllowed, NotAuthenticated, NotReady
from ...runtime.interfaces.principals import LOCAL, Narrowing, Token, Welcome
from ...runtime.protocol.tokens import (
    DAYS_MAX,
    NAME_BYTES,
    OWN_S_MAX,
    TOLERANCE_S,
    is_within,
    opened,
    seal,
)
from ..model.rights import ADMIN
from ..state.kv_state import KeyValueState
from .authorizer import Authorizer
from .quorum_secrets import TOKENS_KEY, decode_token_secrets

DAY_S = 24 * 3600
VALID_S_MIN = 60


class TokenService:
    """Of one node."""

    def __init__(
        self,
        cluster_id: str,
        judge: Callable[[], Authorizer],
        time_s: Callable[[], float],
        secret_bytes: Callable[[int], bytes],
    ) -> None:
        """``judge``: by the state as it is now. ``time_s``: seconds since 1970."""
        self._cluster_id = cluster_id
        self._judge = judge
        self._secret_bytes = secret_bytes
        self.time_s = time_s

    def welcome(self, state: KeyValueState, proof: bytes) -> Welcome:
        """Who shows this token. Raises `NotAuthenticated`; `NotReady` where this node may not know it yet."""
        secrets = token_secrets_of(state)

        def secret_of(number: int) -> bytes:
            if number > max(secrets, default=0):
                raise NotReady(
                    "a token of a newer key than this metadata node knows, or of no cluster"
                )
            if number not in secrets:
                raise NotAuthenticated("a token whose key was rotated away: ask for another")
            return secrets[number]

        token = opened(proof, secret_of)
        if token.cluster_id != self._cluster_id:
            raise NotAuthenticated("a token of another cluster")
        left_s = token.ends_s + TOLERANCE_S - self.time_s()
        if left_s <= 0:
            raise NotAuthenticated(
                f"the token of {token.principal} has ended", NotAuthenticated.ENDED
            )
        why = self._judge().why_no_token(token)
        if why is not None:
            if token.since > state.index:
                raise NotReady("a token of a user whom this metadata node does not know yet")
            raise why
        return Welcome(token.principal, token=token, left_s=left_s)

    def check_asked(
        self,
        principal: str,
        came_by: Token | None,
        user: str,
        valid_s: int,
        narrowing: Narrowing,
    ) -> None:
        """May this principal have such a token made? ``user`` "": for itself. Raises `NotAllowed`,
        `InvalidRequest`."""
        judge = self._judge()
        if user:
            if came_by is not None and came_by.narrowing:
                raise NotAllowed(f"a narrowed token of {principal} makes no tokens for others")
            if not judge.cluster_rights(principal) & ADMIN:
                raise NotAllowed(f"{principal} makes no tokens for others: it needs admin")
            low, high = VALID_S_MIN, DAYS_MAX * DAY_S
        else:
            if not principal.startswith("user/"):
                raise NotAllowed(f"{principal} is no user, and has no tokens")
            outer = () if came_by is None else came_by.narrowing
            if not is_within(narrowing, outer):
                raise NotAllowed(f"{principal} came by a token that is narrower than that")
            low, high = VALID_S_MIN, OWN_S_MAX
        if not low <= valid_s <= high:
            raise InvalidRequest(f"a token is for {low} to {high} seconds, not {valid_s}")
        name = user or principal.removeprefix("user/")
        known = judge.user(name)
        if f"user/{name}" == LOCAL:
            raise InvalidRequest(f"{LOCAL} owns clusters on its own machine, and has no tokens")
        if known is None or known.disabled:
            raise InvalidRequest(f"there is no user {name}, or it is disabled: dlog user add")

    def make(
        self,
        state: KeyValueState,
        user: str,
        valid_s: int,
        narrowing: Narrowing,
        came_by: Token | None = None,
    ) -> bytes:
        """The token, after `check_asked`. Raises `InvalidRequest`; `NotReady` before secrets are drawn."""
        secrets = token_secrets_of(state)
        known = self._judge().user(user)
        if not secrets or known is None:
            raise NotReady("the secrets of tokens are not drawn yet")
        most_s = came_by.ends_s if came_by is not None else inf
        token = Token(
            user,
            ends_s=int(min(self.time_s() + valid_s, most_s)),
            since=known.tokens_from,
            key=max(secrets),
            cluster_id=self._cluster_id,
            name=self._secret_bytes(NAME_BYTES),
            narrowing=narrowing,
        )
        try:
            return seal(token, secrets[token.key])
        except ValueError as error:
            raise InvalidRequest(str(error)) from None


def token_secrets_of(state: KeyValueState) -> dict[int, bytes]:
    """T by its number; none: not drawn yet. Raises `CorruptData`."""
    found = state.get(TOKENS_KEY)
    return {} if found is None else decode_token_secrets(found.value)
