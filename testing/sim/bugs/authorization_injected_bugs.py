"""Injected bugs of authorization and capabilities. `AuthorizedRun` must find each of them.

    python -m distributedlog.testing.sim.bugs.authorization_injected_bugs [SEEDS [BUG]]

prints a table: bug | seed | found by. ``BUG`` is a part of a name. The search for a bug begins at the seed
that found it last (`STARTS`).
"""

import hashlib
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from ....bookie.session import bookie_authorizer as gate_part
from ....bookie.session.bookie_authorizer import NO_KEY, BookieAuthorizer, PresentedCapabilities
from ....cluster.repair.ledger_deletion import LedgerDeletion
from ....ledger.model import ledger_keys as keys
from ....metadata.auth import capability_issuer as capability_desk
from ....metadata.auth.acl_cache import AclCache
from ....metadata.auth.authorizer import Authorizer
from ....metadata.auth.key_space import KeyClass, KeySpace
from ....metadata.auth.principal_quotas import PrincipalQuotas
from ....metadata.auth.token_service import TokenService
from ....metadata.client.metadata_client import MetadataClient
from ....metadata.model.rights import OPERATOR, OWN, REPAIR_LEADER, REPLICA_HOLDER
from ....metadata.model.transaction import Delete, Transaction
from ....metadata.node import metadata_session as sessions
from ....metadata.node import quorum_member as member_node
from ....metadata.node.watch_server import ServedWatches
from ....metadata.replica import replica
from ....metadata.replica.leases import Leases
from ....proxy.session import client_authorizer as client_rights
from ....runtime.interfaces.errors import DistributedLogError
from ....runtime.interfaces.host import Host
from ....runtime.protocol import capabilities
from ....runtime.protocol.capabilities import CapabilityKind, Generation
from ....runtime.protocol.capability_messages import BookieKeysReply
from ..workloads.authorized_world import AuthorizedRun
from ..workloads.seed import CHAOS_S
from ..world.bug_injection import Patch, first_seed, table_of

_transaction_error = Authorizer.transaction_error
_capability = capabilities.make_capability
_request = replica.RaftReplica.request
_apply_reply = BookieAuthorizer.apply_reply
_proves = BookieAuthorizer.proves
_of = KeySpace.of
_shown_key = PresentedCapabilities.key_to_check
_check_token = TokenService.check_token
_verify_token = MetadataClient.verify_token


def _compares_are_free(self: Authorizer, principal: str, transaction: Transaction) -> Any:
    """H234: conditions are not authorized as reads."""
    return _transaction_error(self, principal, replace(transaction, compares=()))


def _watches_go_on(self: ServedWatches, may_read: Callable[..., Any]) -> None:
    """Watches are not checked again when rights change."""


def _anybodys(
    of_bookie: Generation, kind: CapabilityKind, ledger: int, principal: str, since: int
) -> bytes:
    """A capability is valid for each principal that presents it."""
    return _capability(of_bookie, kind, ledger, "", since)


def _of_any_kind(
    of_bookie: Generation, kind: CapabilityKind, ledger: int, principal: str, since: int
) -> bytes:
    """The kind of a capability is sent in front, and is not covered by the MAC."""
    return (
        bytes((kind,)) + _capability(of_bookie, CapabilityKind.LIST, ledger, principal, since)[1:]
    )


def _for_ever(
    of_bookie: Generation, kind: CapabilityKind, ledger: int, principal: str, since: int
) -> bytes:
    """Revocation from its holder does not end a capability."""
    return _capability(of_bookie, kind, ledger, principal, 0)


def _judged_before(self: replica.RaftReplica, *arguments: Any, **named: Any) -> None:
    """H233: a request that was authorized by older rights is appended after the change of rights."""
    self._authorization_index = 0
    _request(self, *arguments, **named)


async def _believed(self: LedgerDeletion, ledger_id: int) -> None:
    """H213: a purge task is executed without a check of the ledger's state."""
    await self._delete_local(ledger_id)
    delete_own_key = Delete(keys.delete_key(self._bookie_id, ledger_id))
    await self._metadata.transact(Transaction((), (delete_own_key,)))


def _without_principal(principal: str, client: str) -> str:
    """H216: requests are identified by the client's own ID, and leases have no owner."""
    return client


def _whoevers(self: Leases, lease: int, principal: str) -> DistributedLogError | None:
    """H217: each client with the number of a lease may end it."""
    return None


def _may_anything(
    authorizer: Authorizer,
    principal: str,
    kind: CapabilityKind,
    ledger: int,
    bookies: Collection[str],
) -> bool:
    """The leader gives capabilities to all clients."""
    return True


def _report_counts(
    self: BookieAuthorizer, principal: str, kind: CapabilityKind, ledger: int, key: bytes
) -> bool:
    """Capabilities issued in mode report are valid in mode required."""
    is_report_mode_key = capabilities.is_capability(
        key, self._generations, kind, ledger, principal, capabilities.REPORT_ONLY_REVISION
    )
    return is_report_mode_key or _proves(self, principal, kind, ledger, key)


def _by_its_own_word(self: KeySpace, key: bytes) -> KeyClass:
    """A bookie may register itself as the target of a replica move."""
    key_class = _of(self, key)
    if key.startswith(keys.MOVE_PREFIX):
        return replace(key_class, write_rights=REPLICA_HOLDER | OWN | REPAIR_LEADER | OPERATOR)
    return key_class


def _all_that_were(self: BookieAuthorizer, said: BookieKeysReply) -> None:
    """A bookie accepts capabilities of each generation that it ever had."""
    held_before = self._generations
    _apply_reply(self, said)
    by_number = {generation.number: generation for generation in (*held_before, *self._generations)}
    self._generations = tuple(by_number[number] for number in sorted(by_number, reverse=True))


def _all_of_it(self: member_node.MemberNode, link: Any, start: bytes, end: bytes | None) -> None:
    """Reads and watches are not authorized."""


def _not_narrowed(self: Authorizer, token: Any) -> Authorizer:
    """The scope of a restricted token is ignored."""
    return self


def _of_no_bookie(self: Generation, cluster_id: str, bookie_id: str) -> Generation:
    """H229: all bookies share one key."""
    return Generation(self.number, hashlib.sha256(self.key).digest(), self.credential_key)


def _recovered_by_anybody(
    self: PresentedCapabilities, kind: CapabilityKind, ledger: int, presented_key: bytes
) -> bytes:
    """H231: a client that claims to recover needs no capability."""
    return (
        NO_KEY if kind is CapabilityKind.RECOVER else _shown_key(self, kind, ledger, presented_key)
    )


def _by_the_wall(host: Host) -> Callable[[], float]:
    """H237: proofs end according to a wall clock that jumps."""
    return lambda: host.wall_ms() / 1000


def _for_good(self: TokenService, state: Any, proof: bytes) -> Any:
    """A connection outlives the token that opened it."""
    return replace(_check_token(self, state, proof), valid_s=float("inf"))


def _never_revoked(self: Authorizer, token: Any) -> None:
    """Tokens end only by expiry, and revocation is ignored."""


def _without_end(credential: bytes, generations: Any) -> tuple[str, int, int]:
    """A pass outlives the token for which it was issued."""
    principal, since, _ = capabilities.verify_session_credential(credential, generations)
    return principal, since, 0


async def _for_good_there(self: MetadataClient, token: bytes) -> Any:
    """H237: a proxy does not receive when a token ends."""
    return replace(await _verify_token(self, token), valid_s=float("inf"))


def _goes_on_there(self: AclCache, token: Any) -> None:
    """A proxy does not check existing clients again when tokens are revoked."""


def _whole_there(token_scope: Any, namespace: str, path: str) -> int:
    """A proxy ignores the scope of a restricted token."""
    return -1


def _enough(self: PrincipalQuotas, *arguments: Any) -> None:
    """Principals have no limits."""


MACS = (capabilities, capability_desk)

INJECTED_BUGS: dict[str, tuple[Patch, ...]] = {
    "a compare is not judged (H234)": ((Authorizer, "transaction_error", _compares_are_free),),
    "a watch is not ended": ((ServedWatches, "reauthorize", _watches_go_on),),
    "a capability without its principal": tuple(
        (one, "make_capability", _anybodys) for one in MACS
    ),
    "a capability without its kind": tuple((one, "make_capability", _of_any_kind) for one in MACS),
    "a capability outlives what it was for": tuple(
        (one, "make_capability", _for_ever) for one in MACS
    ),
    "the generation before is kept for ever": ((BookieAuthorizer, "apply_reply", _all_that_were),),
    "judged before the change, applied after it (H233)": (
        (replica.RaftReplica, "request", _judged_before),
    ),
    "a to-do is believed (H213)": ((LedgerDeletion, "_delete_ledger", _believed),),
    "requests are known by the client's word (H216)": (
        (sessions, "qualified_client", _without_principal),
    ),
    "a lease is whoever's knows its number (H217)": ((Leases, "why_not", _whoevers),),
    "capabilities are given to whoever asks": (
        (member_node, "may_have_capability", _may_anything),
    ),
    "what mode report gives is good in required": ((BookieAuthorizer, "proves", _report_counts),),
    "a bookie gives a place to itself": ((KeySpace, "of", _by_its_own_word),),
    "what is read is not judged": ((member_node.MemberNode, "may_read", _all_of_it),),
    "a token's narrowing is not looked at": ((Authorizer, "restricted_to_token", _not_narrowed),),
    "one key for all bookies (H229)": ((Generation, "for_bookie", _of_no_bookie),),
    "recovery adds pass without a capability (H231)": (
        (PresentedCapabilities, "key_to_check", _recovered_by_anybody),
    ),
    "tokens end by the wall clock (H237)": ((member_node, "steady_time", _by_the_wall),),
    "a connection outlives its token (H237)": ((TokenService, "check_token", _for_good),),
    "a revoked token is taken": ((Authorizer, "token_error", _never_revoked),),
    "a pass outlives its token": ((gate_part, "verify_session_credential", _without_end),),
    "a bookie that is cut off goes on (H241)": ((BookieAuthorizer, "is_cut_off", False),),
    "a token at a proxy does not end (H237)": ((MetadataClient, "verify_token", _for_good_there),),
    "a proxy goes on with a revoked token": ((AclCache, "token_error", _goes_on_there),),
    "a proxy does not narrow": ((client_rights, "allowed_by", _whole_there),),
    "leases without a bound (H236)": ((PrincipalQuotas, "lease_error", _enough),),
    "one memory of requests for all (H216)": ((PrincipalQuotas, "request_error", _enough),),
}
AT_A_PROXY = (
    "a token at a proxy does not end (H237)",
    "a proxy goes on with a revoked token",
    "a proxy does not narrow",
)
"""Bugs that need a seed with a read proxy."""
STARTS = {
    "a token at a proxy does not end (H237)": 1,
    "a connection outlives its token (H237)": 2,
    "a bookie that is cut off goes on (H241)": 3,
    "leases without a bound (H236)": 2,
    "one memory of requests for all (H216)": 4,
    "a capability without its principal": 3,
    "what mode report gives is good in required": 6,
    "the generation before is kept for ever": 13,
}
"""The seed at which the search begins, because it found the bug. The default is 0."""


def seed_that_finds(name: str, budget: int, *, chaos_s: float = CHAOS_S) -> tuple[int, str] | None:
    """Return the first of ``budget`` seeds that finds a bug and its failure, or None if it survives."""
    start = STARTS.get(name, 0)
    return first_seed(
        INJECTED_BUGS[name],
        range(start, start + budget),
        lambda seed: (
            AuthorizedRun(seed, chaos_s=chaos_s, with_proxy=name in AT_A_PROXY).run().failures
        ),
    )


def main() -> int:
    """Print the table. Return 1 if a bug survived, otherwise 0."""
    return table_of(INJECTED_BUGS, seed_that_finds, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
