"""What a proxy's clients may do: each thing is done with the rights of who asked, never with the proxy's own.

The proxy follows what the metadata say of users, by a watch. Whoever opens something is looked at there, and
once in `KEEP_S` by a linearizable question besides: so a grant counts as soon as it is answered, and where no
quorum answers nothing is opened. What was let in is looked at again at each change that concerns its user: it
ends in the very call that hears of a revocation. Nothing is judged while the mode is open; in `report` all is
done, and what would be refused is counted and told.

Who comes by a token may do what its user may, and its narrowing too, at each use. The metadata say once, by a
linearizable question, whose it is and how long it is good; what revokes it is in its user's record.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from ...log.model.log_keys import decode_log_id, incarnation_id, name_key, state_key
from ...log.model.log_state import LogState
from ...metadata.auth.acl_cache import EVERYBODY_ELSE, REQUIRED, AclCache
from ...metadata.model.acl_records import (
    TRUST_PREFIX,
    WOULD_REFUSE_MAX,
    grants_prefix,
    shown,
    user_key,
)
from ...metadata.model.interface import Metadata, Scan, prefix_end
from ...metadata.model.rights import CONSUME, MANAGE, OPERATOR, PRODUCE, READ, WRITE, words
from ...runtime.declarations.health_conditions import Code, HealthCondition, condition
from ...runtime.interfaces.errors import (
    Compacted,
    DistributedLogError,
    NotAllowed,
    NotAuthenticated,
    OutcomeUnknown,
    TooBusy,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.interfaces.principals import ANONYMOUS, PROXY, USER, Meeting, Welcome
from ...runtime.net.link import Link
from ...runtime.protocol.tokens import allowed_by, read_token, scoped
from ..declarations.events import REFUSED

PRODUCES = PRODUCE | WRITE
CONSUMES = CONSUME | READ
"""Any one of these lets somebody write a log here, or read it."""
KEEP_S = 10.0
"""An answer of the metadata about a user is good for so long; what ends it is heard at once."""
HEARD_S = 5.0
"""So long the watch may be behind an answer before who asked is told to come again."""
TOKEN_HEARD_S = 2.0
"""The same of who shows a token: his handshake has a deadline."""
TOKENS_AT_ONCE = 64
TOKENS_OF_ONE_ADDRESS = 8
"""Whoever shows a token is a stranger until the leader has looked at it: so many looks at once, no more."""
RELIST_S = 0.5
NAME_CHARS_SHOWN = 80
REASON_CHARS_SHOWN = 1000

log = get_logger("distributedlog.proxy")

End = Callable[[DistributedLogError], object]


@dataclass(slots=True)
class _Held:
    """Something that was let in."""

    needed: int
    path: str
    name: Callable[[], str]
    """Of the log, as it is called now."""
    end: End


@dataclass(slots=True)
class _Principal:
    """One of those who are connected."""

    clients: dict["ClientSession", None] = field(default_factory=dict)
    questions: int = 0
    """Put so far; one at a time."""
    answered: int = 0
    """The newest of them that has an answer, and when it was put."""
    asked_at: float = float("-inf")
    turn: trio.Lock = field(default_factory=trio.Lock)
    """Of who asks: the others use that answer, if they came before the question."""
    answer: AclCache = field(default_factory=AclCache)


class ClientAuthorizer:
    """Of one proxy, for all its connections. `run` serves it; before that nobody has any right."""

    def __init__(self, metadata: Metadata, table: AclCache | None = None) -> None:
        """``table``: what is known before `run` has begun (default: nothing is, and so nobody is let in)."""
        self.metadata = metadata
        self.table = AclCache(REQUIRED) if table is None else table
        self.refused = 0
        """Times that somebody was refused since the start, or would have been."""
        self.ended = 0
        """What was let in and has ended because its right was taken away."""
        self.would_refuse: dict[tuple[str, str], int] = {}
        """In mode ``report``: principal and what it lacked, how often."""
        self._blind: NotAllowed | None = None
        """Why nothing is known of anybody."""
        self._principals: dict[str, _Principal] = {}
        self._changed = trio.Event()
        self._shown: Counter[str] = Counter()
        """Tokens that are looked at now, by the host that shows them."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow who may do what, until cancelled. Started when it was listed once.

        Raises `NotAllowed` where that is not for this process, and `DistributedLogError` that keeps the
        metadata from answering at first; later on it goes by what it knows until they do.
        """
        revision = await self._list()
        task_status.started()
        while True:
            try:
                async with self.metadata.watch(
                    TRUST_PREFIX, prefix_end(TRUST_PREFIX), after_revision=revision
                ) as watch:
                    while True:
                        batch = await watch.next()
                        self._heard(
                            {
                                self.table.take(
                                    event.item.key,
                                    event.item.value if event.kind == "put" else None,
                                )
                                for event in batch.events
                            }
                        )
                        revision = batch.revision
            except Compacted:
                pass
            except NotAllowed as error:
                self._be_blind(error)
                await trio.sleep(RELIST_S)
            except DistributedLogError as error:
                log.warning("who may do what is not heard now: %s", error)
                await trio.sleep(RELIST_S)
                continue
            revision = await self._relist()

    async def _list(self) -> int:
        table, scan = AclCache(), Scan(self.metadata, TRUST_PREFIX)
        async for item in scan:
            table.take(item.key, item.value)
        self.table, self._blind = table, None
        self._heard({EVERYBODY_ELSE})
        return scan.revision

    async def _relist(self) -> int:
        """List until that works: what the watch has missed, or was not let hear, it never tells any more."""
        while True:
            try:
                return await self._list()
            except NotAllowed as error:
                self._be_blind(error)
            except DistributedLogError as error:
                log.warning("who may do what is not heard now: %s", error)
            await trio.sleep(RELIST_S)

    def _be_blind(self, error: NotAllowed) -> None:
        """This process may not know who may do what: it lets nobody do anything (unknown is not "yes")."""
        if self._blind is None:
            log.error("this proxy serves no client: %s", error)
        self.table, self._blind = AclCache(REQUIRED), error
        self._heard({EVERYBODY_ELSE})

    def info(self) -> dict[str, object]:
        """For `Op.INFO`: numbers, and no name of anybody or of a log."""
        return {
            "trust_mode": self.table.mode,
            "rights_refused": self.refused,
            "rights_ended": self.ended,
        }

    def condition(self) -> HealthCondition | None:
        """Return a condition while this proxy serves no client."""
        if self._blind is None:
            return None
        return condition(Code.RIGHTS_UNKNOWN, error=str(self._blind))

    def _heard(self, concerned: set[str | None]) -> None:
        """Something has changed for these users. Whoever lost something loses it here and now."""
        for principal, one in list(self._principals.items()):
            if EVERYBODY_ELSE in concerned or principal.partition("/")[2] in concerned:
                for client in list(one.clients):
                    client.judge()
        self._changed.set()
        self._changed = trio.Event()

    # --- connections ------------------------------------------------------------------------------

    async def verify_token(
        self, ask: Callable[[bytes], Awaitable[Welcome]], meeting: Meeting, proof: bytes
    ) -> Welcome:
        """The method ``token`` of `Endpoint.asked`. ``ask``: of the metadata, whose it is.

        Raises `NotAuthenticated`, what keeps the metadata from answering, and `TooBusy` where the watch is
        behind their answer.
        """
        if not meeting.is_secret:
            raise NotAuthenticated(f"a token is not taken in clear, and {meeting.peer_address} is")
        token = read_token(proof)  # what is none at all costs the quorum nothing
        host = meeting.peer_address.rpartition(":")[0]
        if self._shown.total() >= TOKENS_AT_ONCE or self._shown[host] >= TOKENS_OF_ONE_ADDRESS:
            raise TooBusy(f"{self._shown.total()} tokens are just looked at here: come again")
        self._shown[host] += 1
        try:
            welcome = await ask(proof)
        finally:
            self._shown[host] -= 1
            if not self._shown[host]:
                del self._shown[host]
        with trio.move_on_after(TOKEN_HEARD_S):
            while not self.is_blind and self.table.why_no_token(token) is not None:
                await self.changed()
            return welcome
        raise TooBusy(f"what {token.principal} may do is just changing: ask again")

    def meet(self, link: Link) -> "ClientSession":
        """Who speaks on a new connection; `ClientSession.leave` when it is over.

        Raises `NotAuthenticated` for who is no user any more.
        """
        client = ClientSession(self, link)
        why = client.why_out()
        if why is not None:
            raise why
        self._principals.setdefault(client.principal, _Principal()).clients[client] = None
        return client

    def forget(self, client: "ClientSession") -> None:
        """Its connection is over. Idempotent."""
        one = self._principals.get(client.principal)
        if one is not None:
            one.clients.pop(client, None)
            if not one.clients:
                del self._principals[client.principal]

    # --- questions --------------------------------------------------------------------------------

    async def ask_now(self, principal: str) -> AclCache | None:
        """What the metadata say of a user, to a question that was put after this call.

        None: it is no user, or none that is connected. Raises what keeps them from answering.
        """
        kind, _, user = principal.partition("/")
        one = self._principals.get(principal)
        if kind != USER or one is None:
            return None
        since = one.questions
        async with one.turn:
            if one.answered <= since:
                one.questions += 1
                number, answer = one.questions, AclCache(REQUIRED)
                asked_at = trio.current_time()
                for start, end in (
                    (user_key(user), user_key(user) + b"\0"),
                    (grants_prefix(user), prefix_end(grants_prefix(user))),
                ):
                    async for item in Scan(self.metadata, start, end):
                        answer.take(item.key, item.value)
                one.answered, one.asked_at, one.answer = number, asked_at, answer
            return one.answer

    def answered_lately(self, principal: str) -> AclCache | None:
        """What they said of it last, while that is good."""
        one = self._principals.get(principal)
        if one is None or trio.current_time() - one.asked_at >= KEEP_S:
            return None
        return one.answer

    async def changed(self) -> None:
        """Wait until something else is heard."""
        await self._changed.wait()

    @property
    def is_blind(self) -> bool:
        """May it not know who may do what?"""
        return self._blind is not None

    def refusal(self, principal: str, what: str, needed: int) -> NotAllowed:
        """In words; the same for what is absent and what is forbidden."""
        if self._blind is not None:
            return NotAllowed(f"this proxy may not know who may do what: {self._blind}")
        return NotAllowed(f"{principal} may not {what}: it needs {words(needed)}")

    def count(self, principal: str, refused: NotAllowed) -> NotAllowed | None:
        """What comes of a refusal in this mode: in ``report`` it is counted, and done all the same."""
        would, self.refused = self.table.mode != REQUIRED, self.refused + 1
        reason = str(refused)
        if would:
            what = (principal, reason)
            if what in self.would_refuse or len(self.would_refuse) < WOULD_REFUSE_MAX:
                self.would_refuse[what] = self.would_refuse.get(what, 0) + 1
        REFUSED.say(log, "%s", reason, principal=principal, reason=reason, would=would)
        return None if would else refused


class ClientSession:
    """Who speaks on one connection, what it may do, and what of it was let in."""

    def __init__(self, rights: ClientAuthorizer, link: Link) -> None:
        self.principal = link.principal
        self._rights = rights
        self._link = link
        identity = link.identity
        self._serial = identity.serial if identity is not None else ""
        self._token = link.token
        self._held: dict[int, _Held] = {}
        self._last = 0

    @property
    def judged(self) -> bool:
        """Does it matter who it is?"""
        return self._rights.table.mode != "open"

    # --- questions --------------------------------------------------------------------------------

    def has(self, needed: int, path: str, name: str) -> bool:
        """Any one of these rights on the log of that name, there or not, by what is known now?

        While nothing is judged everybody has all.
        """
        return not self.judged or self._in(self._rights.table, needed, path, name)

    def visible(self, path: str) -> dict[str, int] | None:
        """The paths of a namespace that it may see names below; None: all names."""
        rights = self._rights
        if not self.judged or rights.table.mode != REQUIRED:
            return None
        found = rights.table.paths(self.principal, path)
        if self._token is None or not self._token.narrowing:
            return found
        left: dict[str, int] = {}
        granted = ((path, inner, through_proxies(held)) for inner, held in found.items())
        for _, inner, held in scoped(granted, self._token.narrowing):
            left[inner] = left.get(inner, 0) | held
        return left

    def why_out(self) -> NotAuthenticated | None:
        """Why its connection ends: its token is taken no more, or, where rights are refused, it is nobody
        here any more."""
        table = self._rights.table
        if self._token is not None:
            # Whoever is blind knows nothing of tokens; nobody does anything there.
            return None if self._rights.is_blind else table.why_no_token(self._token)
        if table.mode != REQUIRED or self.principal == ANONYMOUS:
            return None
        if table.is_live(self.principal, self._serial):
            return None
        return NotAuthenticated(
            f"{self.principal}, or the certificate that it comes with, was disabled"
        )

    async def check(self, needed: int, path: str, name: str, *, asked: str = "") -> None:
        """Raise `NotAllowed` where it has none of these rights on the log of that name.

        ``asked``: what the client called it, if that is another word: it is told of none but its own.
        Raises `TooBusy` where that is just changing, and what keeps the metadata from answering.
        """
        rights, what = self._rights, _what(needed, path, asked or name)
        if not self.judged:
            return
        if rights.table.mode != REQUIRED:
            if not self.has(needed, path, name):
                rights.count(self.principal, rights.refusal(self.principal, what, needed))
            return
        answer = rights.answered_lately(self.principal)
        if not (answer and self.has(needed, path, name) and self._in(answer, needed, path, name)):
            answer = None if rights.is_blind else await rights.ask_now(self.principal)
            if answer is None or not self._in(answer, needed, path, name):
                refused = rights.refusal(self.principal, what, needed)
                error = rights.count(self.principal, refused)
                if error is not None:
                    raise error
                return
        with trio.move_on_after(HEARD_S):
            while not self.has(needed, path, name):
                await rights.changed()
            return
        raise TooBusy(f"what {self.principal} may do is just changing: ask again")

    async def may_make(self, path: str, name: str) -> bool:
        """May an opening of the log make it, where it is not there? In ``report`` it may, and is counted."""
        if self.has(MANAGE, path, name):
            return True
        rights = self._rights
        if rights.table.mode == REQUIRED:
            return False
        if await rights.metadata.get(name_key(path, name)) is None:
            what = _what(MANAGE, path, name)
            rights.count(self.principal, rights.refusal(self.principal, what, MANAGE))
        return True

    async def check_log(self, needed: int, path: str, name: str, incarnation: str) -> None:
        """As `check`, where a log is named by its incarnation: that one's name is what counts.

        An id is no secret and protects nothing: whoever may do that with one log must not do it, or hear
        of it, with another one whose id he has.
        """
        if not self.judged:
            return
        log_id = incarnation_id(incarnation) if incarnation else -1
        for _ in range(2):  # it may be renamed or deleted between the two questions
            found = None if log_id < 0 else await self._rights.metadata.get(state_key(log_id))
            if found is None:
                await self.check(needed, path, name)  # what is gone is told by its name alone
                return
            called = LogState.decode(found.value).name
            named = await self._rights.metadata.get(name_key(path, called))
            if named is not None and decode_log_id(named.value) == log_id:
                await self.check(needed, path, called, asked=name)
                return
        rights = self._rights
        refused = rights.refusal(self.principal, _what(needed, path, name), needed)
        error = rights.count(self.principal, refused)  # it is of another namespace
        if error is not None:
            raise error

    def check_producer(self, name: str) -> None:
        """Raise `NotAllowed` where a producer's name begins with ``~USER/`` of somebody else."""
        owner, slash, _ = name[1:].partition("/")
        if not (self.judged and slash and name[0] == "~") or self.principal == f"{USER}/{owner}":
            return
        of = shown(owner, NAME_CHARS_SHOWN)
        refused = NotAllowed(
            f"{self.principal} may not open producers ~{of}/…: they are user {of}'s own"
        )
        error = self._rights.count(self.principal, refused)
        if error is not None:
            raise error

    def check_cluster(self, what: str) -> None:
        """Raise `NotAllowed` where it does not run the cluster."""
        rights = self._rights
        is_narrowed = self._token is not None and self._token.narrowing
        held = 0 if is_narrowed else rights.table.cluster_rights(self.principal)
        if self.judged and not held & OPERATOR:
            error = rights.count(self.principal, rights.refusal(self.principal, what, OPERATOR))
            if error is not None:
                raise error

    def check_proxy(self, what: str) -> None:
        """Raise `NotAllowed` where it is no proxy, and does not run the cluster either."""
        if not self.principal.startswith(f"{PROXY}/"):
            self.check_cluster(what)

    def would_refuse(self) -> list[tuple[str, str, int]]:
        """Whom this proxy would have refused since it started, what each lacked, how often; most often first.

        Raises `NotAllowed` for who does not run the cluster.
        """
        self.check_cluster("hear whom a proxy would refuse")
        counts = self._rights.would_refuse.items()
        found = [(who, shown(what, REASON_CHARS_SHOWN), times) for (who, what), times in counts]
        return sorted(found, key=lambda one: -one[2])

    # --- what was let in --------------------------------------------------------------------------

    def let_in(self, needed: int, path: str, name: Callable[[], str], end: End) -> int:
        """Begin something, after `check`; what to `leave` by. Raises `NotAllowed` where it is just over.

        ``end`` is called with the reason, once, when none of these rights is left; nothing is to be done
        with them after it.
        """
        held = _Held(needed, path, name, end)
        refused = self._why_over(held)
        if refused is not None:
            raise refused
        self._last += 1
        self._held[self._last] = held
        return self._last

    def leave(self, number: int) -> None:
        """It is over. Idempotent."""
        self._held.pop(number, None)

    @contextmanager
    def doing(self, needed: int, path: str, name: str, *, unknown: str = "") -> Iterator[None]:
        """The body is given up where none of these rights is left meanwhile; then `NotAllowed` is raised.

        ``unknown``: what is not known then; `OutcomeUnknown` says so (G7).
        """
        why: list[DistributedLogError] = []
        with trio.CancelScope() as scope:

            def end(error: DistributedLogError) -> None:
                why.append(error)
                scope.cancel()

            number = self.let_in(needed, path, lambda: name, end)
            try:
                yield
            finally:
                self.leave(number)
        if scope.cancelled_caught:
            raise OutcomeUnknown(f"{why[0]}; {unknown}") if unknown else why[0]

    def judge(self) -> None:
        """What is known has changed: end what it may do no more, and the connection of who is out."""
        out = self.why_out()
        for number, held in list(self._held.items()):
            refused = out or self._why_over(held)
            if refused is not None and self._held.pop(number, None) is not None:
                self._rights.ended += 1
                held.end(refused)
        if out is not None:
            self._link.refuse(out)

    def gone(self) -> None:
        """Its connection is over. Idempotent."""
        self._held.clear()
        self._rights.forget(self)

    def _why_over(self, held: _Held) -> NotAllowed | None:
        rights, name = self._rights, held.name()
        if rights.table.mode != REQUIRED or self.has(held.needed, held.path, name):
            return None
        what = _what(held.needed, held.path, name)
        return rights.refusal(self.principal, what, held.needed)

    def _in(self, table: AclCache, needed: int, path: str, name: str) -> bool:
        if not table.is_live(self.principal, self._serial):
            return False
        if self._token is not None:
            if table.why_no_token(self._token) is not None:
                return False
            needed &= allowed_by(self._token.narrowing, path, name)
        return bool(needed & through_proxies(table.rights(self.principal, path, name)))


def through_proxies(rights: int) -> int:
    """With what they are worth here: who may write a log may produce, who may read it may consume.

    So a token that was narrowed to ``producer`` has that of its user's ``writer``.
    """
    return rights | (PRODUCE if rights & WRITE else 0) | (CONSUME if rights & READ else 0)


_VERBS = {PRODUCES: "write", CONSUMES: "read", MANAGE: "change"}


def _what(needed: int, path: str, name: str) -> str:
    verb = _VERBS.get(needed, "look at")
    return f'{verb} log "{shown(name, NAME_CHARS_SHOWN)}" of {shown(path, NAME_CHARS_SHOWN)} here'
