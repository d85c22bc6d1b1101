"""May this principal do that? (pure)

The leader judges each request of a client by the state that it has applied: a compare is a read (H234: a
transaction that does not hold tells what it compared), a range or a watch lies within one kind of keys and
one log, or is narrowed to the paths that its asker may see. `trust_records` has what users may;
`classes.Classes` what the keys are; the kinds of nodes have their rights here.

While `commands.TrustChange` was never applied nothing is asked here at all.
"""

import contextlib
from collections.abc import Callable, Mapping
from copy import copy

from ...runtime.interfaces.errors import (
    Compacted,
    CorruptData,
    DistributedLogError,
    NotAllowed,
    NotAuthenticated,
    UnsupportedFormat,
)
from ...runtime.interfaces.principals import ANONYMOUS, LOCAL, Narrowing, Token
from ...runtime.protocol.tokens import covers, scoped
from ..model.acl_records import (
    AUDIT_PREFIX,
    GRANT_PREFIX,
    MODE_KEY,
    TRUST_PREFIX,
    WOULD_REFUSE_MAX,
    User,
    decode_grant,
    grant_of,
    grants_prefix,
    mode_in,
    user_key,
)
from ..model.interface import prefix_end
from ..model.request_identity import request_identity
from ..model.rights import (
    ADMIN,
    ALL,
    ANY_OF_A_LOG,
    BOOKIE,
    EVERYBODY,
    HOLDER,
    JANITOR,
    KNOWN,
    MANAGE,
    OPERATOR,
    OWN,
    PROXY,
    READ,
    ROLES,
    WRITE,
    words,
)
from ..model.transaction import Delete, Put, Transaction
from ..state.kv_state import HEAD, KeyValueState
from .key_space import Change, KeyClass, KeyScope, KeySpace

KEY_SHOWN_BYTES = 80
NAMES = KeySpace().names
GRANTS_MAX = 64
"""Of one user."""
PAGE = 1000

Windows = tuple[tuple[bytes, bytes], ...]
"""Parts of a range, in order: from, and up to."""
Parts = Windows | Callable[[bytes], bool]
"""What somebody may see of a range; or of each key in it, whether."""


class Authorizer:
    """Of one node, over the state that it has applied."""

    def __init__(self, classes: KeySpace, now_s: Callable[[], float] = lambda: 0.0) -> None:
        """``now_s``: this node's time, which no clock of anybody else moves."""
        self.mode = "open"
        self.revision = 0
        """Of the last change of trust that is known here."""
        self.renames = 0
        """Grows where a log has got another name: who may what with it goes by that."""
        self.would_refuse: dict[tuple[str, str], int] = {}
        """In mode ``report``: principal and what it lacked, how often."""
        self._classes = classes
        self._now_s = now_s
        self._clock_since: tuple[int, float] | None = None
        """What the clock of the classes said when it was first moved here, and when that was, ms."""
        self._state = KeyValueState()
        self._users: dict[str, User | None] = {}
        self._grants: dict[str, tuple[tuple[str, str, int], ...]] = {}
        self._names: dict[bytes, bytes] | None = None
        """The names' keys by the logs' ids, while anything is judged; None: not read yet."""
        self._ids: dict[bytes, bytes] = {}
        """The other way round."""
        self._names_to = 0
        self._narrowing: Narrowing = ()
        self._owner = ""

    def narrowed(self, token: Token | None) -> "Authorizer":
        """The same, of what one may who came by that token; for a question or two at this moment."""
        if token is None or not token.narrowing:
            return self
        found = copy(self)
        found._grants = {}
        found._narrowing, found._owner = token.narrowing, request_identity(token.principal, token)
        return found

    def see(self, state: KeyValueState) -> None:
        """This is the state from now on; called before each question, cheap where nothing has changed."""
        if state is not self._state:
            self._state, self._names = state, None
            self.revision = -1
        if state.trust_revision != self.revision:
            self.revision = state.trust_revision
            self._users.clear()
            self._grants.clear()
            self.mode = self._mode()
        if self._names is not None or self.mode != "open":
            self._read_names()

    def _mode(self) -> str:
        if not self.revision:
            return "open"
        return mode_in(self._state.get(MODE_KEY))

    def _read_names(self) -> None:
        state, prefix = self._state, self._classes.names
        end = prefix_end(prefix)
        if self._names is not None:
            if self._names_to == state.revision:
                return
            try:
                for _, events in state.events_after(self._names_to, prefix, end):
                    had = [
                        (event.item.value, self._names.get(event.item.value)) for event in events
                    ]
                    for event in events:
                        self._rename(event.item.key, event.item.value)
                    if any(key and self._names.get(log) != key for log, key in had):
                        self.renames += 1
                self._names_to = state.revision
                return
            except Compacted:
                self.renames += 1
        self._names, self._ids, start = {}, {}, prefix
        while keys := state.keys.between(start, end, PAGE):
            for key in keys:
                self._rename(key, state.stored[key][HEAD.size :])
            start = keys[-1] + b"\0"
        self._names_to = state.revision

    @property
    def _log_names(self) -> dict[bytes, bytes]:
        if self._names is None:
            self._read_names()
        assert self._names is not None, "they were read just now"
        return self._names

    def _rename(self, key: bytes, log: bytes) -> None:
        """That log has this name now; b"": none has it any more."""
        assert self._names is not None
        before = self._ids.pop(key, b"")
        if before != log and self._names.get(before) == key:
            del self._names[before]  # else it has another one by now
        if log:
            self._names[log] = key
            self._ids[key] = log

    # --- what somebody has ------------------------------------------------------------------------

    def user(self, name: str) -> User | None:
        """What is known of a user; None: no such user, or a record that cannot be read."""
        if name not in self._users:
            found = self._state.get(user_key(name))
            try:
                self._users[name] = User.decode(found.value) if found is not None else None
            except DistributedLogError:
                self._users[name] = User(disabled=True)
        return self._users[name]

    def grants(self, name: str) -> tuple[tuple[str, str, int], ...]:
        """A user's grants: namespace, path, rights."""
        found = self._grants.get(name)
        if found is None:
            prefix = grants_prefix(name)
            keys = self._state.keys.between(prefix, prefix_end(prefix), GRANTS_MAX)
            read = []
            for key in keys:
                try:
                    _, namespace, path = grant_of(key)
                    rights = ROLES[decode_grant(self._state.stored[key][HEAD.size :])]
                except (CorruptData, UnsupportedFormat):
                    continue  # what cannot be read gives nothing
                read.append((namespace, path, rights))
            found = tuple(read)
            if self._narrowing:
                found = scoped(found, self._narrowing)
            self._grants[name] = found
        return found

    def is_live(self, principal: str, serial: str = "") -> bool:
        """Not disabled, nor the certificate that it comes with refused. What it may do is another thing."""
        kind, _, name = principal.partition("/")
        if kind != "user":
            return principal != ANONYMOUS
        user = self.user(name)
        return user is None or not (user.disabled or (serial and serial in user.serials))

    def why_no_token(self, token: Token) -> NotAuthenticated | None:
        """Why this one is taken no more, in no mode."""
        user = self.user(token.user)
        if user is None or user.disabled:
            return NotAuthenticated(f"{token.principal} was disabled, or removed")
        if user.tokens_from != token.since:
            return NotAuthenticated(f"the tokens of {token.principal} were revoked")
        return None

    def why_out(
        self, principal: str, serial: str, token: Token | None = None
    ) -> NotAuthenticated | None:
        """Why this connection ends, where rights are refused: who came by it is nobody here any more."""
        if token is not None:
            return self.why_no_token(token)
        if self.mode != "required" or principal == ANONYMOUS or self.is_live(principal, serial):
            return None
        return NotAuthenticated(f"{principal}, or the certificate that it comes with, was disabled")

    def cluster_rights(self, principal: str) -> int:
        """Those that need no place."""
        kind, _, name = principal.partition("/")
        if not self.is_live(principal):
            return EVERYBODY
        held = EVERYBODY | KNOWN
        if principal == LOCAL:
            return ALL  # its cluster is its own, and the nodes are, too
        if kind == "bookie":
            return held | BOOKIE | (JANITOR if self._is_janitor(principal) else 0)
        if kind == "proxy":
            return held | PROXY
        if kind == "user":
            for namespace, path, rights in self.grants(name):
                if not namespace and not path:
                    held |= rights & (OPERATOR | ADMIN)
        return held

    def rights(self, principal: str, namespace: str, path: str) -> int:
        """On a log of that name, there or not."""
        kind, _, name = principal.partition("/")
        if principal == LOCAL:
            return ANY_OF_A_LOG
        if kind == "proxy":
            return (
                READ | WRITE | MANAGE
            )  # a writer, a reader that many share; its clients it judges itself
        if kind == "bookie":
            return READ
        held = 0
        if kind == "user" and self.is_live(principal):
            for of, granted, rights in self.grants(name):
                if of == namespace and of and covers(granted, path):
                    held |= rights & ANY_OF_A_LOG
        return held

    def rights_on_log(self, principal: str, log: bytes, new: Mapping[bytes, bytes]) -> int:
        """``new``: names that the same transaction makes, by log id."""
        key = self._log_names.get(log) or new.get(log)
        if key is None:
            return self.rights(principal, "", "")
        return self.rights(principal, *self._path(key))

    def rights_on_ledger(self, principal: str, ledger_id: int) -> int:
        """Of a ledger that is not there, none."""
        return self._on_ledger(principal, self._classes.ledgers + b"%016x" % ledger_id, None, {})

    def is_closed(self, ledger_id: int) -> bool:
        """Is that ledger's end known for good? So is that of one whose record cannot be read."""
        key = self._classes.ledgers + b"%016x" % ledger_id
        stored = self._state.stored.get(key)
        try:
            return stored is not None and self._classes.is_closed(key, stored[HEAD.size :])
        except DistributedLogError:
            return True

    def is_bookie(self, principal: str, bookie_id: str) -> bool:
        """Is it the bookie with this id, by its cookie?"""
        return self._is_bookie(principal, bookie_id.encode())

    def _on_ledger(
        self, principal: str, ledger_key: bytes, made: bytes | None, new: Mapping[bytes, bytes]
    ) -> int:
        """``made``: the record that the same transaction puts."""
        classes = self._classes
        stored = self._state.stored.get(ledger_key)
        before = stored[HEAD.size :] if stored is not None else None
        try:
            if before is None:
                return self._of_record(principal, ledger_key, made, new) if made is not None else 0
            held = self._of_record(principal, ledger_key, before, new)
            if principal.startswith("bookie/"):
                bookies = classes.bookies_of_ledger(ledger_key, before)
                if any(
                    self._is_bookie(principal, bookie.encode()) for bookie in bookies
                ) or self._moves_in(principal, ledger_key):
                    held |= HOLDER
            # It goes from one log to another by who has both; to none as it is deleted.
            if made is not None and not classes.is_deleting(ledger_key, made):
                held &= self._of_record(principal, ledger_key, made, new) | HOLDER
        except DistributedLogError:
            return 0
        return held

    def _of_record(
        self, principal: str, ledger_key: bytes, value: bytes, new: Mapping[bytes, bytes]
    ) -> int:
        return self.rights_on_log(principal, self._classes.log_of_ledger(ledger_key, value), new)

    def _moves_in(self, principal: str, ledger_key: bytes) -> bool:
        """Is this bookie to take a place in that ledger?"""
        ledger = ledger_key.rpartition(b"/")[2]
        cookies = self._classes.cookies
        for key in self._state.keys.between(cookies, prefix_end(cookies), PAGE):
            bookie = key.removeprefix(cookies)
            move = self._classes.moves + bookie + b"/" + ledger
            # One that lost its disks has the cookie of before, too, until that id is given up.
            if move in self._state.stored and self._is_bookie(principal, bookie):
                return True
        return False

    def _is_bookie(self, principal: str, bookie: bytes, made: bytes | None = None) -> bool:
        """Is that bookie's cookie this principal's? ``made``: the cookie, where it is being made."""
        key = self._classes.cookies + bookie
        stored = self._state.stored.get(key)
        value = stored[HEAD.size :] if stored is not None else made
        if value is None:
            return False
        try:
            return principal == self._classes.owner_of_cookie(key, value)
        except DistributedLogError:
            return False

    def _is_janitor(self, principal: str) -> bool:
        found = self._state.get(self._classes.janitor)
        if found is None:
            return False
        lease = self._state.leases.get(found.lease)
        return lease is not None and lease.owner == principal

    def _path(self, name_key: bytes) -> tuple[str, str]:
        """Namespace and log name; ("", "") of a key that names none."""
        namespace, _, name = name_key.removeprefix(self._classes.names).partition(b"\0")
        try:
            return namespace.decode(), name.decode()
        except UnicodeDecodeError:
            return "", ""

    def _held(
        self,
        principal: str,
        base: int,
        place: KeyScope,
        puts: Mapping[bytes, bytes],
        new: Mapping[bytes, bytes],
    ) -> int:
        """All that this principal has on a key with that place."""
        held = base
        if place.path is not None:
            held |= self.rights(principal, *place.path)
        if place.log:
            held |= self.rights_on_log(principal, place.log, new)
        if place.ledger:
            held |= self._on_ledger(principal, place.ledger, puts.get(place.ledger), new)
        if place.bookie and base & BOOKIE:
            cookie = puts.get(self._classes.cookies + place.bookie)
            if self._is_bookie(principal, place.bookie, cookie):
                held |= OWN
        if place.user and place.user == principal.removeprefix("user/") and held & READ:
            held |= OWN
        return held

    # --- questions --------------------------------------------------------------------------------

    def why_not_read(self, principal: str, key: bytes) -> NotAllowed | None:
        """Of one key, there or not."""
        return self._why_not_read(principal, self.cluster_rights(principal), key, {})

    def _why_not_read(
        self,
        principal: str,
        base: int,
        key: bytes,
        new: Mapping[bytes, bytes],
    ) -> NotAllowed | None:
        row = self._classes.of(key)
        if row.read & base:
            return None
        place = row.place(key)
        if place is not None and row.read & self._held(principal, base, place, {}, new):
            return None
        if place is not None and base & KNOWN and self._is_gone(place):
            return None  # nothing is there to be kept from anybody; who read a log learns that it was deleted
        return _refused(principal, "read", key, row.read)

    def _is_gone(self, place: KeyScope) -> bool:
        """Is it the place of a log that is no more, or of a ledger that is not?"""
        state, classes = self._state, self._classes
        if place.path is not None or place.bookie:
            return False
        if place.ledger:
            stored = state.stored.get(place.ledger)
            if stored is None:
                return True
            try:
                if classes.is_deleting(place.ledger, stored[HEAD.size :]):
                    return True
                log = classes.log_of_ledger(place.ledger, stored[HEAD.size :])
            except DistributedLogError:
                return False
        else:
            log = place.log
        if not log or log in self._log_names:
            return False
        return not self._is_log(log)

    def _is_left_over(self, operation: Put | Delete, base: int, place: KeyScope | None) -> bool:
        """Does it clear away what a deleted log has left under its id? Deleting goes over that twice."""
        return (
            isinstance(operation, Delete)
            and operation.key.startswith(self._classes.logs)
            and place is not None
            and bool(base & KNOWN)
            and self._is_gone(place)
        )

    def _is_log(self, log: bytes) -> bool:
        return self._classes.logs + log + self._classes.state in self._state.stored

    def why_not_range(self, principal: str, start: bytes, end: bytes) -> NotAllowed | Parts | None:
        """None: it may have all of it; or the parts of it that it may have."""
        base = self.cluster_rights(principal)
        if end == start + b"\0" or (start in self._classes.whole and end <= prefix_end(start)):
            return self._why_not_read(principal, base, start, {})
        row = self._classes.of(start)
        first = start[: start.find(b"/") + 1]
        inside = bool(first) and end <= prefix_end(first)
        if inside and row.listed is not None and not base & row.read:
            return self._narrowed(principal, row.listed(start), start, end)
        if inside and row.read & base:
            return None
        if inside and row.each and base & KNOWN:
            return lambda key: self.why_not_read(principal, key) is None
        span = row.span(start)
        if inside and span and end <= prefix_end(span):
            place = row.place(start)
            if place is not None and row.read & self._held(principal, base, place, {}, {}):
                return None
            if place is not None and base & KNOWN and self._is_gone(place):
                return None
        return _refused(principal, "list", start, row.read)

    def _narrowed(
        self, principal: str, before: bytes, start: bytes, end: bytes
    ) -> NotAllowed | Windows | None:
        kind, _, name = principal.partition("/")
        if kind in ("proxy", "bookie") or principal == LOCAL:
            return None
        windows: list[tuple[bytes, bytes]] = []
        if kind == "user" and self.is_live(principal):
            for namespace, path, rights in self.grants(name):
                if not namespace or not rights & ANY_OF_A_LOG:
                    continue
                at = before + namespace.encode() + b"\0" + path.encode()
                whole = not path or path.endswith("/")
                window = max(start, at), min(end, prefix_end(at) if whole else at + b"\0")
                if window[0] < window[1]:
                    windows.append(window)
        return _apart(windows)

    def why_not_transact(self, principal: str, transaction: Transaction) -> NotAllowed | None:
        """Every compare and every operation."""
        base = self.cluster_rights(principal)
        names = self._classes.names
        puts = {o.key: o.value for o in transaction.operations if isinstance(o, Put)}
        gone = {o.key for o in transaction.operations if isinstance(o, Delete)}
        new = {value: key for key, value in puts.items() if key.startswith(names)}
        for log, key in new.items():
            held_by = self._log_names.get(log)
            taken = held_by is not None and held_by != key and held_by not in gone
            if taken or (held_by is None and self._is_log(log)):
                return _refused(principal, "give another log's id to", key, 0)
        for compare in transaction.compares:
            refused = self._why_not_read(principal, base, compare.key, new)
            if refused is not None:
                return refused
        asked = _Asked(self._state, principal, base, transaction)
        for operation in transaction.operations:
            key = operation.key
            row = self._classes.of(key)
            needed = row.write
            if not isinstance(needed, int):
                stored = self._state.stored.get(key)
                before = stored[HEAD.size :] if stored is not None else None
                try:
                    needed = needed(key, before, puts.get(key))
                except DistributedLogError:
                    needed = 0
                if row.lasting and stored is not None and _is_late(transaction, key, stored):
                    needed |= row.read  # nothing comes of it, and it learns so as without rights
            place = row.place(key)
            held = base if place is None else self._held(principal, base, place, puts, new)
            if not needed & held or place is None:
                if self._is_left_over(operation, base, place):
                    continue
                return _refused(principal, "write", key, needed)
            if not self._is_well_formed(asked, needed & held, held, row, operation):
                shown = repr(key[:KEY_SHOWN_BYTES])[1:]
                return NotAllowed(
                    f"{principal} may not change {shown} in this way: with its rights, as the record is now"
                )
            if isinstance(operation, Put) and not self._may_name(
                principal, base, operation, puts, new
            ):
                return _refused(principal, "name another log's ledger in", key, WRITE)
            if isinstance(operation, Put) and operation.lease:
                if not row.leased:
                    return _refused(principal, "put under a lease", key, 0)
                lease = self._state.leases.get(operation.lease)
                theirs = operation.lease >= self._state.next_lease  # granted meanwhile, to somebody
                owner = self._owner or principal
                if theirs or (lease is not None and lease.owner and lease.owner != owner):
                    return NotAllowed(
                        f"{principal} may not use lease {operation.lease}: it is another's"
                    )
        return None

    def _is_well_formed(
        self, asked: "_Asked", by: int, held: int, row: KeyClass, operation: Put | Delete
    ) -> bool:
        """Does it change that key as it may? ``by``: the rights of ``held`` that let it change it at all."""
        shapes = [row.form] if row.form is not None else []
        if row.shape is not None and not by & ~(JANITOR | HOLDER):
            shapes.append(row.shape)
        key, principal = operation.key, asked.principal
        if not shapes and not row.held and key != self._classes.clock:
            return True
        change = Change(
            key,
            self._value(key),
            asked.after[key],
            self._value,
            asked.then,
            lambda log: self._path(self._log_names.get(log, b""))[0],
            lambda bookie: self._is_bookie(principal, bookie.encode()),
            bool(asked.base & JANITOR),
            held,
            lambda other: other in asked.pinned,
        )
        try:
            fits = all(shape(change) for shape in shapes)
        except DistributedLogError:
            fits = False
        if row.held:
            fits = fits and self._is_free_for(principal, key)
        if key == self._classes.clock:
            fits = fits and self._is_in_time(change)
        return fits or self._cannot_hold(asked.transaction, key)

    def _value(self, key: bytes) -> bytes | None:
        stored = self._state.stored.get(key)
        return None if stored is None else stored[HEAD.size :]

    def _is_free_for(self, principal: str, key: bytes) -> bool:
        """Does no lease of somebody else's hold it?"""
        found = self._state.get(key)
        lease = None if found is None else self._state.leases.get(found.lease)
        return lease is None or lease.owner == principal

    def _is_in_time(self, change: Change) -> bool:
        """Does the clock go on, and no faster than this node has seen time pass?"""
        classes, now_ms = self._classes, self._now_s() * 1000
        if change.after is None:
            return False
        try:
            before = 0 if change.before is None else classes.clock_ms(change.before)
            after = classes.clock_ms(change.after)
        except DistributedLogError:
            return False
        if self._clock_since is None or before < self._clock_since[0]:
            self._clock_since = (before, now_ms)
        seen, since_ms = self._clock_since
        return before <= after <= seen + (now_ms - since_ms) + classes.clock_step_ms

    def _cannot_hold(self, transaction: Transaction, key: bytes) -> bool:
        """Is its condition past on this key, or on one that is never made again? Nothing will come of it.

        Its asker is told so, as whoever comes too late, and not that it may not.
        """
        for one in transaction.compares:
            found = self._state.get(one.key)
            if one.kind == "exists" or one.holds(found):
                continue
            if one.kind == "mod_revision":
                past = 0 < one.number <= self._state.revision  # no change has that revision again
            elif found is None:
                past = one.number > 0 and self._classes.of(one.key).lasting
            else:
                # Not a later version: the asker's next transactions may reach it before this is applied.
                own = one.key == key or self._classes.of(one.key).lasting
                past = own and 0 < one.number < found.version
            held = one.key == key and found is not None and self._classes.of(key).held
            if past or held:
                return True
        return False

    def _may_name(
        self,
        principal: str,
        base: int,
        put: Put,
        puts: Mapping[bytes, bytes],
        new: Mapping[bytes, bytes],
    ) -> bool:
        """May it write the ledger that this value names, if it names one that was not named there before?

        The bookie that repairs, and proxies, follow such a name with rights that its writer need not have.
        """
        ledger_in = self._classes.of(put.key).ledger_in
        if ledger_in is None or base & JANITOR:
            return True
        try:
            named = ledger_in(put.value)
        except DistributedLogError:
            return False
        stored = self._state.stored.get(put.key)
        with contextlib.suppress(DistributedLogError):
            if stored is not None and ledger_in(stored[HEAD.size :]) == named:
                return True
        return bool(self._on_ledger(principal, named, puts.get(named), new) & WRITE)

    def verdict(self, principal: str, refused: NotAllowed | None) -> NotAllowed | None:
        """What comes of a judgement in this mode: in ``report`` it is counted, and done all the same."""
        if refused is not None and self._narrowing:
            refused = NotAllowed(
                f"{refused}, and the token is narrowed to {self._reach()}",
                NotAllowed.RESTRICTED_TOKEN,
            )
        if refused is None or self.mode == "required":
            return refused
        if self.mode == "report":
            what = (principal, str(refused))
            if what in self.would_refuse or len(self.would_refuse) < WOULD_REFUSE_MAX:
                self.would_refuse[what] = self.would_refuse.get(what, 0) + 1
        return None

    def _reach(self) -> str:
        """What the token that was shown is for: "read of orders in ns"."""
        return ", ".join(
            f"{words(rights)} of {path or 'all'} in {namespace}"
            for namespace, path, rights in self._narrowing
        )

    def read(self, principal: str, start: bytes, end: bytes | None) -> NotAllowed | Parts | None:
        """A read or a watch, in this mode; ``end`` None: of one key."""
        if self.mode == "open":
            return None
        if end is None:
            return self.verdict(principal, self.why_not_read(principal, start))
        found = self.why_not_range(principal, start, end)
        if found is None or (self.mode == "required" and not isinstance(found, NotAllowed)):
            return found
        if not isinstance(found, NotAllowed):
            if callable(found) or found == ((start, end),):
                return None
            found = _refused(principal, "list all of", start, READ)
        return self.verdict(principal, found)

    def transact(self, principal: str, transaction: Transaction) -> NotAllowed | None:
        """A change, in this mode. What says who may do what changes otherwise, in every mode."""
        for operation in transaction.operations:
            if operation.key.startswith(KEPT):
                return _refused(principal, "write", operation.key, 0)
        if self.mode == "open":
            return None
        return self.verdict(principal, self.why_not_transact(principal, transaction))

    def act(self, principal: str, transaction: Transaction) -> tuple[str, str] | None:
        """What a line of the audit tells of it, if one does: the act and its subject. Not what nodes do."""
        if principal.startswith(("bookie/", "metadata/", "proxy/")):
            return None
        told = self._classes.told
        for operation in transaction.operations:
            key = operation.key
            tell = told.get(key[: key.find(b"/") + 1])
            if tell is None:
                continue
            puts = {
                one.key: one.value if isinstance(one, Put) else None
                for one in transaction.operations
            }
            stored = self._state.stored.get(key)
            found = tell(key, puts, None if stored is None else stored[HEAD.size :])
            if found is not None:
                return found
        return None

    def op(self, principal: str, needed: int, what: str) -> NotAllowed | None:
        """What goes by no key, in this mode: any one of these rights of the cluster."""
        if self.mode == "open" or needed & self.cluster_rights(principal):
            return None
        refused = NotAllowed(f"{principal} may not {what}: it needs {words(needed)}")
        return self.verdict(principal, refused)

    def admins(self) -> list[str]:
        """The users, not disabled, who may say who may what."""
        found = []
        start = GRANT_PREFIX
        while keys := self._state.keys.between(start, prefix_end(GRANT_PREFIX), PAGE):
            for key in keys:
                try:
                    name, namespace, path = grant_of(key)
                except CorruptData:
                    continue
                if not namespace and not path and self._is_admin(name, key):
                    found.append(name)
            start = keys[-1] + b"\0"
        return found

    def _is_admin(self, name: str, grant: bytes) -> bool:
        """Is that so by itself? Not asked by `grants`: these are a narrowed asker's, where there is one."""
        try:
            rights = ROLES[decode_grant(self._state.stored[grant][HEAD.size :])]
        except (CorruptData, UnsupportedFormat):
            return False
        return bool(rights & ADMIN) and self.is_live(f"user/{name}")


class _Asked:
    """A transaction that is checked: computed once, for it may change some thousand keys."""

    def __init__(
        self, state: KeyValueState, principal: str, base: int, transaction: Transaction
    ) -> None:
        self.principal = principal
        self.base = base
        self.transaction = transaction
        self.after = {
            one.key: one.value if isinstance(one, Put) else None for one in transaction.operations
        }
        self.pinned = {
            one.key
            for one in transaction.compares
            if one.kind != "exists" and one.holds(state.get(one.key))
        }
        """Keys whose present version is a condition of it."""
        self._state = state

    def then(self, key: bytes) -> bytes | None:
        """The value of a key after all that is done at once."""
        if key in self.after:
            return self.after[key]
        stored = self._state.stored.get(key)
        return None if stored is None else stored[HEAD.size :]


KEPT = (TRUST_PREFIX, AUDIT_PREFIX, b"secret/")
"""Put by the leader itself alone."""


def _refused(principal: str, verb: str, key: bytes, needed: int) -> NotAllowed:
    """The same for what is absent and what is forbidden; the key is the asker's own word."""
    shown = repr(key[:KEY_SHOWN_BYTES])[1:]
    namespace, of_a_log, log = key.removeprefix(NAMES).partition(b"\0")
    if key.startswith(NAMES) and of_a_log:
        name, place = (one[:KEY_SHOWN_BYTES].decode(errors="replace") for one in (log, namespace))
        shown = f"log {name!r} of {place}"
    return NotAllowed(f"{principal} may not {verb} {shown}: it needs {words(needed)}")


def _is_late(transaction: Transaction, key: bytes, stored: bytes) -> bool:
    """Was that key changed since the transaction's condition on it was read?"""
    version = HEAD.unpack_from(stored)[0]
    return any(
        one.key == key and one.kind == "version" and one.number < version
        for one in transaction.compares
    )


def is_within(parts: Parts, key: bytes) -> bool:
    """Is it what somebody may see?"""
    if callable(parts):
        return parts(key)
    return any(start <= key < end for start, end in parts)


def _apart(windows: list[tuple[bytes, bytes]]) -> Windows:
    """In order, none overlapping another."""
    found: list[tuple[bytes, bytes]] = []
    for start, end in sorted(windows):
        if found and start < found[-1][1]:
            start = found[-1][1]
        if start < end:
            found.append((start, end))
    return tuple(found)
